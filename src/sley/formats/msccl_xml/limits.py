"""Limits: refuse plans and files that a target can't run.

The runtimes check some of these limits when they load a file, and refuse to start; others they
don't check, and compute wrong results or hang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, counted
from sley.errors.formats import F438, F441, F444, F454
from sley.errors.verifier import V201, V202, V208
from sley.formats.msccl_xml.checks import report
from sley.formats.msccl_xml.raw import RawFile
from sley.formats.msccl_xml.steps import Peers, Steps
from sley.formats.msccl_xml.targets import XmlTarget
from sley.formats.problems import Problems
from sley.ir.faults import faults, overlap_faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import (
    FIFO_PROTOCOLS,
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    LoopOrder,
    Op,
)

_FEWER_BLOCKS = "Use fewer instances, blocks that serve both directions, or more channels."
_Longs = NDArray[np.int64]

_FIXED_NODES = 1
"""<algo>, which counts as a node of each GPU."""


def check_order(plan: Plan, problems: Problems) -> None:
    """Refuses a plan that is not tile-major, or whose messages are not sent through slots."""
    if plan.protocol not in FIFO_PROTOCOLS:
        problems.add(
            F441,
            Place(detail=plan.name),
            expected="Simple, LL or LL128",
            found=plan.protocol.value,
            remedy="Compile the program with another protocol: --protocol simple, or "
            'sley.compile(..., protocol="simple").',
        )
    if plan.loop_order is not LoopOrder.TILE:
        problems.add(
            F441,
            Place(detail=plan.name),
            expected="a plan in tile-major order",
            found=f"one in {plan.loop_order.value}-major order",
            remedy="Write the tile-major plan of the same program: --loop-order tile, or "
            'sley.compile(..., loop_order="tile").',
        )


def refuse_groups(plan: Plan) -> None:
    """Refuses a plan with groups of peers, which no XML has. Errors: F438."""
    if len(plan.grouped):
        raise F438.error(
            at=plan.place(int(plan.grouped[0])),
            expected="one rank at the other end of a message",
            found=f"{counted(len(plan.grouped), 'instruction')} with a group of ranks",
        )


def check_tables(plan: Plan, problems: Problems) -> None:
    """Refuses tables that contradict one another, and waits of instructions for themselves or for
    later ones of their block."""
    found = faults(plan)
    for fault in found[: problems.room]:
        problems.add(V201, plan.places(fault.rows)[0], expected=fault.expected, found=fault.found)
    if found:
        return
    source, target = plan.waits.source, plan.waits.target
    late = np.zeros(len(plan.instructions), np.bool_)
    late[source[(plan.block[target] == plan.block[source]) & (target >= source)]] = True
    report(
        problems,
        late,
        V201,
        plan.place,
        "waits for other blocks' instructions",
        lambda row: f"waits for instructions {', '.join(map(str, plan.waits[row].tolist()))}",
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """The steps and blocks of a file, as the target's tables will hold them.

    ranks, channels: of the whole file.
    block, count, offset, depid: a row for each step: its block, its chunks, its greater offset and
        the block that it waits for, or NONE. is_nop: whether it is a nop.
    block_rank, send, recv, chan: a row for each block: its rank, peers and channel.
    step_place, block_place: the place of a row.
    """

    ranks: int
    channels: int
    block: _Longs
    count: _Longs
    offset: _Longs
    depid: _Longs
    is_nop: NDArray[np.bool_]
    block_rank: NDArray[np.integer]
    send: NDArray[np.integer]
    recv: NDArray[np.integer]
    chan: NDArray[np.integer]
    step_place: Callable[[int], Place]
    block_place: Callable[[int], Place]


def rows_of_plan(plan: Plan, peers: Peers, steps: Steps) -> Rows:
    """The rows of a plan's file."""
    t, instruction = plan.instructions, steps.instruction
    offset = np.maximum(
        np.where(READS_SOURCE[t.op], t.src_index, NONE),
        np.where(WRITES_DESTINATION[t.op], t.dst_index, NONE),
    )
    return Rows(
        ranks=plan.collective.ranks,
        channels=plan.channels,
        block=plan.block[instruction].astype(np.int64),
        count=np.where(steps.is_nop, 0, t.count[instruction]),
        offset=np.where(steps.is_nop, NONE, offset[instruction]),
        depid=steps.depid,
        is_nop=steps.is_nop,
        block_rank=plan.block_rank,
        send=peers.send,
        recv=peers.recv,
        chan=peers.chan,
        step_place=lambda row: plan.place(int(instruction[row])),
        block_place=lambda block: _block_place(plan, block),
    )


