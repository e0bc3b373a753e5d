"""Channels: the channel of each transfer (MSCCLang 5.2), and the instruction DAG."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain as chain_of
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.dag import ChunkDag, InstructionDag
from sley.ir.program import Transfers
from sley.ir.tables import NONE, IntArray, distinct

MAX_CHANNELS = 32
"""Number of channels that a fused chain searches: the targets' limit (MSCCL)."""


def assign_channels(dag: ChunkDag, forward: IntArray | None, channels: int = 1) -> InstructionDag:
    """The instruction DAG: each remote transfer on a channel, each fused chain on one channel.

    A transfer keeps the channel that the program requests; one with a requested block but no
    requested channel is on channel 0. The others start at source index modulo `channels`, so that
    chunks spread over the channels. A fused instruction binds its receive connection and its send
    connection to one block, and a connection belongs to one block only. So a chain takes the first
    channel on which none of its connections is bound to another one, of the `channels` or else
    beyond them up to MAX_CHANNELS. It is cut if no channel fits, or the program requests several.

    Parallel parts (lanes) never share a channel: the channels of part 0 come first, those of the
    other parts after them.

    forward: the result of `fuse`, or None to fuse nothing.
    """
    t = dag.program.transfers
    requested = np.where((t.channel == NONE) & t.by_hand, 0, t.channel)
    logical = np.where(requested != NONE, requested, t.src_index // t.count % channels)
    if forward is None:
        forward = np.full(len(t), NONE, np.int32)
        return InstructionDag(dag, forward, _number_channels(t, logical), forward)
    forward = forward.copy()
    chains = _chains(forward, requested)
    # Chains that cannot choose come first, so that the others choose around them.
    chains.sort(key=lambda chain: requested[chain].max() == NONE)
    binding = _Binding(dag, channels)
    for chain in chains:
        fixed = int(requested[chain].max())
        start = int(logical[chain[0]]) if fixed == NONE else fixed
        chosen, fitting = binding.place(chain, start, fixed != NONE)
        logical[chain] = chosen
        for receive, fits in zip(chain[:-1], fitting, strict=True):
            if not fits:
                forward[receive] = NONE
    copied = np.full(len(t), NONE, np.int32)
    return InstructionDag(dag, forward, _number_channels(t, logical), copied)


def _chains(forward: IntArray, requested: NDArray[Any]) -> list[list[int]]:
    """The fused chains, each cut (in `forward` too) where two requested channels meet."""
    follows = np.zeros(len(forward), bool)
    follows[forward[forward != NONE]] = True
    chains = []
    for head in np.flatnonzero((forward != NONE) & ~follows).tolist():
        chain, channel = [head], int(requested[head])
        while (after := int(forward[chain[-1]])) != NONE:
            other = int(requested[after])
            if NONE not in (channel, other) and channel != other:
                forward[chain[-1]] = NONE
                chains.append(chain)
                chain, channel = [after], other
            else:
                chain.append(after)
                channel = max(channel, other)
        chains.append(chain)
    return chains


def _number_channels(t: Transfers, logical: NDArray[Any]) -> IntArray:
    """int32 (transfers,): the channel of each transfer by its logical channel and lane; NONE for
    local ones."""
    remote = t.remote
    stride = int(logical[remote].max(initial=0)) + 1
    key = t.lane.astype(np.int64) * stride + logical
    further = distinct(key[remote & (t.lane > 0)])
    number = np.where(t.lane > 0, stride + np.searchsorted(further, key), logical)
    return np.where(remote, number, NONE).astype(np.int32)


@dataclass
class _Bound:
    """The ends of one channel bound to one block so far: a receive end to a send end, one to one;
    and the requested blocks of ends. An end is a number for (rank, peer, lane)."""

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

    def __init__(self, dag: ChunkDag, channels: int) -> None:
        t, ranks = dag.program.transfers, dag.program.collective.ranks
        lanes = t.lanes
        self._channels = channels
        self._limit = MAX_CHANNELS // lanes
        src, dst = t.src.astype(np.int64), t.dst.astype(np.int64)
        self._receive = ((dst * ranks + src) * lanes + t.lane).tolist()
        self._send = ((src * ranks + dst) * lanes + t.lane).tolist()
        self._bound: defaultdict[int, _Bound] = defaultdict(_Bound)
        for row in np.flatnonzero(t.by_hand).tolist():
            bound = self._bound[max(int(t.channel[row]), 0)]
            if t.send_block[row] != NONE:
                bound.send_block[self._send[row]] = int(t.send_block[row])
            if t.recv_block[row] != NONE:
                bound.receive_block[self._receive[row]] = int(t.recv_block[row])

    def place(self, chain: list[int], start: int, fixed: bool) -> tuple[int, list[bool]]:
        """The channel for a chain that prefers `start`, and whether each of its hops stays
        fused. fixed: whether the program requests `start`."""
        hops = [(self._receive[here], self._send[after]) for here, after in pairwise(chain)]
        within = ((start + k) % self._channels for k in range(self._channels))
        choices = [start] if fixed else chain_of(within, range(self._channels, self._limit))
        suitable = (c for c in choices if all(self._bound[c].fits(*hop) for hop in hops))
        channel = next(suitable, start)
        fitting = []
        for hop in hops:
            fitting.append(self._bound[channel].fits(*hop))
            if fitting[-1]:
                self._bound[channel].bind(*hop)
        return channel, fitting
