"""Moves: the data that a plan's instructions and proxies move, by the resources that they cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sley.ir.connections import Messages
from sley.ir.fabric import LinkKind
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, ByteArray, Edges, FloatArray, IntArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import RECEIVES, REDUCES, SENDS, Op, Protocol
from sley.model.simulation.routes import ConnectionRoutes
from sley.verification.direct import pulls
from sley.verification.runs import Runs

# Messages that an operation reads or writes in the memory of its own GPU, and in that of the peer
# that it sends to. A send over the network writes into a FIFO of its own GPU instead; one of Direct
# whose message is pulled writes none, and its receiver reads it in the peer's memory.
_LOCAL = np.zeros(len(Op))
_SENT = np.zeros(len(Op))
for _op, _traffic in {
    Op.SEND: (1, 1),
    Op.RECV: (2, 0),
    Op.COPY: (2, 0),
    Op.REDUCE: (3, 0),
    Op.RECV_REDUCE_COPY: (3, 0),
    Op.RECV_COPY_SEND: (2, 1),
    Op.RECV_REDUCE_SEND: (2, 1),
    Op.RECV_REDUCE_COPY_SEND: (3, 1),
    Op.COPY_SEND: (2, 1),
}.items():
    _LOCAL[_op], _SENT[_op] = _traffic


def memory_of(topology: Topology) -> IntArray:
    """int32 (ranks,): the number of the memory that each rank uses."""
    own = np.arange(topology.ranks, dtype=np.int32)
    return topology.node if topology.shared_memory else own


Uses: TypeAlias = tuple[IntArray | LongArray, IntArray | LongArray, FloatArray]
"""A row each, in any order: a class of moves, a resource, and how often its bytes cross it."""


@dataclass(frozen=True)
class MoveClasses:
    """Classes of moves that cross the same resources at the same maximum rate.

    cap_GBps: float64 (classes,), the maximum rate of one move.
    push_GBps: float64 (classes,), the rate that it demands of a link, for contention; an
        interpreter does not reduce it, or its loss would help.
    first, resource, weight: CSR, class -> how often its bytes cross each resource; the numbers of
        links are their rows, those of memories follow, then the proxies of ranks, whose bytes are
        microseconds of posts.
    """

    cap_GBps: FloatArray  # noqa: N815 - a unit
    push_GBps: FloatArray  # noqa: N815
    first: LongArray
    resource: IntArray
    weight: FloatArray

    @classmethod
    def of(cls, cap: FloatArray, push: FloatArray, uses: Sequence[Uses]) -> MoveClasses:
        """uses: parts of them, in which a resource may come several times."""
        kind, resource, weight = (np.concatenate(column) for column in zip(*uses, strict=True))
        resources = int(resource.max(initial=0)) + 1
        keys, which = np.unique(kind * resources + resource, return_inverse=True)
        total = np.bincount(which, weight, len(keys))
        keys, total = keys[total != 0], total[total != 0]
        first = np.searchsorted(keys, np.arange(len(cap) + 1) * resources)
        return cls(cap, push, first, (keys % resources).astype(np.int32), total)

    def in_turn(self, parts: Sequence[Sequence[tuple[int, float]]]) -> MoveClasses:
        """With further classes, each of moves of several of these in turn: of each, its share of
        the bytes."""
        if not parts:
            return self
        new = np.repeat(np.arange(len(parts)), [len(some) for some in parts])
        old, share = np.array([part for some in parts for part in some]).T
        old, sizes = old.astype(np.int64), np.diff(self.first)
        rows = Edges(self.first, np.arange(len(self.resource), dtype=np.int32)).pick(old)
        own = np.repeat(np.arange(len(sizes)), sizes), self.resource, self.weight
        taken = self.weight[rows.target] * share[rows.source]
        uses = [own, (len(sizes) + new[rows.source], self.resource[rows.target], taken)]
        cap, push = (
            np.append(rate, 1 / np.bincount(new, share / rate[old]))
            for rate in (self.cap_GBps, self.push_GBps)
        )
        return MoveClasses.of(cap, push, uses)


@dataclass(frozen=True)
class Moves:
    """The moves of a plan, classified by the resources that they cross and their rate.

    instruction: int32 (instructions,), the class of each instruction's moves; NONE for one that
        moves nothing. The moves of a run are those of its first instruction.
    carried: float64 (instructions,), the bytes that each moves for a byte on a link.
    wire, post: int32 (connections,), the class of the second hop, and of its posts; NONE without.
    classes: the classes.
    """

    instruction: IntArray
    carried: FloatArray
    wire: IntArray
    post: IntArray
    classes: MoveClasses

    @classmethod
    def of(
        cls, plan: Plan, topology: Topology, routes: ConnectionRoutes, speed: float, runs: Runs
    ) -> Moves:
        """speed: the fraction of a block's rate that remains, 1 for generated code."""
        t, c, ranks, model = plan.instructions, routes.connections, topology.ranks, topology.model
        pairs = c.src.astype(np.int64) * ranks + c.dst
        pooled, pulled = _Pooled.of(plan), _Pulled.of(plan, routes)
        peers = plan.collective.ranks + len(plan.groups.offset)
        grouped = RECEIVES[t.op] & (t.recv_peer >= plan.collective.ranks)
        saved = runs.first.astype(np.int8) + runs.second + runs.kept
        key = np.where(SENDS[t.op], t.send_peer, NONE).astype(np.int64) + 1
        for values, number in (
            (np.where(grouped, t.recv_peer, 0), peers),
            (t.op, len(Op)),
            (plan.rank, ranks),
            (pooled.sent, 2),
            (pulled.sent, 2),
            (saved, 4),
            (pulled.taken_from + 1, peers),
        ):
            key = key * number + values
        # Instructions with equal keys cross the same resources at the same rate: millions of
        # instructions have thousands of classes.
        _, first, kind = np.unique(key, return_index=True, return_inverse=True)
        memory = len(topology.links) + memory_of(topology)
        cap, push, uses = _block_classes(plan, first, routes, memory, speed, pooled, pulled, saved)
        # The moves of proxies, which send parts from card to card.
        wire = np.full(len(c), NONE, np.int32)
        remote = np.flatnonzero(routes.remote)
        _, one, which = np.unique(pairs[remote], return_index=True, return_inverse=True)
        one = remote[one]
        wire[remote] = len(first) + which
        on_wire = len(first) + np.arange(len(one))
        uses.append(_crossed(routes.path, on_wire, one))
        uses += [(on_wire, memory[ends[one]], np.ones(len(one))) for ends in (c.src, c.dst)]
        slowest = [topology.links.GBps[routes.path[k]].min() for k in one.tolist()]
        offered = np.full(len(one), model.block_GBps(LinkKind.NETWORK))
        # Their posts.
        post = np.full(len(c), NONE, np.int32)
        senders, which = np.unique(c.src[remote], return_inverse=True)
        post[remote] = len(first) + len(one) + which
        posts_us = model.posts_us(plan.protocol)
        share = model.proxy_us / posts_us if posts_us else 0.0
        posting = len(first) + len(one) + np.arange(len(senders))
        proxy = int(memory.max()) + 1 + senders.astype(np.int64)
        uses.append((posting, proxy, np.full(len(senders), share)))
        cap = np.concatenate([cap, slowest, np.full(len(senders), 1e-3)])
        push = np.concatenate([push, offered, np.zeros(len(senders))])
        classes = MoveClasses.of(cap, push, uses)
        idle = pooled.idle(plan) | (pulled.sent & (t.op == Op.SEND))
        idle |= (saved > 0) & (saved == _LOCAL[t.op] + _SENT[t.op])
        moved = np.where(idle, NONE, kind).astype(np.int32)
        # Data that stays in its rank carries no protocol flags.
        local, nop = (t.op == Op.COPY) | (t.op == Op.REDUCE), t.op == Op.NOP
        carried = np.where(local, model.wire_efficiency[plan.protocol], 1.0) * ~nop
        known: dict[tuple[tuple[int, float], ...], int] = {}
        for row in np.flatnonzero(runs.length > 1).tolist():
            rows = slice(row, row + int(runs.length[row]))
            shares = zip(moved[rows].tolist(), carried[rows].tolist(), strict=True)
            parts = tuple((kind, share) for kind, share in shares if kind != NONE)
            moved[rows] = NONE
            if parts:
                moved[row] = known.setdefault(parts, len(cap) + len(known))
        return cls(moved, carried, wire, post, classes.in_turn(list(known)))


