"""Tests that algorithms reduce in the documented order, so that all ranks get the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import CATALOG, build
from sley.ir.cut import border
from sley.ir.words import ReduceOp
from support.processes.rank_threads import execute

Array = np.ndarray[Any, Any]
NODES, GPUS, RANKS, COUNT = 3, 4, 12, 12 * 5 + 7
REDUCING = [n for n, a in CATALOG.items() if a.collective in ("allreduce", "reduce")]


def values() -> Array:
    """float32 (ranks, count) of many magnitudes, so that each order of a sum gives other bits."""
    random = np.random.default_rng(1)
    data = random.standard_normal((RANKS, COUNT)) * 10.0 ** random.integers(-4, 5, (RANKS, COUNT))
    return data.astype(np.float32)


def run(name: str, in_place: bool, data: Array, op: ReduceOp = ReduceOp.SUM) -> list[Array]:
    """Each rank's output."""
    sizes = (
        {"nodes": NODES, "gpus": GPUS} if "nodes" in CATALOG[name].parameters else {"ranks": RANKS}
    )
    plan = sley.compile(build(name, **sizes, in_place=in_place))
    return execute(plan, list(data), reduce_op=op)


def summed(data: Array, order: Iterable[int]) -> Array:
    """The sum of the ranks' data in an order."""
    return reduce(np.add, (data[rank] for rank in order))


def from_own(chunk: int) -> list[int]:
    """The ranks in order, starting with the chunk's own."""
    return [(chunk + turn) % RANKS for turn in range(RANKS)]


def chunk_of(element: Array, chunks: int) -> Array:
    """The chunk of each element of a block."""
    starts = border(np.arange(chunks + 1), chunks, COUNT, np.dtype(np.float32).itemsize)
    return np.searchsorted(starts, element, side="right") - 1


def by_chunk(data: Array, chunks: int, total: Callable[[Array, int], Array]) -> Array:
    """The result whose chunks are the `total` of each chunk."""
    chunk = chunk_of(np.arange(COUNT), chunks)
    return np.choose(chunk, [total(data, c) for c in range(chunks)])


def in_all_pairs(data: Array) -> Array:
    return by_chunk(data, RANKS, lambda d, c: summed(d, from_own(c)))


def in_two_levels(data: Array) -> Array:
    def total(d: Array, index: int) -> Array:
        lane, chunk = divmod(index, NODES)
        hosts = [
            summed(d, [host * GPUS + (lane + turn) % GPUS for turn in range(GPUS)])
            for host in range(NODES)
        ]
        return reduce(np.add, [hosts[(chunk + hop) % NODES] for hop in range(NODES)])

    return by_chunk(data, GPUS * NODES, total)


def in_two_steps(data: Array) -> Array:
    hosts = [summed(data, range(host * GPUS, (host + 1) * GPUS)) for host in range(NODES)]
    return reduce(np.add, hosts)


def to_lanes(data: Array) -> Array:
    def total(d: Array, lane: int) -> Array:
        hosts = [
            summed(d, [host * GPUS + (lane + turn) % GPUS for turn in range(GPUS)])
            for host in range(NODES)
        ]
        return reduce(np.add, hosts)

    return by_chunk(data, GPUS, total)


ORDERS: dict[str, Callable[[Array], Array]] = {
    "one-step-allreduce": lambda d: summed(d, range(RANKS)),
    "all-pairs-allreduce": in_all_pairs,
    "two-level-allreduce": in_two_levels,
    "two-level-one-step-allreduce": in_two_steps,
    "flat-reduce": lambda d: summed(d, range(RANKS)),
    "all-pairs-reduce": in_all_pairs,
    "two-level-reduce": to_lanes,
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_an_algorithm_sums_in_the_documented_order(name: str, in_place: bool) -> None:
    data = values()
    assert run(name, in_place, data)[0].tobytes() == ORDERS[name](data).tobytes()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", [n for n in REDUCING if CATALOG[n].collective == "allreduce"])
def test_all_ranks_have_the_same_bits(name: str, in_place: bool) -> None:
    outputs = {output.tobytes() for output in run(name, in_place, values())}
    assert len(outputs) == 1


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", [n for n in REDUCING if "one-step" in n])
@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
def test_min_and_max_of_zeros_of_both_signs_have_the_same_bits_on_all_ranks(
    name: str, in_place: bool, op: ReduceOp
) -> None:
    """The result's sign depends on the order of the operands, which is the same on all ranks."""
    data = np.where(np.random.default_rng(2).integers(2, size=(RANKS, COUNT)), 0.0, -0.0)
    outputs = {output.tobytes() for output in run(name, in_place, data.astype(np.float32), op)}
    assert len(outputs) == 1


@pytest.mark.parametrize("name", ["flat-reduce", "all-pairs-reduce", "two-level-reduce"])
def test_a_reduce_in_place_changes_only_the_data_of_the_root(name: str) -> None:
    data = values()
    outputs = run(name, True, data)
    for rank in range(1, RANKS):
        np.testing.assert_array_equal(outputs[rank], data[rank])


@pytest.mark.parametrize(
    ("name", "order"), [("all-pairs", from_own), ("one-step", lambda _: range(RANKS))]
)
def test_reduce_scatter_sums_in_the_documented_order(
    name: str, order: Callable[[int], Iterable[int]]
) -> None:
    data = np.concatenate([values()] * 2, axis=1)[:, : RANKS * 10]
    for in_place in (False, True):
        plan = sley.compile(build(f"{name}-reducescatter", ranks=RANKS, in_place=in_place))
        outputs = execute(plan, list(data))
        for rank, output in enumerate(outputs):
            part = data[:, rank * 10 : rank * 10 + 10]
            assert output.tobytes() == summed(part, order(rank)).tobytes()
