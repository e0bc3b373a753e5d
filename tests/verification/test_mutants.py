"""Mutants: a correct plan with one damage must be refused.

Each kind is a function from a plan to damaged plans. Each has chosen plans of which every mutant is
wrong; on random programs every mutant that the verifier accepts must run correctly
(`test_accepted_mutants_run_right`).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.plan import Plan
from sley.ir.words import Op
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs, run
from support.inputs.xml_plans import I, O, Step, plan_of
from support.mutants.plan_mutants import KINDS, PLANS, Mutator


@pytest.mark.parametrize(("kind", "plans"), KINDS, ids=[k.__name__ for k, _ in KINDS])
def test_every_mutant_of_the_kind_is_refused(kind: Mutator, plans: list[Plan]) -> None:
    mutants = [mutant for plan in plans for mutant in kind(plan)]
    assert len(mutants) >= len(plans)
    for number, mutant in enumerate(mutants):
        with pytest.raises(sley.SleyError, match="V20") as caught:
            sley.verify(mutant)
            pytest.fail(f"{kind.__name__} {number} was accepted")
        assert all(d.expected and d.found and d.remedy for d in caught.value.diagnostics)


def test_a_plan_with_too_few_slots_is_refused_as_hanging() -> None:
    with pytest.raises(sley.SleyError, match="V203") as caught:
        sley.verify(PLANS["fused ring"], slots=1)
    notes = caught.value.diagnostics[0].notes
    assert any("waits for a free slot" in note for note in notes)
    assert notes[-1] == "the plan does not hang with 2 slots or more"


def test_a_hang_that_no_slots_end_says_so() -> None:
    ranks = [
        [
            [
                Step(Op.RECV, dst=(O, 0), recv=1 - own, chan=0),
                Step(Op.SEND, (I, 0), send=1 - own, chan=0),
            ]
        ]
        for own in range(2)
    ]
    nothing = sley.Custom("nothing", 2, 1, 1, lambda rank, index: None)
    with pytest.raises(sley.SleyError, match="V203") as caught:
        sley.verify(plan_of(nothing, ranks))
    assert caught.value.diagnostics[0].notes[-1] == "the plan hangs with any number of slots"


@examples(12)
@given(random_programs(max_operations=20), st.sampled_from(["msccl", "hpds"]), st.booleans())
def test_a_hang_names_the_least_number_of_slots_that_ends_it(
    random: RandomProgram, schedule: str, per_chunk: bool
) -> None:
    plan = sley.compile(random.program, slots=8, schedule=schedule)
    try:
        sley.verify(plan, slots=1, per_chunk=per_chunk)
    except sley.SleyError as error:
        note = next(
            note for note in error.diagnostics[0].notes if "the plan does not hang with" in note
        )
        enough = int(note.split()[6])
        sley.verify(plan, slots=enough, per_chunk=per_chunk)
        with pytest.raises(sley.SleyError, match="V203"):
            sley.verify(plan, slots=enough - 1, per_chunk=per_chunk)


@examples(14)
@given(
    random_programs(max_operations=20),
    st.sampled_from(["connection", "instance"]),
    st.sampled_from([k for k, _ in KINDS]),
    st.data(),
)
def test_accepted_mutants_run_right(
    random: RandomProgram, allocate: str, kind: Mutator, data: st.DataObject
) -> None:
    """A mutant may happen to be right; what the verifier lets pass must be."""
    mutants = list(kind(sley.compile(random.program, allocate=allocate)))
    if not mutants:
        return
    mutant = data.draw(st.sampled_from(mutants))
    try:
        sley.verify(mutant)
    except sley.SleyError as error:
        assert error.code.startswith("V20")
        return
    run(random, mutant, 3)
