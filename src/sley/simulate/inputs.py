"""Inputs: a plan and a topology as arguments of the event loop."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, SleyError
from sley.errors.compiler import C301, C305, C315
from sley.errors.simulation import S701, S706
from sley.ir.connections import Connections, Messages
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind
from sley.ir.faults import diagnostics, faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, FloatArray, IntArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import RECEIVES, REDUCES, SENDS, LoopOrder, Op, Protocol

# Messages that an operation reads or writes in the memory of its own GPU, and in that of the peer
# that it sends to. A send over the network writes into a FIFO of its own GPU instead.
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


def choose_topology(plan: Plan, topology: Topology | None) -> Topology:
    """The given topology, by default the one that the plan was compiled for. Errors: S701."""
    chosen = topology or plan.topology
    if chosen is None:
        raise S701.error(at=Place(detail=plan.name), expected="a topology", found="none")
    return chosen


@dataclass(frozen=True)
class Routes:
    """The links that the connections of a plan cross on a topology.

    connections: those of the plan.
    path: CSR, connection -> links.
    kind: int8 (connections,), the slowest LinkKind on the way.
    switched: bool (connections,), whether a switch combines or copies messages on it. gathered:
        whether it combines them.
    topology: the topology.
    """

    connections: Connections
    path: Edges
    kind: NDArray[np.int8]
    switched: BoolArray
    gathered: BoolArray
    topology: Topology

    @classmethod
    def of(cls, plan: Plan, topology: Topology) -> Routes:
        """Errors: S706, C301, C305."""
        found = faults(plan)
        if found:
            raise SleyError(diagnostics(S706, plan, found))
        t, ranks = plan.instructions, plan.collective.ranks
        if topology.ranks < ranks:
            raise C305.error(
                expected=f"at least {ranks} ranks",
                found=f"{topology.name}: {topology.ranks} ranks",
            )
        c = Connections.of(plan)
        pairs, pair = np.unique(c.src.astype(np.int64) * ranks + c.dst, return_inverse=True)
        path = topology.paths(*np.divmod(pairs, ranks)).pick(pair)
        for missing in np.flatnonzero(np.diff(path.offset) == 0)[:1]:
            raise C301.error(
                at=plan.place(c.first_user(missing)),
                expected="a message between two ranks that are linked",
                found=f"rank {c.src[missing]} -> rank {c.dst[missing]}, which {topology.name} "
                "does not link",
            )
        kind = np.zeros(len(c), np.int8)
        if len(c):
            kind = np.maximum.reduceat(topology.links.kind[path.target], path.offset[:-1])
        grouped = plan.grouped
        _check_switches(plan, topology, grouped)
        copied, gathered = np.zeros((2, len(c)), bool)
        copied[c.sending.connection[t.send_peer[c.sending.instruction] >= ranks]] = True
        gathered[c.receiving.connection[t.recv_peer[c.receiving.instruction] >= ranks]] = True
        return cls(c, path, kind, copied | gathered, gathered, topology)

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """bool (connections,): those with a second hop, from card to card."""
        return np.asarray(self.kind == LinkKind.NETWORK)

    def switch_links(self, rank: int, members: list[int], *, to_rank: bool) -> dict[int, float]:
        """How often bytes cross each link when a switch combines the members' messages for a rank,
        or copies the rank's message to them: once, in units of the links' rate for this. The switch
        reads and writes the rank's own chunks too.

        to_rank: whether it combines messages.
        """
        own = np.full(len(members), rank)
        away, back = self.topology.paths(own, members), self.topology.paths(members, own)
        if to_rank:
            links = {*back.target.tolist(), int(away.target[0])}
        else:
            links = {*away.target.tolist(), int(back.target[-1])}
        return dict.fromkeys(links, 1 / self.topology.model.switch_efficiency)


def _check_switches(plan: Plan, topology: Topology, grouped: LongArray) -> None:
    """Refuses groups that no switch serves. Errors: C315."""
    t = plan.instructions
    far = np.zeros(len(t), bool)
    for peer in (t.send_peer, t.recv_peer):
        rows, member = plan.ends(grouped[peer[grouped] >= plan.collective.ranks], peer)
        far[rows[topology.node[member] != topology.node[plan.rank[rows]]]] = True
    wrong = grouped[far[grouped]] if topology.in_network else grouped
    for row in wrong[:1].tolist():
        raise C315.error(
            at=plan.place(row),
            expected="a switch that reduces and multicasts for the ranks of a group",
            found=f"{topology.name}, "
            + ("where they are on several nodes" if far[row] else "whose switches don't"),
        )


def latencies(topology: Topology, protocol: Protocol, routes: Routes) -> FloatArray:
    """float64 (connections,): time from the end of a move until the receiver sees it: the sum of
    the links' latencies if all links on the path have one, else the model's for the slowest kind,
    or for a switch that combines or copies.
    """
    by_kind = np.array([topology.model.latency_us(kind)[protocol] for kind in LinkKind])
    path = routes.path
    own = topology.links.latency_us[path.target]
    complete = np.logical_and.reduceat(own >= 0, path.offset[:-1])
    # LL's is that of credits, words that no switch combines.
    switched = routes.switched & (protocol is not Protocol.LL)
    model = np.where(switched, topology.model.switch_latency_us, by_kind[routes.kind])
    return np.where(complete, np.add.reduceat(own, path.offset[:-1]), model)


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


@dataclass(frozen=True)
class Moves:
    """The moves of a plan, classified by the resources that they cross and their rate.

    instruction: int32 (instructions,), the class of each instruction's moves.
    wire, post: int32 (connections,), the class of the second hop, and of its posts; NONE without.
    classes: the classes.
    """

    instruction: IntArray
    wire: IntArray
    post: IntArray
    classes: list[MoveClass]

    @classmethod
    def of(cls, plan: Plan, topology: Topology, routes: Routes, speed: float) -> Moves:
        """speed: the fraction of a block's rate that remains, 1 for generated code."""
        t, c, ranks = plan.instructions, routes.connections, topology.ranks
        pairs = c.src.astype(np.int64) * ranks + c.dst
        pooled = Pooled.of(plan, routes)
        peers = plan.collective.ranks + len(plan.groups.offset)
        grouped = RECEIVES[t.op] & (t.recv_peer >= plan.collective.ranks)
        key = np.where(SENDS[t.op], t.send_peer, NONE).astype(np.int64) + 1
        for values, number in (
            (np.where(grouped, t.recv_peer, 0), peers),
            (t.op, len(Op)),
            (plan.rank, ranks),
            (pooled.sent, 2),
        ):
            key = key * number + values
        _, first, kind = np.unique(key, return_index=True, return_inverse=True)
        memory = len(topology.links) + memory_of(topology)
        classes = [
            _block_class(plan, i, topology.model, routes, memory, speed, pooled)
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
        return cls(kind.astype(np.int32), wire, post, classes)


@dataclass(frozen=True)
class Pooled:
    """The ends of messages that a switch combines or copies, where the other end is the group's.

    sent: bool (instructions,), whether an instruction's message is one of those that are combined:
        it stays in the sender's memory, where the switch reads it.
    taken: bool (instructions,), whether the message that it takes was copied by a switch.
    """

    sent: BoolArray
    taken: BoolArray

    @classmethod
    def of(cls, plan: Plan, routes: Routes) -> Pooled:
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


def _block_class(
    plan: Plan,
    instruction: int,
    model: CostModel,
    routes: Routes,
    memory: IntArray,
    speed: float,
    pooled: Pooled,
) -> MoveClass:
    """The moves of a block for an instruction. memory: the resource of each rank's memory."""
    t, ranks, rank = plan.instructions, plan.collective.ranks, int(plan.rank[instruction])
    op, own, caps = t.op[instruction], int(memory[rank]), []
    uses: defaultdict[int, float] = defaultdict(float)
    local = float(_LOCAL[op])
    for flags, peer in ((RECEIVES, t.recv_peer), (SENDS, t.send_peer)):
        if not (flags[op] and peer[instruction] >= ranks):
            continue
        # A switch reads or writes the memory of the members, not this rank's FIFO.
        members = plan.peers(int(peer[instruction]))
        local -= flags is RECEIVES
        links = routes.switch_links(rank, members, to_rank=flags is RECEIVES)
        for resource, times in [*((int(memory[m]), 1.0) for m in members), *links.items()]:
            uses[resource] += times
        caps.append(model.block_GBps(LinkKind.NVLINK))
    if SENDS[op] and t.send_peer[instruction] < ranks:
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
    return MoveClass(cap * speed * share, cap, {r: w for r, w in uses.items() if w})


def _wire_class(
    connection: int,
    topology: Topology,
    routes: Routes,
    memory: IntArray,
) -> MoveClass:
    """The moves of a proxy, which sends parts from card to card."""
    links = routes.path[connection].tolist()
    ends = (routes.connections.src[connection], routes.connections.dst[connection])
    return MoveClass(
        cap_GBps=float(topology.links.GBps[links].min()),
        push_GBps=topology.model.block_GBps(LinkKind.NETWORK),
        uses=dict(Counter([*links, *(int(memory[rank]) for rank in ends)])),
    )


@dataclass(frozen=True)
class Tiling:
    """A call's cut of a chunk into tiles.

    tiles: their number. tile_bytes, last_bytes: size of a full tile, and of the last one.
    """

    tiles: int
    tile_bytes: float
    last_bytes: float

    @classmethod
    def of(cls, plan: Plan, model: CostModel, size_bytes: int) -> Tiling:
        """Tiles whose longest message in the plan has at most the model's tile size."""
        chunk_bytes = size_bytes / plan.collective.blocks / plan.collective.chunks
        counts = plan.instructions.count[plan.sends]
        span = 1 if plan.per_chunk else int(counts.max(initial=1))
        tile_bytes = min(model.tile_bytes[plan.protocol] / span, chunk_bytes)
        tiles = max(1, math.ceil(chunk_bytes / tile_bytes - 1e-9))
        return cls(tiles, tile_bytes, chunk_bytes - (tiles - 1) * tile_bytes)


@dataclass(frozen=True)
class Inputs:
    """The event loop's arguments that don't depend on the size (`native/simulator` reads them field
    by field).

    block_offset: int64 (blocks + 1,), the first instruction of each block.
    send_offset, send_target: CSR, instruction -> connections on which it sends.
    receive_offset, receive_target: CSR, instruction -> connections from which it receives.
    messages: int32 (instructions,), messages of an execution.
    chunks: float64 (instructions,), chunks of a message in units of a chunk on a link: data that
        stays in its rank has no protocol flags, and counts less.
    kind: int32 (instructions,), the class of its moves; NONE for one that moves nothing.
    wait_offset, wait_target: CSR, instruction -> instructions that it waits for.
    instruction_major: whether an instruction runs all tiles before the next one.
    fence_us: float64 (connections,), time that the sending block spends before it continues.
    latency_us: float64 (connections,), from then, or from the end of the second hop, until the
        receiver sees the message.
    credit_us: float64 (connections,), until the other end of a hop sees that room is free.
    wire: int32 (connections,), the class of the second hop; NONE without.
    before_us: float64 (connections,), from the move's end until the second hop begins.
    post_us: float64 (connections,), the part of this that the posts of a message take.
    post: int32 (connections,), the class of the posts; NONE without.
    class_cap, class_push: float64 (classes,), `MoveClass` in bytes a microsecond.
    class_first, class_resource, class_weight: CSR, class -> resources, and how often its bytes
        cross each.
    capacity: float64 (resources,), bytes a microsecond. gamma: float64 (resources,), cost of
        contention. links: number of resources that are links; the rest are memories and proxies.
    launch_us, wait_us, decode_us: cost of a call with its start-up, of an instruction that waits,
        of any instruction.
    slices: the most parts of a message. overhead_bytes: bytes of a part besides its data.
    least_slice_bytes: the least size of a part.
    """

    block_offset: LongArray
    send_offset: LongArray
    send_target: IntArray
    receive_offset: LongArray
    receive_target: IntArray
    messages: IntArray
    chunks: FloatArray
    kind: IntArray
    wait_offset: LongArray
    wait_target: IntArray
    instruction_major: bool
    fence_us: FloatArray
    latency_us: FloatArray
    credit_us: FloatArray
    wire: IntArray
    before_us: FloatArray
    post_us: FloatArray
    post: IntArray
    class_cap: FloatArray
    class_push: FloatArray
    class_first: LongArray
    class_resource: IntArray
    class_weight: FloatArray
    capacity: FloatArray
    gamma: FloatArray
    links: int
    launch_us: float
    wait_us: float
    decode_us: float
    slices: int
    overhead_bytes: float
    least_slice_bytes: float

    @cached_property
    def send(self) -> IntArray:
        """int32 (instructions,): the first connection on which each sends; NONE without."""
        return _first_of_each(self.send_offset, self.send_target)

    @cached_property
    def receive(self) -> IntArray:
        """int32 (instructions,): the first connection from which each receives; NONE without."""
        return _first_of_each(self.receive_offset, self.receive_target)

    @classmethod
    def of(cls, plan: Plan, topology: Topology, *, interpreter: bool) -> Inputs:
        """interpreter: whether an interpreter runs the plan. Errors: S706, C301, C305."""
        t, model = plan.instructions, topology.model
        routes = Routes.of(plan, topology)
        speed = 1 - model.interpreter_loss if interpreter else 1.0
        moves = Moves.of(plan, topology, routes, speed)
        uses = [use for c in moves.classes for use in c.uses.items()]
        memory = np.full(int(memory_of(topology).max()) + 1, model.memory_GBps)
        proxies = np.full(topology.ranks, 1e-3)
        links = len(topology.links)
        latency = latencies(topology, plan.protocol, routes)
        # The sends of a rank into a switch's reductions share a fence, as NCCL's scatter.
        fenced = np.where(routes.remote | routes.gathered, 0.0, model.fence_share[plan.protocol])
        before = np.where(routes.remote, model.post_share, 0.0)
        local, nop = (t.op == Op.COPY) | (t.op == Op.REDUCE), t.op == Op.NOP
        single = local | nop | (not plan.per_chunk)
        # Data that stays in its rank carries no protocol flags.
        carried = np.where(local, model.wire_efficiency[plan.protocol], 1.0) * ~nop
        pooled = Pooled.of(plan, routes)
        c = routes.connections
        sends, receives = (ends.by_instruction(len(t)) for ends in (c.sending, c.receiving))
        return cls(
            block_offset=plan.block_offset,
            send_offset=sends.offset,
            send_target=sends.target,
            receive_offset=receives.offset,
            receive_target=receives.target,
            messages=np.where(single, 1, t.count).astype(np.int32),
            chunks=np.where(single, t.count, 1) * carried,
            kind=np.where(pooled.idle(plan), NONE, moves.instruction).astype(np.int32),
            wait_offset=plan.waits.offset,
            wait_target=plan.waits.target,
            instruction_major=plan.loop_order is LoopOrder.INSTRUCTION,
            fence_us=latency * fenced,
            latency_us=latency * (1 - fenced) * (1 - before),
            credit_us=latencies(topology, Protocol.LL, routes),
            wire=moves.wire,
            before_us=latency * before,
            post_us=np.where(routes.remote, model.posts_us(plan.protocol), 0.0),
            post=moves.post,
            class_cap=np.array([c.cap_GBps for c in moves.classes]) * 1e3,  # to bytes a us
            class_push=np.array([c.push_GBps for c in moves.classes]) * 1e3,
            class_first=np.cumsum([0, *(len(c.uses) for c in moves.classes)], dtype=np.int64),
            class_resource=np.array([resource for resource, _ in uses], np.int32),
            class_weight=np.array([weight for _, weight in uses], np.float64),
            capacity=np.concatenate([topology.links.GBps, memory, proxies]) * 1e3,
            gamma=np.repeat([model.contention, 0.0], [links, len(memory) + len(proxies)]),
            links=links,
            launch_us=model.launch_us[plan.protocol] + topology.startup_us,
            wait_us=model.wait_us,
            decode_us=model.decode_us if interpreter else 0.0,
            slices=int(model.slices[plan.protocol]),
            overhead_bytes=model.part_overhead_bytes,
            least_slice_bytes=model.least_slice_bytes / model.wire_efficiency[plan.protocol],
        )


def _first_of_each(offset: LongArray, target: IntArray) -> IntArray:
    """int32 (nodes,): the first target of each node of a CSR; NONE without."""
    has = np.diff(offset) > 0
    found = np.full(len(has), NONE, np.int32)
    found[has] = target[offset[:-1][has]]
    return found
