"""Runs: what kernels execute as one means what the instructions mean one after another, and waits
for nothing that it causes itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import build
from sley.engine.kernels.operands import Operands, operands
from sley.ir.connections import Messages
from sley.ir.tables import NONE
from sley.ir.words import READS_SOURCE, RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, Allocation, Op
from sley.verification.runs import MOST_ROWS
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, exchanges, random_programs
from support.generators.sampling import each_value
from support.inputs import small_plans
from support.inputs.algorithm_cases import SIZED, places, sizes

LOST = Counter({"lost": 1})
"""What is where a result wasn't stored."""


class Machine:
    """A plan whose blocks execute runs; each as soon as all that its instructions need is there."""

    def __init__(self, plan: sley.Plan, found: Operands) -> None:
        self.plan, self.o, self.messages = plan, found, Messages.of(plan)
        c = plan.collective
        self.cells: dict[int, Counter[Any]] = {}
        for chunk in np.flatnonzero(c.initial).tolist():
            self.cells[int(c.input_cells(plan.layout)[chunk])] = Counter({chunk: 1})
        self.sent: dict[int, list[Counter[Any]]] = {}
        self.taken: set[int] = set()  # sends of messages that have been received
        self.done: set[int] = set()
        self.number = {int(s): k for k, s in enumerate(self.messages.send)}
        self.waits: dict[int, set[int]] = {}
        self.holds: dict[int, set[int]] = {}
        m = self.messages
        ends = zip(m.connection.tolist(), m.number.tolist(), m.send.tolist(), strict=True)
        sends = {(connection, number): row for connection, number, row in ends}
        conditions = found.conditions
        for row in range(len(plan.instructions)):
            first = int(plan.rank_block[plan.rank[row]])
            waits, holds = set[int](), set[int]()
            for k in range(*conditions.offset[row : row + 2].tolist()):
                target, number = int(conditions.target[k]), int(conditions.number[k])
                if conditions.held[k]:
                    connection = found.sends.order[int(found.sends.offset[first]) + target]
                    holds.add(sends[int(connection), number])
                else:
                    waits.add(int(plan.block_offset[first + target]) + number)
            self.waits[row], self.holds[row] = waits, holds

    def outputs(self) -> list[Counter[Any]]:
        """What the output chunks hold at the end. AssertionError if a block waits for ever."""
        plan, length = self.plan, self.o.runs.length
        following = plan.block_offset[:-1].tolist()
        moves = True
        while moves:
            moves = False
            for block, end in enumerate(plan.block_offset[1:].tolist()):
                row = following[block]
                if row == end or not self.can_run(rows := range(row, row + int(length[row]))):
                    continue
                self.execute(rows)
                following[block], moves = rows.stop, True
        assert following == plan.block_offset[1:].tolist(), "blocks wait for ever"
        return [self.cells.get(cell, Counter()) for cell in self.cells_of_outputs()]

    def cells_of_outputs(self) -> list[int]:
        c = self.plan.collective
        return [
            int(cell)
            for cell, value in zip(c.output_cells(self.plan.layout), c.expected, strict=True)
            if value != NONE
        ]

    def can_run(self, rows: range) -> bool:
        op = self.plan.instructions.op
        return (
            all(
                (not RECEIVES[op[row]] or int(self.messages.send_of[row]) in self.sent)
                and (not SENDS[op[row]] or self.has_slot(row))
                for row in rows
            )
            and self.done >= self.waits[rows.start]
            and self.taken >= self.holds[rows.start]
        )

    def has_slot(self, row: int) -> bool:
        """Whether the message whose slot a send takes has been received."""
        k, m = self.number[row], self.messages
        before = k - self.plan.slots
        if before < 0 or m.connection[before] != m.connection[k]:
            return True
        return int(m.send[before]) in self.taken

    def received(self, send: int) -> list[Counter[Any]]:
        """The message of a send: what was in a slot, or is where it stays."""
        self.taken.add(send)
        if not self.o.stays[send]:
            return self.sent[send]
        op, at = Op(int(self.plan.instructions.op[send])), np.array([send])
        reads = READS_SOURCE[op] and not REDUCES[op]
        cells = (self.plan.source_cells if reads else self.plan.destination_cells)(at)
        count = range(int(self.plan.instructions.count[send]))
        return [self.cells[int(cells[0]) + k] for k in count]

    def execute(self, rows: range) -> None:
        t, runs, last = self.plan.instructions, self.o.runs, [LOST]
        before = dict(self.cells)  # a thread loads all operands before it stores a result
        for row in rows:
            op, count = Op(int(t.op[row])), range(int(t.count[row]))
            src, dst = (
                int(of(np.array([row]))[0])
                for of in (self.plan.source_cells, self.plan.destination_cells)
            )
            operands = [dst] * (op is Op.REDUCE) + [src] * bool(READS_SOURCE[op])
            in_register = [runs.first[row], runs.second[row]]
            values = [
                last if held else [before.get(cell + k, Counter()) for k in count]
                for cell, held in zip(operands, in_register, strict=False)
            ]
            if RECEIVES[op]:
                values.append(self.received(int(self.messages.send_of[row])))
            last = values[0] if values else last
            if REDUCES[op]:
                last = [a + b for a, b in zip(*values, strict=True)]
            for k in count if WRITES_DESTINATION[op] else ():
                self.cells[dst + k] = LOST if runs.kept[row] else last[k]
            if SENDS[op]:
                self.sent[row] = last
        self.done.update(rows)


