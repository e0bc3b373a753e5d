"""Inputs: a plan and a topology as arguments of the event loop."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, SleyError
from sley.errors.compiler import C301, C305
from sley.errors.simulation import S701, S706
from sley.ir.connections import Connections
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind
from sley.ir.faults import diagnostics, faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges, FloatArray, IntArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import LoopOrder, Op, Protocol

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
    """

    connections: Connections
    path: Edges
    kind: NDArray[np.int8]

    @classmethod
    def of(cls, plan: Plan, topology: Topology) -> Routes:
        """Errors: S706, C301, C305."""
        found = faults(plan)
        if found:
            raise SleyError(diagnostics(S706, plan, found))
        ranks = plan.collective.ranks
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
        return cls(c, path, kind)

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """bool (connections,): those with a second hop, from card to card."""
        return np.asarray(self.kind == LinkKind.NETWORK)


def latencies(topology: Topology, protocol: Protocol, routes: Routes) -> FloatArray:
    """float64 (connections,): time from the end of a move until the receiver sees it: the sum of
    the links' latencies if all links on the path have one, else the model's for the slowest kind.
    """
    by_kind = np.array([topology.model.latency_us(kind)[protocol] for kind in LinkKind])
    path = routes.path
    own = topology.links.latency_us[path.target]
    complete = np.logical_and.reduceat(own >= 0, path.offset[:-1])
    return np.where(complete, np.add.reduceat(own, path.offset[:-1]), by_kind[routes.kind])


def memory_of(topology: Topology) -> IntArray:
    """int32 (ranks,): the number of the memory that each rank uses."""
    own = np.arange(topology.ranks, dtype=np.int32)
    return topology.node if topology.shared_memory else own


@dataclass(frozen=True)
class MoveClass:
    """Moves that cross the same resources at the same maximum rate.

    cap_GBps: the maximum rate of one move. push_GBps: the rate that it demands of a link, for
    contention. uses: how often its bytes cross each resource; the numbers of links are their rows,
    those of memories follow, then the proxies of ranks, whose bytes are microseconds of posts.
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
        pair = np.append(pairs, NONE)[c.uses.send]  # NONE is the last one
        key = ((pair + 1) * len(Op) + t.op) * ranks + plan.rank
        _, first, kind = np.unique(key, return_index=True, return_inverse=True)
        memory = len(topology.links) + memory_of(topology)
        classes = [
            _block_class(plan, i, topology.model, routes, memory, speed) for i in first.tolist()
        ]
        wire = np.full(len(c), NONE, np.int32)
        remote = np.flatnonzero(routes.remote)
        _, first, which = np.unique(pairs[remote], return_index=True, return_inverse=True)
        wire[remote] = len(classes) + which
        classes += [_wire_class(k, topology, routes, memory, speed) for k in remote[first].tolist()]
        post = np.full(len(c), NONE, np.int32)
        senders, which = np.unique(c.src[remote], return_inverse=True)
        post[remote] = len(classes) + which
        posts_us = topology.model.posts_us(plan.protocol)
        share = topology.model.proxy_us / posts_us if posts_us else 0.0
        proxy = int(memory.max()) + 1
        busy = [{proxy + rank: share} if share else {} for rank in senders.tolist()]
        classes += [MoveClass(1e-3, 0.0, uses) for uses in busy]
        return cls(kind.astype(np.int32), wire, post, classes)


def _block_class(
    plan: Plan,
    instruction: int,
    model: CostModel,
    routes: Routes,
    memory: IntArray,
    speed: float,
) -> MoveClass:
    """The moves of a block for an instruction. memory: the resource of each rank's memory."""
    op, connections = plan.instructions.op[instruction], routes.connections
    c = int(connections.uses.send[instruction])
    own = int(memory[plan.rank[instruction]])
    uses = {own: float(_LOCAL[op])}
    if c == NONE:
        cap = model.local_block_GBps
    elif routes.remote[c]:
        cap = model.block_GBps(LinkKind.NETWORK)
        uses[own] += _SENT[op]
    else:
        cap = model.block_GBps(LinkKind(routes.kind[c]))
        other = int(memory[connections.dst[c]])
        uses[other] = uses.get(other, 0.0) + _SENT[op]
        uses |= Counter(routes.path[c].tolist())  # once for each time that it is crossed
    return MoveClass(cap * speed, cap * speed, {r: w for r, w in uses.items() if w})


def _wire_class(
    connection: int,
    topology: Topology,
    routes: Routes,
    memory: IntArray,
    speed: float,
) -> MoveClass:
    """The moves of a proxy, which sends parts from card to card."""
    links = routes.path[connection].tolist()
    ends = (routes.connections.src[connection], routes.connections.dst[connection])
    return MoveClass(
        cap_GBps=float(topology.links.GBps[links].min()),
        push_GBps=topology.model.block_GBps(LinkKind.NETWORK) * speed,
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
    send, receive: int32 (instructions,), the connection that each uses; NONE without.
    messages: int32 (instructions,), messages of an execution.
    chunks: float64 (instructions,), chunks of a message in units of a chunk on a link: data that
        stays in its rank has no protocol flags, and counts less.
    kind: int32 (instructions,), the class of its moves.
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
    send: IntArray
    receive: IntArray
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
        fenced = np.where(routes.remote, 0.0, model.fence_share[plan.protocol])
        before = np.where(routes.remote, model.post_share, 0.0)
        local, nop = (t.op == Op.COPY) | (t.op == Op.REDUCE), t.op == Op.NOP
        single = local | nop | (not plan.per_chunk)
        # Data that stays in its rank carries no protocol flags.
        carried = np.where(local, model.wire_efficiency[plan.protocol], 1.0) * ~nop
        return cls(
            block_offset=plan.block_offset,
            send=routes.connections.uses.send,
            receive=routes.connections.uses.receive,
            messages=np.where(single, 1, t.count).astype(np.int32),
            chunks=np.where(single, t.count, 1) * carried,
            kind=moves.instruction,
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
