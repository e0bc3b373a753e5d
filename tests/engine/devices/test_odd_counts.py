"""Counts that are no multiple of anything: right, and in as many tiles as those beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor
from support.devices.device_calls import executor, small_slots, threads
from support.generators.sampling import each_value

RANKS, MOST, UNIT_BYTES = 3, 4099, 16
DTYPES = {"Simple": "int16", "LL": "int8", "LL128": "int16", "Direct": "uint8"}
PLANS = {
    ("ring-allreduce", True): lambda data: [data.sum(0, data.dtype)] * RANKS,
    ("ring-allgather", False): lambda data: [data.reshape(-1)] * RANKS,
}
"""What the ranks have at the end, from rows of what they had."""


def sample() -> Iterable[int]:
    """Every remainder of a unit, fewer elements than chunks, and some larger counts."""
    return [*range(1, 20), 31, 127, *np.random.default_rng(7).integers(128, MOST, 8), MOST]


def check(name: str, in_place: bool, protocol: str, engine: Engine, counts: Iterable[int]) -> None:
    """Calls over counts, with arrays that begin at any element behind a multiple of 16 bytes."""
    plan = sley.compile(build(name, ranks=RANKS, in_place=in_place), protocol=protocol, instances=2)
    on = executor(plan, engine=engine, slot_bytes=2 * small_slots(plan))
    dtype, expected = np.dtype(DTYPES[protocol]), PLANS[name, in_place]
    numbers = np.random.default_rng(3).integers(0, 99, (RANKS, MOST)).astype(dtype)
    room = np.empty((2, RANKS, RANKS * MOST + 2 * UNIT_BYTES), dtype)
    for count in map(int, counts):
        data, wanted = numbers[:, :count], expected(numbers[:, :count])
        room[:] = 77

        def places(memory: np.ndarray, size: int, shift: int, count: int = count) -> list[Any]:
            first = (count * shift + np.arange(RANKS) * (shift - 1)) % UNIT_BYTES
            return [row[at : at + size] for row, at in zip(memory, first, strict=True)]

        sent = places(room[0], count, 1)
        for own, row in zip(sent, data, strict=True):
            own[:] = row
        results = sent if in_place else places(room[1], wanted[0].size, 2)
        on(sent, *([] if in_place else [results]))
        for found, right in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(found, right, f"{count} elements")
        written = sum(result.size for result in results) + (0 if in_place else data.size)
        for own in (*results, *sent):
            own[:] = 77
        assert (room == 77).all(), f"{count} elements: {written} were to be written"


@pytest.mark.parametrize(("plan", "protocol", "engine"), each_value(PLANS, DTYPES, Engine))
def test_odd_counts_at_odd_addresses_are_right(
    plan: tuple[str, bool], protocol: str, engine: Engine
) -> None:
    check(*plan, protocol, engine, sample())


@pytest.mark.slow
@pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
@pytest.mark.parametrize("protocol", DTYPES)
@pytest.mark.parametrize(("name", "in_place"), PLANS)
def test_every_count_at_odd_addresses_is_right(
    name: str, in_place: bool, protocol: str, engine: Engine
) -> None:
    check(name, in_place, protocol, engine, range(1, MOST + 1))


@pytest.mark.parametrize("protocol", DTYPES)
@pytest.mark.parametrize("instances", [1, 16])
def test_a_little_more_than_a_power_of_two_needs_no_further_tile(
    protocol: str, instances: int
) -> None:
    """A ring of 8 ranks on one device, from a unit for each chunk to 256 MiB."""
    ring = build("ring-allreduce", ranks=8, in_place=True)
    plan = sley.compile(ring, protocol=protocol, instances=instances)
    tables, chunks = Executor(plan, [threads()] * 8).links.tables[0], 8 * instances
    for item in (1, 2, 4):
        for bits in range(4, 28 - chunks.bit_length() + 1):
            count = chunks << bits
            tiles = [tables.cut(item, count + more)["tiles"] for more in (0, 1, 3, count // 40)]
            assert len({*tiles[: 4 if tiles[0] <= 8 else 3]}) == 1, (item, count, tiles)


@pytest.mark.parametrize("protocol", DTYPES)
@pytest.mark.parametrize("schedule", ["msccl", "hpds"])
def test_tiles_of_a_call_have_one_length(protocol: str, schedule: str) -> None:
    """So does the last one, but for what is left over of a unit for each tile."""
    ring = build("ring-allreduce", ranks=RANKS, in_place=True)
    plan = sley.compile(ring, protocol=protocol, schedule=schedule)
    tables = executor(plan, slot_bytes=4096).links.tables[0]
    for count in (*range(0, 40_000, 997), 10**6 + 3, 10**9 + 1):
        cut = tables.cut(4, count)
        last = cut["chunk"] - (cut["tiles"] - 1) * cut["tile"]
        assert cut["tiles"] <= 1 or cut["tile"] - last <= cut["tiles"] * UNIT_BYTES // 4, count
