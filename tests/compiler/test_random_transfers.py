"""Random transfers: with every schedule and allocation, the plan does what the steps mean.

Plans of whole transfers (hpds, round-robin) must also never hang, in either loop order, with any
number of slots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from support.generators import random_programs as chunk_programs
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram
from support.generators.random_transfers import (
    Move,
    RandomTransfers,
    clusters,
    in_lines,
    random_transfers,
    random_trees,
    run,
)

RUNS = examples(19)
"""Of those that run plans, or make large programs."""

WHOLE = ("hpds", "round-robin")

programs = st.one_of(random_transfers(), random_trees())


@st.composite
def ways(draw: st.DrawFn, *schedules: str) -> dict[str, Any]:
    """Options of the compiler that have to do with ResCCL's passes."""
    schedule = draw(st.sampled_from(schedules))
    whole = schedule in WHOLE
    return {
        "schedule": schedule,
        "allocate": draw(st.sampled_from(["connection", "state"])),
        "loop_order": draw(st.sampled_from(["tile", "instruction"] if whole else ["tile"])),
        "max_blocks": draw(st.sampled_from([None, None, 1, 2, 3])),
        "slots": draw(st.integers(1, 8)),
        "channels": draw(st.integers(1, 2)),
        "instances": draw(st.sampled_from([1, 1, 2])),
    }


def within(plan: sley.Plan, limit: int | None) -> bool:
    """Whether no rank has more blocks than the limit."""
    return limit is None or int(np.bincount(plan.block_rank).max(initial=0)) <= limit


@RUNS
@given(programs, ways(*WHOLE), st.integers(1, 20), st.integers(0, 200), st.integers(1, 8))
def test_whole_transfers_run_right_at_any_slots(
    random: RandomTransfers, way: dict[str, Any], tiles: int, slack: int, slots: int
) -> None:
    plan = sley.compile(random.program, topology=random.topology, verify=False, **way)
    for proven in (plan.slots, 1, 8):
        sley.verify(plan, proven)
    assert within(plan, way["max_blocks"])
    run(random, replace(plan, slots=slots), tiles, slack)


@RUNS
@given(programs, ways("msccl"), st.booleans(), st.integers(1, 20))
def test_fused_transfers_run_right_with_the_slots_asked_for(
    random: RandomTransfers, way: dict[str, Any], fusion: bool, tiles: int
) -> None:
    plan = sley.compile(
        random.program, topology=random.topology, fusion=fusion, verify=False, **way
    )
    for proven in (plan.slots, plan.slots + 1, 8):
        sley.verify(plan, proven)
    assert within(plan, way["max_blocks"])
    run(random, plan, tiles)


@RUNS
@given(chunk_programs.random_programs(max_operations=24), ways(*WHOLE), st.data(), st.booleans())
def test_chunk_programs_run_right_in_orders_of_whole_transfers(
    random: RandomProgram, way: dict[str, Any], data: st.DataObject, many: bool
) -> None:
    topology = data.draw(clusters(random.ranks))
    plan = sley.compile(random.program, topology=topology, verify=False, **way)
    for proven in (plan.slots, 1, 8):
        sley.verify(plan, proven)
    assert within(plan, way["max_blocks"])
    chunk_programs.run(random, plan, 1300 if many else 7)


@RUNS
@given(chunk_programs.random_programs(max_operations=24), ways("msccl"), st.booleans())
def test_blocks_of_fused_chunk_programs_merge_safely(
    random: RandomProgram, way: dict[str, Any], per_chunk: bool
) -> None:
    plan = sley.compile(random.program, verify=False, per_chunk=per_chunk, **way)
    sley.verify(plan)
    assert within(plan, way["max_blocks"])
    chunk_programs.run(random, plan, 7)


@RUNS
@given(random_transfers(max_transfers=16, directives=False), st.data())
def test_a_conflict_in_a_step_is_refused_with_both_lines(
    random: RandomTransfers, data: st.DataObject
) -> None:
    moves = list(random.moves)
    victims = [m for m in moves if conflicting(random, m)]
    if not victims:
        return
    victim = data.draw(st.sampled_from(victims))
    injected = data.draw(st.sampled_from(conflicting(random, victim)))
    at = data.draw(st.integers(0, len(moves)))
    moves.insert(at, injected)
    with pytest.raises(sley.SleyError) as caught:
        sley.trace(random.collective, in_lines(moves), name="conflict")
    assert caught.value.code == "L122"
    places = caught.value.diagnostics[0].places
    assert [place.file for place in places] == ["moves.py", "moves.py"]
    one, two = (place.line - 1 for place in places)
    assert at in (one, two)
    assert one != two
    assert moves[one].conflicts(moves[two])
    assert moves[one].step == moves[two].step


def conflicting(random: RandomTransfers, m: Move) -> list[Move]:
    """Transfers that may not be in one step with `m`."""
    room = random.collective.data_chunks
    ranks = [r for r in range(len(room)) if m.chunk < room[r]]
    ends = [(r, m.dst) for r in ranks] + [(m.dst, r) for r in ranks] + [(r, m.src) for r in ranks]
    return [
        Move(src, dst, m.step, m.chunk, kind)
        for src, dst in ends
        if src != dst
        for kind in ("recv", "rrc")
    ]


@RUNS
@given(random_transfers(max_transfers=16, directives=False))
def test_what_is_in_no_conflict_is_not_refused(random: RandomTransfers) -> None:
    program = sley.trace(random.collective, in_lines(random.moves), name="valid")
    assert program.transfers.step.tolist() == sorted(m.step for m in random.moves)


@given(programs, ways("msccl", *WHOLE))
def test_the_same_options_give_the_same_plan(random: RandomTransfers, way: dict[str, Any]) -> None:
    one, two = (
        sley.compile(random.program, topology=random.topology, verify=False, **way)
        for _ in range(2)
    )
    assert one.instructions == two.instructions
    assert one.waits == two.waits
    assert one.block_rank.tolist() == two.block_rank.tolist()
