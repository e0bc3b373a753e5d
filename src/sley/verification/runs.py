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

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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
        view = _View.of(plan, waits, pulls)
        candidates = _candidates(view) if _has_runs(plan, messages) else []
        if not candidates:
            return cls.apart(len(plan.instructions))
        stuck = _in_cycles(plan, messages, waits, pulls, candidates)
        length = np.ones(len(plan.instructions), np.int32)
        for rows in (rows for rows in candidates if rows.start not in stuck):
            length[rows.start : rows.stop] = 0
            length[rows.start] = len(rows)
        follows = length == 0

        def is_result(place: LongArray) -> BoolArray:
            """Whether a place has the result of the instruction before, of the same run."""
            before = (np.roll(view.dst, 1) == place) | (np.roll(view.held, 1) == place)
            found: BoolArray = follows & (place != NONE) & before
            return found

        of_src, of_dst = is_result(view.src), is_result(view.dst) & view.reduces
        return cls(
            length,
            first=np.where(view.reduces, of_dst, of_src),
            second=view.reduces & of_src,
            kept=_is_overwritten(view, follows) | _is_private(view, length, pulls),
        )


@dataclass(frozen=True)
class _View:
    """What runs depend on, of a plan; a row for each instruction.

    src, dst: the cell of the first chunk that an instruction reads and writes, NONE without. held:
        `src`, if it is the result, too. reduces: whether it reads `dst` before `src`.
    starts: bool, whether an instruction has a condition; posts: whether others wait for it.
    """

    plan: Plan
    src: LongArray
    dst: LongArray
    held: LongArray
    reduces: BoolArray
    starts: BoolArray
    posts: BoolArray

    @classmethod
    def of(cls, plan: Plan, waits: Edges, pulls: Pulls) -> _View:
        op, rows = plan.instructions.op, np.arange(len(plan.instructions))
        starts, posts = np.zeros((2, len(rows)), bool)
        starts[waits.source] = starts[pulls.holds.source] = posts[waits.target] = True
        src = np.where(READS_SOURCE[op], plan.source_cells(rows), NONE)
        return cls(
            plan=plan,
            src=src,
            dst=np.where(WRITES_DESTINATION[op], plan.destination_cells(rows), NONE),
            held=np.where(np.isin(op, (Op.SEND, Op.COPY, Op.COPY_SEND)), src, NONE),
            reduces=op == Op.REDUCE,
            starts=starts,
            posts=posts,
        )


def _has_runs(plan: Plan, messages: Messages) -> bool:
    """Whether instructions of a plan may be in runs at all."""
    if plan.protocol is Protocol.LL128 or plan.loop_order is not LoopOrder.TILE:
        return False
    return not len(plan.groups) and not Homes.of(plan, messages).misplaced


def _candidates(view: _View) -> list[range]:
    """The longest runs of each block, as if none had to wait for another."""
    t, found, rows = view.plan.instructions, list[range](), _RunColumns.of(view)
    # No run goes over the beginning of another block, an instruction that is alone, a condition,
    # or the end of an instruction for which others wait.
    begins = np.append((t.op == Op.NOP) | (t.count != 1), True)
    begins[1:] |= begins[:-1] | view.posts
    begins[:-1] |= view.starts
    begins[view.plan.block_offset] = True
    for first, end in pairwise(np.flatnonzero(begins).tolist()):
        row = first
        while end - first > 1:  # one instruction is no run
            run = _Candidate(rows)
            while row < end and run.takes(row):
                row += 1
            row = max(row, first + 1)
            if row - first > 1:
                found.append(range(first, row))
            first = row
    return found


class _RunColumns(NamedTuple):
    """Of each instruction what decides about candidates, in lists: one at a time they are read
    several times as fast as arrays. receives, sends: a number of the connection, NONE without."""

    src: list[int]
    dst: list[int]
    held: list[int]
    reduces: list[bool]
    receives: list[int]
    sends: list[int]

    @classmethod
    def of(cls, view: _View) -> _RunColumns:
        t, channels = view.plan.instructions, view.plan.channels
        # Even numbers for those from which blocks receive, odd ones for the others.
        receives, sends = (
            np.where(has[t.op], 2 * (peer.astype(np.int64) * channels + t.channel) + odd, NONE)
            for has, peer, odd in ((RECEIVES, t.recv_peer, 0), (SENDS, t.send_peer, 1))
        )
        columns = (view.src, view.dst, view.held, view.reduces, receives, sends)
        return cls(*(one.tolist() for one in columns))


