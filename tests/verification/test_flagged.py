"""Order of memory with LL and LL128: a message orders only its own words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import build
from sley.engine.kernels import Kernels
from sley.ir.connections import Messages
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION
from sley.verification.flagged import needed_waits
from sley.verification.hangs import run_of
from support.generators.examples import examples
from support.generators.random_plans import random_plan
from support.generators.random_programs import random_programs
from support.generators.random_transfers import random_transfers, random_trees
from support.mutants.plan_edits import wait_pairs, with_waits

Pair = tuple[int, int]


@st.composite
def plans(draw: st.DrawFn) -> sley.Plan:
    if draw(st.booleans()):
        return random_plan(draw(st.integers(0, 10**6)))
    programs = [random_programs(max_operations=16), random_transfers(), random_trees()]
    source = draw(st.one_of(programs))
    return sley.compile(
        source.program,
        protocol="ll",
        schedule=draw(st.sampled_from(["msccl", "hpds"])),
        allocate=draw(st.sampled_from(["connection", "state"])),
        max_blocks=draw(st.sampled_from([None, 2])),
    )


def accesses(plan: sley.Plan, row: int) -> tuple[set[int], set[int]]:
    """The cells that an instruction touches, and those that it writes."""
    t, rank = plan.instructions, plan.rank[row]
    cells: list[set[int]] = []
    for mask, buffer, index in (
        (READS_SOURCE, t.src_buffer, t.src_index),
        (WRITES_DESTINATION, t.dst_buffer, t.dst_index),
    ):
        first = int(plan.layout.cell(rank, max(int(buffer[row]), 0), int(index[row])))
        cells.append(set(range(first, first + int(t.count[row]))) if mask[t.op[row]] else set())
    return cells[0] | cells[1], cells[1]


def unordered(plan: sley.Plan, pairs: list[Pair]) -> set[Pair]:
    """Conflicting instructions, in the order of a run, that neither blocks nor the waits `pairs`
    order: by a closure, the plain way."""
    rows = len(plan.instructions)
    before = np.eye(rows, dtype=bool)
    level = run_of(plan, Messages.of(plan)).level
    direct: list[list[int]] = [[] for _ in range(rows)]
    for after, target in pairs:
        direct[after].append(target)
    for row in np.argsort(level, kind="stable").tolist():
        if plan.step[row]:
            direct[row].append(row - 1)
        for other in direct[row]:
            before[row] |= before[other]
    touched = [accesses(plan, row) for row in range(rows)]
    found = set()
    for a in range(rows):
        for b in range(rows):
            conflict = touched[a][1] & touched[b][0] or touched[a][0] & touched[b][1]
            if level[a] < level[b] and conflict and not before[b, a]:
                found.add((a, b))
    return found


@examples(20)
@given(plans())
def test_all_that_conflicts_is_ordered_and_nothing_hangs(plan: sley.Plan) -> None:
    waits = needed_waits(plan)
    pairs = list(zip(waits.source.tolist(), waits.target.tolist(), strict=True))
    assert set(wait_pairs(plan)) <= set(pairs)
    assert not unordered(plan, pairs)
    more = with_waits(plan, pairs)
    for slots in (plan.slots, plan.slots + 3):
        sley.verify(more, slots)


@examples(10)
@given(plans())
def test_no_wait_is_added_without_need(plan: sley.Plan) -> None:
    """Each added wait is of a pair that nothing orders that comes before it."""
    own = set(wait_pairs(plan))
    waits = needed_waits(plan)
    added = set(zip(waits.source.tolist(), waits.target.tolist(), strict=True)) - own
    lost = unordered(plan, sorted(own))
    assert {(before, after) for after, before in added} <= lost
    assert bool(added) == bool(lost)


@pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.name.lower())
def test_a_chunk_that_comes_back_to_another_block_gets_a_wait_where_messages_order_nothing(
    protocol: sley.Protocol,
) -> None:
    """Rank 0's reduction and the result that overwrites it are ordered by messages alone."""
    hm = build("hm-allreduce", nodes=2, gpus=2, in_place=True)
    plan = sley.compile(hm, schedule="hpds", allocate="state", protocol=protocol)
    waits = Kernels.of(plan).operands.conditions.held
    more = int((~waits).sum()) - len(plan.waits.target)
    assert (more > 0) == (protocol.name in ("LL", "LL128"))


def test_a_plan_that_is_not_right_is_refused() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=3, in_place=True), protocol="ll")
    columns = plan.instructions
    peer = columns.send_peer.copy()
    peer[0] = 2
    with pytest.raises(sley.SleyError, match="V202"):
        needed_waits(replace(plan, instructions=replace(columns, send_peer=peer)))
