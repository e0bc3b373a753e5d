"""Channels: the channel of each transfer (MSCCLang 5.2), and the instruction DAG."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain as chain_of
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.fuse import with_messages
from sley.ir.dag import ChunkDag, InstructionDag
from sley.ir.graph import levels
from sley.ir.program import Transfers
from sley.ir.tables import NONE, BoolArray, IntArray, distinct
from sley.ir.words import MAX_NUMBER, TransferKind

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

    Chains that are alike except for their ranks, and use connections of transfers that are in no
    chain, either all take the channels that they prefer, or all look beyond the `channels` first:
    otherwise only some would share blocks with those transfers, and their ranks would be slower.

    A group binds all of its connections to one block. It takes a channel on which no other
    instruction uses them, so that blocks which only send into groups or receive from them work at
    the same time; any number of channels, since targets with limits have no groups.

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
    chains = _chains(forward, requested, t)
    binding = _Binding(dag, channels)
    follows = _follows_leader(t)
    beside = _beside(t, chains)
    kinds = _kinds(dag, chains, requested)
    ordered = _in_order(chains, kinds, requested, t)
    for _, numbers in groupby(ordered, kinds.__getitem__):
        alike = [chains[k] for k in numbers]
        free = binding.fit([(chain, int(logical[chain[0]])) for chain in alike])
        shared = bool(beside[[row for chain in alike for row in chain]].any())
        beyond = len(alike) > 1 and shared and not free
        for chain in alike:
            fixed = int(requested[chain].max())
            if follows[chain[0]]:
                fixed = int(logical[chain[0]])
            start = int(logical[chain[0]]) if fixed == NONE else fixed
            chosen, fitting = binding.place(chain, start, fixed=fixed != NONE, beyond=beyond)
            logical[[row for head in chain for row in binding.rows(head)]] = chosen
            for receive, fits in zip(chain[:-1], fitting, strict=True):
                if not fits:
                    forward[receive] = NONE
    copied = np.full(len(t), NONE, np.int32)
    return InstructionDag(dag, forward, _number_channels(t, logical), copied)


def _chains(forward: IntArray, requested: NDArray[Any], t: Transfers) -> list[list[int]]:
    """The fused chains, each cut (in `forward` too) where two requested channels meet, or one and
    that of the group which the chain begins in; and the groups that are in none."""
    follows = np.zeros(len(forward), bool)
    follows[forward[forward != NONE]] = True
    joins = _follows_leader(t)
    leads = (t.group != NONE) & ~joins
    chains = []
    for head in np.flatnonzero(((forward != NONE) | leads) & ~follows).tolist():
        chain, channel, joined = [head], int(requested[head]), bool(joins[head])
        while (after := int(forward[chain[-1]])) != NONE:
            other = int(requested[after])
            if other not in (NONE, channel) and (joined or channel != NONE):
                forward[chain[-1]] = NONE
                chains.append(chain)
                chain, channel, joined = [after], other, False
            else:
                chain.append(after)
                channel = max(channel, other)
        chains.append(chain)
    return chains


def _follows_leader(t: Transfers) -> BoolArray:
    """bool (transfers,): the transfers of groups but their leaders."""
    return np.asarray((t.group != NONE) & (t.leader != np.arange(len(t))))


def _beside(t: Transfers, chains: list[list[int]]) -> BoolArray:
    """bool (transfers,): whether a transfer in no chain is on the same connection, on any
    channel."""
    alone = t.remote.copy()
    for chain in chains:
        alone[chain] = False
    ends = t.src.astype(np.int64) * (int(t.dst.max(initial=0)) + 1) + t.dst
    return np.isin(ends, ends[alone])


def _in_order(
    chains: list[list[int]], kinds: list[int], requested: NDArray[Any], t: Transfers
) -> list[int]:
    """The numbers of the chains in the order of their choices. Those that cannot choose come first,
    so that the others choose around them; a group comes before the chains that begin with one of
    its receives."""

    def place(number: int) -> tuple[Any, ...]:
        chain = chains[number]
        grouped = bool((t.group[chain] != NONE).any())
        leader = t.leader[chain[0]]
        group = (leader, leader != chain[0]) if grouped else (0, 0)
        return requested[chain].max() == NONE, not grouped, group, kinds[number]

    return sorted(range(len(chains)), key=place)


def _kinds(dag: ChunkDag, chains: list[list[int]], requested: NDArray[Any]) -> list[int]:
    """For each chain the number of the first one that is alike: of the same length, equally far
    from the program's begin and end, in the same lane. One that can't choose is like no other."""
    t, graph = dag.program.transfers, with_messages(dag)
    depth, remaining = levels(graph), levels(graph.reversed())
    found: dict[tuple[int, ...], int] = {}
    kinds = []
    for number, chain in enumerate(chains):
        head = 2 * chain[0]
        free = requested[chain].max() == NONE and (t.group[chain] == NONE).all()
        alike = (len(chain), int(depth[head]), int(remaining[head]), int(t.lane[chain[0]]))
        kinds.append(found.setdefault(alike, number) if free else number)
    return kinds


def _number_channels(t: Transfers, logical: NDArray[Any]) -> IntArray:
    """int32 (transfers,): the channel of each transfer by its logical channel and lane; NONE for
    local ones."""
    remote = t.remote
    stride = int(logical[remote].max(initial=0)) + 1
    key = t.lane.astype(np.int64) * stride + logical
    further = distinct(key[remote & (t.lane > 0)])
    number = np.where(t.lane > 0, stride + np.searchsorted(further, key), logical)
    return np.where(remote, number, NONE).astype(np.int32)


class _Unit(NamedTuple):
    """The ends that one instruction uses, and those of the others in its group.

    receive, send: its own. member_receive, member_send: of the other ranks of its groups.
    """

    receive: tuple[int, ...]
    send: tuple[int, ...]
    member_receive: frozenset[int] = frozenset()
    member_send: frozenset[int] = frozenset()

    @property
    def grouped(self) -> bool:
        return bool(self.member_receive or self.member_send)


@dataclass
class _Bound:
    """The ends of one channel bound to one block so far: receive ends to send ends, one to one; the
    ends of groups and of their members; and the requested blocks of ends. An end is a number for
    (rank, peer, lane)."""

    send_of: dict[int, tuple[int, ...]] = field(default_factory=dict)
    receive_of: dict[int, tuple[int, ...]] = field(default_factory=dict)
    group_receive: set[int] = field(default_factory=set)
    group_send: set[int] = field(default_factory=set)
    member_receive: set[int] = field(default_factory=set)
    member_send: set[int] = field(default_factory=set)
    receive_block: dict[int, int] = field(default_factory=dict)
    send_block: dict[int, int] = field(default_factory=dict)

    def fits(self, unit: _Unit) -> bool:
        if unit.grouped and not self._fits_group(unit):
            return False
        return (
            self._fits_requested(unit)
            and all(self.send_of.get(end, unit.send) == unit.send for end in unit.receive)
            and all(self.receive_of.get(end, unit.receive) == unit.receive for end in unit.send)
        )

    def _fits_requested(self, unit: _Unit) -> bool:
        if not (self.receive_block or self.send_block):
            return True
        requested = {self.receive_block.get(end) for end in unit.receive}
        requested |= {self.send_block.get(end) for end in unit.send}
        return len(requested) == 1

    def _fits_group(self, unit: _Unit) -> bool:
        return not (
            unit.member_receive & self.group_receive
            or unit.member_send & self.group_send
            or self.member_receive.intersection(unit.receive)
            or self.member_send.intersection(unit.send)
        )

    def bind(self, unit: _Unit) -> None:
        self.send_of |= dict.fromkeys(unit.receive, unit.send)
        self.receive_of |= dict.fromkeys(unit.send, unit.receive)
        if unit.grouped:
            self.group_receive.update(unit.receive)
            self.group_send.update(unit.send)
            self.member_receive |= unit.member_receive
            self.member_send |= unit.member_send


class _Binding:
    """The search for channels, chain after chain."""

    def __init__(self, dag: ChunkDag, channels: int) -> None:
        t, ranks = dag.program.transfers, dag.program.collective.ranks
        lanes = t.lanes
        self._channels = channels
        self._limit, self._group_limit = MAX_CHANNELS // lanes, MAX_NUMBER // lanes
        self._rows = t.group_rows()
        self._reduces = (t.kind == TransferKind.REDUCE).tolist()
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

    def rows(self, transfer: int) -> list[int]:
        """The transfers of the group that a transfer leads, otherwise the transfer alone."""
        return self._rows.get(transfer, [transfer])

    def fit(self, chains: list[tuple[list[int], int]]) -> bool:
        """Whether chains can all stay fused on the channels given with them."""
        together: defaultdict[int, _Bound] = defaultdict(_Bound)
        for chain, channel in chains:
            for unit in map(self._unit, chain, chain[1:]):
                if not (self._bound[channel].fits(unit) and together[channel].fits(unit)):
                    return False
                together[channel].bind(unit)
        return True

    def place(
        self, chain: list[int], start: int, *, fixed: bool, beyond: bool
    ) -> tuple[int, list[bool]]:
        """The channel for a chain that prefers `start`, and whether each of its hops stays
        fused.

        fixed: whether it must be `start`. beyond: whether to look beyond the compiler's channels
        first.
        """
        hops = [self._unit(here, after) for here, after in pairwise(chain)]
        units = [*self._unfused(chain), *hops]
        limit = self._group_limit if any(unit.grouped for unit in units) else self._limit
        within = ((start + k) % self._channels for k in range(self._channels))
        further = range(self._channels, limit)
        either = chain_of(further, within) if beyond else chain_of(within, further)
        choices = [start] if fixed else either
        suitable = (c for c in choices if all(self._bound[c].fits(unit) for unit in units))
        channel = next(suitable, start)
        fitting = []
        for k, unit in enumerate(units):
            fits = self._bound[channel].fits(unit)
            if fits:
                self._bound[channel].bind(unit)
            if k >= len(units) - len(hops):
                fitting.append(fits)
        return channel, fitting

    def _unit(self, receive: int, send: int) -> _Unit:
        """The ends of an instruction that receives one transfer and sends another, either of which
        may be NONE."""
        if not self._rows and NONE not in (receive, send):
            return _Unit((self._receive[receive],), (self._send[send],))
        taken = [] if receive == NONE else self._takes(receive)
        put = [] if send == NONE else self.rows(send)
        of_reduction = taken if receive in self._rows and self._reduces[receive] else []
        of_multicast = put if send in self._rows else []
        return _Unit(
            tuple(self._receive[row] for row in taken),
            tuple(self._send[row] for row in put),
            frozenset(self._receive[row] for row in of_multicast),
            frozenset(self._send[row] for row in of_reduction),
        )

    def _takes(self, receive: int) -> list[int]:
        """The transfers that the receive of one takes."""
        return self.rows(receive) if self._reduces[receive] else [receive]

    def _unfused(self, chain: list[int]) -> list[_Unit]:
        """The groups at the begin and at the end of a chain that have no hop."""
        first, last = chain[0], chain[-1]
        found = []
        if first in self._rows and not self._reduces[first]:
            found.append(self._unit(NONE, first))
        if last in self._rows and self._reduces[last]:
            found.append(self._unit(last, NONE))
        return found
