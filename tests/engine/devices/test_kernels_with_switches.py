"""Groups whose messages a switch moves: where their slots are, and which plans and calls it
serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Settings
from sley.engine.devices.windows import LANE_ALIGNMENT, Lanes
from sley.engine.kernels import Kernels
from sley.engine.kernels.switches import _SUMS, single_messages
from sley.engine.types import DATA_TYPES
from sley.ir.tables import NONE, Edges
from support.devices.device_calls import executor, threads, wrong
from support.processes.process_ranks import apart
from support.processes.rank_threads import execute

RANKS = 3
THROUGH = "through the switch"


def nvls(**options: Any) -> sley.Plan:
    return sley.compile(build("nvls-allreduce", ranks=RANKS, in_place=True), **options)


def two_nodes() -> sley.Plan:
    """A plan with a team in each of two nodes, and messages between them."""
    return sley.compile(build("nvls-tree-allreduce", nodes=2, gpus=3, in_place=True))


def test_the_sums_of_a_switch_are_those_of_ptx() -> None:
    names = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "uint64"]
    assert [name for name, kind in DATA_TYPES.items() if kind.number in _SUMS] == names


@pytest.mark.parametrize(
    ("engine", "op"),
    [
        (Engine.GENERATED, sley.ReduceOp.SUM),
        (Engine.INTERPRETED, sley.ReduceOp.AVG),
        (Engine.GENERATED, sley.ReduceOp.BXOR),
    ],
)
def test_a_switch_gives_what_single_messages_give(engine: Engine, op: sley.ReduceOp) -> None:
    """Of integers and bits the same; of numbers up to the order in which they are rounded."""
    plan, dtype = nvls(), "bfloat16" if op is sley.ReduceOp.SUM else "int64"
    random, kind = np.random.default_rng(0), DATA_TYPES[dtype].array
    # As the bits of bfloat16: numbers from 1 to 252. The last vector is partial.
    memory = [(random.integers(0, 1000, 1011) + 0x3F80).astype(kind) for _ in range(RANKS)]
    behind = [values[1003:].copy() for values in memory]
    data = [values[:1003] for values in memory]
    expected = execute(plan, data, dtype=dtype, reduce_op=op)
    on = executor(plan, engine=engine)
    assert on.way_of_groups(dtype, op) == THROUGH
    on(data, dtype=dtype, reduce_op=op)
    for values, before in zip(memory, behind, strict=True):
        np.testing.assert_array_equal(values[1003:], before)
    for got, promised in zip(data, expected, strict=True):
        if dtype == "bfloat16":
            values = DATA_TYPES[dtype].values
            np.testing.assert_allclose(values(got), values(promised), rtol=2**-6)
        else:
            np.testing.assert_array_equal(got, promised)


def test_reductions_that_a_switch_lacks_take_each_message() -> None:
    on = executor(nvls(), engine=Engine.INTERPRETED)
    for dtype, op in (("int8", sley.ReduceOp.SUM), ("float32", sley.ReduceOp.MAX)):
        lacks = f"it has no {op.name} of {dtype}"
        words = f"{THROUGH}, but reductions message by message, since {lacks}"
        assert on.way_of_groups(dtype, op) == words
    assert [wrong(on, count, "int8") for count in (453, 2, 0)] == [0, 0, 0]


def test_teams_of_several_nodes_have_windows_of_their_own() -> None:
    on = executor(two_nodes(), engine=Engine.INTERPRETED)
    assert on.way_of_groups("int32") == THROUGH
    assert [wrong(on, count) for count in (901, 5)] == [0, 0]


def test_lanes_of_a_window_do_not_overlap() -> None:
    """Nor with those of another plan, unless they are of the same bundles."""
    program = build("nvls-tree-allreduce", nodes=2, gpus=3, in_place=True)
    twice = sley.compile(program, instances=2)
    first, operands, again = (
        Kernels.of(plan, switches=True).operands for plan in (two_nodes(), twice, two_nodes())
    )
    slots_bytes = 1000
    of_first, lanes, same = Lanes.of([first, operands, again], slots_bytes)
    assert (of_first.offset == same.offset).all()
    assert set(of_first.offset) < set(lanes.offset)
    c = operands.connections
    assert lanes.teams == [(0, 1, 2), (3, 4, 5)]
    for team, ranks in enumerate(lanes.teams):
        at = lanes.team == team
        assert set(c.src[at]) == set(c.dst[at]) == set(lanes.owner[at]) == set(ranks)
        # Each rank reduces and multicasts two parts, on two channels.
        offsets, members = np.unique(lanes.offset[at], return_counts=True)
        assert len(offsets) == 8 * len(ranks)
        assert (members == 2).all()
        assert (np.diff(offsets) >= slots_bytes).all()
        assert (offsets % LANE_ALIGNMENT == 0).all()
        assert lanes.sizes[team] >= offsets[-1] + slots_bytes
    single = lanes.team == NONE
    assert (c.src[single] // 3 != c.dst[single] // 3).all()
    assert (lanes.owner[single] == c.dst[single]).all()


def of_two_groups() -> sley.Plan:
    """Rank 0 sends on one channel to ranks 1 and 2, then to ranks 1 and 3."""

    @sley.program(sley.Broadcast(4, 2, 0, in_place=True))
    def some(p: sley.lang.ChunkProgram) -> None:
        p.chunk(0, "in", 0).multicast([1, 2], "in", 0, channel=0)
        p.chunk(0, "in", 1).multicast([1, 3], "in", 1, channel=0)
        p.chunk(1, "in", 0).copy(3, "in", 0)
        p.chunk(1, "in", 1).copy(2, "in", 1)

    return sley.compile(some)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (nvls(protocol="direct"), "protocol Direct leaves messages in the sender's buffer"),
        (of_two_groups(), "a connection has messages of several groups, or of a group and others"),
    ],
    ids=["direct", "groups"],
)
def test_plans_that_a_switch_does_not_serve_have_single_messages(plan: sley.Plan, why: str) -> None:
    assert single_messages(plan) == why
    on = executor(plan, engine=Engine.INTERPRETED)
    assert on.way_of_groups("int32") == f"as single messages, since {why}"
    assert len(on.plan.groups) == 0
    assert wrong(on, 301) == 0


def test_ranks_in_several_processes_have_single_messages() -> None:
    ons = apart(nvls(), [[0, 1], [2]], engine=Engine.INTERPRETED)
    for on in ons:
        assert on.way_of_groups("int32").endswith("since the ranks are in several processes")


def test_a_plan_without_groups_says_nothing_of_them() -> None:
    on = executor(sley.compile(build("ring-allreduce", ranks=2)), engine=Engine.INTERPRETED)
    assert on.way_of_groups("int32") == ""


def test_a_stuck_reduction_names_a_member_that_has_not_sent() -> None:
    """All ranks send what the others reduce only after their own reduction."""
    plan = nvls()
    first = np.unique(plan.rank[plan.sends], return_index=True)[1]
    own = [int(row) for row in plan.grouped]
    waits = Edges.from_pairs(len(plan.instructions), plan.sends[first], np.array(own))
    plan = replace(plan, waits=waits)
    settings = Settings(engine=Engine.INTERPRETED, timeout_s=0.3)
    on = Executor(plan, [threads()] * RANKS, settings)
    with pytest.raises(sley.SleyError) as caught:
        on([np.zeros(8, np.int32) for _ in range(RANKS)])
    assert caught.value.code == "K508"
    assert "recv_reduce_copy_send" in str(caught.value)
    assert "waits for a message from rank 1 on channel 0" in str(caught.value)
