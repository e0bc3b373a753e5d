"""Tests that algorithms take the number of steps and send the amount of data known from theory."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import CATALOG
from sley.ir.dependencies import dependencies
from sley.ir.words import TransferKind
from support.inputs.algorithm_cases import GRIDS, program, sizes


def steps(built: sley.Program) -> int:
    """The longest chain of messages in which each message depends on the one before."""
    d, t = dependencies(built).dependencies, built.transfers
    order = np.argsort(d.after, kind="stable")
    remote = (t.src != t.dst).tolist()
    arrived, sendable = [0] * len(t), [0] * len(t)
    edges = iter(order.tolist())
    edge = next(edges, None)
    for transfer in range(len(t)):
        before = 0
        while edge is not None and d.after[edge] == transfer:
            if d.true[edge]:
                ready = arrived[d.before[edge]]
                if d.after_at_dst[edge]:
                    before = max(before, ready)
                else:
                    sendable[transfer] = max(sendable[transfer], ready)
            edge = next(edges, None)
        arrived[transfer] = max(before, sendable[transfer] + remote[transfer])
    return max(arrived)


def sent(built: sley.Program) -> float:
    """The data that the busiest rank sends, in blocks (a call's element count is one block)."""
    t = built.transfers
    remote = t.src != t.dst
    chunks = np.bincount(t.src[remote], weights=t.count[remote], minlength=built.collective.ranks)
    return float(chunks.max() / built.collective.chunks)


def two(n: int) -> float:
    return 2 * (n - 1) / n


def depth(n: int) -> int:
    """The depth of a binomial tree: the most set bits of a place."""
    return max(place.bit_count() for place in range(n))


FLAT: dict[str, tuple[Callable[[int], int], Callable[[int], float]]] = {
    "ring-allreduce": (lambda n: 2 * (n - 1), two),
    "bidirectional-ring-allreduce": (lambda n: n - 1, two),
    "one-step-allreduce": (lambda n: 1, lambda n: n - 1),
    "all-pairs-allreduce": (lambda n: 2, two),
    "rank-order-allreduce": (lambda n: 2, two),
    "chain-allreduce": (lambda n: 2 * (n - 1), lambda n: min(n - 1, 2)),
    "direct-alltonext": (lambda n: 1, lambda n: 1),
    "ring-allgather": (lambda n: n - 1, lambda n: n - 1),
    "all-pairs-allgather": (lambda n: 1, lambda n: n - 1),
    "ring-reducescatter": (lambda n: n - 1, lambda n: n - 1),
    "one-step-reducescatter": (lambda n: 1, lambda n: n - 1),
    "all-pairs-reducescatter": (lambda n: 1, lambda n: n - 1),
    "all-pairs-alltoall": (lambda n: 1, lambda n: n - 1),
    "ring-broadcast": (lambda n: n - 1, lambda n: 1),
    "ring-reduce": (lambda n: n - 1, lambda n: 1),
    "binomial-broadcast": (lambda n: depth(n), lambda n: ceil(log2(n))),
    "binomial-reduce": (lambda n: depth(n), lambda n: 1),
    "flat-broadcast": (lambda n: 1, lambda n: n - 1),
    "all-pairs-broadcast": (lambda n: min(n - 1, 2), lambda n: 1),
    "flat-reduce": (lambda n: 1, lambda n: 1),
    "all-pairs-reduce": (lambda n: 2, lambda n: 1),
    "flat-gather": (lambda n: 1, lambda n: 1),
    "flat-scatter": (lambda n: 1, lambda n: n - 1),
}
POWER_OF_TWO: dict[str, tuple[Callable[[int], int], Callable[[int], float]]] = {
    "recursive-halving-doubling-allreduce": (lambda n: 2 * int(log2(n)), two),
    "recursive-doubling-allgather": (lambda n: int(log2(n)), lambda n: n - 1),
    "swing-allreduce": (lambda n: 2 * int(log2(n)), two),
    "swing-doubling-allreduce": (lambda n: int(log2(n)), lambda n: int(log2(n))),
    "swing-allgather": (lambda n: int(log2(n)), lambda n: n - 1),
    "swing-reducescatter": (lambda n: int(log2(n)), lambda n: n - 1),
    "bine-broadcast": (lambda n: int(log2(n)), lambda n: int(log2(n))),
    "bine-reduce": (lambda n: int(log2(n)), lambda n: 1),
}
SIZED = [
    *((name, n, *theory) for name, theory in FLAT.items() for n in (2, 3, 4, 5, 8)),
    *((name, n, *theory) for name, theory in POWER_OF_TWO.items() for n in (2, 4, 8, 16)),
]


@pytest.mark.parametrize(("name", "ranks", "in_steps", "sends"), SIZED)
@pytest.mark.parametrize("in_place", [False, True])
def test_flat_algorithms_take_the_steps_and_data_of_theory(
    name: str,
    ranks: int,
    in_steps: Callable[[int], int],
    sends: Callable[[int], float],
    in_place: bool,
) -> None:
    built = program(name, {"ranks": ranks, "in_place": in_place})
    assert steps(built) == in_steps(ranks)
    assert sent(built) == pytest.approx(sends(ranks))


@pytest.mark.parametrize("name", [name for name in CATALOG if not CATALOG[name].has_both_places])
def test_an_algorithm_of_varying_counts_moves_other_data_than_that_of_equal_ones(name: str) -> None:
    for size in sizes(name):
        varying = program(name, {**size, "in_place": False})
        equal = program(name.removesuffix("v"), {**size, "in_place": False})
        assert varying.transfers == equal.transfers
        assert varying.collective.varies


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 12])
def test_folding_excess_ranks_adds_two_steps(ranks: int) -> None:
    built = program("recursive-halving-doubling-allreduce", {"ranks": ranks, "in_place": True})
    power = 1 << int(log2(ranks))
    assert steps(built) == 2 * log2(power) + 2
    assert sent(built) == pytest.approx(two(power) + 1)


