"""Channels: the channel of each transfer (MSCCLang 5.2), and the instruction DAG."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain as chain_of
from itertools import groupby, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.fuse import remaining_steps, with_messages
from sley.ir.dag import ChunkDag, InstructionDag
from sley.ir.graph import levels
from sley.ir.program import Transfers
from sley.ir.tables import NONE, BoolArray, IntArray, LongArray, distinct, offsets_of
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
    chains = _Chains.of(_chains(forward, requested, t), requested, t)
    binding = _Binding(dag, channels)
    follows = _follows_leader(t)
    beside = _beside(t, chains)
    kinds = _kinds(dag, chains)
    # Kind after kind: the chains of a kind choose together, around all that chose before them.
    for kind, numbers in groupby(_in_order(chains, kinds, t), kinds.__getitem__):
        alike, decided = list(numbers), kind == _DECIDED
        if decided or len(alike) > 1:
            chain, rows = chains.flat(alike)
            start = chains.channel[alike] if decided else logical[chains.head[alike]]
            hops = _Hops.of(start[chain], chain, rows)
            fits = binding.bind(hops, partly=decided)
            if decided or fits.all():
                logical[rows] = start[chain]
                forward[hops.receive[~fits]] = NONE
                continue
        # One chain after another: none of a kind can know what is free before those before it.
        beyond = len(alike) > 1 and bool(beside[rows].any())
        for one in (chains.rows[k] for k in alike):
            fixed = int(requested[one].max())
            if follows[one[0]]:
                fixed = int(logical[one[0]])
            first = int(logical[one[0]]) if fixed == NONE else fixed
            chosen, fitting = binding.place(one, first, fixed=fixed != NONE, beyond=beyond)
            logical[[row for head in one for row in binding.rows(head)]] = chosen
            for receive, stays in zip(one[:-1], fitting, strict=True):
                if not stays:
                    forward[receive] = NONE
    copied = np.full(len(t), NONE, np.int32)
    return InstructionDag(dag, forward, _number_channels(t, logical), copied)


_DECIDED = -1
"""The kind of all chains on a requested channel that no group shares."""


def _chains(forward: IntArray, requested: NDArray[Any], t: Transfers) -> list[list[int]]:
    """The fused chains, each cut (in `forward` too) where two requested channels meet, or one and
    that of the group which the chain begins in; and the groups that are in none."""
    follows = np.zeros(len(forward), bool)
    follows[forward[forward != NONE]] = True
    joins = _follows_leader(t)
    leads = (t.group != NONE) & ~joins
    heads = np.flatnonzero(((forward != NONE) | leads) & ~follows).tolist()
    # Lists, which Python indexes faster than arrays: the loop visits each fused transfer once.
    next_of, channel_of = forward.tolist(), requested.tolist()
    chains = []
    for head in heads:
        chain, channel, joined = [head], channel_of[head], bool(joins[head])
        # Ends: a send is fused with a receive on an earlier line, so a chain never closes.
        while (after := next_of[chain[-1]]) != NONE:
            other = channel_of[after]
            if other not in (NONE, channel) and (joined or channel != NONE):
                forward[chain[-1]] = NONE
                chains.append(chain)
                chain, channel, joined = [after], other, False
            else:
                chain.append(after)
                channel = max(channel, other)
        chains.append(chain)
    return chains


@dataclass(frozen=True)
class _Chains:
    """The fused chains.

    rows: the transfers of each, in order. head: (chains,), the first one. length: (chains,), their
    number. channel: (chains,), the requested channel, or NONE. grouped: (chains,), whether any
    transfer is in a group.
    """

    rows: list[list[int]]
    head: LongArray
    length: LongArray
    channel: LongArray
    grouped: BoolArray

    @classmethod
    def of(cls, rows: list[list[int]], requested: NDArray[Any], t: Transfers) -> _Chains:
        length = np.array([len(chain) for chain in rows], np.int64)
        flat = np.fromiter(chain_of.from_iterable(rows), np.int64, int(length.sum()))
        first = offsets_of(length)[:-1]
        if not rows:
            return cls(rows, flat, length, flat, flat.astype(bool))
        channel = np.maximum.reduceat(requested[flat], first).astype(np.int64)
        grouped = np.logical_or.reduceat(t.group[flat] != NONE, first)
        return cls(rows, flat[first], length, channel, grouped)

    def flat(self, numbers: list[int]) -> tuple[LongArray, LongArray]:
        """The transfers of the chains `numbers`, one chain after another: for each the place of its
        chain among them, and its row."""
        length = self.length[numbers]
        rows = chain_of.from_iterable(self.rows[k] for k in numbers)
        chain = np.repeat(np.arange(len(numbers)), length)
        return chain, np.fromiter(rows, np.int64, len(chain))


class _Hops(NamedTuple):
    """One row an instruction that receives a transfer and sends the next one of its chain.

    channel: the channel on which it should be. receive, send: the two transfers.
    """

    channel: LongArray
    receive: LongArray
    send: LongArray

    @classmethod
    def of(cls, channel: LongArray, chain: LongArray, rows: LongArray) -> _Hops:
        """The hops of chains in a row; the columns have an entry for each transfer."""
        at = np.flatnonzero(chain[1:] == chain[:-1])
        return cls(channel[at], rows[at], rows[at + 1])


def _follows_leader(t: Transfers) -> BoolArray:
    """bool (transfers,): the transfers of groups but their leaders."""
    return np.asarray((t.group != NONE) & (t.leader != np.arange(len(t))))


def _beside(t: Transfers, chains: _Chains) -> BoolArray:
    """bool (transfers,): whether a transfer in no chain is on the same connection, on any
    channel."""
    alone = t.remote.copy()
    alone[chains.flat(list(range(len(chains.rows))))[1]] = False
    ends = t.src.astype(np.int64) * (int(t.dst.max(initial=0)) + 1) + t.dst
    return np.isin(ends, ends[alone])


def _in_order(chains: _Chains, kinds: list[int], t: Transfers) -> list[int]:
    """The numbers of the chains in the order of their choices. Those that cannot choose come first,
    so that the others choose around them; a group comes before the chains that begin with one of
    its receives."""
    leader = np.where(chains.grouped, t.leader[chains.head], 0)
    begins = chains.grouped & (leader != chains.head)
    order = np.lexsort((np.array(kinds), begins, leader, ~chains.grouped, chains.channel == NONE))
    return cast("list[int]", order.tolist())


def _kinds(dag: ChunkDag, chains: _Chains) -> list[int]:
    """For each chain the number of the first one that is alike: of the same length, equally far
    from the program's begin and end, in the same lane. Those that can't choose are `_DECIDED`; a
    chain with a group is like no other."""
    kinds = np.where(chains.grouped, np.arange(len(chains.rows)), _DECIDED)
    free = np.flatnonzero(~chains.grouped & (chains.channel == NONE))
    if len(free):
        t, (before, after) = dag.program.transfers, with_messages(dag)
        head = chains.head[free]
        depth, remaining = levels(2 * len(t), before, after), remaining_steps(dag)
        alike = np.stack([chains.length[free], depth[2 * head], remaining[2 * head], t.lane[head]])
        _, first, of = np.unique(alike, axis=1, return_index=True, return_inverse=True)
        kinds[free] = free[first[of.ravel()]]
    return cast("list[int]", kinds.tolist())


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
    ends of groups and of their members; and the requested blocks of ends. An end is the number of
    its connection on the channel: of (source, destination, lane)."""

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
        pair = t.src.astype(np.int64) * ranks + t.dst
        self._connection = np.unique(pair * lanes + t.lane, return_inverse=True)[1]
        self._end = self._connection.tolist()
        self._bound: defaultdict[int, _Bound] = defaultdict(_Bound)
        for row in np.flatnonzero(t.by_hand).tolist():
            bound = self._bound[max(int(t.channel[row]), 0)]
            if t.send_block[row] != NONE:
                bound.send_block[self._end[row]] = int(t.send_block[row])
            if t.recv_block[row] != NONE:
                bound.receive_block[self._end[row]] = int(t.recv_block[row])

    def rows(self, transfer: int) -> list[int]:
        """The transfers of the group that a transfer leads, otherwise the transfer alone."""
        return self._rows.get(transfer, [transfer])

    def bind(self, hops: _Hops, *, partly: bool) -> BoolArray:
        """bool (hops,): whether each stays fused on its channel, after those before it. Binds those
        that do; if not `partly`, only if all do.

        Hops between the same connections on one channel fit together or not at all, so one of them
        is tried: a ring of n ranks has n of them and n times as many hops.
        """
        receive, send = self._connection[hops.receive], self._connection[hops.send]
        most = int(self._connection.max(initial=0)) + 1
        key = (hops.channel * most + receive) * most + send
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        fits, bound = np.zeros(len(first), bool), []
        together: defaultdict[int, _Bound] = defaultdict(_Bound)
        # In the order of first use: a hop binds its ends before any hop behind it asks for them.
        for k in np.argsort(first).tolist():
            channel, receive, send = (int(column[first[k]]) for column in hops)
            unit = self._unit(receive, send)
            # `together` is apart from what is bound: if one hop fails and not `partly`, nothing
            # must stay.
            fits[k] = self._bound[channel].fits(unit) and together[channel].fits(unit)
            if fits[k]:
                together[channel].bind(unit)
                bound.append((channel, unit))
            elif not partly:
                return fits[of]
        for channel, unit in bound:
            self._bound[channel].bind(unit)
        return fits[of]

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
        # The first channel on which the whole chain fits: at most `limit` are tried, so the search
        # is linear in the chain.
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
            return _Unit((self._end[receive],), (self._end[send],))
        taken = [] if receive == NONE else self._takes(receive)
        put = [] if send == NONE else self.rows(send)
        of_reduction = taken if receive in self._rows and self._reduces[receive] else []
        of_multicast = put if send in self._rows else []
        return _Unit(
            tuple(self._end[row] for row in taken),
            tuple(self._end[row] for row in put),
            frozenset(self._end[row] for row in of_multicast),
            frozenset(self._end[row] for row in of_reduction),
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
