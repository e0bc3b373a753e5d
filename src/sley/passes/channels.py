"""Channels: the channel of every transfer (MSCCLang 5.2), and the instruction DAG."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sley.ir.dag import ChunkDag, InstructionDag
from sley.ir.tables import NONE, IntArray

MAX_CHANNELS = 32
"""How far a fused chain looks for a channel that fits: the targets' limit (MSCCL: 32)."""


def assign_channels(dag: ChunkDag, forward: IntArray | None, channels: int = 1) -> InstructionDag:
    """The instruction DAG: every remote transfer on a channel, fused chains on one.

    A transfer keeps the channel that the program asks for. The others start at source index
    modulo `channels`, so that chunks spread over them. Parallel parts (lanes) never share a
    channel. A fused instruction binds its receive connection and its send connection to one block,
    and a connection belongs to one block only; so a chain takes the first channel on which none of
    its connections is bound otherwise, and where there is none (or the program fixed the channel)
    it is cut at the hops that don't fit.

    forward: what `fuse` chose, None to fuse nothing.
    """
    t = dag.program.transfers
    lanes = int(t.lane.max(initial=0)) + 1
    remote = np.asarray(t.src != t.dst)
    by_hand = (t.send_block != NONE) | (t.recv_block != NONE)
    logical = np.where(t.channel != NONE, t.channel, t.src_index // t.count % channels)
    logical = np.where(by_hand & (t.channel == NONE), 0, logical)
    binding = _Binding(dag, lanes, channels, by_hand)
    forward = np.full(len(t), NONE, np.int32) if forward is None else forward.copy()
    is_forward = np.zeros(len(t), bool)
    is_forward[forward[forward != NONE]] = True
    heads = np.flatnonzero((forward != NONE) & ~is_forward)
    chains = [_chain(forward, head) for head in heads.tolist()]
    fixed = (t.channel != NONE) | by_hand
    # Chains that cannot choose come first, so that the others choose around them.
    chains.sort(key=lambda chain: not any(fixed[chain]))
    for chain in chains:
        asked = [c for c in t.channel[chain].tolist() if c != NONE]
        start = asked[0] if asked else int(logical[chain[0]])
        chosen, kept = binding.place(chain, start, bool(asked) or bool(by_hand[chain].any()))
        logical[chain] = chosen
        for here, keep in zip(chain, kept, strict=False):
            if not keep:
                forward[here] = NONE
    channel = np.where(remote, logical * lanes + t.lane, NONE)
    if lanes > 1:
        used = np.unique(channel[remote])
        channel = np.where(remote, np.searchsorted(used, channel), NONE)
    return InstructionDag(dag, forward, channel.astype(np.int32), lanes)


def _chain(forward: IntArray, head: int) -> list[int]:
    chain = [head]
    while forward[chain[-1]] != NONE:
        chain.append(int(forward[chain[-1]]))
    return chain


@dataclass
class _Bound:
    """What shares a block on one channel, so far: receive ends with send ends, one to one; and
    ends with the blocks asked for by hand. An end is a number for (rank, peer, lane)."""

    send_of: dict[int, int] = field(default_factory=dict)
    receive_of: dict[int, int] = field(default_factory=dict)
    receive_block: dict[int, int] = field(default_factory=dict)
    send_block: dict[int, int] = field(default_factory=dict)

    def fits(self, receive: int, send: int) -> bool:
        return (
            self.send_of.get(receive, send) == send
            and self.receive_of.get(send, receive) == receive
            and self.receive_block.get(receive) == self.send_block.get(send)
        )

    def bind(self, receive: int, send: int) -> None:
        self.send_of[receive] = send
        self.receive_of[send] = receive


class _Binding:
    """The search for channels, chain after chain."""

    def __init__(
        self, dag: ChunkDag, lanes: int, channels: int, by_hand: NDArray[np.bool_]
    ) -> None:
        t, ranks = dag.program.transfers, dag.program.collective.ranks
        self._channels = channels
        self._limit = max(MAX_CHANNELS // lanes, channels)
        src, dst = t.src.astype(np.int64), t.dst.astype(np.int64)
        self._receive = ((dst * ranks + src) * lanes + t.lane).tolist()
        self._send = ((src * ranks + dst) * lanes + t.lane).tolist()
        self._bound: defaultdict[int, _Bound] = defaultdict(_Bound)
        for row in np.flatnonzero(by_hand).tolist():
            bound = self._bound[max(int(t.channel[row]), 0)]
            if t.send_block[row] != NONE:
                bound.send_block[self._send[row]] = int(t.send_block[row])
            if t.recv_block[row] != NONE:
                bound.receive_block[self._receive[row]] = int(t.recv_block[row])

    def place(self, chain: list[int], start: int, fixed: bool) -> tuple[int, list[bool]]:
        """The channel for a chain that would like `start`, and which of its hops stay fused."""
        hops = [(self._receive[here], self._send[after]) for here, after in pairwise(chain)]
        choices = [start]
        if not fixed:
            choices = [(start + k) % self._channels for k in range(self._channels)]
            choices += range(self._channels, self._limit)
        fitting = (c for c in choices if all(self._bound[c].fits(*hop) for hop in hops))
        channel = next(fitting, start)
        kept = []
        for hop in hops:
            kept.append(self._bound[channel].fits(*hop))
            if kept[-1]:
                self._bound[channel].bind(*hop)
        return channel, kept