class _Candidate:
    """A run that grows by one instruction after another."""

    def __init__(self, rows: _RunColumns) -> None:
        self._of = rows
        self._rows = 0
        self._receives = self._sends = False
        self._written: set[int] = set()
        self._last: tuple[int, int] = (NONE, NONE)  # the places of the last result
        self._connections: set[int] = set()

    def takes(self, row: int) -> bool:
        """Whether the instruction belongs to the run, which then has it."""
        of = self._of
        if self._rows == MOST_ROWS:
            return False
        src, dst, receives, sends = of.src[row], of.dst[row], of.receives[row], of.sends[row]
        # Sends of own data are apart from receives: peers that do the same would wait for one
        # another, so such a run would be none.
        if receives != NONE and self._sends:
            return False
        if sends != NONE and receives == NONE and self._receives and src not in self._last:
            return False
        # Each row has a thread that counts its messages, so two rows of one connection would count
        # in any order.
        if receives in self._connections or sends in self._connections:
            return False
        # A thread loads all operands before it stores a result.
        operands = (src, dst) if of.reduces[row] else (src,) if src != NONE else ()
        loaded = {place for place in operands if place not in self._last}
        if len(loaded) > 1 or not self._written.isdisjoint(loaded):
            return False
        if of.reduces[row] and (src == dst or not loaded):  # a register with itself
            return False
        self._rows += 1
        self._receives |= receives != NONE
        self._sends |= sends != NONE
        self._connections |= {receives, sends} - {NONE}
        self._last = (dst, of.held[row])
        if dst != NONE:
            self._written.add(dst)
        return True


def _is_overwritten(view: _View, follows: BoolArray) -> BoolArray:
    """Whether the next instruction of the run overwrites the result. follows: whether the one
    before is of the same run."""
    is_same = (view.dst != NONE) & (np.roll(view.dst, -1) == view.dst)
    found: BoolArray = np.roll(follows, -1) & is_same
    return found


def _is_private(view: _View, length: IntArray, pulls: Pulls) -> BoolArray:
    """Whether the result is in scratch, and of all instructions of the rank only the next one of
    the run reads it, from a register, and no other rank."""
    t, cells, private = view.plan.instructions, view.plan.layout.cells, np.zeros(len(length), bool)
    in_scratch = (view.dst != NONE) & (t.dst_buffer == Buffer.SCRATCH)
    rows = np.flatnonzero((length != 1) & in_scratch & ~pulls.pulled)
    reads = np.zeros(cells + 1, np.int64)  # of a cell; first only what begins or ends there
    for place in (view.src, np.where(view.reduces, view.dst, NONE)):
        readers = np.flatnonzero(place != NONE)
        reads += np.bincount(place[readers], minlength=cells + 1)
        reads -= np.bincount(place[readers] + t.count[readers], minlength=cells + 1)
    after = (rows + 1) % len(length)
    of_next = (view.src[after] == view.dst[rows]).astype(np.int64)
    of_next += view.reduces[after] & (view.dst[after] == view.dst[rows])
    of_next *= (length[after] == 0) & ~pulls.pulled[after]
    private[rows] = np.cumsum(reads)[view.dst[rows]] == of_next
    return private


def _in_cycles(
    plan: Plan, messages: Messages, waits: Edges, pulls: Pulls, candidates: list[range]
) -> set[int]:
    """The first rows of the runs that wait for themselves, if each run is one execution. Without
    these there is no cycle: of instructions alone, a proven plan has none."""
    execution = np.arange(len(plan.instructions))
    for rows in candidates:
        execution[rows.start : rows.stop] = rows.start
    follows = np.flatnonzero(plan.step > 0)
    reuses = np.flatnonzero(messages.number >= plan.slots)  # the slots of messages before
    freed = messages.receive[reuses - plan.slots]
    holds = pulls.holds
    earlier: list[LongArray | IntArray] = [follows - 1, waits.target, messages.send, freed]
    later: list[LongArray | IntArray] = [follows, waits.source, messages.receive]
    earlier.append(messages.receive_of[holds.target])  # who reads what stays in memory
    later += [messages.send[reuses], holds.source]
    source, target = execution[np.concatenate(earlier)], execution[np.concatenate(later)]
    apart = source != target
    component = strong_components(len(execution), source[apart], target[apart])
    shared = np.bincount(component)[component] > 1
    return {rows.start for rows in candidates if shared[rows.start]}
