"""Channels: the channel of every transfer (MSCCLang 5.2), and the instruction DAG."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

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
class _Binding:
    """Which connection shares a block with which, so far.

    The keys are (rank, peer, logical channel, lane). by_hand transfers reserve their connections
    for the block asked for.
    """

    dag: ChunkDag
    lanes: int
    channels: int
    by_hand: np.ndarray
    receives: dict[tuple[int, int, int, int], int] = field(default_factory=dict)
    sends: dict[tuple[int, int, int, int], int] = field(default_factory=dict)
    receive_block: dict[tuple[int, int, int, int], int] = field(default_factory=dict)
    send_block: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        t = self.dag.program.transfers
        self._src, self._dst = t.src.tolist(), t.dst.tolist()
        self._lane = t.lane.tolist()
        for row in np.flatnonzero(self.by_hand).tolist():
            channel = max(int(t.channel[row]), 0)
            src, dst, lane = self._src[row], self._dst[row], self._lane[row]
            if t.send_block[row] != NONE:
                self.send_block[src, dst, channel, lane] = int(t.send_block[row])
            if t.recv_block[row] != NONE:
                self.receive_block[dst, src, channel, lane] = int(t.recv_block[row])

    def place(self, chain: list[int], start: int, fixed: bool) -> tuple[int, list[bool]]:
        """The channel for a chain that would like `start`, and which of its hops stay fused."""
        limit = max(MAX_CHANNELS // self.lanes, self.channels)
        within = [(start + k) % self.channels for k in range(self.channels)]
        beyond = range(self.channels, limit)
        for channel in [start] if fixed else [*within, *beyond]:
            if all(self._fits(hop, channel) for hop in pairwise(chain)):
                break
        else:
            channel = start
        kept = []
        for hop in pairwise(chain):
            kept.append(self._fits(hop, channel))
            if kept[-1]:
                self._bind(hop, channel)
        return channel, kept

    def _keys(
        self, hop: tuple[int, int], channel: int
    ) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
        here, after = hop
        rank, lane = self._dst[here], self._lane[here]
        return (rank, self._src[here], channel, lane), (rank, self._dst[after], channel, lane)

    def _fits(self, hop: tuple[int, int], channel: int) -> bool:
        receive, send = self._keys(hop, channel)
        return (
            self.receives.get(receive, send[1]) == send[1]
            and self.sends.get(send, receive[1]) == receive[1]
            and self.receive_block.get(receive) == self.send_block.get(send)
        )

    def _bind(self, hop: tuple[int, int], channel: int) -> None:
        receive, send = self._keys(hop, channel)
        self.receives[receive] = send[1]
        self.sends[send] = receive[1]
