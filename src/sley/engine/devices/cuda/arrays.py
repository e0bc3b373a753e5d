"""Arrays of other libraries: their addresses for kernels, without a copy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sley.engine import native
from sley.engine.devices.device import Memory, View
from sley.engine.types import ARRAY_TYPES, DATA_TYPES
from sley.errors import Place, Rule
from sley.errors.devices import K504, K519
from sley.errors.runtime import R504

_CUDA, _CUDA_MANAGED = 2, 13  # DLPack's kinds of devices: dlpack.h, DLDeviceType
_KINDS = {1: "the host", 3: "the host's pinned memory"}
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}  # DLDataTypeCode
_VERSION = (1, 0)  # of DLPack, the newest that is understood


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


class _Lent(NamedTuple):
    """What a library says of an array. strides: in elements; None if it has no gaps."""

    address: int
    ordinal: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    writable: bool


def view(array: Any, device: native.CudaDevice, ordinal: int, *, what: str) -> View:
    """A view of an array on device `ordinal`; see `Device.view`.

    Uses DLPack, else version 3 of the CUDA array interface; uint8 and uint16 elements may be the
    bits of types that it lacks. Doesn't synchronise with the array's producer: kernels start after
    it on the caller's stream. K519 for an object that isn't an array.
    """
    _check_kind(array, ordinal, what)
    try:
        if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
            found = _by_dlpack(array)
        else:
            found = _by_interface(array.__cuda_array_interface__, device, ordinal)
    except Exception as error:  # any library's own, of any class
        name = f"{type(array).__module__}.{type(array).__qualname__}"
        text = f"{name}, which gave: {type(error).__name__}: {error}"
        raise _unfit(K519, text, ordinal, what) from None
    if found.ordinal != ordinal:
        raise _unfit(K504, f"an array on device {found.ordinal}", ordinal, what)
    if found.dtype not in ARRAY_TYPES:
        raise R504.error(
            at=Place(detail=what), expected=f"one of {', '.join(DATA_TYPES)}", found=found.dtype
        )
    if found.strides is not None and not _side_by_side(found.shape, found.strides):
        raise K519.error(
            at=Place(detail=what),
            expected="elements side by side, in the order of the indices",
            found=f"shape {list(found.shape)} with strides of {list(found.strides)} elements",
        )
    return View(found.address, math.prod(found.shape), found.dtype, found.writable)


def _by_dlpack(array: Any) -> _Lent:
    unordered = -1  # instead of a stream: the producer needn't synchronise
    try:
        capsule = array.__dlpack__(stream=unordered, max_version=_VERSION)
    except TypeError:  # the library knows no versions
        capsule = array.__dlpack__(stream=unordered)
    address, shape, strides, code, bits, writable = native.lent_by(capsule)
    if code in _CODES and bits:
        dtype = f"{_CODES[code]}{bits}"
    else:
        dtype = str(getattr(array, "dtype", "a type without a name")).rpartition(".")[2]
    gaps = None if strides is None else tuple(strides)
    return _Lent(address, array.__dlpack_device__()[1], tuple(shape), gaps, dtype, writable)


def _by_interface(said: dict[str, Any], device: native.CudaDevice, ordinal: int) -> _Lent:
    if said["version"] < 3 or said.get("mask") is not None:
        raise BufferError("version 3 of the CUDA array interface, without a mask, is needed")
    address, readonly = said["data"]
    place = device.place_of(address) if address else ordinal
    if place is None:
        raise BufferError("memory that the driver doesn't know")
    kind, strides = np.dtype(said["typestr"]), said.get("strides")
    if strides is not None:
        strides = tuple(stride // kind.itemsize for stride in strides)
    dtype = kind.name if kind.isnative else kind.str
    return _Lent(address, place, tuple(said["shape"]), strides, dtype, not readonly)


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