def check(plan: sley.Plan) -> Operands:
    """The operands of a plan with runs that means the same as without."""
    found = operands(plan)
    runs, t = found.runs, plan.instructions
    alone = replace(
        runs,
        length=np.ones(len(t), np.int32),
        **dict.fromkeys(("first", "second", "kept"), np.zeros(len(t), bool)),
    )
    assert Machine(plan, found).outputs() == Machine(plan, replace(found, runs=alone)).outputs()
    assert runs.length.max(initial=0) <= (1 if found.homes.misplaced else MOST_ROWS)
    assert not (runs.kept | runs.first | runs.second)[runs.length == 1].any()
    behind, last = runs.length == 0, np.append(runs.length[1:] != 0, True)[: len(t)]
    assert not (np.diff(found.conditions.offset) > 0)[behind].any(), "a wait within a run"
    assert not found.posts[~last].any(), "others wait for a part of a run"
    return found


@examples(36)
@given(
    st.one_of(random_programs(), exchanges(), exchanges()),
    st.sampled_from(["LL", "simple", "direct"]),
    st.sampled_from(Allocation),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 1, 2]),
)
def test_a_run_does_what_its_instructions_do(
    random: RandomProgram,
    protocol: str,
    allocate: Allocation,
    slots: int,
    instances: int,
    most: int | None,
) -> None:
    check(
        sley.compile(
            random.program,
            protocol=protocol,
            allocate=allocate,
            slots=slots,
            instances=instances,
            max_blocks=most,
        )
    )


@pytest.mark.parametrize(
    ("allocate", "protocol"), each_value(["connection", "instance"], ["LL", "direct"])
)
def test_runs_of_the_library_do_what_their_instructions_do(allocate: str, protocol: str) -> None:
    for name in SIZED:
        size = sizes(name)[min(2, len(sizes(name)) - 1)]
        for in_place in places(name):
            program = build(name, **size, in_place=in_place)
            check(sley.compile(program, protocol=protocol, allocate=allocate))


def test_a_step_of_all_pairs_is_a_run_of_sends_and_one_of_receives() -> None:
    for name, lengths in (
        ("one-step-allreduce", {(3, 3), (3, 4), (3, 5)}),
        ("all-pairs-allreduce", {(3, 5, 3)}),
        ("all-pairs-allgather", {(3, 3)}),
        ("all-pairs-alltoall", {(4, 3)}),
    ):
        program = build(name, ranks=4, in_place=name != "all-pairs-alltoall")
        plan = sley.compile(program, protocol="LL", allocate="instance")
        length = check(plan).runs.length
        blocks = np.split(length, plan.block_offset[1:-1])
        assert {tuple(block[block > 0].tolist()) for block in blocks} == lengths, name


