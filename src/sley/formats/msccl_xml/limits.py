"""Limits: refuse plans that a target can't run.

The runtimes check some of these limits when they load a file, and refuse to start; others they
don't check, and compute wrong results or hang.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place
from sley.errors.formats import (
    F441,
    F442,
    F444,
    F445,
    F446,
    F447,
    F448,
    F449,
    F450,
    F452,
    F453,
)
from sley.formats.msccl_xml.checks import report
from sley.formats.msccl_xml.steps import Peers, Steps
from sley.formats.msccl_xml.targets import XmlTarget
from sley.formats.problems import Problems
from sley.ir.connections import Connections, shared_ends
from sley.ir.faults import faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import (
    FIFO_PROTOCOLS,
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    LoopOrder,
)

_FIXED_NODES = 1
"""<algo>, which counts as a node of each GPU."""


def check_order(plan: Plan, problems: Problems) -> None:
    """Refuses a plan that is not tile-major, or whose messages are not sent through slots."""
    if plan.protocol not in FIFO_PROTOCOLS:
        problems.add(
            F453,
            Place(detail=plan.name),
            expected="Simple, LL or LL128",
            found=plan.protocol.value,
        )
    if plan.loop_order is not LoopOrder.TILE:
        problems.add(
            F441,
            Place(detail=plan.name),
            expected="a plan in tile-major order",
            found=f"one in {plan.loop_order.value}-major order",
        )


def check_tables(plan: Plan, problems: Problems) -> None:
    """Refuses tables that contradict one another, and waits of instructions for themselves or for
    later ones of their block."""
    found = faults(plan)
    for fault in found[: problems.room]:
        problems.add(F452, plan.places(fault.rows)[0], expected=fault.expected, found=fault.found)
    if found:
        return
    source, target = plan.waits.source, plan.waits.target
    late = np.zeros(len(plan.instructions), np.bool_)
    late[source[(plan.block[target] == plan.block[source]) & (target >= source)]] = True
    report(
        problems,
        late,
        F452,
        plan.place,
        "waits for other blocks' instructions",
        lambda row: f"waits for instructions {', '.join(map(str, plan.waits[row].tolist()))}",
    )


def check_blocks(plan: Plan, peers: Peers, target: XmlTarget, problems: Problems) -> None:
    """Refuses a block with several connections in one direction, and a connection with several
    blocks at one end."""
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
            F442,
            plan.place,
            f"one {word} in a block",
            lambda row, mine=mine, own=own, word=word: (  # type: ignore[misc]
                f"{word} {mine[row]} here and {own[plan.block[row]]} elsewhere in the block"
            ),
        )
    for fault in shared_ends(plan, Connections.of(plan))[: problems.room]:
        problems.add(F449, plan.places(fault.rows), expected=fault.expected, found=fault.found)
    for peer in (peers.send, peers.recv):
        _check_channel_load(plan, peers, np.flatnonzero(peer != NONE), target, problems)


def _check_channel_load(
    plan: Plan, peers: Peers, used: NDArray[np.int64], target: XmlTarget, problems: Problems
) -> None:
    """Refuses too many blocks of a GPU that send, or that receive, on one channel."""
    key = plan.block_rank[used].astype(np.int64) * plan.channels + peers.chan[used]
    busy, count = np.unique(key, return_counts=True)
    report(
        problems,
        count > target.peers_per_channel,
        F445,
        lambda row: Place(detail=f"rank {busy[row] // plan.channels}"),
        f"at most {target.peers_per_channel} blocks on a channel, for {target.name}",
        lambda row: f"{count[row]} on channel {busy[row] % plan.channels}",
    )


def check_sizes(plan: Plan, steps: Steps, target: XmlTarget, problems: Problems) -> None:
    """Refuses a plan that doesn't fit into the target's tables."""
    t = plan.instructions
    ranks = plan.collective.ranks
    highest = int(t.channel.max(initial=NONE))
    if highest >= target.channels:
        problems.add(
            F446,
            plan.place(int(np.argmax(t.channel))),
            expected=f"channels below {target.channels}, for {target.name}",
            found=f"channel {highest}",
        )
    count = f"at most {target.count} chunks in a step, for {target.name}"
    wide = t.count > target.count
    report(problems, wide, F447, plan.place, count, lambda row: f"{t.count[row]} chunks")
    offset = np.maximum(
        np.where(READS_SOURCE[t.op], t.src_index, NONE),
        np.where(WRITES_DESTINATION[t.op], t.dst_index, NONE),
    )
    near = f"offsets up to {target.offset}, for {target.name}"
    far = offset > target.offset
    report(problems, far, F448, plan.place, near, lambda row: f"offset {offset[row]}")
    lines = np.diff(steps.offset)
    extra = np.bincount(plan.block[steps.instruction[steps.is_nop]], minlength=len(lines))
    report(
        problems,
        lines > target.steps_per_block,
        F444,
        lambda block: _block_place(plan, block),
        f"at most {target.steps_per_block} steps in a block, for {target.name}",
        lambda block: f"{lines[block]} steps, {extra[block]} of them nops for further waits",
    )
    late = np.zeros(len(t), np.bool_)
    late[steps.instruction[steps.depid > target.waited_block]] = True
    report(
        problems,
        late,
        F445,
        plan.place,
        f"waits for blocks up to {target.waited_block}, for {target.name}",
        lambda row: f"a wait for block {plan.block_number[plan.block[plan.waits[row]]].max()}",
    )
    blocks = np.bincount(plan.block_rank, minlength=ranks)
    report(
        problems,
        blocks > target.blocks,
        F445,
        lambda rank: Place(detail=f"rank {rank}"),
        f"at most {target.blocks} blocks on a GPU, for {target.name}",
        lambda rank: f"{blocks[rank]} blocks",
    )
    _check_nodes(plan, blocks, lines, target, problems)


def _check_nodes(
    plan: Plan,
    blocks: NDArray[np.int64],
    lines: NDArray[np.int64],
    target: XmlTarget,
    problems: Problems,
) -> None:
    ranks = plan.collective.ranks
    steps = np.bincount(plan.block_rank, lines, minlength=ranks).astype(np.int64)
    nodes = _FIXED_NODES + ranks + blocks + steps
    if target.nodes is not None:
        report(
            problems,
            nodes > target.nodes,
            F450,
            lambda rank: Place(detail=f"rank {rank}"),
            f"at most {target.nodes} elements for a GPU, for {target.name}",
            lambda rank: (
                f"{nodes[rank]}: <algo>, {ranks} GPUs, {blocks[rank]} blocks, {steps[rank]} steps"
            ),
        )
    if target.children is not None and max(ranks, int(blocks.max(initial=0))) > target.children:
        problems.add(
            F450,
            Place(detail=plan.name),
            expected=f"at most {target.children} children of an element, for {target.name}",
            found=f"{ranks} GPUs, and up to {blocks.max(initial=0)} blocks in one",
        )


def _block_place(plan: Plan, block: int) -> Place:
    detail = f"rank {plan.block_rank[block]}, block {plan.block_number[block]}"
    first = int(plan.block_offset[block])
    if first == plan.block_offset[block + 1]:
        return Place(detail=detail)
    return plan.sources.place(int(plan.instructions.source[first]), detail)
