"""Moves: the data that a plan's instructions and proxies move, by the resources that they cross."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sley.ir.connections import Messages
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, ByteArray, FloatArray, IntArray
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


@dataclass(frozen=True)
class MoveClass:
    """Moves that cross the same resources at the same maximum rate.

    cap_GBps: the maximum rate of one move.
    push_GBps: the rate that it demands of a link, for contention; an interpreter does not reduce
        it, or its loss would help.
    uses: how often its bytes cross each resource; the numbers of links are their rows, those of
        memories follow, then the proxies of ranks, whose bytes are microseconds of posts.
    """

    cap_GBps: float  # noqa: N815 - a unit
    push_GBps: float  # noqa: N815
    uses: dict[int, float]

    @classmethod
    def in_turn(cls, parts: Sequence[tuple[MoveClass, float]]) -> MoveClass:
        """Moves of several classes as one, for a byte: of each its share of the bytes."""
        uses: defaultdict[int, float] = defaultdict(float)
        for one, share in parts:
            for resource, times in one.uses.items():
                uses[resource] += times * share
        cap = 1 / sum(share / one.cap_GBps for one, share in parts)
        push = 1 / sum(share / one.push_GBps for one, share in parts)
        return cls(cap, push, uses)


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
    classes: list[MoveClass]

    @classmethod
    def of(
        cls, plan: Plan, topology: Topology, routes: ConnectionRoutes, speed: float, runs: Runs
    ) -> Moves:
        """speed: the fraction of a block's rate that remains, 1 for generated code."""
        t, c, ranks = plan.instructions, routes.connections, topology.ranks
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
        # Instructions with equal keys cross the same resources at the same rate, and the loop below
        # computes each class once: millions of instructions have thousands of classes.
        _, first, kind = np.unique(key, return_index=True, return_inverse=True)
        memory = len(topology.links) + memory_of(topology)
        classes = [
            _block_class(plan, i, topology.model, routes, memory, speed, pooled, pulled, saved)
            for i in first.tolist()
        ]
        wire = np.full(len(c), NONE, np.int32)
        remote = np.flatnonzero(routes.remote)
        _, first, which = np.unique(pairs[remote], return_index=True, return_inverse=True)
        wire[remote] = len(classes) + which
        classes += [_wire_class(k, topology, routes, memory) for k in remote[first].tolist()]
        post = np.full(len(c), NONE, np.int32)
        senders, which = np.unique(c.src[remote], return_inverse=True)
        post[remote] = len(classes) + which
        posts_us = topology.model.posts_us(plan.protocol)
        share = topology.model.proxy_us / posts_us if posts_us else 0.0
        proxy = int(memory.max()) + 1
        busy = [{proxy + rank: share} if share else {} for rank in senders.tolist()]
        classes += [MoveClass(1e-3, 0.0, uses) for uses in busy]
        idle = pooled.idle(plan) | (pulled.sent & (t.op == Op.SEND))
        idle |= (saved > 0) & (saved == _LOCAL[t.op] + _SENT[t.op])
        moved = np.where(idle, NONE, kind).astype(np.int32)
        # Data that stays in its rank carries no protocol flags.
        local, nop = (t.op == Op.COPY) | (t.op == Op.REDUCE), t.op == Op.NOP
        carried = np.where(local, topology.model.wire_efficiency[plan.protocol], 1.0) * ~nop
        known: dict[tuple[tuple[int, float], ...], int] = {}
        for row in np.flatnonzero(runs.length > 1).tolist():
            rows = slice(row, row + int(runs.length[row]))
            shares = zip(moved[rows].tolist(), carried[rows].tolist(), strict=True)
            parts = tuple((kind, share) for kind, share in shares if kind != NONE)
            moved[rows] = NONE
            if parts and parts not in known:
                known[parts] = len(classes)
                classes.append(MoveClass.in_turn([(classes[kind], part) for kind, part in parts]))
            moved[row] = known.get(parts, NONE)
        return cls(moved, carried, wire, post, classes)


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
def _block_class(
    plan: Plan,
    instruction: int,
    model: CostModel,
    routes: ConnectionRoutes,
    memory: IntArray,
    speed: float,
    pooled: _Pooled,
    pulled: _Pulled,
    saved: ByteArray,
) -> MoveClass:
    """The moves of a block for an instruction. memory: the resource of each rank's memory. saved:
    the loads and stores that runs spare each instruction, whose rate is that of the rest."""
    t, ranks, rank = plan.instructions, plan.collective.ranks, int(plan.rank[instruction])
    op, own, caps = t.op[instruction], int(memory[rank]), []
    uses: defaultdict[int, float] = defaultdict(float)
    local = float(_LOCAL[op] - saved[instruction])
    words = _LOCAL[op] + _SENT[op]
    for flags, peer in ((RECEIVES, t.recv_peer), (SENDS, t.send_peer)):
        if not (flags[op] and peer[instruction] >= ranks):
            continue
        # A switch reads or writes the memory of the members, not this rank's FIFO.
        members = plan.peers(int(peer[instruction]))
        local -= flags is RECEIVES
        for member in members:
            uses[int(memory[member])] += 1
        for link in routes.topology.switch_links(rank, up=flags is RECEIVES, members=members):
            uses[link] += 1 / model.switch_efficiency
        caps.append(model.block_GBps(LinkKind.NVLINK))
    if (source := int(pulled.taken_from[instruction])) != NONE:
        c = int(routes.connections.uses.receive[instruction])
        caps.append(model.block_GBps(LinkKind(routes.kind[c])))
        local -= 1
        uses[int(memory[source])] += 1
        for link in routes.path[c].tolist():
            uses[link] += 1
    if SENDS[op] and t.send_peer[instruction] < ranks and not pulled.sent[instruction]:
        c = int(routes.connections.uses.send[instruction])
        other = own
        if pooled.sent[instruction]:
            caps.append(model.local_block_GBps)
        elif routes.remote[c]:
            caps.append(model.block_GBps(LinkKind.NETWORK))
        else:
            caps.append(model.block_GBps(LinkKind(routes.kind[c])))
            other = int(memory[routes.connections.dst[c]])
            for link in routes.path[c].tolist():  # once for each time that it is crossed
                uses[link] += 1
        uses[other] += _SENT[op]
    uses[own] += local
    cap = min(caps, default=model.local_block_GBps)
    share = 1.0 if REDUCES[op] else model.copy_share
    faster = float(words / max(words - saved[instruction], 1))
    used = {r: w for r, w in uses.items() if w}
    return MoveClass(cap * speed * share * faster, cap * faster, used)


def _wire_class(
    connection: int, topology: Topology, routes: ConnectionRoutes, memory: IntArray
) -> MoveClass:
    """The moves of a proxy, which sends parts from card to card."""
    links = routes.path[connection].tolist()
    ends = (routes.connections.src[connection], routes.connections.dst[connection])
    return MoveClass(
        cap_GBps=float(topology.links.GBps[links].min()),
        push_GBps=topology.model.block_GBps(LinkKind.NETWORK),
        uses=dict(Counter([*links, *(int(memory[rank]) for rank in ends)])),
    )
