"""ResCCL's passes as plain reference code: dictionaries and sets, as in the paper.

The input is a program after `parallelize`; a transfer is named by its row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import sley
from sley.ir.dag import Blocks, Order
from sley.ir.program import Program
from sley.ir.tables import NONE

Cell = tuple[int, str, int]


@dataclass
class Graph:
    """A program's transfers with their dependencies on data and communication.

    before: the earlier transfers that each must follow. links: the links that each needs. crosses:
    whether each connects two nodes. group: the chunk of each (G[C] in algorithm 1).
    """

    program: Program
    topology: sley.Topology | None
    before: list[set[int]] = field(default_factory=list)
    links: list[set[Hashable]] = field(default_factory=list)
    crosses: list[bool] = field(default_factory=list)
    group: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = list(self.program.transfers)
        in_place = self.program.collective.in_place
        bases = [
            (0, 0)
            if not in_place
            else (
                int(self.program.collective.input_base[rank]),
                int(self.program.collective.output_base[rank]),
            )
            for rank in range(self.program.collective.ranks)
        ]

        def cells(rank: int, buffer: int, index: int, count: int) -> set[Cell]:
            name = "scratch" if buffer == 2 else "data" if in_place else ("in", "out")[buffer]
            start = index + (bases[rank][buffer] if buffer < 2 else 0)
            return {(rank, name, start + k) for k in range(count)}

        reads = [cells(t.src, t.src_buffer, t.src_index, t.count) for t in rows]
        writes = [cells(t.dst, t.dst_buffer, t.dst_index, t.count) for t in rows]
        for k in range(len(rows)):
            self.before.append(
                {e for e in range(k) if writes[e] & (reads[k] | writes[k]) or reads[e] & writes[k]}
            )
        for t in rows:
            self.crosses.append(
                self.topology is not None and self.topology.node[t.src] != self.topology.node[t.dst]
            )
            self.links.append(self._links_of(t.src, t.dst, t.lane, self.crosses[-1]))
        self.group = self._groups([r | w for r, w in zip(reads, writes, strict=True)])

    def _links_of(self, src: int, dst: int, lane: int, crosses: bool) -> set[Hashable]:
        if src == dst:
            return set()
        if self.topology is None or not crosses:
            return {("connection", src, dst, lane)}
        nic = self.topology.nic
        return {("sends", int(nic[src]), lane), ("receives", int(nic[dst]), lane)}

    def _groups(self, touched: list[set[Cell]]) -> list[int]:
        sets = [({k}, set(cells)) for k, cells in enumerate(touched)]
        merged: list[tuple[set[int], set[Cell]]] = []
        for members, cells in sets:
            met = [pair for pair in merged if pair[1] & cells]
            merged = [pair for pair in merged if not pair[1] & cells]
            for others, more in met:
                members |= others
                cells |= more
            merged.append((members, cells))
        index = self.program.transfers.dst_index.tolist()
        merged.sort(key=lambda pair: (min(index[k] for k in pair[0]), min(pair[0])))
        chunk = {k: number for number, (members, _) in enumerate(merged) for k in members}
        return [chunk[k] for k in range(len(touched))]

    def __len__(self) -> int:
        return len(self.before)


class Schedule:
    """The rest of the graph G, and the sub-pipelines so far (lines 3-5 of algorithm 1)."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self.left: dict[int, set[int]] = {c: set() for c in sorted(set(g.group))}
        for node, chunk in enumerate(g.group):
            self.left[chunk].add(node)
        self.taken: dict[int, int] = {}
        self.pipelines: list[set[int]] = []
        self.used: set[Hashable] = set()

    def open_pipeline(self) -> None:
        self.pipelines.append(set())
        self.used = set()

    def contribute(self, chunk: int) -> bool:
        """Lines 10-23 without the flag and the priority; returns whether the chunk added a transfer
        to the current sub-pipeline.

        The paper leaves the order of the nodes of G[C] open: here, and in sley, those whose data
        dependencies ended first come first.
        """
        position, before = self.taken, self.g.before
        ready = [n for n in self.left[chunk] if before[n] <= position.keys()]
        ready.sort(key=lambda n: (max((position[p] for p in before[n]), default=-1), n))
        nodes = []
        for node in ready:
            if not self.g.links[node] & self.used:
                nodes.append(node)
                self.used |= self.g.links[node]
        for node in nodes:
            position[node] = len(position)
        self.left[chunk] -= set(nodes)
        self.pipelines[-1] |= set(nodes)
        return bool(nodes)


def hpds(g: Graph) -> list[set[int]]:
    """Algorithm 1: the sub-pipelines."""
    schedule = Schedule(g)
    priority = dict.fromkeys(schedule.left, 0)
    while any(schedule.left.values()):
        schedule.open_pipeline()
        flag = dict.fromkeys(schedule.left, True)
        while any(flag.values()):
            chunk = max((c for c in flag if flag[c]), key=lambda c: (priority[c], -c))
            if schedule.contribute(chunk):
                priority[chunk] -= 1
            else:
                flag[chunk] = False
    return schedule.pipelines


def round_robin(g: Graph) -> list[set[int]]:
    """Algorithm 1 with a circular queue of the chunks that have transfers left: after its turn a
    chunk goes to the end, and the next sub-pipeline continues at the front."""
    schedule = Schedule(g)
    circle = deque(schedule.left)
    while any(schedule.left.values()):
        circle = deque(c for c in circle if schedule.left[c])
        schedule.open_pipeline()
        flag = dict.fromkeys(circle, True)
        while any(flag.values()):
            chunk = circle[0]
            circle.rotate(-1)
            if flag[chunk]:
                flag[chunk] = schedule.contribute(chunk)
    return schedule.pipelines


