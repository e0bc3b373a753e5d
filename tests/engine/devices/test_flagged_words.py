"""Words that carry flags: a message is taken only when all of its words have arrived."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Executor
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.types import DATA_TYPES
from support.devices.device_calls import executor, threads, wrong

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
    return threads().build(text, ["put", "taken"])


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


def skip_to(on: Executor, tiles: int) -> None:
    """Sets the counters to what they are after so many tiles; the slots stay as they are."""
    boxes, memory, plan = on._boxes, on._mailboxes.memories, on.plan
    connections, steps = on._kernels.operands.connections, int(np.diff(plan.block_offset).max())

    def put(rank: int, at: int, value: int) -> None:
        threads().write(memory[rank], int(at), np.array([value], np.uint64).view(np.uint8))

    for block, rank in enumerate(plan.block_rank.tolist()):
        put(rank, boxes.memory[block], tiles)
        put(rank, boxes.progress[rank] + 8 * int(plan.block_number[block]), tiles * steps)
    for k, sends in enumerate(connections.sends.tolist()):
        put(int(connections.dst[k]), boxes.published[k], tiles * sends)
        put(int(connections.src[k]), boxes.consumed[k], tiles * sends)


def test_no_mark_is_left_long_enough_to_come_back() -> None:
    """A mark has 32 bits. Short messages leave words of their slot alone, but for some of them."""
    on = executor(PLAN, engine=Engine.INTERPRETED)
    connections, wiring = on._kernels.operands.connections, on.loaded.wiring
    tiles = wiring.slots // int(connections.sends[0])
    assert wrong(on, 300) == 0
    skip_to(on, (1 << 31) // int(connections.sends[0]) - tiles - 1)
    assert [wrong(on, 2) for _ in range(tiles + 1)] == [0] * (tiles + 1)
    for rank, at in zip(connections.dst.tolist(), on._boxes.slots.tolist(), strict=True):
        marks = np.empty(wiring.slots * wiring.slot_bytes // 4, np.uint32)
        threads().read(on._mailboxes.memories[rank], at, marks.view(np.uint8))
        assert marks[1::2].min() > (1 << 31) - 2 * wiring.slots
    assert wrong(on, 300) == 0