def block(rows: str, protocol: str = "LL", chunks: int = 1) -> sley.Plan:
    """Rank 0's block; the other ranks send and receive in blocks of their own. A row: what it does,
    its source and destination, i, o or s for a buffer (i0*2: two chunks), and peers: <1 >2."""
    hand = small_plans.Hand()
    buffers = {"i": small_plans.IN, "o": small_plans.OUT, "s": small_plans.SCRATCH}
    for row in rows.split("; "):
        op, *words = row.split()
        places = [(buffers[w[0]], int(w[1])) for w in words if w[0] in buffers]
        peers = {w[0]: int(w[1:]) for w in words if w[0] in "<>"}
        reads = READS_SOURCE[Op[op.upper()]]
        src, dst = [*([] if reads else [(0, 0)]), *places, (0, 0), (0, 0)][:2]
        to, of, count = peers.get(">", NONE), peers.get("<", NONE), 2 if "*" in row else 1
        hand.add(0, 0, Op[op.upper()], src, dst, count=count, to=to, of=of)
        if to != NONE:
            hand.add(to, 0, Op.RECV, dst=(small_plans.SCRATCH, 0), count=count, of=0)
        if of != NONE:
            hand.add(of, 1, Op.SEND, (small_plans.IN, 0), count=count, to=0)
    ranks = max(hand.blocks)[0] + 1
    collective = sley.Custom("any", ranks, 4, 4, lambda rank, index: None, chunks=chunks)
    plan = hand.plan(collective, slots=64, scratch=4)
    return replace(plan, protocol=sley.Protocol(protocol))


def in_words(rows: str, protocol: str = "LL") -> str:
    """Of each row the length of the run that begins there, and what it takes from the row before
    (F: as first operand, S: as second), and whether its own result is kept (K)."""
    runs, number = check(block(rows, protocol)).runs, len(rows.split("; "))
    flags = zip("FSK", (runs.first, runs.second, runs.kept), strict=True)
    marks = [[letter if is_set else "" for is_set in of] for letter, of in flags]
    return " ".join(f"{runs.length[k]}{''.join(of[k] for of in marks)}" for k in range(number))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # What is loaded once, and what is a result.
        ("send i0 >1; send i0 >2; send i1 >3", "3 0F 0"),
        ("copy i0 o0; send i0 >1; copy o0 o1", "2 0F 1"),
        ("copy_send i0 o0 >1; send i0 >2", "2 0F"),
        ("recv s0 <1; reduce s0 o0; copy o0 o1", "3K 0S 0F"),
        ("recv s0 <1; reduce s0 o0; send s0 >2", "2 0S 1"),
        ("recv o0 <1; reduce i0 o0", "2K 0F"),
        ("recv o1 <1; reduce i0 o0", "1 1"),
        ("recv o0 <1; recv o1 <2; copy o0 o2", "2 0 1"),
        # What would wait for others that do the same.
        ("send i0 >1; recv o1 <1", "1 1"),
        ("recv o1 <1; send i0 >2", "1 1"),
        ("recv o1 <1; send o1 >2; send o1 >3", "3 0F 0F"),
        ("copy i0 o0; send i1 >2", "2 0"),
        ("send i0 >1; send i1 >1; send i1 >2", "1 2 0F"),
        ("recv o0 <1; recv o1 <1; recv o2 <2", "1 2 0"),
        # What is no run.
        ("send i0 >1; nop; send i0 >2", "1 1 1"),
        ("send i0 >1; send i0*2 >1; send i0 >2", "1 1 1"),
        # Results that nothing else reads.
        ("recv_reduce_copy i0 o0 <1; recv_reduce_copy o0 o0 <2", "2K 0F"),
        ("recv_reduce_copy i0 o1 <1; recv_reduce_copy o1 o0 <2", "2 0F"),
        ("recv_reduce_copy i0 s0 <1; recv_reduce_copy s0 o0 <2; copy s0 o1", "2 0F 1"),
        ("recv_reduce_copy i0 s1 <1; recv_reduce_copy s1 o0 <2; copy s0*2 o1", "2 0F 1"),
        ("recv s1 <1; copy s1 o0; copy s0 o1; copy s2 o2; copy i1 o3", "5K 0F 0 0 0"),
        ("recv o1 <1; recv s0 <2; copy s0*2 o0", "2 0 1"),
    ],
)
def test_neighbours_that_a_thread_can_execute_for_a_word_are_a_run(
    rows: str, expected: str
) -> None:
    assert in_words(rows) == expected


@pytest.mark.parametrize(
    ("rows", "in_slots", "in_memory"),
    [
        ("recv s0 <1; send s0 >2", "2K 0F", "2 0F"),
        ("recv_copy_send s0 <1 >2; copy s0 o0", "2K 0F", "2 0F"),
    ],
)
def test_a_message_that_stays_in_memory_is_stored(rows: str, in_slots: str, in_memory: str) -> None:
    assert in_words(rows, "Simple") == in_slots
    assert in_words(rows, "Direct") == in_memory


