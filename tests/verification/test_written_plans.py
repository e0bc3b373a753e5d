"""Plans written by hand that exactly one condition of the verifier refuses."""

from __future__ import annotations

import sley
from sley.ir.plan import Plan
from sley.ir.words import Op
from support.inputs.xml_plans import I, O, S, Step, plan_of


def codes(plan: Plan, slots: int | None = None, *, per_chunk: bool = False) -> set[str]:
    """The codes with which a plan is refused."""
    try:
        sley.verify(plan, slots, per_chunk=per_chunk)
    except sley.SleyError as error:
        return {diagnostic.code for diagnostic in error.diagnostics}
    return set()


def test_a_wait_for_the_instruction_before_the_write_leaves_a_race() -> None:
    def plan(step: int) -> Plan:
        blocks = [
            [Step(Op.COPY, (I, 0), (S, 1)), Step(Op.COPY, (I, 0), (S, 0))],
            [Step(Op.COPY, (S, 0), (O, 0), waits=((0, step),))],
        ]
        return plan_of(sley.AllReduce(1, 1), [blocks], scratch=[2])

    assert codes(plan(1)) == set()
    assert codes(plan(0)) == {"V204"}


def test_a_wait_for_a_message_of_two_chunks_ends_with_the_second() -> None:
    """Rank 2 takes the chunks that rank 1 forwards after a message that rank 1 sends when both have
    been forwarded: so the first one fills the only slot for ever."""
    nothing = sley.Custom("nothing", 3, 2, 3, lambda rank, index: None)
    ranks = [
        [[Step(Op.SEND, (I, 0), count=2, send=1, chan=0)]],
        [
            [Step(Op.RECV_COPY_SEND, dst=(S, 0), count=2, recv=0, send=2, chan=0)],
            [Step(Op.SEND, (I, 0), send=2, chan=1, waits=((0, 0),))],
        ],
        [
            [Step(Op.RECV, dst=(O, 0), count=2, recv=1, chan=0, waits=((1, 0),))],
            [Step(Op.RECV, dst=(O, 2), recv=1, chan=1)],
        ],
    ]
    plan = plan_of(nothing, ranks, scratch=[0, 2, 0])
    assert codes(plan, 2, per_chunk=True) == set()
    assert codes(plan, 1, per_chunk=True) == {"V203"}
