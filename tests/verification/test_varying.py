"""Plans of varying counts: proofs that hold for all counts, and the machine as their oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import CATALOG
from sley.ir.collective import Collective
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.words import Op
from support.generators.examples import examples
from support.generators.random_options import random_options
from support.generators.varying_programs import varying_programs
from support.inputs.algorithm_cases import cases_in_a_place, few, in_turn, label
from support.inputs.algorithm_cases import program as algorithm
from support.inputs.one_sided_plans import Block
from support.inputs.one_sided_plans import plan_of as one_sided_plan_of
from support.inputs.xml_plans import I, O, S, Step, plan_of
from support.machines.varying_machine import VaryingMachine, WrongRunError
from support.mutants.plan_edits import wait_pairs, with_waits

EQUAL, VARYING = sley.AllToAll(2), sley.AllToAllV(2)
Blocks = Sequence[Sequence[Step]]


def finding(plan: Plan) -> tuple[str, str, str]:
    """Code, place and finding of the first diagnostic with which a plan is refused; empty texts for
    one that is accepted."""
    try:
        sley.verify(plan)
    except sley.SleyError as error:
        one = error.diagnostics[0]
        return one.code, one.places[0].detail if one.places else "", one.found
    return "", "", ""


def test_a_proof_does_not_say_for_which_counts_it_holds() -> None:
    def lines(collective: Collective) -> list[str]:
        plan = with_step(collective, Step(Op.COPY, (O, 0), (I, 0)))
        return [line.strip() for line in sley.verify(plan).holds.splitlines()]

    assert not any("counts" in line for line in lines(sley.AllToAll(1)))
    assert lines(sley.AllToAllV(1))[1:3] == ["out of place", "parts of any counts"]
    assert lines(sley.AllToAllV(1, 5))[2] == "parts of any counts, up to 5 elements"


def answered(collective: Collective, *waits: tuple[int, int]) -> Plan:
    """Rank 0 sends a chunk from scratch, and after rank 1's answer copies another one there. Only
    the answer shows that the first one has been sent, except with `waits` of the copy."""
    return plan_of(
        collective,
        [
            [
                [Step(Op.COPY, (I, 1), (S, 0)), Step(Op.SEND, (S, 0), send=1, chan=0)],
                [
                    Step(Op.RECV, dst=(O, 1), recv=1, chan=0),
                    Step(Op.COPY, (I, 0), (S, 0), waits=waits),
                    Step(Op.COPY, (S, 0), (O, 0)),
                ],
            ],
            [
                [
                    Step(Op.COPY, (I, 1), (O, 1)),
                    Step(Op.RECV, dst=(O, 0), recv=0, chan=0),
                    Step(Op.SEND, (I, 0), send=0, chan=0),
                ]
            ],
        ],
        scratch=[1, 0],
    )


def test_an_order_that_only_messages_give_is_none() -> None:
    assert finding(answered(EQUAL)) == ("", "", "")
    code, place, found = finding(answered(VARYING))
    assert (code, place) == ("V204", "rank 0, block 1, step 1 (copy)")
    assert found.startswith("only messages order them")
    assert finding(answered(VARYING, (0, 1))) == ("", "", "")


def test_messages_that_are_left_out_order_nothing() -> None:
    """The reason for the rule: with a short answer, the copy overtakes the message before it."""
    runs = Random(0)
    VaryingMachine.check(answered(VARYING), [3, 3, 3, 3], runs, schedules=50)
    VaryingMachine.check(answered(VARYING, (0, 1)), [3, 3, 1, 1], runs, schedules=50)
    with pytest.raises(WrongRunError, match="result"):
        VaryingMachine.check(answered(VARYING), [3, 3, 1, 1], runs, schedules=50)


def via(buffer: int) -> Callable[[Collective], Plan]:
    """Rank 0 takes its chunk for rank 1 through a place where another chunk ends up."""

    def plan(collective: Collective) -> Plan:
        return plan_of(
            collective,
            [
                [
                    [
                        Step(Op.COPY, (I, 0), (O, 0)),
                        Step(Op.COPY, (I, 1), (buffer, 1 if buffer == O else 0)),
                        Step(Op.SEND, (buffer, 1 if buffer == O else 0), send=1, chan=0),
                        Step(Op.RECV, dst=(O, 1), recv=1, chan=0),
                    ]
                ],
                [
                    [
                        Step(Op.COPY, (I, 1), (O, 1)),
                        Step(Op.SEND, (I, 0), send=0, chan=0),
                        Step(Op.RECV, dst=(O, 0), recv=0, chan=0),
                    ]
                ],
            ],
            scratch=[1, 0],
        )

    return plan


@pytest.mark.parametrize(
    ("buffer", "found"),
    [(O, "in[1] of rank 0"), (I, "in[1] of rank 0"), (S, "")],
    ids=["output", "input", "scratch"],
)
def test_a_chunk_is_written_only_where_it_belongs(buffer: int, found: str) -> None:
    assert finding(via(buffer)(EQUAL)) == ("", "", "")
    code, place, named = finding(via(buffer)(VARYING))
    assert (code, named) == (("V219", found) if found else ("", ""))
    assert ("step 1" in place) == bool(found)


def test_a_place_has_room_for_its_own_chunk_only() -> None:
    """The reason for the rule: the chunk on its way is longer than the one that ends up there."""
    runs = Random(0)
    VaryingMachine.check(via(S)(VARYING), [1, 3, 1, 1], runs)
    with pytest.raises(WrongRunError, match=r"tile 2 outside of rank 0 out\[1\]"):
        VaryingMachine.check(via(O)(VARYING), [1, 3, 1, 1], runs)


def with_step(collective: Collective, step: Step, *, scratch: int = 1) -> Plan:
    """A right plan of one rank, and one more instruction."""
    return plan_of(collective, [[[Step(Op.COPY, (I, 0), (O, 0)), step]]], scratch=[scratch])


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Step(Op.COPY, (O, 0), (I, 0)), ""),
        (Step(Op.COPY, (S, 0), (S, 1)), "V205"),
        (Step(Op.REDUCE, (I, 0), (S, 0)), "L119"),
    ],
    ids=["back", "nothing", "sum"],
)
def test_an_instruction_beside_the_result_is_not_seen(step: Step, expected: str) -> None:
    assert finding(with_step(sley.AllToAll(1), step, scratch=2))[0] == ""
    code, place, found = finding(with_step(sley.AllToAllV(1), step, scratch=2))
    assert code == expected
    if code:
        assert place.startswith("rank 0, block 0, step 1 ")
        assert found


@pytest.mark.parametrize("op", [Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND])
def test_a_reduction_of_a_message_is_accepted(op: Op) -> None:
    words: dict[str, Any] = {"send": 1, "recv": 1, "chan": 0}
    if op is Op.RECV_REDUCE_COPY:
        words.pop("send")
    mine = Step(op, (I, 0), (S, 0), **words)
    peer = [Step(Op.SEND, (I, 0), send=0, chan=0)]
    if op is not Op.RECV_REDUCE_COPY:
        peer.append(Step(Op.RECV, dst=(S, 0), recv=0, chan=0))
    plan = plan_of(VARYING, [[[mine]], [peer]], scratch=[1, 1])
    assert finding(plan)[0] == "L119"


def test_a_collective_that_only_looks_like_a_varying_one_is_accepted() -> None:
    plan = with_step(sley.AllToAllV(1), Step(Op.COPY, (O, 0), (I, 0)))
    for own, code in (
        (replace(plan.collective, name="mine"), "L119"),
        (replace(sley.AllReduce(1), name="mine", max_count=3), "L119"),
        (replace(plan.collective, max_count=-1), "L118"),
        (replace(plan.collective, max_count=0), "L118"),
        (replace(sley.AllToAll(1), max_count=3), "L118"),
    ):
        assert finding(replace(plan, collective=own))[0] == code


def test_the_counts_of_a_one_sided_plan_vary() -> None:
    plan = one_sided_plan_of(sley.AllToAllV(1), [Block(0)])
    with pytest.raises(sley.SleyError, match="L119"):
        sley.verify(plan)


def compiled(program: Program, options: dict[str, Any]) -> Plan | None:
    """The proven plan, or None if it needs more slots or blocks than the options give."""
    try:
        return sley.compile(program, **options)
    except sley.SleyError as error:
        assert error.code[0] == "P", str(error)
        return None


def test_a_message_that_is_left_out_shows_no_reading() -> None:
    """With equal counts the answer shows that the pulled message has been read."""

    def holding(collective: Collective) -> Plan:
        return replace(answered(collective, (0, 1)), protocol=sley.Protocol.DIRECT)

    assert not len(sley.verification.direct.pulls(holding(EQUAL)).holds)
    plan = holding(VARYING)
    assert len(sley.verification.direct.pulls(plan).holds) == 1
    VaryingMachine.check(plan, [3, 3, 1, 1], Random(0), schedules=50)


LIBRARY = [name for name in CATALOG if not CATALOG[name].has_both_places]


@pytest.mark.parametrize(
    ("name", "size", "instances"), few(in_turn([1, 2], cases_in_a_place(LIBRARY))), ids=label
)
def test_an_algorithm_of_the_library_runs_wrong_with_some_counts(
    name: str, size: dict[str, Any], instances: int
) -> None:
    plan = sley.compile(algorithm(name, size), instances=instances)
    VaryingMachine.check_any(plan, Random(0))


@examples(11)
@given(varying_programs(), random_options(), st.integers(0, 2**32))
def test_compiled_plans_run_right_with_any_counts(
    program: Program, options: dict[str, Any], seed: int
) -> None:
    plan = compiled(program, options)
    if plan is not None:
        VaryingMachine.check_any(plan, Random(seed))


@examples(11)
@given(varying_programs(), random_options(), st.integers(0, 2**32))
def test_what_the_verifier_accepts_runs_right_with_any_counts(
    program: Program, options: dict[str, Any], seed: int
) -> None:
    """Plans without some of their waits, and with the waits of equal counts."""
    plan = compiled(program, options)
    if plan is None:
        return
    random, pairs = Random(seed), wait_pairs(plan)
    kept = random.sample(pairs, random.randint(0, len(pairs)))
    few = with_waits(plan, kept)
    try:
        sley.verify(few)
    except sley.SleyError as error:
        assert error.code in ("V203", "V204")  # an order in which waits hang is none either
        return
    VaryingMachine.check_any(few, random)