@pytest.mark.parametrize("ranks", range(2, 35))
def test_double_binary_tree_takes_the_steps_and_data_of_theory(ranks: int) -> None:
    built = program("double-binary-tree-allreduce", {"ranks": ranks, "in_place": True})
    assert steps(built) <= 2 * ceil(log2(ranks))
    assert sent(built) <= 2
    t = built.transfers
    up = t.kind == TransferKind.REDUCE
    inner = [set(t.dst[up & (t.channel == tree)].tolist()) for tree in (0, 1)]
    assert len(inner[0] & inner[1]) <= ranks % 2, "a rank has children in one tree at most"
    for tree in (0, 1):
        assert np.bincount(t.dst[up & (t.channel == tree)]).max() <= 2, "a tree is binary"
        assert np.count_nonzero(up & (t.channel == tree)) == ranks - 1


@pytest.mark.parametrize(("nodes", "gpus"), [*GRIDS, (2, 8), (9, 2), (16, 3)])
def test_multi_tree_takes_the_steps_and_data_of_theory(nodes: int, gpus: int) -> None:
    """Between nodes, each double tree sends no more of its share than a double binary tree."""
    built = program("multi-tree-allreduce", {"nodes": nodes, "gpus": gpus, "in_place": True})
    assert steps(built) <= 2 * (gpus - 1) + 4 * ceil(log2(nodes))
    assert sent(built) <= 2
    t = built.transfers
    between = t.src // gpus != t.dst // gpus
    up = between & (t.kind == TransferKind.REDUCE)
    for channel in range(2 * gpus):
        assert np.count_nonzero(up & (t.channel == channel)) == nodes - 1
    heads = {(int(c), int(r) % gpus) for c, r in zip(t.channel[up], t.src[up], strict=True)}
    assert len(heads) == (2 * gpus if nodes > 1 else 0), "one head for each channel"
    assert len({head for _, head in heads}) == (gpus if nodes > 1 else 0)


