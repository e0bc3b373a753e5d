"""Random programs: with all options, the plan means what the program means.

Each verdict of the verifier is compared with an execution: an accepted plan runs correctly, and a
plan reported to hang does hang.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.cut import border
from sley.ir.program import Transfers
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Buffer, LoopOrder
from support.generators.examples import examples
from support.generators.random_options import random_options
from support.generators.random_programs import (
    MANY_TILES,
    RandomProgram,
    random_programs,
    returning_programs,
    run,
)
from support.processes.rank_threads import execute

RUNS = examples(19)
"""Of those that run plans."""


@RUNS
@given(random_programs(), st.integers(0, 9))
def test_every_valid_program_runs_right_at_any_slots(random: RandomProgram, elements: int) -> None:
    for slots in (1, 2, 8):
        plan = sley.compile(random.program, slots=slots, verify=False)
        sley.verify(plan, slots)
        sley.verify(plan, slots + 1)
        run(random, plan, elements)
        # For runtimes where every chunk of a message takes a slot.
        plan = sley.compile(random.program, slots=slots, per_chunk=True, verify=False)
        sley.verify(plan, slots, per_chunk=True)
        sley.verify(plan, slots)
        run(random, plan, elements)


@RUNS
@given(st.one_of(random_programs(), returning_programs()), random_options(), st.integers(0, 20))
def test_options_do_not_change_the_meaning(
    random: RandomProgram, options: dict[str, Any], count: int
) -> None:
    plan = sley.compile(random.program, **options)
    run(random, plan, count)
    t, left = plan.instructions, plan.scratch_chunks.copy()
    touched = {
        (int(plan.rank[row]), int(index[row]) + k)
        for buffer, index, uses in (
            (t.src_buffer, t.src_index, READS_SOURCE),
            (t.dst_buffer, t.dst_index, WRITES_DESTINATION),
        )
        for row in np.flatnonzero(uses[t.op] & (buffer == Buffer.SCRATCH))
        for k in range(int(t.count[row]))
    }
    for rank, _ in touched:
        left[rank] -= 1
    assert not left.any(), "scratch that no instruction reads or writes"


def test_instances_leave_every_element_where_the_program_puts_it() -> None:
    """Of two chunks the ranks sum up the second alone: a finer cut must not move their border."""

    def expected(rank: int, index: int) -> list[tuple[int, int]]:
        return [(0, 1), (1, 1)] if index else [(0, 0)]

    @sley.program(sley.Custom("half", 2, 2, 2, expected, chunks=2, in_place=True))
    def half(p: sley.lang.ChunkProgram) -> None:
        p.chunk(0, "in", 0).copy(1, "in", 0)
        p.chunk(1, "in", 1).reduce(p.chunk(0, "in", 1)).copy(0, "in", 1)

    for count in range(13):
        ones, tens = np.arange(count), 10 * np.arange(count)
        half_way = border(1, 2, count, ones.itemsize)
        promised = np.concatenate([ones[:half_way], ones[half_way:] + tens[half_way:]])
        for instances in (1, 2, 3):
            plan = sley.compile(half, instances=instances)
            for output in execute(plan, [ones, tens], count=count):
                assert output.tolist() == promised.tolist(), (count, instances)


@RUNS
@given(random_programs(), st.data())
def test_blocks_by_hand_are_refused_with_reason_or_run_right(
    random: RandomProgram, data: st.DataObject
) -> None:
    t = random.program.transfers
    blocks = st.lists(st.integers(-1, 3), min_size=len(t), max_size=len(t))
    columns = {name: getattr(t, name) for name in Transfers.column_names()}
    columns |= {"send_block": data.draw(blocks), "recv_block": data.draw(blocks)}
    program = replace(random.program, transfers=Transfers(**columns))
    try:
        plan = sley.compile(program)
    except sley.SleyError as error:
        assert error.code in ("C302", "C302")
        assert all(place.line for place in error.diagnostics[0].places)
        return
    run(random, plan, 3)


@RUNS
@given(random_programs(max_operations=12), st.sampled_from([1, 2]))
def test_instruction_order_hangs_where_the_verifier_says_so(
    random: RandomProgram, slots: int
) -> None:
    compiled = sley.compile(random.program, slots=slots)
    plan = replace(compiled, loop_order=LoopOrder.INSTRUCTION)
    try:
        sley.verify(plan)
    except sley.SleyError as error:
        assert error.code == "V203"
        with pytest.raises(sley.SleyError, match="R502"):
            run(random, plan, MANY_TILES * random.cut, timeout_s=0.1)
        return
    run(random, plan, MANY_TILES * random.cut)


@RUNS
@given(random_programs(max_operations=20))
def test_fewer_slots_hang_where_the_verifier_says_so(random: RandomProgram) -> None:
    plan = replace(sley.compile(random.program, slots=8), slots=1)
    try:
        sley.verify(plan)
    except sley.SleyError as error:
        assert error.code == "V203"
        with pytest.raises(sley.SleyError, match="R502"):
            run(random, plan, 2, timeout_s=0.1)
        return
    run(random, plan, 2)
