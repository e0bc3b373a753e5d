"""NVIDIA GPUs, through cuda-core's packages and NVRTC: the user needs no compiler.

device.py     a GPU: its memory, the kernels loaded on it, and their launches
driver.py     the packages of the extra `cuda`; the driver's entry points and its errors
multicast.py  memory of several GPUs behind a switch
compiler.py   compilation to machine code, which needs no GPU
arrays.py     arrays of PyTorch, CuPy and others
streams.py    streams, events, and whether a stream is captured
"""

from sley.engine.devices.cuda.device import CudaDevice

__all__ = ["CudaDevice"]