def rows_of_file(raw: RawFile) -> Rows:
    """The rows of a file that was read."""
    ops = raw.step("type")
    is_nop = ops == Op.NOP
    offset = np.maximum(
        np.where(READS_SOURCE[ops], raw.step("srcoff"), NONE),
        np.where(WRITES_DESTINATION[ops], raw.step("dstoff"), NONE),
    )
    return Rows(
        ranks=raw.header.ngpus,
        channels=raw.header.nchannels,
        block=raw.step("block"),
        count=np.where(is_nop, 0, raw.step("cnt")),
        offset=offset,
        depid=raw.step("depid"),
        is_nop=is_nop,
        block_rank=raw.gpu("id")[raw.block("gpu")],
        send=raw.block("send"),
        recv=raw.block("recv"),
        chan=raw.block("chan"),
        step_place=raw.step_place,
        block_place=raw.block_place,
    )


_ONLY_IN_PLACE = (
    'If the plan is meant for calls in place alone, write outofplace="0" in <algo>; else use '
    "scratch or the output for partial results."
)


def check_peers(plan: Plan, peers: Peers, problems: Problems) -> None:
    """Refuses a block with several connections in one direction."""
    t = plan.instructions
    sends, receives = SENDS[t.op], RECEIVES[t.op]
    for word, mask, mine, own in (
        ("send peer", sends, t.send_peer, peers.send),
        ("receive peer", receives, t.recv_peer, peers.recv),
        ("channel", sends | receives, t.channel, peers.chan),
    ):
        report(
            problems,
            mask & (mine != own[plan.block]),
            F441,
            plan.place,
            f"one {word} in a block",
            lambda row, mine=mine, own=own, word=word: (  # type: ignore[misc]
                f"{word} {mine[row]} here and {own[plan.block[row]]} elsewhere in the block"
            ),
            remedy="Give each pair of peers and channel its own block, as sley.compile does "
            "with --allocate connection and without --max-blocks.",
        )


def check_memory(
    plan: Plan, target: XmlTarget, problems: Problems, *, declares_both: bool = False
) -> None:
    """Refuses an out-of-place plan that overwrites its input, and operands that overlap.
    declares_both: whether the plan's file is for calls in place too."""
    for fault in overlap_faults(plan)[: problems.room]:
        problems.add(V208, plan.places(fault.rows), expected=fault.expected, found=fault.found)
    if plan.collective.in_place or not target.keeps_input:
        return
    rows = plan.input_writes[: problems.room]
    for row, cell in zip(rows.tolist(), plan.destination_cells(rows).tolist(), strict=True):
        problems.add(
            F454,
            plan.place(row),
            expected=f"the input to be kept, for {target.name}",
            found=f"a write to {plan.layout.name(cell)}, out of place",
            remedy=_ONLY_IN_PLACE if declares_both else "",
        )


def check_limits(rows: Rows, target: XmlTarget, problems: Problems) -> None:
    """Refuses what doesn't fit into the target's tables."""
    _check_ends(rows, target, problems)
    _check_steps(rows, target, problems)
    blocks = np.bincount(rows.block_rank, minlength=rows.ranks)
    report(
        problems,
        blocks > target.blocks,
        F444,
        lambda rank: Place(detail=f"rank {rank}"),
        f"at most {target.blocks} blocks on a GPU, for {target.name}",
        lambda rank: f"{blocks[rank]} blocks",
        remedy=_FEWER_BLOCKS,
    )
    _check_nodes(rows, blocks, target, problems)


