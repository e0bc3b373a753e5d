"""Scales: every input is multiplied once, where its rank reads it first, and the proof of that."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import add

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sley
from sley.algorithms import build
from sley.ir.connections import Messages
from sley.ir.tables import NONE
from sley.ir.words import SENDS, Buffer, Op
from sley.verification.hangs import run_of
from sley.verification.scales import Scales, check_scales
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs import small_plans
from support.inputs.algorithm_cases import SIZED, sizes
from support.machines import symbolic

Value = Counter[tuple[int, tuple[int, ...]]]
"""How often a value contains an input chunk, by the chunk and the ranks that have multiplied it."""


def proven(plan: sley.Plan, scales: Scales) -> bool:
    return not check_scales(plan, run_of(plan, Messages.of(plan)).level, scales)


def multiplied(value: Value, rank: int) -> Value:
    return Counter({(chunk, (*by, rank)): often for (chunk, by), often in value.items()})


def run(plan: sley.Plan, scales: Scales) -> list[Value]:
    """What every output chunk holds after a call."""

    def read(value: Value, row: int, is_source: bool) -> Value:
        marks = scales.source if is_source else scales.destination
        return multiplied(value, int(plan.rank[row])) if marks[row] else value

    found = symbolic.run(plan, lambda chunk: Counter({(chunk, ()): 1}), add, read)
    return [value or Counter() for value in found]


def is_right(plan: sley.Plan, scales: Scales) -> bool:
    c = plan.collective
    owner = np.repeat(np.arange(c.ranks), c.input_chunks).tolist()
    return all(
        expected == NONE or got == Counter((i, (owner[i],)) for i in c.values[expected].tolist())
        for got, expected in zip(run(plan, scales), c.expected.tolist(), strict=True)
    )


def of_plan(plan: sley.Plan) -> Scales | None:
    """The scales of a plan; None if it mixes first reads with others."""
    try:
        return Scales.of(plan)
    except sley.SleyError as error:
        assert {one.code for one in error.diagnostics} == {"V222"}
        return None


@examples(30)
@given(random_programs())
def test_every_input_is_multiplied_once(random: RandomProgram) -> None:
    plan = sley.compile(random.program)
    scales = of_plan(plan)
    if scales is not None:
        assert is_right(plan, scales)
        assert proven(plan, scales)


@examples(30)
@given(random_programs(), st.data())
def test_the_proof_refuses_what_is_not_multiplied_once(
    random: RandomProgram, data: st.DataObject
) -> None:
    plan = sley.compile(random.program)
    scales = of_plan(plan)
    assume(scales is not None and len(plan.instructions))
    assert scales is not None
    column = data.draw(st.sampled_from(["source", "destination"]))
    marks = np.array(getattr(scales, column))
    at = data.draw(st.integers(0, len(marks) - 1))
    marks[at] = not marks[at]
    changed = replace(scales, **{column: marks})
    assert proven(plan, changed) == is_right(plan, changed)


@pytest.mark.parametrize("name", SIZED)
def test_the_plans_of_every_reducing_algorithm_can_multiply(name: str) -> None:
    for in_place in (False, True):
        plan = sley.compile(build(name, **sizes(name)[0], in_place=in_place), protocol="direct")
        assert not plan.reduces or proven(plan, Scales.of(plan))


def test_a_rank_does_not_multiply_the_input_of_another() -> None:
    """Each rank sends its input, which the others reduce from their scratch."""
    plan = small_plans.scratch_allreduce(2)
    scales = Scales.of(plan)
    t = plan.instructions
    sends, reads = SENDS[t.op], (t.op == Op.REDUCE) & (t.src_buffer == Buffer.SCRATCH)
    assert scales.source[sends].all()
    assert proven(plan, scales)
    moved = replace(scales, source=(scales.source & ~sends) | reads)
    assert {len(by) for value in run(plan, moved) for _, by in value} == {1}
    assert not proven(plan, moved)


def test_an_instruction_that_reads_the_input_and_a_sum_is_refused() -> None:
    sums = {(1, 0): [(0, 0), (1, 0)], (1, 1): [(0, 1), (0, 0)]}
    promise = sley.Custom("mixed", 2, 2, 2, lambda r, i: sums.get((r, i)), in_place=True)

    @sley.program(promise)
    def mixed(p: sley.lang.ChunkProgram) -> None:
        p.chunk(0, "in", 1).reduce(p.chunk(0, "in", 0))
        p.chunk(0, "in", 0, count=2).copy(1, "scratch", 0)
        p.chunk(1, "in", 0).reduce(p.chunk(1, "scratch", 0))
        p.chunk(1, "scratch", 1).copy(1, "in", 1)

    plan = sley.compile(mixed)
    with pytest.raises(sley.SleyError, match="1 of 2 chunks of the input") as caught:
        Scales.of(plan)
    assert caught.value.code == "V222"


def test_an_untouched_output_is_refused() -> None:
    plan = sley.compile(build("ring-allgather", ranks=3, in_place=True))
    with pytest.raises(sley.SleyError, match="none that writes") as caught:
        Scales.of(plan)
    assert [one.code for one in caught.value.diagnostics] == ["V222"] * 3