@dataclass
class Clock:
    """The times at which links and blocks become free, and at which each transfer starts, its first
    byte arrives, and it ends."""

    links: dict[Hashable, float] = field(default_factory=dict)
    blocks: dict[int, float] = field(default_factory=dict)
    start: dict[int, float] = field(default_factory=dict)
    arrival: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)


@dataclass
class Times:
    """The costs of transfers with Simple, on nodes around NVSwitches: of a hop, and of a tile."""

    graph: Graph
    tiles: int

    @property
    def model(self) -> sley.CostModel:
        return self.graph.topology.model if self.graph.topology else sley.CostModel()

    def latency(self, t: int) -> float:
        if not self.graph.links[t]:
            return 0.0
        model, crosses = self.model, self.graph.crosses[t]
        return (model.network_latency_us if crosses else model.nvlink_latency_us).simple

    def tile(self, t: int) -> float:
        transfers, topology = self.graph.program.transfers, self.graph.topology
        model, crosses = self.model, self.graph.crosses[t]
        rate = model.network_block_GBps if crosses else model.nvlink_block_GBps
        if not self.graph.links[t]:
            rate = model.local_block_GBps
        elif topology is not None:
            path = topology.paths([transfers.src[t]], [transfers.dst[t]])[0].tolist()
            rate = min(rate, *topology.links.GBps[path].tolist())
        share = int(transfers.count[t]) / int(transfers.count.max())
        return share * model.tile_bytes.simple / (rate * 1000)

    def begin(self, t: int, clock: Clock, blocks: Sequence[int]) -> float:
        """The earliest start of the transfer after its dependencies, and on its links and
        blocks."""
        return max(
            0.0,
            *(clock.arrival[p] + self.tile(p) for p in self.graph.before[t]),
            *(clock.links.get(link, 0.0) for link in self.graph.links[t]),
            *(clock.blocks.get(block, 0.0) for block in blocks),
            0.0,
        )

    def do(
        self, t: int, begin: float, clock: Clock, blocks: Sequence[int], receiver: int | None = None
    ) -> None:
        """Executes the transfer from `begin` on. receiver: the block at its destination, if the
        others don't wait for it."""
        last = max((clock.end[p] for p in self.graph.before[t]), default=0.0)
        work = self.tiles * self.tile(t)
        arrival = begin + self.latency(t)
        if receiver is not None:
            arrival = max(arrival, clock.blocks.get(receiver, 0.0))
        end = max(arrival + work, last + self.tile(t))
        clock.start[t], clock.arrival[t], clock.end[t] = begin, arrival, end
        free = end if receiver is None else begin + work
        clock.links |= dict.fromkeys(self.graph.links[t], free)
        for block, until in [*((block, free) for block in blocks), (receiver, end)]:
            if block is not None:
                clock.blocks[block] = max(clock.blocks.get(block, 0.0), until)


def sequence(order: Order) -> list[int]:
    """The transfers in the order in which they begin."""
    found: dict[int, None] = {}
    for receive, send in zip(order.receive.tolist(), order.send.tolist(), strict=True):
        for t in (receive, send):
            if t != NONE:
                found[t] = None
    return list(found)


def ends(order: Order, blocks: Blocks) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """The block that sends each transfer, the block that receives it, and the transfers sent by an
    instruction that receives another."""
    at_src, at_dst, forwarded = {}, {}, set()
    rows = zip(
        order.receive.tolist(), order.send.tolist(), blocks.instruction_block.tolist(), strict=True
    )
    for receive, send, block in rows:
        if receive != NONE:
            at_dst[receive] = block
        if send != NONE:
            at_src[send] = block
            if receive != NONE:
                forwarded.add(send)
    return at_src, at_dst, forwarded


def timeline(times: Times, order: Order, blocks: Blocks) -> Clock:
    """The times of the transfers in order, each as soon as its dependencies, links and blocks
    allow."""
    at_src, at_dst, forwarded = ends(order, blocks)
    clock = Clock()
    for t in sequence(order):
        ours = [at[t] for at in (at_src, at_dst) if t in at]
        waits_for = [at_dst[t]] if t in forwarded else ours
        times.do(t, times.begin(t, clock, waits_for), clock, ours)
    return clock


def greedy(times: Times, order: Order, blocks: Blocks) -> list[int]:
    """The transfers by the longest way to the end, less the time until they can start; ties as in
    `order`. Where there is one tile, sends don't wait for the blocks that receive them."""
    at_src, at_dst, _ = ends(order, blocks)
    place = {t: k for k, t in enumerate(sequence(order))}
    before = times.graph.before

    def way(t: int) -> float:
        hop, tile = times.latency(t), times.tile(t)
        after = [hop + tile + way(other) for other in place if t in before[other]]
        return max([hop + times.tiles * tile, *after])

    ways = {t: way(t) for t in place}
    held = (at_src,) if times.tiles == 1 else (at_src, at_dst)
    clock, done = Clock(), []
    while len(done) < len(place):
        ready = [t for t in place if t not in clock.start and before[t] <= set(done)]
        ours = {t: [at[t] for at in held if t in at] for t in ready}
        begin = {t: times.begin(t, clock, ours[t]) for t in ready}
        t = min(ready, key=lambda t: (begin[t] - ways[t], place[t]))
        times.do(t, begin[t], clock, ours[t], at_dst[t] if times.tiles == 1 else None)
        done.append(t)
    return done
