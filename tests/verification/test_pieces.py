"""Messages in pieces: what is proven is right for every engine, whatever pieces it moves, and a
message that is passed on piece by piece orders only what has one place in it (docs/machine.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.happens_before import HappensBefore
from sley.ir.plan import Plan
from sley.ir.tables import Edges
from sley.ir.words import Schedule
from support.generators.examples import examples
from support.generators.random_programs import SCHEDULES, RandomProgram, returning_programs
from support.machines.piece_machine import Unit, is_right
from support.mutants.plan_edits import wait_pairs

ENGINES = {
    "msccl, a slot for each chunk": (Unit.PART, 1),
    "msccl, two chunks in a slot": (Unit.PART, 2),
    "slices, a slot for each chunk": (Unit.NEXT_WORD, 1),
    "slices of a message": (Unit.NEXT_WORD, 0),
    "words, a slot for each chunk": (Unit.ANY_WORD, 1),
    "words of two chunks in a slot": (Unit.ANY_WORD, 2),
    "words of a message": (Unit.ANY_WORD, 0),
    "sley's engines, a message at once": (Unit.PART, 0),
}
"""What engines move at once, and how many chunks of a message they put into a slot (0: all)."""


def codes(plan: Plan) -> list[str]:
    """The codes of the verifier's findings."""
    try:
        sley.verify(plan)
    except sley.SleyError as error:
        return [diagnostic.code for diagnostic in error.diagnostics]
    return []


def wrong_engines(plan: Plan, random: Random, runs: int) -> list[str]:
    """The engines that compute something wrong in one of some random runs."""
    return [
        name
        for name, (unit, together) in ENGINES.items()
        if not is_right(plan, unit, together, plan.slots, random, runs)
    ]


def without_wait(plan: Plan, k: int) -> Plan:
    """The plan without its k-th wait."""
    source, target = np.delete(plan.waits.source, k), np.delete(plan.waits.target, k)
    return replace(plan, waits=Edges.from_pairs(len(plan.instructions), source, target))


def chain(count: int, back: int, hops: int = 1, **options: object) -> Plan:
    """A plan in which rank 0 sends its first chunks to rank 1, further ranks pass them on, and the
    last one sends them back to rank 0, from its chunk `back` on."""
    ranks, chunks = hops + 1, count + back

    def expected(rank: int, index: int) -> list[tuple[int, int]] | None:
        if rank == 0:
            return [(0, index - back if index >= back else index)]
        return [(0, index)] if index < count else None

    def moves(p: sley.lang.ChunkProgram) -> None:
        at = p.chunk(0, "in", 0, count)
        for rank in range(1, ranks):
            at = at.copy(rank, "in", 0)
        at.copy(0, "in", back)

    collective = sley.Custom("chain", ranks, chunks, chunks, expected, in_place=True)
    return sley.compile(sley.trace(collective, moves, name="chain"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("back", [0, 1])
def test_a_message_that_comes_back_shifted_is_waited_for(back: int) -> None:
    """Its first chunk would come before the last ones are sent."""
    assert len(wait_pairs(chain(2, back))) == back
    assert wrong_engines(chain(2, back), Random(back), 30) == []


def test_without_that_wait_the_plan_is_refused_and_engines_that_move_pieces_are_wrong() -> None:
    plan = without_wait(chain(3, 1), 0)
    assert codes(plan) == ["V204"]
    assert wrong_engines(plan, Random(0), 30) == list(ENGINES)[:-1]


def test_a_chain_that_fills_its_slots_is_not_fused_if_each_chunk_takes_one() -> None:
    for count, fused in ((2, True), (3, False)):
        plan = chain(count, 1, per_chunk=True, slots=2)
        assert (len(plan.instructions) == 3) is fused
        assert wrong_engines(plan, Random(count), 30) == []


@examples(18)
@given(returning_programs(), st.sampled_from(SCHEDULES), st.sampled_from([2, 8]), st.booleans())
def test_random_programs_are_right_in_all_pieces(
    random: RandomProgram, schedule: Schedule, slots: int, per_chunk: bool
) -> None:
    options = {"schedule": schedule, "slots": slots, "per_chunk": per_chunk}
    plan = sley.compile(random.program, **options)  # type: ignore[arg-type]
    number = Random(len(plan.instructions))
    for unit, together in ENGINES.values():
        if per_chunk or together == 0:
            assert is_right(plan, unit, together, slots, number, 10)


@examples(18)
@given(returning_programs(), st.sampled_from(SCHEDULES))
def test_what_is_proven_without_a_wait_is_right_in_all_pieces(
    random: RandomProgram, schedule: Schedule
) -> None:
    plan = sley.compile(random.program, schedule=schedule, per_chunk=True)
    for k in range(len(plan.waits)):
        less = without_wait(plan, k)
        assert codes(less) or wrong_engines(less, Random(k), 12) == []


def test_an_order_of_whole_messages_would_prove_wrong_plans() -> None:
    reaches = HappensBefore.reaches
    for count, back, hops in product((2, 3, 4), (1, 2), (1, 2)):
        if back >= count:
            continue
        plan = without_wait(chain(count, back, hops), 0)
        assert codes(plan) == ["V204"]
        assert wrong_engines(plan, Random(back), 20)
        with mock.patch.object(
            HappensBefore, "reaches", lambda self, a, b, **_: reaches(self, a, b)
        ):
            assert codes(plan) == []
