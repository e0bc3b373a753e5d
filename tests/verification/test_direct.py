"""Direct messages: pulled messages and holds are right on a machine that uses every freedom
(`direct_machine`), every hold is needed, and messages are staged where holds would hang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import build
from sley.formats import msccl_xml, program_source
from sley.ir.connections import Messages
from sley.ir.cost_model import ByProtocol
from sley.ir.plan import Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges
from sley.ir.words import RECEIVES, SENDS, Allocation, Buffer, LoopOrder, Op, Protocol, Schedule
from sley.verification.direct import Pulls, pulls
from sley.verification.direct.pull import all_holds
from sley.verification.hangs import run_abstractly
from support.generators.examples import examples
from support.generators.random_plans import random_plan
from support.generators.random_programs import SCHEDULES, RandomProgram, random_programs
from support.generators.random_transfers import RandomTransfers, random_transfers
from support.machines.direct_machine import HangError, Machine, TornError, WrongError
from support.mutants.plan_edits import as_nop

ENDLESS = 10**9
"""Slots: more than any plan has messages."""


def direct(plan: Plan, order: LoopOrder = LoopOrder.TILE, slots: int | None = None) -> Plan | None:
    """The plan with direct messages, None where it would hang even without them."""
    changed = replace(
        plan,
        protocol=Protocol.DIRECT,
        loop_order=order,
        slots=plan.slots if slots is None else slots,
    )
    try:
        sley.verify(changed)
    except sley.SleyError as error:
        assert error.code == "V203"
        return None
    return changed


def check(plan: Plan, random: Random) -> Pulls:
    """Runs the plan with every block in turn as the slow one, and without each of its holds."""
    found = pulls(plan)
    for bounded in (True, False):
        slow = random.randrange(-1, len(plan.block_rank))
        Machine(plan, found, random.choice((1, 3, 8)), bounded=bounded).run(random, slow)
    reader = Messages.of(plan).receive_of
    for k, send in enumerate(found.holds.target.tolist()):
        # The reader's block is slow, so whoever may overwrite what it reads will have done so.
        machine = Machine(plan, without_hold(found, k), 2, bounded=False, slots=ENDLESS)
        with pytest.raises(TornError):
            machine.run(random, int(plan.block[reader[send]]))
    return found


def without_hold(found: Pulls, k: int) -> Pulls:
    nodes = len(found.pulled)
    source, target = np.delete(found.holds.source, k), np.delete(found.holds.target, k)
    return replace(found, holds=Edges.from_pairs(nodes, source, target))


@examples(14)
@given(st.integers(0, 2**32), st.sampled_from(LoopOrder), st.sampled_from([None, 1, 2]))
def test_random_plans_run_right_and_need_every_hold(
    seed: int, order: LoopOrder, slots: int | None
) -> None:
    plan = direct(random_plan(seed), order, slots)
    if plan is not None:
        check(plan, Random(seed))


@given(random_programs(), st.sampled_from(SCHEDULES), st.booleans(), st.integers(0, 99))
@examples(12)
def test_random_programs_run_right_and_need_every_hold(
    random: RandomProgram, schedule: Schedule, per_chunk: bool, seed: int
) -> None:
    plan = sley.compile(
        random.program, protocol="direct", schedule=schedule, per_chunk=per_chunk, verify=False
    )
    check(plan, Random(seed))


@given(random_transfers(), st.sampled_from(Allocation), st.integers(0, 99))
@examples(12)
def test_random_transfers_run_right_and_need_every_hold(
    random: RandomTransfers, allocate: Allocation, seed: int
) -> None:
    options = {"schedule": "hpds", "allocate": allocate, "topology": random.topology}
    plan = sley.compile(random.program, protocol="direct", **options)
    check(plan, Random(seed))


Exchange = tuple[Op, int, int, int]
"""An operation, its first chunk, how many, and the peer."""


def in_place(blocks: list[list[Exchange]]) -> Plan:
    """A plan with a block for each rank, in which ranks exchange chunks in place. Afterwards a
    rank holds what its peers had at the start."""
    ranks = len(blocks)
    rows = [row for block in blocks for row in block]
    op, index, count, peer = (list(column) for column in zip(*rows, strict=True))
    chunks = max(first + several for first, several in zip(index, count, strict=True))
    came = {
        (rank, first + k): peer
        for rank, block in enumerate(blocks)
        for op, first, several, peer in block
        if RECEIVES[op]
        for k in range(several)
    }
    collective = sley.Custom(
        "exchange",
        ranks,
        chunks,
        chunks,
        lambda rank, index: [(came.get((rank, index), rank), index)],
        in_place=True,
    )
    none = [NONE] * len(rows)
    return Plan(
        name="exchange",
        collective=collective,
        protocol=Protocol.DIRECT,
        loop_order=LoopOrder.TILE,
        slots=2,
        instructions=Instructions(
            op=op,
            src_buffer=[Buffer.INPUT] * len(rows),
            src_index=index,
            dst_buffer=[Buffer.OUTPUT] * len(rows),
            dst_index=index,
            count=count,
            send_peer=np.where(SENDS[op], peer, NONE),
            recv_peer=np.where(RECEIVES[op], peer, NONE),
            channel=[0] * len(rows),
            transfer=none,
            forward=none,
            pipeline=none,
            source=none,
        ),
        block_rank=np.arange(ranks),
        block_offset=np.cumsum([0, *map(len, blocks)]),
        waits=Edges.empty(len(rows)),
        scratch_chunks=np.zeros(ranks, np.int32),
        sources=Sources.of_file("", []),
    )


def shift(ranks: int, chunks: int = 1) -> Plan:
    """Every rank sends its chunks to the next and overwrites them with those of the one before."""
    return in_place(
        [
            [
                row
                for index in range(chunks)
                for row in (
                    (Op.SEND, index, 1, (rank + 1) % ranks),
                    (Op.RECV, index, 1, (rank - 1) % ranks),
                )
            ]
            for rank in range(ranks)
        ]
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_of_an_exchange_in_place_one_message_is_staged(ranks: int) -> None:
    plan = shift(ranks, chunks=3)
    sley.verify(plan)
    found = check(plan, Random(ranks))
    sends = plan.instructions.op == Op.SEND
    assert (sends & ~found.pulled).sum() == 3
    assert len(found.holds) == 3 * (ranks - 1)


def test_a_swap_goes_wrong_without_holds_and_hangs_with_all() -> None:
    plan = shift(2)
    found = pulls(plan)
    send, receive = [0, 2], [1, 3]
    everything = replace(found, pulled=plan.instructions.op == Op.SEND)
    everything = replace(everything, buffer=[0, NONE, 0, NONE], index=[0, NONE, 0, NONE])
    none = replace(everything, holds=Edges.empty(4))
    with pytest.raises((TornError, WrongError)):
        Machine(plan, none, 1, bounded=False).run(Random(0), slow=0)
    all_holds = replace(everything, holds=Edges.from_pairs(4, np.array(receive), np.array(send)))
    with pytest.raises(HangError):
        Machine(plan, all_holds, 1, bounded=False).run(Random(0))
    messages = Messages.of(plan)
    run = run_abstractly(plan, messages, 2, per_chunk=False, holds=all_holds.holds)
    assert [d.code for d in run.diagnostics] == ["V203"]
    assert "overwrites chunks that must first be read by" in str(run.diagnostics[0])


def test_the_first_writer_of_each_chunk_is_held() -> None:
    # Rank 0 sends three chunks as one message; then rank 2 overwrites one, rank 3 two.
    plan = in_place(
        [
            [(Op.SEND, 0, 3, 1), (Op.RECV, 1, 1, 2), (Op.RECV, 0, 2, 3)],
            [(Op.RECV, 0, 3, 0)],
            [(Op.SEND, 1, 1, 0)],
            [(Op.SEND, 0, 2, 0)],
        ]
    )
    sley.verify(plan)
    messages = Messages.of(plan)
    level = run_abstractly(plan, messages, 2, per_chunk=False).level
    lies = plan.instructions.op == Op.SEND
    assert [held.tolist() for held in map(all_holds(plan, lies, level).__getitem__, (1, 2))] == [
        [0],
        [0],
    ]
    # One of them comes after the other.
    found = check(plan, Random(1))
    assert list(zip(found.holds.source, found.holds.target, strict=True)) == [(1, 0)]


def test_messages_outside_buffers_are_staged_and_fused_ones_pulled_where_they_were_written() -> (
    None
):
    plan = sley.compile(build("ring-allreduce", ranks=4, in_place=True), protocol="direct")
    found, t = check(plan, Random(0)), plan.instructions
    assert set(t.op[SENDS[t.op] & ~found.pulled].tolist()) == {Op.RECV_REDUCE_SEND}
    for row in np.flatnonzero(found.pulled).tolist():
        own = t.op[row] == Op.SEND
        place = (t.src_buffer, t.src_index) if own else (t.dst_buffer, t.dst_index)
        assert (found.buffer[row], found.index[row]) == (place[0][row], place[1][row])
    assert (found.buffer[~found.pulled] == NONE).all()
    # What overwrites a chunk in a ring was made from what its reader read.
    assert len(found.holds) == 0


@pytest.mark.parametrize(
    ("name", "size", "holds"),
    [
        ("all-pairs-allreduce", {"ranks": 8}, 0),
        ("hm-allreduce", {"nodes": 2, "gpus": 4}, 0),
        ("all-pairs-alltoall", {"ranks": 8}, 56),
    ],
)
@pytest.mark.parametrize("schedule", ["msccl", "hpds"])
def test_algorithms_pull_all_that_lies_somewhere(
    name: str, size: dict[str, int], holds: int, schedule: str
) -> None:
    plan = sley.compile(build(name, **size, in_place=True), protocol="direct", schedule=schedule)
    found, op = pulls(plan), plan.instructions.op
    assert found.pulled.tolist() == (SENDS[op] & (op != Op.RECV_REDUCE_SEND)).tolist()
    assert len(found.holds) == holds
    Machine(plan, found, 3, bounded=False).run(Random(0), slow=0)


@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
def test_other_protocols_pull_nothing(protocol: str) -> None:
    plan = sley.compile(build("ring-allreduce", ranks=4, in_place=True), protocol=protocol)
    found = pulls(plan)
    assert not found.pulled.any()
    assert len(found.holds) == 0


def test_plans_that_cannot_be_verified_are_refused() -> None:
    unmatched = as_nop(shift(2), 3)
    with pytest.raises(sley.SleyError, match="V202"):
        pulls(unmatched)
    circle = in_place(
        [[(Op.RECV, 0, 1, 1), (Op.SEND, 0, 1, 1)], [(Op.RECV, 0, 1, 0), (Op.SEND, 0, 1, 0)]]
    )
    with pytest.raises(sley.SleyError, match="V203"):
        pulls(circle)


def test_larger_plans_pull_as_much_of_their_messages() -> None:
    plan = sley.compile(
        build("ring-allreduce", ranks=64, in_place=True), protocol="direct", schedule="hpds"
    )
    found = pulls(plan)
    assert found.pulled.sum() == SENDS[plan.instructions.op].sum()
    crowd = shift(32, chunks=20)
    assert pulls(crowd).pulled.sum() == 31 * 20


def test_direct_is_a_word_of_the_compiler_the_cost_model_and_choose() -> None:
    ring = build("ring-allreduce", ranks=4)
    plan = sley.compile(ring, protocol="direct")
    assert (plan.protocol, plan.slots) == (Protocol.DIRECT, 2)
    by_protocol = ByProtocol(1.0, 2.0, 3.0)
    assert by_protocol[Protocol.DIRECT] == by_protocol[Protocol.SIMPLE] == 3.0
    topology = sley.topologies.ndv4(nodes=1)
    ring = build("ring-allreduce", ranks=8)
    asked = sley.choose(ring, "1M", topology, protocol="direct", instances=[1])
    assert asked.ranges[0].plan.protocol is Protocol.DIRECT
    by_connection = {"schedule": "msccl", "allocate": "connection"}
    unasked = sley.choose(ring, "1M", topology, instances=[1], **by_connection)
    assert unasked.ranges[0].plan.protocol is not Protocol.DIRECT
    assert unasked.candidates == 3 * 3  # protocols, channels


def test_a_program_s_source_says_direct() -> None:
    program = replace(build("ring-allreduce", ranks=2), protocol=Protocol.DIRECT)
    space: dict[str, object] = {}
    exec(program_source.write(program), space)
    assert space["algorithm"].protocol is Protocol.DIRECT  # type: ignore[attr-defined]


def test_msccl_xml_has_no_direct_messages(tmp_path: Path) -> None:
    plan = sley.compile(build("ring-allreduce", ranks=4), protocol="direct", per_chunk=True)
    with pytest.raises(sley.SleyError, match="F441"):
        msccl_xml.write(plan, "msccl")
    text = msccl_xml.write(replace(plan, protocol=Protocol.SIMPLE), "msccl")
    (tmp_path / "plan.xml").write_text(text.replace('proto="Simple"', 'proto="Direct"'))
    with pytest.raises(sley.SleyError, match="F408"):
        sley.load(tmp_path / "plan.xml")
