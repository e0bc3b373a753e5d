"""Program: a plan as the engine loads it, the connections and one program a rank.

When it loads a program, the engine validates everything that could make it leave its memory
(`native/engine/program.cpp`). This module checks properties of several ranks together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sley.engine import native
from sley.engine.memory import allocate
from sley.errors import Place, SleyError
from sley.errors.selection import N652
from sley.errors.verifier import V201
from sley.ir.collective import Collective
from sley.ir.connections import Connections, Messages, connection_faults
from sley.ir.cut import Homes, longest_chunk
from sley.ir.faults import check_tables, diagnostics
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, distinct, ordered_by, spans
from sley.ir.words import RECEIVES, SENDS, SENDS_SOURCE, WRITES_DESTINATION, LoopOrder

if TYPE_CHECKING:
    from sley.verification.direct import Pulls


@dataclass(frozen=True)
class Wiring:
    """The connections of a plan, and the number and size of their slots.

    src, dst: int32 (connections,), the ranks at the ends; channel: int32, for error messages;
    index: int32, the connection's number among the FIFOs in the memory of its src.
    """

    ranks: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.int32]
    index: NDArray[np.int32]
    slots: int
    slot_bytes: int

    @classmethod
    def of(cls, connections: Connections, ranks: int, slots: int, slot_bytes: int) -> Wiring:
        c = connections  # in the order of src
        index = np.arange(len(c), dtype=np.int32) - np.searchsorted(c.src, c.src).astype(np.int32)
        return cls(ranks, c.src, c.dst, c.channel, index, slots, slot_bytes)


_COLUMNS = ("op", "src_buffer", "src_index", "dst_buffer", "dst_index", "count")
"""The columns of instructions that a program has as the plan has them."""


@dataclass(frozen=True)
class RankProgram:
    """One rank's part of a plan, which the engine reads field by field. Rows are the rank's
    instructions.

    first_row: the plan's row of the first one.
    op, src_buffer, src_index, dst_buffer, dst_index, count: int32 (rows,), as in the plan.
    send, recv: int32 (rows,), the connection of the wiring that each uses; NONE without.
    wait_offset, wait_target: CSR, instruction -> instructions that it waits for.
    pullable: int32 (rows,), 1 for sends whose message the receiver may read in the sender's memory.
    hold_offset, hold_target: CSR, instruction -> sends whose messages must have been read before.
    block_offset: int64 (blocks + 1,), the first instruction of each block.
    divisor: int32 (output chunks,), the divisor of each under AVG.
    chunks: chunks of a block of the collective. sizes: input, output and scratch, in chunks.
    bases: positions of input and output, in place. max_count: longest message of the whole plan.
    scratch_home: int32, the chunk of a block that each chunk of scratch holds that is used, unless
        `misplaced`: `Homes`.
    in_place, tile_major: the plan's. all_pullable, reduces, needs_all, gains_attached: of all ranks
        together.
    """

    rank: int
    first_row: int
    op: IntArray
    src_buffer: IntArray
    src_index: IntArray
    dst_buffer: IntArray
    dst_index: IntArray
    count: IntArray
    send: IntArray
    recv: IntArray
    wait_offset: LongArray
    wait_target: IntArray
    pullable: IntArray
    hold_offset: LongArray
    hold_target: IntArray
    block_offset: LongArray
    divisor: IntArray
    chunks: int
    sizes: tuple[int, int, int]
    bases: tuple[int, int]
    max_count: int
    scratch_home: IntArray
    misplaced: bool
    in_place: bool
    tile_major: bool
    all_pullable: bool
    reduces: bool
    needs_all: bool
    gains_attached: bool

    def engine(self, fabric: native.Fabric, wiring: Wiring) -> native.Engine:
        """An engine for this program. Errors: R507."""
        connections = int(((wiring.src == self.rank) | (wiring.dst == self.rank)).sum())
        size_bytes = connections * wiring.slots * wiring.slot_bytes
        create = partial(native.Engine.create, fabric, wiring, self)
        return allocate(create, f"{connections} connections", size_bytes)


@dataclass(frozen=True)
class Loaded:
    """A plan that the engine has validated. homes: of the plan without groups, as programs are."""

    plan: Plan
    wiring: Wiring
    programs: tuple[RankProgram, ...]
    max_count: int
    homes: Homes


@dataclass(frozen=True)
class BufferSizes:
    """Elements of a rank's buffers for a call of `count` elements a block.

    input, output: of the two buffers; data: of the memory of a call in place, in which the input
    begins at `input_start` and the output at `output_start` (out of place both 0).
    """

    input: int
    output: int
    data: int
    input_start: int
    output_start: int

    def lengths(self, in_place: bool) -> tuple[int, int]:
        """Elements of the memories of a call: input and output; in place: the data and none."""
        return (self.data, 0) if in_place else (self.input, self.output)


def buffer_sizes(plan: Plan, rank: int, count: int) -> BufferSizes:
    """The sizes of rank `rank`'s buffers: whole blocks of `count` elements."""
    c = plan.collective

    def elements(chunks: int) -> int:
        return -(-chunks // c.chunks) * count

    return BufferSizes(
        elements(int(c.input_chunks[rank])),
        elements(int(c.output_chunks[rank])),
        elements(int(c.data_chunks[rank])),
        int(c.input_base[rank]) // c.chunks * count if c.in_place else 0,
        int(c.output_base[rank]) // c.chunks * count if c.in_place else 0,
    )


def scratch_bytes(plan: Plan, count: int, item_bytes: int) -> int:
    """The most bytes of all ranks' scratch in a call of `count` elements a block."""
    chunks = plan.collective.chunks
    scratch_chunks = int(plan.scratch_chunks.sum(dtype=np.int64))
    return scratch_chunks * longest_chunk(chunks, count, item_bytes) * item_bytes


def load(plan: Plan, slots: int | None, slot_bytes: int, pulls: Pulls | None = None) -> Loaded:
    """The plan as programs, without its groups; N652 for too few slots, V201 for a plan that can't
    be run.

    pulls: the messages of the plan without groups that receivers may read in the sender's memory,
        if they can access it (docs/machine.md, protocol Direct); by default every message is copied
        into the memory of its connection."""
    check_tables(plan)
    plan = without_groups(plan)
    messages = _messages(plan)
    if slots is not None and slots < plan.slots:
        raise N652.error(
            at=Place(detail=plan.name),
            expected=f"at least {plan.slots} slots",
            found=f"{slots}",
            remedy="Omit `slots`, or compile the plan for this number of slots.",
        )
    slots = plan.slots if slots is None else int(slots)
    wiring = Wiring.of(messages.connections, plan.collective.ranks, slots, int(slot_bytes))
    ends = np.concatenate([plan.sends, plan.receives])
    max_count = int(plan.instructions.count[ends].max(initial=1))
    t = plan.instructions
    pulled, holds = np.zeros(len(t), np.bool_), Edges.empty(len(t))
    all_pullable = False
    if pulls is not None:
        pulled, holds = pulls.pulled, pulls.holds
        all_pullable = bool((pulled & (t.count == 1))[SENDS[t.op]].all())
    of_all = all_pullable, needs_all(plan.collective), gains_attached(plan)
    homes = Homes.of(plan, messages)
    programs = tuple(
        _program(plan, rank, messages.connections, homes, pulled, holds, max_count, of_all)
        for rank in range(plan.collective.ranks)
    )
    _check_programs(plan, wiring, programs)
    return Loaded(plan, wiring, programs, max_count, homes)


def _messages(plan: Plan) -> Messages:
    """The messages of a plan without faults; V201 for connections whose ends disagree, and for
    buffers in place that don't begin with a block."""
    # A later call would receive left-over messages, and a longer receive would read data of an
    # older message.
    messages = Messages.of(plan)
    if found := connection_faults(plan, messages):
        raise SleyError(diagnostics(V201, plan, found))
    c = plan.collective
    if c.in_place and ((c.input_base % c.chunks).any() or (c.output_base % c.chunks).any()):
        raise V201.error(
            at=plan.places([]),
            expected="buffers that begin with a block of the collective",
            found="others",
        )
    return messages


def _program(
    plan: Plan,
    rank: int,
    connections: Connections,
    homes: Homes,
    pulled: BoolArray,
    holds: Edges,
    max_count: int,
    of_all: tuple[bool, bool, bool],
) -> RankProgram:
    """of_all: `all_pullable`, `needs_all` and `gains_attached`."""
    t, c = plan.instructions, plan.collective
    block_offset = plan.block_offset[plan.rank_block[rank] : plan.rank_block[rank + 1] + 1]
    first, last = int(block_offset[0]), int(block_offset[-1])
    rows = slice(first, last)
    wait_offset, wait_target = _part(plan.waits, first, last)
    hold_offset, hold_target = _part(holds, first, last)
    return RankProgram(
        rank=rank,
        first_row=first,
        **{name: getattr(t, name)[rows].astype(np.int32) for name in _COLUMNS},
        send=connections.uses.send[rows],
        recv=connections.uses.receive[rows],
        wait_offset=wait_offset,
        wait_target=wait_target,
        pullable=pulled[rows].astype(np.int32),
        hold_offset=hold_offset,
        hold_target=hold_target,
        block_offset=block_offset - first,
        divisor=c.divisors[c.output_offset[rank] : c.output_offset[rank + 1]],
        chunks=c.chunks,
        sizes=(
            int(c.input_chunks[rank]),
            int(c.output_chunks[rank]),
            int(plan.scratch_chunks[rank]),
        ),
        bases=(int(c.input_base[rank]), int(c.output_base[rank])),
        max_count=max_count,
        scratch_home=homes.scratch[homes.offset[rank] : homes.offset[rank + 1]],
        misplaced=homes.misplaced,
        in_place=c.in_place,
        tile_major=plan.loop_order is LoopOrder.TILE,
        all_pullable=of_all[0],
        reduces=plan.reduces,
        needs_all=of_all[1],
        gains_attached=of_all[2],
    )


def _part(edges: Edges, first: int, last: int) -> tuple[LongArray, IntArray]:
    """The edges of the rows from `first` to before `last`, as a separate CSR."""
    offset = edges.offset[first : last + 1]
    return offset - offset[0], edges.target[offset[0] : offset[-1]] - np.int32(first)


def needs_all(c: Collective) -> bool:
    """Whether each rank's promised output depends on every rank's input. In a correct plan no rank
    then ends the call before all have begun it."""
    width = np.diff(c.values.offset)
    owner = np.searchsorted(c.input_offset, c.values.target, side="right") - 1
    value = np.repeat(np.arange(len(width), dtype=np.int64), width)
    pairs = distinct(value * c.ranks + owner)
    owners = np.bincount(pairs // c.ranks, minlength=len(width))
    for rank in range(c.ranks):
        expected = c.expected[c.output_offset[rank] : c.output_offset[rank + 1]].astype(np.int64)
        expected = distinct(expected[expected != NONE])
        if (owners[expected] == c.ranks).any():
            continue
        _, position = spans(c.values.offset[expected].astype(np.int64), width[expected])
        if len(distinct(owner[position])) < c.ranks:
            return False
    return True


_KERNEL_COPY = 1.3
"""The time of a copy by the kernel out of another process, in copies from a slot: it looks up every
page. Measured on an AMD EPYC (Zen 5) with a Gather of 8 to 16 MB."""


def gains_attached(plan: Plan) -> bool:
    """Whether the busiest rank has less work if the kernel copies every message out of its sender's
    memory than if senders stage them in slots. A payload that goes to several ranks is staged once.

    So a Scatter gains, whose root then sends nothing itself; a Gather doesn't, whose root takes
    every message in either case, nor a Broadcast.
    """
    t, rank = plan.instructions, plan.rank
    chunks = t.count.astype(np.float64)
    taken = chunks * RECEIVES[t.op]
    own = chunks * ~RECEIVES[t.op] * WRITES_DESTINATION[t.op]
    staged = chunks * SENDS[t.op]
    sources = SENDS_SOURCE[t.op]
    payloads = np.column_stack([rank, t.src_buffer, t.src_index, t.count])[sources]
    order = ordered_by(*payloads.T)
    again = (payloads[order[1:]] == payloads[order[:-1]]).all(axis=1)
    staged[np.flatnonzero(sources)[order[1:][again]]] = 0

    def busiest(work: NDArray[np.float64]) -> float:
        return float(np.bincount(rank, work, minlength=plan.collective.ranks).max(initial=0))

    return busiest(own + _KERNEL_COPY * taken) < busiest(own + staged + taken)


def _check_programs(plan: Plan, wiring: Wiring, programs: tuple[RankProgram, ...]) -> None:
    """Runs the engine's checks of every rank, before any process starts."""
    for program in programs:
        try:
            native.check_program(wiring, program)
        except native.ProgramFault as fault:
            row, found = fault.args
            at = [] if row < 0 else [program.first_row + int(row)]
            expected = "instructions that stay within their rank's buffers and connections"
            raise V201.error(at=plan.places(at), expected=expected, found=str(found)) from None
