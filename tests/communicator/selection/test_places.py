"""Plans for either place: right whichever of the ranks have input and output in the same memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import CATALOG, build
from sley.communicator.selection.device_rules import DeviceLimits
from sley.communicator.selection.kinds import ALL_TO_ALL, CALLS
from sley.communicator.selection.places import in_either_place
from sley.communicator.selection.plans import Plans
from sley.errors import SleyError
from sley.ir.collectives import STANDARD, standard
from sley.ir.words import Op
from sley.verification.direct import pulls
from sley.verification.flagged import needed_waits
from support.generators.examples import examples
from support.generators.sampling import sampled
from support.inputs.small_plans import IN, OUT, SCRATCH, Hand
from support.processes.call_cases import hosts_of

KINDS = [kind for kind, row in CALLS.items() if not row.varies and kind != ALL_TO_ALL]
NAMES = [
    one.name
    for one in CATALOG.values()
    if "ranks" in one.parameters and STANDARD[one.collective].call in KINDS
]


def mixed(plan: sley.Plan, in_place: list[bool]) -> sley.Plan:
    """The plan for calls in which some ranks are in place: the buffers of the others are apart in
    one memory."""
    c = plan.collective
    found = standard(c)
    assert found is not None
    there = found.like(c, in_place=True)
    base = np.where(
        in_place, [there.input_base, there.output_base], [0 * c.input_chunks, c.input_chunks]
    )
    return replace(
        plan,
        collective=replace(c, name="mixed", in_place=True, input_base=base[0], output_base=base[1]),
    )


NOT_IN_EITHER = {
    *("one-step-allreduce", "swing-doubling-allreduce"),
    "bidirectional-ring-allreduce",  # of even ranks: two centres
}
"""AllReduces in which a rank's result may arrive while it still sends its input."""


@pytest.mark.parametrize("name", NAMES)
@examples(3)
@given(data=st.data())
def test_plans_are_right_whichever_ranks_are_in_place(name: str, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 6))
    own: dict[str, Any] = {}
    if "root" in CATALOG[name].parameters:
        own["root"] = data.draw(st.integers(0, ranks - 1))
    options: dict[str, Any] = {
        "protocol": data.draw(st.sampled_from(["simple", "ll", "direct"])),
        "instances": data.draw(st.integers(1, 2)),
        "fusion": data.draw(st.sampled_from([None, False])),
    }
    try:
        plan = sley.compile(build(name, ranks=ranks, **own), **options)
    except SleyError:
        return  # not for so many ranks, or without groups
    try:
        found = in_either_place(plan)
    except SleyError as error:
        assert name in NOT_IN_EITHER
        assert error.code == "V204"
        return
    sley.verify(found)
    some = mixed(found, data.draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks)))
    sley.verify(some)
    assert pulls(some) == pulls(found)
    if found.protocol is sley.Protocol.LL:
        assert len(needed_waits(some)) == len(found.waits)


@pytest.mark.parametrize(
    ("kind", "one"),
    sampled(
        product(KINDS, (False, True)),
        lambda kind, one: [(bool(CALLS[kind].roles), CALLS[kind].reduces), one],
    ),
)
def test_every_size_of_a_call_has_a_plan_for_either_place(kind: str, one: bool) -> None:
    made = Plans(hosts_of(4), devices=DeviceLimits(is_one_device=one))
    table = made.table(kind, in_place=None, root=3 if CALLS[kind].roles else 0)
    assert table[-1][0].end_bytes is None
    for _, ready in table:
        assert not ready.plan.collective.in_place
        sley.verify(mixed(ready.plan, [True] * 4))
    assert not table[-1][1].plan.scratch_chunks.any(), "scratch of any size"


def test_an_algorithm_that_needs_its_input_late_is_not_chosen() -> None:
    """Rank 1 gets rank 0's data before it adds its own: in place it would add what it got."""
    with pytest.raises(SleyError, match="V204"):
        in_either_place(sley.compile(build("one-step-allreduce", ranks=2)))
    for ranks in (2, 3):
        made = Plans(hosts_of(ranks), devices=DeviceLimits())
        for _, ready in made.table("all_reduce", in_place=None):
            in_either_place(ready.plan)  # also in blocks that send all of their input first


def test_a_plan_that_reads_its_input_late_is_refused() -> None:
    """Even where all ranks in place, or none, give the right result."""
    hand = Hand()
    for rank in range(2):
        hand.add(rank, 0, Op.SEND, (IN, 0), to=1 - rank)
        hand.add(rank, 0, Op.RECV_REDUCE_COPY, (IN, 0), (OUT, 0), of=1 - rank)
    hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    hand.add(1, 0, Op.RECV, dst=(SCRATCH, 0), of=0)
    plan = hand.plan(sley.AllReduce(2), scratch=1)
    sley.verify(plan)
    sley.verify(mixed(plan, [True, True]))
    with pytest.raises(SleyError, match="reads of the input before the output"):
        in_either_place(plan)


def test_a_plan_that_writes_to_its_input_is_refused() -> None:
    @sley.program(sley.AllReduce(2))
    def written(p: sley.lang.ChunkProgram) -> None:
        p.chunk(0, "in", 0).reduce(p.chunk(1, "in", 0)).copy(0, "out", 0).copy(1, "out", 0)

    with pytest.raises(SleyError, match="F454"):
        in_either_place(sley.compile(written))
