"""Words that carry flags: a message is taken only when all of its words have arrived."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.types import DATA_TYPES
from support.devices.device_calls import threads

ENTRIES = """
extern "C" void put(sley::u64* slot, sley::u64 flag, sley::u64 value) {
    sley::put_ll(slot, 0, flag, value);
}
extern "C" int taken(const sley::u64* slot, sley::u64 flag, sley::u64* value) {
    return sley::take_ll(slot, 0, flag, value) ? 1 : 0;
}
"""
VALUE = 0x0123456789ABCDEF
PLAN = sley.compile(build("ring-allreduce", ranks=2, in_place=True), protocol="LL")


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    variant = Variant(Platform.CPU, DATA_TYPES["int64"].number, sley.ReduceOp.SUM)
    text = Kernels.of(PLAN).source(Engine.INTERPRETED, variant) + ENTRIES
    return ctypes.CDLL(str(threads().compiled(text)))


def taken(library: ctypes.CDLL, slot: np.ndarray, flag: int) -> int | None:
    """The value that a slot holds for a message's flag; None where the message isn't there."""
    value = ctypes.c_uint64()
    address = ctypes.c_void_p(slot.ctypes.data)
    found = library.taken(address, ctypes.c_uint64(flag), ctypes.byref(value))
    return value.value if found else None


def test_a_word_is_taken_only_with_both_its_flags(library: ctypes.CDLL) -> None:
    whole = np.zeros(2, np.uint64)
    library.put(ctypes.c_void_p(whole.ctypes.data), ctypes.c_uint64(7), ctypes.c_uint64(VALUE))
    assert taken(library, whole, 7) == VALUE
    assert taken(library, whole, 8) is None
    for half in range(2):
        slot = np.zeros(2, np.uint64)
        slot[half] = whole[half]
        assert taken(library, slot, 7) is None, f"half {1 - half} is not there yet"