def crossing(built: sley.Program, gpus: int) -> np.ndarray[Any, Any]:
    """The rows of the transfers between nodes."""
    t = built.transfers
    return np.flatnonzero(t.src // gpus != t.dst // gpus)


def leaving(built: sley.Program, gpus: int) -> float:
    """The data that the busiest node sends to others, in blocks."""
    t, rows = built.transfers, crossing(built, gpus)
    chunks = np.bincount(t.src[rows] // gpus, weights=t.count[rows])
    return float(chunks.max(initial=0) / built.collective.chunks)


@pytest.mark.parametrize(("nodes", "gpus"), GRIDS)
@pytest.mark.parametrize("in_place", [False, True])
class TestClusters:
    """The algorithms for nodes x gpus."""

    def test_hierarchical_allreduce(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("hierarchical-allreduce", locals_of(nodes, gpus, in_place))
        assert steps(built) == 2 * (nodes - 1) + 2 * (gpus - 1)
        assert sent(built) == pytest.approx(two(gpus) + two(nodes) / gpus)

    def test_two_level_allreduce(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("two-level-allreduce", locals_of(nodes, gpus, in_place))
        assert steps(built) == 2 * (nodes > 1) + 2 * (gpus > 1)
        assert sent(built) == pytest.approx(two(gpus) + two(nodes) / gpus)
        assert leaving(built, gpus) == pytest.approx(two(nodes))

    def test_two_level_one_step_allreduce(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("two-level-one-step-allreduce", locals_of(nodes, gpus, in_place))
        assert steps(built) == (nodes > 1) + (gpus > 1)
        assert sent(built) == gpus - 1 + nodes - 1

    def test_two_level_allgather(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("two-level-allgather", locals_of(nodes, gpus, in_place))
        assert steps(built) == (nodes > 1) + (gpus > 1)
        assert sent(built) == nodes * gpus - 1
        assert leaving(built, gpus) == gpus * (nodes - 1)

    def test_two_level_reducescatter(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("two-level-reducescatter", locals_of(nodes, gpus, in_place))
        assert steps(built) == (nodes > 1) + (gpus > 1)
        assert sent(built) == nodes * gpus - 1
        assert leaving(built, gpus) == gpus * (nodes - 1)

    def test_two_level_broadcast(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("two-level-broadcast", locals_of(nodes, gpus, in_place))
        assert steps(built) == (gpus > 1) + (nodes > 1) * (1 + (gpus > 1)) + (nodes > 2)
        assert leaving(built, gpus) == (nodes > 1), "the data leave the root's node once"

    def test_two_level_reduce(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("two-level-reduce", locals_of(nodes, gpus, in_place))
        assert steps(built) == (nodes > 1) + 2 * (gpus > 1)
        assert leaving(built, gpus) == (nodes > 1)

    def test_two_step_alltoall(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("two-step-alltoall", locals_of(nodes, gpus, in_place))
        rows = crossing(built, gpus)
        assert len(rows) == nodes * gpus * (nodes - 1)
        assert set(built.transfers.count[rows]) <= {gpus}
        assert steps(built) == (nodes > 1) + (gpus > 1)
        assert sent(built) == nodes * (gpus - 1) + (nodes - 1) * gpus

    def test_three_step_alltoall(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("three-step-alltoall", locals_of(nodes, gpus, in_place))
        rows = crossing(built, gpus)
        assert len(rows) == nodes * (nodes - 1)
        assert set(built.transfers.count[rows]) <= {gpus * gpus}
        assert steps(built) == (nodes > 1) + (gpus > 1) * (1 + (nodes > 1))
        loads = np.bincount(built.transfers.src[rows], minlength=nodes * gpus)
        most = ceil((nodes - 1) / gpus)
        assert loads.max() == most, "gateways share the work"
        as_gateway = most * gpus * (2 * gpus - 1)
        assert sent(built) == gpus - 1 + (nodes - 1 - most) * gpus + as_gateway

    def test_alltonext(self, nodes: int, gpus: int, in_place: bool) -> None:
        built = program("alltonext", locals_of(nodes, gpus, in_place))
        rows = crossing(built, gpus)
        assert len(rows) == (nodes - 1) * gpus, "every network link of a node carries a part"
        assert np.all(built.transfers.count[rows] == 1)
        assert steps(built) == 1 + (nodes > 1) * min(gpus - 1, 2)
        assert round(sent(built) * gpus) <= gpus + 2


def locals_of(nodes: int, gpus: int, in_place: bool) -> dict[str, Any]:
    return {"nodes": nodes, "gpus": gpus, "in_place": in_place}


def test_sccl_allgather_takes_two_steps() -> None:
    built = program("sccl-allgather-dgx1", {"in_place": False})
    assert steps(built) == 2
    assert sent(built) == 7
    assert sley.verify(sley.compile(built)).steps == 4, "send, receive, send, receive"
