"""Algorithms add in the proven order, so that all ranks get the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import CATALOG, build
from sley.errors import SleyError
from sley.ir.cut import border
from sley.ir.groups import without_groups
from sley.ir.words import ReduceOp
from sley.verification import SumOrder
from support.generators.sampling import each_value
from support.processes.rank_threads import Limits, execute

Array = np.ndarray[Any, Any]
NODES, GPUS, RANKS, COUNT = 3, 4, 12, 12 * 40 + 7
REDUCTIONS = ("allreduce", "reduce", "reducescatter")
REDUCING = [n for n, a in CATALOG.items() if a.collective in REDUCTIONS]


def values(count: int = COUNT) -> Array:
    """float32 (ranks, count) of many magnitudes, so that each order of a sum gives other bits."""
    random = np.random.default_rng(1)
    data = random.standard_normal((RANKS, count)) * 10.0 ** random.integers(-4, 5, (RANKS, count))
    return data.astype(np.float32)


def compiled(name: str, in_place: bool) -> sley.Plan:
    sizes = (
        {"nodes": NODES, "gpus": GPUS} if "nodes" in CATALOG[name].parameters else {"ranks": RANKS}
    )
    return sley.compile(build(name, **sizes, in_place=in_place), instances=2)


def run(name: str, in_place: bool, data: Array, op: ReduceOp = ReduceOp.SUM) -> list[Array]:
    """Each rank's output."""
    return execute(compiled(name, in_place), list(data), reduce_op=op)


def in_order(order: SumOrder, data: Array) -> dict[int, Array]:
    """What each rank's sums are, of the data of all ranks."""
    c, trees = order.plan.collective, order.trees
    starts = border(np.arange(c.chunks + 1), c.chunks, COUNT, np.dtype(np.float32).itemsize)

    def total(tree: int, block: int, at: slice) -> Array:
        if not (parts := trees.parts[tree]):
            return data[tree, block * COUNT :][at]
        return total(parts[0], block, at) + total(parts[1], block, at)

    found: dict[int, list[Array]] = {}
    for place, tree in zip(order.place.tolist(), order.tree.tolist(), strict=True):
        rank = int(np.searchsorted(c.output_offset, place, side="right")) - 1
        # Where a ReduceScatter takes an input, or an AllReduce the chunk of the output.
        block, chunk = divmod(int(c.values[int(c.expected[place])][0]), c.chunks)
        found.setdefault(rank, []).append(total(tree, block, slice(*starts[chunk : chunk + 2])))
    return {rank: np.concatenate(sums) for rank, sums in found.items()}


@pytest.mark.parametrize(("name", "in_place"), each_value(REDUCING, (False, True)))
def test_the_proven_order_gives_the_bits(name: str, in_place: bool) -> None:
    """Of all instances, and of tiles and what is left over of them, by an element's position."""
    plan = compiled(name, in_place)
    order = SumOrder.of(plan)
    scatters = CATALOG[name].collective == "reducescatter"
    data = values(RANKS * COUNT if scatters else COUNT)
    if not order.is_fixed:  # the CPU runtime has no switches
        order = SumOrder.of(without_groups(plan))
    outputs = execute(plan, list(data), Limits(slot_bytes=64), reduce_op=ReduceOp.SUM)
    for rank, expected in in_order(order, data).items():
        assert outputs[rank].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "name",
    [
        *("one-step-allreduce", "rank-order-allreduce", "chain-allreduce"),
        *("one-step-reducescatter", "flat-reduce"),
    ],
)
def test_an_algorithm_adds_in_the_order_of_the_ranks(name: str) -> None:
    for in_place in (False, True):
        order = SumOrder.of(compiled(name, in_place))
        assert order.is_one
        assert str(order) == f"order of every sum: [0..{RANKS - 1}]"


@pytest.mark.parametrize("root", range(4))
def test_a_ring_in_order_adds_in_it_to_any_root(root: int) -> None:
    for in_place in (False, True):
        program = build("ring-reduce", ranks=4, root=root, same_bits=True, in_place=in_place)
        assert SumOrder.of(sley.compile(program)).follows([[0, 1, 2, 3]])
    with pytest.raises(SleyError, match=r"L121.*\n.*as a ring adds rank by rank"):
        build("ring-reduce", ranks=4, root=root, same_bits="balanced")


@pytest.mark.parametrize(
    ("name", "in_place"),
    each_value([n for n in REDUCING if CATALOG[n].collective == "allreduce"], (True, False)),
)
def test_all_ranks_have_the_same_bits(name: str, in_place: bool) -> None:
    outputs = {output.tobytes() for output in run(name, in_place, values())}
    assert len(outputs) == 1


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", [n for n in REDUCING if n.endswith("one-step-allreduce")])
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