@dataclass(frozen=True)
class _Pooled:
    """The ends of messages that a switch combines or copies, where the other end is the group's.

    sent: bool (instructions,), whether an instruction's message is one of those that are combined:
        it stays in the sender's memory, where the switch reads it.
    taken: bool (instructions,), whether the message that it takes was copied by a switch.
    """

    sent: BoolArray
    taken: BoolArray

    @classmethod
    def of(cls, plan: Plan) -> _Pooled:
        t, ranks = plan.instructions, plan.collective.ranks
        sent, taken = np.zeros((2, len(t)), bool)
        if len(plan.grouped):
            messages = Messages.of(plan)
            sent[messages.send[t.recv_peer[messages.receive] >= ranks]] = True
            taken[messages.receive[t.send_peer[messages.send] >= ranks]] = True
        return cls(sent, taken)

    def idle(self, plan: Plan) -> BoolArray:
        """bool (instructions,): those that only announce or await data, which a switch reads or
        writes in the buffers themselves: with Direct, sends of messages that are combined, and
        receives of those that are copied."""
        op = plan.instructions.op
        found = (self.sent & (op == Op.SEND)) | (self.taken & (op == Op.RECV))
        return np.asarray(found & (plan.protocol is Protocol.DIRECT))


@dataclass(frozen=True)
class _Pulled:
    """The ends of messages of Direct that the receiver reads in the sender's buffer. Those over the
    network, and those of plans with groups, count as sent through slots.

    sent: bool (instructions,). taken_from: int32 (instructions,), the rank in whose buffer each
        reads its message; NONE for others.
    """

    sent: BoolArray
    taken_from: IntArray

    @classmethod
    def of(cls, plan: Plan, routes: ConnectionRoutes) -> _Pulled:
        rows = len(plan.instructions)
        sent, taken_from = np.zeros(rows, bool), np.full(rows, NONE, np.int32)
        if plan.protocol is Protocol.DIRECT and not len(plan.grouped):
            messages = Messages.of(plan)
            near = ~routes.remote[messages.connection]
            read = near & pulls(plan).pulled[messages.send]
            sent[messages.send[read]] = True
            taken_from[messages.receive[read]] = plan.rank[messages.send[read]]
        return cls(sent, taken_from)


