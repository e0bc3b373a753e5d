"""Fuse: which receive becomes one instruction with which send (MSCCLang 4.3)."""

from __future__ import annotations

import numpy as np

from sley.ir.dag import ChunkDag
from sley.ir.graph import levels
from sley.ir.tables import NONE, Edges, IntArray


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
    if widest is not None:
        fits &= t.count[later] <= widest
    for of_receive, of_send in ((t.recv_block, t.send_block), (t.channel, t.channel)):
        one, other = of_receive[earlier], of_send[later]
        fits &= (one == other) | (one == NONE) | (other == NONE)
    later, earlier = later[fits], earlier[fits]
    remaining = levels(_with_messages(dag).reversed())[2 * later]
    # The last of equal `earlier` wins: the longest path, then the earlier line.
    order = np.lexsort((-later, remaining, earlier))
    forward = np.full(len(t), NONE, np.int32)
    forward[earlier[order]] = later[order]
    return forward


def _with_messages(dag: ChunkDag) -> Edges:
    """The graph of halves with an edge from each transfer's source to its destination."""
    halves, transfers = dag.halves(), np.arange(len(dag.program.transfers))
    return Edges.from_pairs(
        2 * len(transfers),
        np.concatenate([halves.source, 2 * transfers]),
        np.concatenate([halves.target, 2 * transfers + 1]),
    )
