"""CudaArray: memory of a GPU as an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sley.engine.devices.device import Memory
from sley.engine.types import DATA_TYPES


@dataclass(frozen=True)
class CudaArray:
    """A 1-D array in a device's memory, which other libraries view without a copy:
    `cupy.asarray(array)`, `torch.as_tensor(array, device="cuda:0")`. Types that the CUDA
    array interface lacks appear as their bits: add `.view(torch.bfloat16)`."""

    memory: Memory
    dtype: str
    elements: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.memory.address, False),
            "shape": (self.elements,),
            "typestr": DATA_TYPES[self.dtype].array.str,
            "version": 3,
        }