@pytest.mark.parametrize(("protocol", "length"), [("Simple", 2), ("Direct", 1)])
def test_a_run_reads_no_message_that_must_be_read_before_it(protocol: str, length: int) -> None:
    """Rank 0 overwrites what rank 1 reads, and then sends what comes to rank 1 by way of rank 2."""
    hand = small_plans.Hand()
    hand.add(0, 0, Op.SEND, (small_plans.IN, 0), to=1)
    hand.add(0, 0, Op.COPY, (small_plans.IN, 1), (small_plans.IN, 0))
    hand.add(0, 0, Op.SEND, (small_plans.IN, 1), to=2)
    hand.add(2, 0, Op.RECV_COPY_SEND, dst=(small_plans.OUT, 0), of=0, to=1)
    for chunk, rank in enumerate((0, 2)):
        hand.add(1, 0, Op.RECV, dst=(small_plans.OUT, chunk), of=rank)
    plan = hand.plan(sley.Custom("any", 3, 3, 3, lambda rank, index: None), slots=8)
    plan = replace(plan, protocol=sley.Protocol(protocol))
    assert check(plan).runs.length[plan.rank == 1].max() == length


def test_a_run_has_as_many_rows_as_a_block_has_room_for() -> None:
    assert in_words("; ".join(f"send i0 >{k}" for k in range(1, 67))).split() == [
        *("32", *["0F"] * 31, "32", *["0F"] * 31, "2", "0F")
    ]


def test_chunks_at_the_places_of_others_are_in_no_run() -> None:
    rows = "copy i1 o0; send i1 >1"
    assert check(block(rows, chunks=2)).homes.misplaced
    assert check(block(rows)).runs.length[0] == 2


@pytest.mark.parametrize("options", [{"protocol": "LL128"}, {"schedule": "hpds"}])
def test_lines_and_instruction_order_have_no_runs(options: dict[str, Any]) -> None:
    program = build("all-pairs-allgather", ranks=4, in_place=True)
    every = {"protocol": "LL", "allocate": "instance"}
    assert check(sley.compile(program, **every)).runs.length.max() == 3
    assert check(sley.compile(program, **every | options)).runs.length.max() == 1


@pytest.mark.parametrize(("slots", "length"), [(1, 1), (2, 2)])
def test_a_run_that_would_wait_for_itself_is_none(slots: int, length: int) -> None:
    """With one slot, rank 1 sends to rank 2, for which rank 0 waits, when rank 0 has received."""
    hand = small_plans.Hand()
    for chunk, rank in enumerate((1, 2, 1)):
        hand.add(0, 0, Op.RECV, dst=(small_plans.OUT, chunk), of=rank)
    for chunk, rank in enumerate((0, 0, NONE, 2)):
        op = Op.NOP if rank == NONE else Op.SEND
        hand.add(1, 0, op, (small_plans.IN, chunk % 3), to=rank)
    hand.add(2, 0, Op.RECV_COPY_SEND, dst=(small_plans.OUT, 0), of=1, to=0)
    collective = sley.Custom("any", 3, 3, 3, lambda rank, index: None)
    plan = replace(hand.plan(collective, slots=slots), protocol=sley.Protocol.LL)
    assert check(plan).runs.length[0] == length


@pytest.mark.parametrize(("slots", "length"), [(1, 1), (2, 2)])
def test_a_run_does_not_wait_for_a_block_that_waits_for_it(slots: int, length: int) -> None:
    """Rank 2 sends to rank 0, then to rank 1: with one slot, when rank 1 has received from rank 0,
    where another block waits for what rank 2 sends."""
    hand, here = small_plans.Hand(), (small_plans.OUT, 0)
    hand.add(2, 0, Op.SEND, (small_plans.IN, 0), to=1)
    hand.add(2, 0, Op.NOP)
    hand.add(2, 0, Op.SEND, (small_plans.IN, 1), to=0)
    hand.add(2, 0, Op.SEND, (small_plans.IN, 2), to=1)
    hand.add(0, 0, Op.RECV, dst=here, of=2)
    hand.add(0, 1, Op.SEND, here, to=1, waits=((0, 0),))
    for chunk, rank in enumerate((0, 2, 2)):
        hand.add(1, 0, Op.RECV, dst=(small_plans.OUT, chunk), of=rank)
    collective = sley.Custom("any", 3, 3, 3, lambda rank, index: None)
    plan = replace(hand.plan(collective, slots=slots), protocol=sley.Protocol.LL)
    assert check(plan).runs.length[-2] == length
