"""Inputs: a plan and a topology as arguments of the event loop."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from sley.errors import Place
from sley.errors.simulation import S701
from sley.ir.connections import Messages
from sley.ir.cost_model import CostModel
from sley.ir.plan import Plan
from sley.ir.tables import NONE, ByteArray, FloatArray, IntArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import RECEIVES, SENDS, LoopOrder, Protocol
from sley.model.simulation.moves import Moves, memory_of
from sley.model.simulation.routes import ConnectionRoutes, latencies
from sley.topologies import topology_of
from sley.topologies.groups import Group
from sley.verification.direct import pulls
from sley.verification.flagged import kernel_waits
from sley.verification.runs import Runs


def choose_topology(plan: Plan, topology: Topology | str | None) -> Topology:
    """The given topology, by default the one that the plan was compiled for. Errors: S701, and
    those of `topology_of`."""
    chosen = plan.topology if topology is None else topology_of(topology)
    if chosen is None:
        raise S701.error(at=Place(detail=plan.name), expected="a topology", found="none")
    return chosen


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

    def of_full(self, tiles: int) -> Tiling:
        """So many tiles, all of them full."""
        return Tiling(tiles, self.tile_bytes, self.tile_bytes)

    def on_wire(self, efficiency: float) -> Tiling:
        """The tiles as links carry them, with a protocol's flags."""
        return Tiling(self.tiles, self.tile_bytes / efficiency, self.last_bytes / efficiency)


