"""Data movement of pieces: every length and alignment, for one worker and for warps of them.

The workers of a block, which run at once on a GPU, run here one after the other.
"""

from __future__ import annotations

import ctypes
from itertools import product
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.types import DATA_TYPES
from support.devices.device_calls import threads

ENTRIES = """
namespace sley {
template <class F>
static void by_all_workers(F f) {
    for (own_number = 0; own_number < workers(); ++own_number) f();
}
template <bool kCombines, bool kCopies>
static void elements(Piece p) {
    by_all_workers([=] { carry_elements<kCombines, kCopies>(p); });
}
template <bool kReceives, bool kCombines, bool kSends>
static void flagged(Piece p, Flags flags) {
    by_all_workers([=] { carry_flagged<kReceives, kCombines, kSends>(p, flags); });
}
}
// Returns the number of vectors that were loaded.
extern "C" int carry(int combines, int copies, char* out, char* copy, char* in, char* local,
                     int n) {
    const sley::Piece p{out, copy, in, local, n};
    sley::own_vectors = 0;
    if (combines && copies) sley::elements<true, true>(p);
    else if (combines) sley::elements<true, false>(p);
    else if (copies) sley::elements<false, true>(p);
    else sley::elements<false, false>(p);
    return sley::own_vectors;
}
extern "C" void divide(char* out, int n, int divisor) {
    sley::by_all_workers([=] { sley::divide_elements(out, n, divisor); });
}
extern "C" void send(char* slot, char* in, int n) {
    sley::flagged<false, false, true>({nullptr, slot, in, nullptr, n}, {0, 7, 0, 0, 0});
}
extern "C" void pass_on(char* out, char* slot, char* in, char* local, int n) {
    sley::flagged<true, true, true>({out, slot, in, local, n}, {7, 9, 0, 0, 0});
}
extern "C" void receive(char* out, char* in, int n) {
    sley::flagged<true, false, false>({out, nullptr, in, nullptr, n}, {9, 0, 0, 0, 0});
}
"""
LENGTHS = (0, 1, 3, 4, 31, 121, 1000, 4099)
SHIFTS = ((0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 0, 1), (3, 0, 2, 1), (4, 4, 4, 4))
"""Elements from a multiple of 16 bytes to each of the four places of a piece."""


def library(protocol: str, dtype: str, workers: int) -> ctypes.CDLL:
    """The primitives for blocks of so many workers, in warps of at most 32."""
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True), protocol=protocol)
    variant = Variant(Platform.CPU, DATA_TYPES[dtype].number, sley.ReduceOp.SUM)
    text = Kernels.of(plan).source(Engine.INTERPRETED, variant)
    for old, new in (
        ("int thread() { return 0; }", "int thread() { return own_number; }"),
        ("int workers() { return 1; }", f"int workers() {{ return {workers}; }}"),
        (
            "constexpr int kWarp = 1;",
            f"constexpr int kWarp = {min(workers, 32)}; static int own_number, own_vectors;",
        ),
        (
            "Vector load_vector(const char* at) {",
            "Vector load_vector(const char* at) { ++own_vectors;",
        ),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return ctypes.CDLL(str(threads().compiled(text + ENTRIES)))


class Place:
    """An array between guard zones, some elements behind a multiple of 16 bytes."""

    def __init__(self, values: np.ndarray, shift: int) -> None:
        kind, room = values.dtype, 64 // values.itemsize
        memory = np.zeros(len(values) + 3 * room, kind)
        offset = -memory.ctypes.data % 16 // values.itemsize
        self._all = memory[offset:]
        self._first = room + shift
        self._all[:] = 77
        self.values = self._all[self._first : self._first + len(values)]
        self.values[:] = values

    @property
    def address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.values.ctypes.data)

    def holds(self, expected: np.ndarray) -> bool:
        """Whether the values are these, and nothing beside them was written."""
        beside = np.delete(self._all, np.s_[self._first : self._first + len(self.values)])
        return bool((self.values == expected).all() and (beside == 77).all())


def random(length: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 50, length).astype(DATA_TYPES[dtype].array)


def places(arrays: list[Any], shifts: tuple[int, ...]) -> list[Place]:
    return [Place(array, shift) for array, shift in zip(arrays, shifts, strict=True)]


@pytest.mark.parametrize("workers", [1, 96])
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_elements_are_moved_whatever_their_number_and_alignment(dtype: str, workers: int) -> None:
    on = library("Simple", dtype, workers)
    for length, shifts, combines, copies in product(LENGTHS, SHIFTS, (0, 1), (0, 1)):
        values = random(length, dtype)
        empty, other = np.zeros_like(values), values[::-1].copy()
        out, copy, source, local = places([empty, empty, values, other], shifts)
        on.carry(combines, copies, *(p.address for p in (out, copy, source, local)), length)
        expected = values + other if combines else values
        case = (length, shifts, combines, copies)
        assert out.holds(expected), case
        assert copy.holds(expected if copies else empty), case
        assert source.holds(values), case
        assert local.holds(other), case


def test_vectors_are_stored_whatever_the_distances_of_addresses_from_one() -> None:
    """Both results at once, if all distances are equal; and only the last vector isn't one whose
    operands are at other distances, since what is loaded around them would be beyond the end."""
    on, length = library("Simple", "int32", 96), 1000
    for shifts, combines, copies in product((*SHIFTS, (3, 3, 3, 3)), (0, 1), (0, 1)):
        values = random(length, "int32")
        out, copy, source, local = places([values] * 4, shifts)
        results = [shifts[0], shifts[1]][: 1 + copies]
        operands = [shifts[2], shifts[3]][: 1 + combines]
        addresses = (p.address for p in (out, copy, source, local))
        loaded = on.carry(combines, copies, *addresses, length)
        if len({*results, *operands}) == 1:
            results = results[:1]
        vectors = sum((length - -at % 4) // 4 - ({at} != {*operands}) for at in results)
        assert loaded == vectors * (1 + combines), (shifts, combines, copies)


@pytest.mark.parametrize("workers", [1, 96])
def test_elements_are_divided_whatever_their_number_and_alignment(workers: int) -> None:
    on = library("Simple", "int32", workers)
    for length, shift in product(LENGTHS, range(4)):
        values = random(length, "int32")
        (place,) = places([values], (shift,))
        on.divide(place.address, length, 3)
        assert place.holds(values // 3), (length, shift)


@pytest.mark.parametrize(
    ("protocol", "dtype", "workers"),
    [("LL", "int32", 1), ("LL", "uint8", 96), ("LL128", "uint8", 1), ("LL128", "int32", 96)],
)
def test_flagged_messages_arrive_whatever_their_length_and_alignment(
    protocol: str, dtype: str, workers: int
) -> None:
    on = library(protocol, dtype, workers)
    for length, shifts in product(LENGTHS, SHIFTS):
        values = random(length, dtype)
        empty, other = np.zeros_like(values), values[::-1].copy()
        out, last, source, local = places([empty, empty, values, other], shifts)
        room = np.zeros(2 * (values.nbytes + 8) // 8 + 16, np.uint64)
        first_slot, second_slot = places([room, room], (0, 0))
        on.send(first_slot.address, source.address, length)
        assert first_slot.values.any(), "a message without data has a flag all the same"
        on.pass_on(out.address, second_slot.address, first_slot.address, local.address, length)
        on.receive(last.address, second_slot.address, length)
        case = (length, shifts)
        assert out.holds(values + other), case
        assert last.holds(values + other), case
        assert source.holds(values), case
        assert local.holds(other), case
