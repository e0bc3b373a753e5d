"""Fuse: which receive becomes one instruction with which send (MSCCLang 4.3), and which copy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.ir.dag import ChunkDag, InstructionDag
from sley.ir.graph import levels
from sley.ir.tables import NONE, IntArray, LongArray
from sley.ir.words import TransferKind


def fuse(dag: ChunkDag, widest: int | None = None) -> IntArray:
    """int32 (transfers,): the transfer whose send is to be fused with this one's receive, or NONE.

    A send is fused only with the receive that wrote exactly the range that it reads, if nothing
    wrote to any part of it in between (`ChunkDag.origin`). Such a send depends on that receive
    alone, so contracting the two never closes a cycle. Of several sends the one on the longest path
    is fused. `channels` may undo a choice that would need two blocks on one connection.

    widest: the most chunks of a transfer that may be fused; None for any number.
    """
    t = dag.program.transfers
    remote = t.remote
    later = np.flatnonzero(remote & (dag.origin != NONE))
    earlier = dag.origin[later]
    fits = remote[earlier] & (t.lane[later] == t.lane[earlier])
    # Messages that a switch combines are sent at once, each by an instruction of its own.
    fits &= (t.sender[later] == later) & (
        (t.group[later] == NONE) | (t.kind[later] == TransferKind.COPY)
    )
    if widest is not None:
        fits &= t.count[later] <= widest
    for of_receive, of_send in ((t.recv_block, t.send_block), (t.channel, t.channel)):
        one, other = of_receive[earlier], of_send[later]
        fits &= (one == other) | (one == NONE) | (other == NONE)
    later, earlier = later[fits], earlier[fits]
    remaining = remaining_steps(dag)[2 * later]
    # The last of equal `earlier` wins: the longest path, then the earlier line.
    order = np.lexsort((-later, remaining, earlier))
    forward = np.full(len(t), NONE, np.int32)
    forward[earlier[order]] = later[order]
    return forward


def fuse_copies(dag: InstructionDag, widest: int | None = None) -> InstructionDag:
    """The instruction DAG with copies within a rank as one instruction with sends of the chunks
    that they copy (NCCL's copySend), which read them once for both.

    Of several sends that read what a copy reads, the one on the longest path is fused; of several
    copies each with another send. The send must be in no other instruction. `order` may undo a
    choice: where the receiver of the message waits for the copy.

    widest: as for `fuse`.
    """
    chunks = dag.chunks
    t = chunks.program.transfers
    source = chunks.program.source_cells
    copies = ~dag.remote & (t.kind == TransferKind.COPY)
    sends = dag.remote & np.isin(source, source[copies]) & (t.sender == np.arange(len(t)))
    sends[dag.forward[dag.forward != NONE]] = False
    if widest is not None:
        sends &= t.count <= widest
    if not sends.any():
        return dag
    remaining = remaining_steps(chunks)[::2]
    rows = np.flatnonzero(copies | sends)
    read = np.stack([source[rows], t.count[rows], t.lane[rows], chunks.version[rows]])
    same = np.full(len(t), NONE)
    same[rows] = np.unique(read, axis=1, return_inverse=True)[1].ravel()
    copy, send = np.flatnonzero(copies), np.flatnonzero(sends)
    copy = copy[np.argsort(same[copy], kind="stable")]
    send = send[np.lexsort((send, -remaining[send], same[send]))]
    # The k-th copy of a range goes with the k-th send of it.
    one, other = (same[k] * len(t) + _counted(same[k]) for k in (copy, send))
    _, at, of = np.intersect1d(one, other, return_indices=True)
    copy, send = copy[at], send[of]
    by_hand = t.send_block[copy]
    fits = (by_hand == NONE) | (by_hand == t.send_block[send])
    copied = dag.copied.copy()
    copied[send[fits]] = copy[fits]
    return replace(dag, copied=copied)


def _counted(keys: LongArray) -> LongArray:
    """The number of equal keys before each one; equal keys are adjacent."""
    rows = np.arange(len(keys))
    starts = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    # Starts ascend, so the running maximum is the start of each row's own run.
    return rows - np.maximum.accumulate(np.where(starts, rows, 0))


def with_messages(dag: ChunkDag) -> tuple[LongArray, LongArray]:
    """(before, after), pairs of halves: the dependencies, and each transfer's source before its
    destination."""
    (before, after), t = dag.half_pairs(), dag.program.transfers
    return np.append(before, 2 * t.sender), np.append(after, 2 * t.receiver + 1)


def remaining_steps(dag: ChunkDag) -> IntArray:
    """int32 (2 * transfers,): the longest path from each half to the program's end, in dependencies
    and messages."""
    before, after = with_messages(dag)
    return levels(2 * len(dag.program.transfers), after, before)