@dataclass(frozen=True)
class LoopInputs:
    """The event loop's arguments that don't depend on the size (`native/simulator` reads them field
    by field). A run has the row of its first instruction; those behind it have nothing to do.

    block_offset: int64 (blocks + 1,), the first instruction of each block.
    call: int32 (blocks,), the call that each block is part of: several may run at the same time.
    send_offset, send_target: CSR, instruction -> connections on which it sends.
    receive_offset, receive_target: CSR, instruction -> connections from which it receives.
    messages: int32 (instructions,), messages of an execution.
    chunks: float64 (instructions,), chunks of a message in units of a chunk on a link: data that
        stays in its rank has no protocol flags, and counts less.
    kind: int32 (instructions,), the class of its moves; NONE for one that moves nothing.
    wait_offset, wait_target: CSR, instruction -> instructions that it waits for.
    instruction_major: int8 (blocks,), whether an instruction runs all tiles before the next one.
    fence_us: float64 (connections,), time that the sending block spends before it continues.
    latency_us: float64 (connections,), from then, or from the end of the second hop, until the
        receiver sees the message.
    credit_us: float64 (connections,), until the other end of a hop sees that room is free.
    wire: int32 (connections,), the class of the second hop; NONE without.
    before_us: float64 (connections,), from the move's end until the second hop begins.
    post_us: float64 (connections,), the part of this that the posts of a message take.
    post: int32 (connections,), the class of the posts; NONE without.
    class_cap, class_push: float64 (classes,), `MoveClasses` in bytes a microsecond.
    class_first, class_resource, class_weight: CSR, class -> resources, and how often its bytes
        cross each.
    capacity: float64 (resources,), bytes a microsecond. gamma: float64 (resources,), cost of
        contention. links: number of resources that are links; the rest are memories and proxies.
    begin_us: float64 (instructions,), until an instruction without open waits begins.
    launch_us: cost of a call with its start-up and its proxies', and of the blocks of a GPU.
    slices: the most parts of a message. overhead_bytes: bytes of a part besides its data.
    least_slice_bytes: the least size of a part. whole_posts: whether proxies post whole messages to
        the network: those whose parts only flags announce.
    """

    block_offset: LongArray
    call: IntArray
    send_offset: LongArray
    send_target: IntArray
    receive_offset: LongArray
    receive_target: IntArray
    messages: IntArray
    chunks: FloatArray
    kind: IntArray
    wait_offset: LongArray
    wait_target: IntArray
    instruction_major: ByteArray
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
    begin_us: FloatArray
    launch_us: float
    slices: int
    overhead_bytes: float
    least_slice_bytes: float
    whole_posts: bool

    @cached_property
    def send(self) -> IntArray:
        """int32 (instructions,): the first connection on which each sends; NONE without."""
        return _first_of_each(self.send_offset, self.send_target)

    @cached_property
    def receive(self) -> IntArray:
        """int32 (instructions,): the first connection from which each receives; NONE without."""
        return _first_of_each(self.receive_offset, self.receive_target)

    @cached_property
    def class_of_use(self) -> LongArray:
        """int64 (uses,): the class that each entry of `class_resource` belongs to."""
        return np.repeat(np.arange(len(self.class_cap)), np.diff(self.class_first))

    @classmethod
    def of(cls, plan: Plan, topology: Topology, *, interpreter: bool) -> LoopInputs:
        """interpreter: whether an interpreter runs the plan. Errors: V201, C301, C305; V202, V203
        if the kernels have runs."""
        t, model = plan.instructions, topology.model
        routes = ConnectionRoutes.of(plan, topology)
        runs, waits = Runs.apart(len(t)), plan.waits
        if model.runs:
            waits = kernel_waits(plan)
            runs = Runs.of(plan, Messages.of(plan), waits, pulls(plan))
        speed = 1 - model.interpreter_loss if interpreter else 1.0
        moves = Moves.of(plan, topology, routes, speed, runs)
        capacity, gamma = _resources(topology)
        latency = latencies(topology, plan.protocol, routes)
        # The sends of a rank into a switch's reductions share a fence, as NCCL's scatter.
        fenced = np.where(routes.remote | routes.gathered, 0.0, model.fence_share[plan.protocol])
        before = np.where(routes.remote, model.post_share, 0.0)
        efficiency = model.wire_efficiency[plan.protocol]
        in_run = runs.length != 1
        single = ~(RECEIVES[t.op] | SENDS[t.op]) | (not plan.per_chunk) | in_run
        begins = np.where(np.diff(waits.offset) > 0, model.wait_us, 0.0)
        begins += model.decode_us if interpreter else 0.0
        to: LongArray | slice = slice(None)
        if in_run.any():  # a run's messages are its first instruction's
            to = np.append(np.where(runs.length > 0, np.arange(len(t)), len(t)), len(t))
            to = np.minimum.accumulate(to[::-1])[::-1]
            begins[runs.length == 0] = 0
        blocks = np.bincount(memory_of(topology)[plan.block_rank], minlength=1)
        c = routes.connections
        sends, receives = (ends.by_instruction(len(t)) for ends in (c.sending, c.receiving))
        return cls(
            block_offset=plan.block_offset,
            call=np.zeros(len(plan.block_rank), np.int32),
            send_offset=sends.offset[to],
            send_target=sends.target,
            receive_offset=receives.offset[to],
            receive_target=receives.target,
            messages=np.where(single, 1, t.count).astype(np.int32),
            chunks=np.where(in_run, 1.0, np.where(single, t.count, 1) * moves.carried),
            kind=moves.instruction,
            wait_offset=waits.offset,
            wait_target=waits.target,
            begin_us=begins,
            instruction_major=np.full(
                len(plan.block_rank), plan.loop_order is LoopOrder.INSTRUCTION, np.int8
            ),
            fence_us=latency * fenced,
            latency_us=latency * (1 - fenced) * (1 - before),
            credit_us=latencies(topology, Protocol.LL, routes),
            wire=moves.wire,
            before_us=latency * before,
            post_us=np.where(routes.remote, model.posts_us(plan.protocol), 0.0),
            post=moves.post,
            class_cap=moves.classes.cap_GBps * 1e3,  # to bytes a us
            class_push=moves.classes.push_GBps * 1e3,
            class_first=moves.classes.first,
            class_resource=moves.classes.resource,
            class_weight=moves.classes.weight,
            capacity=capacity,
            gamma=gamma,
            links=len(topology.links),
            launch_us=model.launch_us[plan.protocol]
            + topology.startup_us
            + model.network_call_us * bool(routes.remote.any())
            + model.block_us * int(blocks.max()),
            slices=int(model.slices[plan.protocol]),
            overhead_bytes=model.part_overhead_bytes,
            least_slice_bytes=model.least_slice_bytes[plan.protocol] / efficiency,
            whole_posts=plan.protocol in (Protocol.LL, Protocol.LL128),
        )

    @classmethod
    def at_once(
        cls, parts: Sequence[LoopInputs], groups: Sequence[Group], cluster: Topology
    ) -> LoopInputs:
        """Calls that groups of a cluster make at the same time, of one protocol: the
        inputs of each on the group's topology."""
        number: dict[str, int] = defaultdict(int)
        columns: dict[str, list[np.ndarray]] = defaultdict(list)
        for call, (part, group) in enumerate(zip(parts, groups, strict=True)):
            memory = np.zeros(len(part.capacity) - part.links - len(group.ranks), np.int64)
            memory[memory_of(group.topology)] = memory_of(cluster)[group.ranks]
            links, memories = len(cluster.links), int(memory_of(cluster).max()) + 1
            ranks = links + memories + group.ranks
            resource = np.concatenate([group.links, links + memory, ranks])
            counts = {
                "block_offset": len(part.kind),
                "send_offset": len(part.send_target),
                "receive_offset": len(part.receive_target),
                "wait_offset": len(part.wait_target),
                "class_first": len(part.class_resource),
                "send_target": len(part.wire),
                "receive_target": len(part.wire),
                "wait_target": len(part.kind),
                **dict.fromkeys(("kind", "wire", "post"), len(part.class_cap)),
            }
            for one in fields(cls):
                column = getattr(part, one.name)
                if not isinstance(column, np.ndarray):
                    continue
                if one.name == "call":
                    column = np.full_like(column, call)
                elif one.name == "class_resource":
                    column = resource[column].astype(np.int32)
                elif one.name in counts:
                    above = number[one.name]
                    column = np.where(column == NONE, column, column + above).astype(column.dtype)
                    # Offsets end with the sum, with which the next part's begin.
                    last = one.name.endswith(("_offset", "_first"))
                    column = column[:-1] if last and call + 1 < len(parts) else column
                columns[one.name].append(column)
            for name, count in counts.items():
                number[name] += count
        capacity, gamma = _resources(cluster)
        joined: dict[str, Any] = {name: np.concatenate(of) for name, of in columns.items()}
        joined |= {"capacity": capacity, "gamma": gamma, "links": len(cluster.links)}
        return replace(parts[0], launch_us=max(part.launch_us for part in parts), **joined)


def _resources(topology: Topology) -> tuple[FloatArray, FloatArray]:
    """float64 (resources,): `LoopInputs.capacity` and `gamma` of a topology."""
    model, links = topology.model, topology.links.GBps
    memory = np.full(int(memory_of(topology).max()) + 1, model.memory_GBps)
    proxies = np.full(topology.ranks, 1e-3)
    gamma = np.repeat([model.contention, 0.0], [len(links), len(memory) + len(proxies)])
    return np.concatenate([links, memory, proxies]) * 1e3, gamma


def _first_of_each(offset: LongArray, target: IntArray) -> IntArray:
    """int32 (nodes,): the first target of each node of a CSR; NONE without."""
    has = np.diff(offset) > 0
    found = np.full(len(has), NONE, np.int32)
    found[has] = target[offset[:-1][has]]
    return found