def _check_ends(rows: Rows, target: XmlTarget, problems: Problems) -> None:
    """Refuses channels beyond the target's, connections with several blocks at one end, and too
    many blocks of a GPU that send, or that receive, on one channel."""
    if rows.channels > target.channels:
        highest = int(rows.chan.max(initial=NONE))
        problems.add(
            F444,
            rows.block_place(int(np.argmax(rows.chan))) if len(rows.chan) else Place(),
            expected=f"channels below {target.channels}, for {target.name}",
            found=f"channel {highest}"
            if highest >= target.channels
            else f"{rows.channels} channels",
            remedy="Use fewer instances, or use a channel for several connections.",
        )
    for word, peer in (("sending", rows.send), ("receiving", rows.recv)):
        used = np.flatnonzero(peer != NONE)
        on_channel = rows.block_rank[used].astype(np.int64) * rows.channels + rows.chan[used]
        _, first, again = np.unique(
            on_channel * rows.ranks + peer[used], return_index=True, return_inverse=True
        )
        others = np.flatnonzero(first[again] != np.arange(len(used)))
        for k in others[: problems.room].tolist():
            block = int(used[k])
            places = [rows.block_place(block), rows.block_place(int(used[first[again[k]]]))]
            problems.add(
                V202,
                places,
                expected=f"one {word} block for a connection",
                found=f"another one with peer {peer[block]} and channel {rows.chan[block]}",
                remedy="Give one of the blocks another channel, at both ends.",
            )
        busy, count = np.unique(on_channel, return_counts=True)
        report(
            problems,
            count > target.peers_per_channel,
            F444,
            lambda row, busy=busy: Place(detail=f"rank {busy[row] // rows.channels}"),  # type: ignore[misc]
            f"at most {target.peers_per_channel} blocks on a channel, for {target.name}",
            lambda row, busy=busy, count=count: (  # type: ignore[misc]
                f"{count[row]} on channel {busy[row] % rows.channels}"
            ),
            remedy=_FEWER_BLOCKS,
        )


def _check_steps(rows: Rows, target: XmlTarget, problems: Problems) -> None:
    """Refuses steps whose numbers don't fit their fields, and blocks with too many steps."""
    for mask, expected, found, remedy in (
        (
            rows.count > target.count,
            f"at most {target.count} chunks in a step, for {target.name}",
            lambda row: f"{rows.count[row]} chunks",
            "Use fewer, larger chunks, or transfers of fewer chunks in the program.",
        ),
        (
            rows.offset > target.offset,
            f"offsets up to {target.offset}, for {target.name}",
            lambda row: f"offset {rows.offset[row]}",
            "Use fewer chunks.",
        ),
        (
            rows.depid > target.waited_block,
            f"waits for blocks up to {target.waited_block}, for {target.name}",
            lambda row: f"a wait for block {rows.depid[row]}",
            _FEWER_BLOCKS,
        ),
    ):
        report(problems, mask, F444, rows.step_place, expected, found, remedy)
    lines = np.bincount(rows.block, minlength=len(rows.block_rank))
    nops = np.bincount(rows.block[rows.is_nop], minlength=len(lines))
    report(
        problems,
        lines > target.steps_per_block,
        F444,
        rows.block_place,
        f"at most {target.steps_per_block} steps in a block, for {target.name}",
        lambda block: f"{lines[block]} steps, {nops[block]} of them nops for further waits",
        "Distribute the work over more channels, use fewer instances, or write for msccl (256).",
    )


def _check_nodes(rows: Rows, blocks: _Longs, target: XmlTarget, problems: Problems) -> None:
    """Refuses more elements than the target's parser has room for."""
    ranks = rows.ranks
    steps = np.bincount(rows.block_rank[rows.block], minlength=ranks)
    nodes = _FIXED_NODES + ranks + blocks + steps
    if target.nodes is not None:
        report(
            problems,
            nodes > target.nodes,
            F444,
            lambda rank: Place(detail=f"rank {rank}"),
            f"at most {target.nodes} elements for a GPU, for {target.name}",
            lambda rank: (
                f"{nodes[rank]}: <algo>, {ranks} GPUs, {blocks[rank]} blocks, {steps[rank]} steps"
            ),
            remedy="Use fewer instances or chunks.",
        )
    if target.children is not None and max(ranks, int(blocks.max(initial=0))) > target.children:
        problems.add(
            F444,
            Place(detail="<algo>"),
            expected=f"at most {target.children} children of an element, for {target.name}",
            found=f"{ranks} GPUs, and up to {blocks.max(initial=0)} blocks in one",
            remedy="Use fewer instances or chunks.",
        )


def _block_place(plan: Plan, block: int) -> Place:
    detail = f"rank {plan.block_rank[block]}, block {plan.block_number[block]}"
    first = int(plan.block_offset[block])
    if first == plan.block_offset[block + 1]:
        return Place(detail=detail)
    return plan.sources.place(int(plan.instructions.source[first]), detail)