# More than eight parameters: all of a plan on a topology that its moves depend on.
def _block_classes(
    plan: Plan,
    rows: LongArray,
    routes: ConnectionRoutes,
    memory: IntArray,
    speed: float,
    pooled: _Pooled,
    pulled: _Pulled,
    saved: ByteArray,
) -> tuple[FloatArray, FloatArray, list[Uses]]:
    """The moves of blocks for instructions, a class each: cap_GBps, push_GBps, and uses.

    rows: (classes,), the instructions. memory: the resource of each rank's memory. saved: the loads
    and stores that runs spare each instruction, whose rate is that of the rest.
    """
    t, ranks, model = plan.instructions, plan.collective.ranks, routes.topology.model
    rank, op, saved = plan.rank[rows], t.op[rows], saved[rows]
    send_peer, recv_peer, taken_from = t.send_peer[rows], t.recv_peer[rows], pulled.taken_from[rows]
    words, local = _LOCAL[op] + _SENT[op], _LOCAL[op] - saved
    by_kind = np.array([model.block_GBps(kind) for kind in LinkKind])
    cap, uses = np.full(len(rows), np.inf), list[Uses]()
    for flags, peer in ((RECEIVES, recv_peer), (SENDS, send_peer)):
        for k in np.flatnonzero(flags[op] & (peer >= ranks)).tolist():
            # A switch reads or writes the memory of the members, not this rank's FIFO.
            members, up = np.array(plan.peers(int(peer[k]))), flags is RECEIVES
            local[k] -= up
            links = routes.topology.switch_links(int(rank[k]), up=up, members=members)
            crossed = np.concatenate([memory[members], links])
            weight = np.repeat([1, 1 / model.switch_efficiency], [len(members), len(links)])
            uses.append((np.full(len(crossed), k), crossed, weight))
            cap[k] = min(cap[k], by_kind[LinkKind.NVLINK])
    pulls = np.flatnonzero(taken_from != NONE)
    c = routes.connections.uses.receive[rows[pulls]]
    cap[pulls] = np.minimum(cap[pulls], by_kind[routes.kind[c]])
    local[pulls] -= 1
    uses.append((pulls, memory[taken_from[pulls]], np.ones(len(pulls))))
    uses.append(_crossed(routes.path, pulls, c))
    sends = np.flatnonzero(SENDS[op] & (send_peer < ranks) & ~pulled.sent[rows])
    c, kept = routes.connections.uses.send[rows[sends]], pooled.sent[rows[sends]]
    cap[sends] = np.minimum(
        cap[sends], np.where(kept, model.local_block_GBps, by_kind[routes.kind[c]])
    )
    far = kept | routes.remote[c]
    uses.append(_crossed(routes.path, sends[~far], c[~far]))
    written = np.where(far, rank[sends], routes.connections.dst[c])
    uses.append((sends, memory[written], _SENT[op[sends]]))
    uses.append((np.arange(len(rows)), memory[rank], local))
    cap[cap == np.inf] = model.local_block_GBps
    faster = words / np.maximum(words - saved, 1)
    share = np.where(REDUCES[op], 1.0, model.copy_share)
    return cap * speed * share * faster, cap * faster, uses


def _crossed(path: Edges, kind: LongArray, connection: IntArray | LongArray) -> Uses:
    """The links that classes cross, each as often as on the path of its connection."""
    links = path.pick(connection)
    return kind[links.source], links.target.astype(np.int64), np.ones(len(links))
