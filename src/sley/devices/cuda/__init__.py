"""NVIDIA's GPUs, through cuda-core's packages and NVRTC. No compiler on the user's machine.

device.py     a GPU: its memory, the kernels loaded on it, and their launches
driver.py     the packages of the extra `cuda`; the driver's entry points, and what its errors mean
compiler.py   from text to machine code, which needs no GPU
arrays.py     arrays of PyTorch, CuPy and others
streams.py    streams, events, and whether a stream is captured
"""

from sley.devices.cuda.device import CudaDevice

__all__ = ["CudaDevice"]
