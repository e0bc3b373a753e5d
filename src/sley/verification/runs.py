"""Runs: neighbouring instructions of a thread block that kernels execute as one, word by word.

A block that serves several connections turns from one to the next, and each turn has its barriers,
its wait and its pass through memory. In a run a thread does all instructions for one word, then all
of them for its next word: it loads an operand once for all ranks to which it goes, polls for the
messages of all ranks at once, and keeps sums in registers. What an instruction does stays what
`docs/machine.md` says, and the plan stays as it is: only kernels know runs.

A run needs at once what its instructions need one after another. So it must not wait for what one
of them causes: the graph of executions, each run one of them, has no cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sley.ir.connections import Messages
from sley.ir.cut import Homes
from sley.ir.graph import strong_components
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, Value
from sley.ir.words import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    LoopOrder,
    Op,
    Protocol,
)
from sley.verification.direct import Pulls

MOST_ROWS = 32
"""The most instructions of a run: their addresses are in a block's shared memory
(`primitives/runs.hpp`)."""


@dataclass(frozen=True, eq=False, repr=False)
class Runs(Value):
    """The runs of a plan; a row for each instruction.

    length: int32, the instructions of the run that begins with this one; 1 for one that is alone,
        0 for those behind the first of a run.
    first, second: bool, whether this operand is the result of the instruction before. The first is
        the one on the left of the reduction, or the only one.
    kept: bool, whether the result isn't stored: the next instruction of the run overwrites it, or
        it is in scratch and none but the next of the run reads it.
    """

    length: IntArray
    first: BoolArray
    second: BoolArray
    kept: BoolArray

    @classmethod
    def apart(cls, number: int) -> Runs:
        """So many instructions, each alone."""
        return cls(np.ones(number, np.int32), *np.zeros((3, number), bool))

    @classmethod
    def of(cls, plan: Plan, messages: Messages, waits: Edges, pulls: Pulls) -> Runs:
        """The runs of a verified plan, whose instructions have these waits (`kernel_waits`) and
        pulls (`sley.verification.direct`)."""
        view = _View.of(plan, messages, waits, pulls)
        number = len(plan.instructions)
        length = np.ones(number, np.int32)
        first, second, kept = (np.zeros(number, bool) for _ in range(3))
        candidates = _candidates(view)
        stuck = _in_cycles(view, candidates)
        for rows in (rows for rows in candidates if rows.start not in stuck):
            length[rows.start : rows.stop] = 0
            length[rows.start] = len(rows)
            for row, taken in _taken_from_registers(view, rows):
                first[row], second[row] = [*taken, False, False][:2]
                kept[row] = _is_overwritten(view, row, rows) or _is_private(view, row, rows)
        return cls(length, first, second, kept)


@dataclass(frozen=True)
class _View:
    """What runs depend on, of a plan.

    src, dst: of each instruction the cell of its first chunk, NONE without. waits: between
    instructions. pulls: the messages that stay in their sender's memory. starts: bool, whether an
    instruction has a condition; posts: whether others wait for it. is_plain: whether instructions
    may be in runs at all.
    """

    plan: Plan
    messages: Messages
    src: list[int]
    dst: list[int]
    waits: Edges
    pulls: Pulls
    starts: BoolArray
    posts: BoolArray
    is_plain: bool

    @classmethod
    def of(cls, plan: Plan, messages: Messages, waits: Edges, pulls: Pulls) -> _View:
        op, rows = plan.instructions.op, np.arange(len(plan.instructions))
        starts, posts = np.zeros((2, len(rows)), bool)
        starts[waits.source] = starts[pulls.holds.source] = posts[waits.target] = True
        return cls(
            plan=plan,
            messages=messages,
            src=np.where(READS_SOURCE[op], plan.source_cells(rows), NONE).tolist(),
            dst=np.where(WRITES_DESTINATION[op], plan.destination_cells(rows), NONE).tolist(),
            waits=waits,
            pulls=pulls,
            starts=starts,
            posts=posts,
            is_plain=not len(plan.groups) and not Homes.of(plan, messages).misplaced,
        )


def _candidates(view: _View) -> list[range]:
    """The longest runs of each block, as if none had to wait for another."""
    plan = view.plan
    if (
        not view.is_plain
        or plan.protocol is Protocol.LL128
        or plan.loop_order is not LoopOrder.TILE
    ):
        return []
    found = []
    for block in range(len(plan.block_rank)):
        first = row = int(plan.block_offset[block])
        end = int(plan.block_offset[block + 1])
        while first < end:
            run = _Candidate(view)
            while row < end and run.takes(row):
                row += 1
            row = max(row, first + 1)
            if row - first > 1:
                found.append(range(first, row))
            first = row
    return found


class _Candidate:
    """A run that grows by one instruction after another."""

    def __init__(self, view: _View) -> None:
        self._view = view
        self._rows = 0
        self._receives = self._sends = self._ends = False
        self._written: set[int] = set()
        self._last: set[int] = set()  # the places of the last result
        self._peers: set[tuple[int, int, int]] = set()  # at the other ends of connections

    def takes(self, row: int) -> bool:
        """Whether the instruction belongs to the run, which then has it."""
        view, t = self._view, self._view.plan.instructions
        op = Op(int(t.op[row]))
        src, dst = view.src[row], view.dst[row]
        receives, sends = bool(RECEIVES[op]), bool(SENDS[op])
        if op is Op.NOP or self._ends or self._rows == MOST_ROWS or t.count[row] != 1:
            return False
        if self._rows and view.starts[row]:
            return False
        # Sends of own data are apart from receives: peers that do the same would wait for one
        # another, so such a run would be none.
        if receives and self._sends:
            return False
        if sends and not receives and self._receives and src not in self._last:
            return False
        # Each row has a thread that counts its messages, so two rows of one connection would count
        # in any order.
        channel = int(t.channel[row])
        peers = {(0, int(t.recv_peer[row]), channel)} if receives else set()
        peers |= {(1, int(t.send_peer[row]), channel)} if sends else set()
        if peers & self._peers:
            return False
        # A thread loads all operands before it stores a result.
        loaded = set(_operands(op, src, dst)) - self._last
        if len(loaded) > 1 or loaded & self._written:
            return False
        if op is Op.REDUCE and (src == dst or not loaded):  # a register with itself
            return False
        self._rows += 1
        self._receives |= receives
        self._sends |= sends
        self._ends = bool(view.posts[row])
        self._peers |= peers
        self._last = _places_of_result(op, src, dst)
        if WRITES_DESTINATION[op]:
            self._written.add(dst)
        return True


def _operands(op: Op, src: int, dst: int) -> Iterator[int]:
    """The places that an instruction reads, in the order of its operands."""
    if op is Op.REDUCE:
        yield dst
    if READS_SOURCE[op]:
        yield src


def _places_of_result(op: Op, src: int, dst: int) -> set[int]:
    """The places that hold the result of an instruction after it."""
    found = {dst} if WRITES_DESTINATION[op] else set()
    if op in (Op.SEND, Op.COPY, Op.COPY_SEND):
        found.add(src)
    return found


def _taken_from_registers(view: _View, rows: range) -> Iterator[tuple[int, list[bool]]]:
    """The instructions of a run, and of each operand whether it is the result before."""
    last: set[int] = set()
    for row in rows:
        op, ends = Op(int(view.plan.instructions.op[row])), (view.src[row], view.dst[row])
        yield row, [place in last for place in _operands(op, *ends)]
        last = _places_of_result(op, *ends)


def _is_overwritten(view: _View, row: int, rows: range) -> bool:
    """Whether the next instruction of the run overwrites the result."""
    ops, after = view.plan.instructions.op, row + 1
    if after not in rows or not (WRITES_DESTINATION[ops[row]] and WRITES_DESTINATION[ops[after]]):
        return False
    return view.dst[after] == view.dst[row]


def _is_private(view: _View, row: int, rows: range) -> bool:
    """Whether the result is in scratch, and of all instructions of the rank only the next one of
    the run reads it, from a register, and no other rank."""
    plan, place, t = view.plan, view.dst[row], view.plan.instructions
    pulled = view.pulls.pulled
    if pulled[row] or not WRITES_DESTINATION[t.op[row]] or t.dst_buffer[row] != Buffer.SCRATCH:
        return False
    first, end = (int(plan.block_offset[b]) for b in plan.rank_block[plan.rank[row] :][:2])
    return not any(
        cell <= place < cell + t.count[other]
        for other in range(first, end)
        if other != row + 1 or other not in rows or pulled[other]
        for cell in _operands(Op(int(t.op[other])), view.src[other], view.dst[other])
    )


def _in_cycles(view: _View, candidates: list[range]) -> set[int]:
    """The first rows of the runs that wait for themselves, if each run is one execution. Without
    these there is no cycle: of instructions alone, a proven plan has none."""
    plan, messages = view.plan, view.messages
    execution = np.arange(len(plan.instructions))
    for rows in candidates:
        execution[rows.start : rows.stop] = rows.start
    follows = np.flatnonzero(plan.step > 0)
    reuses = np.flatnonzero(messages.number >= plan.slots)  # the slots of messages before
    freed = messages.receive[reuses - plan.slots]
    waits, holds = view.waits, view.pulls.holds
    earlier: list[LongArray | IntArray] = [follows - 1, waits.target, messages.send, freed]
    later: list[LongArray | IntArray] = [follows, waits.source, messages.receive]
    earlier.append(messages.receive_of[holds.target])  # who reads what stays in memory
    later += [messages.send[reuses], holds.source]
    source, target = execution[np.concatenate(earlier)], execution[np.concatenate(later)]
    apart = source != target
    component = strong_components(len(execution), source[apart], target[apart])
    shared = np.bincount(component)[component] > 1
    return {rows.start for rows in candidates if shared[rows.start]}
