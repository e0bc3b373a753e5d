"""NVIDIA GPUs, through their driver (`native/devices`) and NVRTC: the user needs no compiler.

device.py        a GPU: its memory, and the kernels loaded on it
driver.py        the driver's version
compiler.py      compilation to machine code, which needs no GPU
machine_code.py  what is compiled is kept; what another process compiles, for later
arrays.py        arrays of PyTorch, CuPy and others
streams.py       streams of sley and of other libraries
"""

from sley.engine.devices.cuda.device import CudaDevice

__all__ = ["CudaDevice"]
