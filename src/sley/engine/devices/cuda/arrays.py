"""Arrays of other libraries: their addresses for kernels, without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sley.engine.devices.cuda.driver import module
from sley.engine.devices.device import Memory, View
from sley.engine.types import ARRAY_TYPES, DATA_TYPES
from sley.errors import Place, Rule
from sley.errors.devices import K504, K519
from sley.errors.runtime import R504

_CUDA, _CUDA_MANAGED = 2, 13  # DLPack's kinds of devices: dlpack.h, DLDeviceType
_KINDS = {1: "the host", 3: "the host's pinned memory"}


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


def view(array: Any, ordinal: int, *, what: str) -> View:
    """A view of an array on device `ordinal`, whose context is current; see `Device.view`.

    Uses DLPack, else version 3 of the CUDA array interface; uint8 and uint16 elements may be the
    bits of types that it lacks. Doesn't synchronise with the array's producer: kernels start after
    it on the caller's stream. K519 for an object that isn't an array.
    """
    views = module("cuda.core.utils").StridedMemoryView
    _check_kind(array, ordinal, what)
    try:
        found = views.from_any_interface(array, stream_ptr=-1)
    except Exception as error:  # any library's own, of any class
        name = f"{type(array).__module__}.{type(array).__qualname__}"
        text = f"{name}, which gave: {type(error).__name__}: {error}"
        raise _unfit(K519, text, ordinal, what) from None
    if found.device_id != ordinal:
        raise _unfit(K504, f"an array on device {found.device_id}", ordinal, what)
    dtype = _dtype(array, found)
    if dtype not in ARRAY_TYPES:
        raise R504.error(
            at=Place(detail=what), expected=f"one of {', '.join(DATA_TYPES)}", found=dtype
        )
    shape, strides = tuple(found.shape), found.strides
    if strides is not None and not _side_by_side(shape, tuple(strides)):
        raise K519.error(
            at=Place(detail=what),
            expected="elements side by side, in the order of the indices",
            found=f"shape {list(shape)} with strides of {list(strides)} elements",
        )
    return View(int(found.ptr), int(found.size), dtype, not found.readonly)


def _check_kind(array: Any, ordinal: int, what: str) -> None:
    """K504 for an array that isn't on a GPU, K519 for one whose device can't be determined."""
    if not hasattr(array, "__dlpack_device__"):
        return
    try:
        kind, _ = array.__dlpack_device__()
    except Exception as error:  # any library's own, of any class
        raise _unfit(K519, f"{type(error).__name__}: {error}", ordinal, what) from None
    if kind not in (_CUDA, _CUDA_MANAGED):
        place = _KINDS.get(int(kind), f"a device of another kind ({int(kind)})")
        raise _unfit(K504, f"an array on {place}", ordinal, what)


def _unfit(rule: Rule, found: str, ordinal: int, what: str) -> Exception:
    return rule.error(at=Place(detail=what), expected=f"an array on device {ordinal}", found=found)


def _dtype(array: Any, found: Any) -> str:
    """The name of the elements' type. cuda-core recognises bfloat16 only if the package ml_dtypes
    is installed, and some other types never; the name is then that of the array's own `dtype`."""
    try:
        return str(found.dtype.name if found.dtype.isnative else found.dtype.str)
    except (NotImplementedError, TypeError):
        return str(getattr(array, "dtype", "a type without a name")).rpartition(".")[2]


def _side_by_side(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an array is C-contiguous; strides count elements."""
    if 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True
