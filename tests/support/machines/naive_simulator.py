"""The simulator as plain reference code, from docs/simulation.md.

Blocks are generators that yield the condition they wait for. At every event all conditions are
tested and all rates computed again.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import numpy as np

import sley
from sley.ir.connections import Messages
from sley.ir.fabric import LinkKind
from sley.ir.tables import NONE
from sley.ir.words import RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, LoopOrder, Op, Protocol
from sley.verification.direct import pulls

NEAR = 1e-12
"""Ends that differ by less than this share of the time since the call are simultaneous: the
difference is rounding."""

Key = tuple[int, int, int]
Resource = tuple[str, int]


@dataclass
class Flow:
    """Bytes in flight. most: its largest rate, in bytes a us. behind: the rate of its block. uses:
    the number of its crossings of each resource."""

    left: float
    most: float
    behind: float
    uses: Counter[Resource]
    rate: float = 0.0


@dataclass
class Pause:
    """A process's wait for a moment, a flow or a condition. of: which of the block's times counts
    it."""

    of: str
    until_us: float | None = None
    flow: Flow | None = None
    ready: Callable[[], bool] | None = None


@dataclass
class Part:
    """A part between two FIFOs. share: of a slot. ready_us: when its proxy sees it."""

    size: float
    share: Fraction
    post_us: float
    ready_us: float


@dataclass
class Wire:
    """A connection. used: the number of slots in use, of the sender's FIFO if there are two.
    far: of the receiver's. arrived: the number of parts that the receiver may take. queue: parts in
    the sender's FIFO, before their posts. posted: parts before the second hop. last_us: the arrival
    of the last part."""

    links: list[int]
    kind: LinkKind
    latency_us: float
    fence_us: float
    credit_us: float
    used: Fraction = Fraction(0)
    far: Fraction = Fraction(0)
    arrived: int = 0
    queue: list[Part] = field(default_factory=list)
    posted: list[Part] = field(default_factory=list)
    last_us: float = 0.0

    @property
    def remote(self) -> bool:
        return self.kind == LinkKind.NETWORK


@dataclass
class Naive:
    """One call of a plan on a topology; `run` fills the fields from `times` on.

    times: of each block, by its activity. execution: turn, start and end of each instruction on
    each tile. moved: bytes on each link. stuck: instructions that never end.
    """

    plan: sley.Plan
    topology: sley.Topology
    size_bytes: int
    interpreter: bool = False
    slots: int | None = None
    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: int = 0
    done: set[tuple[int, int]] = field(default_factory=set)
    wires: dict[Key, Wire] = field(default_factory=dict)
    times: list[Counter[str]] = field(default_factory=list)
    end_us: list[float] = field(default_factory=list)
    execution: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    moved: Counter[int] = field(default_factory=Counter)
    stuck: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, model, t = self.plan, self.topology.model, self.plan.instructions
        self.rows = list(t)
        self.speed = 1 - model.interpreter_loss if self.interpreter else 1.0
        self.room = self.slots or plan.slots
        chunk = self.size_bytes / plan.collective.blocks / plan.collective.chunks
        longest = (
            1
            if plan.per_chunk
            else max((row.count for row in self.rows if SENDS[row.op]), default=1)
        )
        self.tile = min(chunk, model.tile_bytes[plan.protocol] / longest)
        self.tiles = max(1, math.ceil(chunk / self.tile - 1e-9))
        self.last_tile = chunk - (self.tiles - 1) * self.tile
        for i, row in enumerate(self.rows):
            if SENDS[row.op]:
                self._add_wire((int(plan.rank[i]), row.send_peer, row.channel))
        self.sender = Messages.of(plan).send_of
        pulled = [(i, self.rows[i]) for i in np.flatnonzero(pulls(plan).pulled).tolist()]
        self.pulled = {
            i
            for i, row in pulled
            if not self.wires[int(plan.rank[i]), row.send_peer, row.channel].remote
        }

    def _add_wire(self, key: Key) -> None:
        if key in self.wires:
            return
        model, links = self.topology.model, self.topology.links
        path = self.topology.paths([key[0]], [key[1]])[0].tolist()
        kind = LinkKind(max(links.kind[link] for link in path))
        own = [float(links.latency_us[link]) for link in path]
        by_kind = (model.nvlink_latency_us, model.pcie_latency_us, model.network_latency_us)
        latency = by_kind[kind][self.plan.protocol] if min(own) < 0 else sum(own)
        credit = by_kind[kind].ll if min(own) < 0 else sum(own)
        share = 0 if kind == LinkKind.NETWORK else model.fence_share[self.plan.protocol]
        self.wires[key] = Wire(path, kind, latency * (1 - share), latency * share, credit)

    @property
    def time_us(self) -> float:
        return max([self.launch_us, *self.end_us])

    @property
    def launch_us(self) -> float:
        """The launch on the last GPU: each thread of the host launches its GPUs in turn."""
        model = self.topology.model
        gpus = max(Counter(self.topology.node.tolist()).values())
        turns = min(model.launch_gpus, gpus) - 1
        launch: float = model.launch_us[self.plan.protocol]
        ranks = self.plan.block_rank.tolist()
        place = self.topology.node if self.topology.shared_memory else range(self.topology.ranks)
        blocks = max(Counter(place[rank] for rank in ranks).values(), default=0)
        crossing = any(wire.remote for wire in self.wires.values()) * model.network_call_us
        return launch + crossing + turns * model.host_launch_us + blocks * model.block_us

    @property
    def near_us(self) -> float:
        return NEAR * max(self.now, 1000.0)

    def run(self) -> Naive:
        """Simulates the call from launch to the end, or until no block can continue."""
        blocks = len(self.plan.block_rank)
        self.now = self.launch_us
        self.times = [Counter() for _ in range(blocks)]
        self.end_us = [self.now] * blocks
        processes = {b: self._block(b) for b in range(blocks)}
        remote = [wire for wire in self.wires.items() if wire[1].remote]
        posts = [self._posts(key[0], wire) for key, wire in remote]
        proxies = dict(enumerate([*posts, *(self._proxy(*wire) for wire in remote)], blocks))
        going = processes | proxies
        pauses = {p: next(process, None) for p, process in going.items()}
        since = dict.fromkeys(going, self.now)
        while True:
            while self._step(going, pauses, since, blocks):
                pass
            flows = [p.flow for p in pauses.values() if p is not None and p.flow is not None]
            share_out(flows, self._capacity)
            moments = [self.now + f.left / f.rate for f in flows]
            moments += [p.until_us for p in pauses.values() if p and p.until_us is not None]
            moments += [time for time, _, _ in self.events[:1]]
            if not moments:
                break
            self._advance(min(moments), flows)
        for b in range(blocks):
            if pauses[b] is not None:
                self.stuck.append(self._at[b])
        return self

    def _step(
        self,
        going: dict[int, Iterator[Pause]],
        pauses: dict[int, Pause | None],
        since: dict[int, float],
        blocks: int,
    ) -> bool:
        """Resumes every process that can continue; returns whether there was one."""
        moved = False
        while self.events and self.events[0][0] <= self.now + self.near_us:
            heapq.heappop(self.events)[2]()
            moved = True
        for p, process in going.items():
            pause = pauses[p]
            if pause is None or not self._over(pause):
                continue
            if p < blocks:
                self.times[p][pause.of] += self.now - since[p]
            pauses[p], since[p] = next(process, None), self.now
            if pauses[p] is None:
                self.end_us[p] = self.now
            moved = True
        return moved

    def _over(self, pause: Pause) -> bool:
        if pause.until_us is not None:
            return pause.until_us <= self.now + self.near_us
        if pause.flow is not None:
            return pause.flow.left <= pause.flow.rate * self.near_us
        return pause.ready is not None and pause.ready()

    def _advance(self, to_us: float, flows: list[Flow]) -> None:
        for flow in flows:
            flow.left -= flow.rate * (to_us - self.now)
        self.now = to_us

    def _later(self, delay_us: float, what: Callable[[], None]) -> None:
        self.numbers += 1
        heapq.heappush(self.events, (self.now + delay_us, self.numbers, what))

    @property
    def _at(self) -> list[int]:
        """The current instruction of each block."""
        plan = self.plan
        at = []
        for b in range(len(plan.block_rank)):
            span = range(int(plan.block_offset[b]), int(plan.block_offset[b + 1]))
            order = self._order(span)
            at.append(next((i for i, tile in order if (i, tile) not in self.done), NONE))
        return at

    def _order(self, span: range) -> list[tuple[int, int]]:
        if self.plan.loop_order is LoopOrder.TILE:
            return [(i, tile) for tile in range(self.tiles) for i in span]
        return [(i, tile) for i in span for tile in range(self.tiles)]

    def _block(self, b: int) -> Iterator[Pause]:
        model = self.topology.model
        span = range(int(self.plan.block_offset[b]), int(self.plan.block_offset[b + 1]))
        for i, tile in self._order(span):
            times = self.execution[i, tile] = [self.now]
            waits = self.plan.waits[i].tolist()
            if waits:
                yield Pause("waiting", ready=partial(self._finished, waits, tile))
            cost = model.wait_us * bool(waits) + model.decode_us * self.interpreter
            yield Pause("overhead", until_us=self.now + cost)
            if self.rows[i].op == Op.NOP:
                times.append(self.now)
            else:
                yield from self._messages(i, tile, times)
            times.append(self.now)
            self.done.add((i, tile))

    def _finished(self, instructions: list[int], tile: int) -> bool:
        return all((i, tile) in self.done for i in instructions)

    def _messages(self, i: int, tile: int, times: list[float]) -> Iterator[Pause]:
        model, row, rank = self.topology.model, self.rows[i], int(self.plan.rank[i])
        receives = self.wires[row.recv_peer, rank, row.channel] if RECEIVES[row.op] else None
        sends = self.wires[rank, row.send_peer, row.channel] if SENDS[row.op] else None
        cut = self.plan.per_chunk and (sends or receives)
        messages, chunks = (row.count, 1) if cut else (1, row.count)
        data = chunks * (self.tile if tile < self.tiles - 1 else self.last_tile)
        message = bool(sends or receives)
        parts = self._parts(data) if message else 1
        efficiency = model.wire_efficiency[self.plan.protocol] if message else 1.0
        size = data / efficiency / parts + model.part_overhead_bytes
        for part in range(messages * parts):
            if receives:
                yield Pause("message", ready=lambda: receives.arrived > 0)
            if sends:
                yield Pause("slot", ready=lambda: sends.used + Fraction(1, parts) <= self.room)
                sends.used += Fraction(1, parts)
            if len(times) == 1:
                times.append(self.now)
            if receives:
                receives.arrived -= 1
            if not (row.op == Op.SEND and i in self.pulled):
                yield Pause("moving", flow=self._flow(i, size, sends, receives))
            if receives:
                self._later(receives.credit_us, partial(self._free, receives, Fraction(1, parts)))
            if sends and not sends.remote:
                yield Pause("overhead", until_us=self.now + sends.fence_us)
                self._later(sends.latency_us, lambda: self._arrive(sends))
            elif sends and self.plan.protocol in (Protocol.LL, Protocol.LL128):
                for _ in range(parts if (part + 1) % parts == 0 else 0):
                    self._post(sends, size, parts)
            elif sends:
                self._post(sends, size, parts)

    def _parts(self, data: float) -> int:
        model = self.topology.model
        most = math.ceil(data / model.least_slice_bytes[self.plan.protocol])
        return max(1, min(int(model.slices[self.plan.protocol]), most))

    def _arrive(self, wire: Wire) -> None:
        wire.arrived += 1

    def _free(self, wire: Wire, share: Fraction) -> None:
        """The receiver has moved on a part."""
        if wire.remote:
            wire.far -= share
        else:
            wire.used -= share

    def _leave(self, wire: Wire, share: Fraction) -> None:
        """A part is over the network."""
        wire.used -= share

    def _post(self, wire: Wire, size: float, parts: int) -> None:
        """A part is in the sender's FIFO."""
        model = self.topology.model
        post = max(model.post_us * model.posts[self.plan.protocol], model.proxy_us) / parts
        delay = max(0.0, wire.latency_us * model.post_share - post)
        wire.queue.append(Part(size, Fraction(1, parts), post, self.now + delay))
        self._later(delay, lambda: None)

    def _flow(self, i: int, size: float, sends: Wire | None, receives: Wire | None) -> Flow:
        """The bytes and links of one part of an instruction."""
        model, row, rank = self.topology.model, self.rows[i], int(self.plan.rank[i])
        reads = 2 if REDUCES[row.op] else 1
        writes = 1 if WRITES_DESTINATION[row.op] else 0
        memory = self._memory(rank)
        uses = Counter({memory: reads + writes})
        rates = (model.nvlink_block_GBps, model.pcie_block_GBps, model.network_block_GBps)
        caps = []
        if receives and int(self.sender[i]) in self.pulled:
            uses[memory] -= 1
            uses[self._memory(row.recv_peer)] += 1
            self._cross(receives, size, uses)
            caps.append(rates[receives.kind])
        if sends and i not in self.pulled:
            caps.append(rates[sends.kind])
            if sends.remote:
                uses[memory] += 1
            else:
                uses[self._memory(row.send_peer)] += 1
                self._cross(sends, size, uses)
        rate = 1000 * min(caps, default=model.local_block_GBps)
        share = 1.0 if REDUCES[row.op] else model.copy_share
        return Flow(size, rate * self.speed * share, rate, uses)

    def _memory(self, rank: int) -> Resource:
        topology = self.topology
        return "memory", int(topology.node[rank]) if topology.shared_memory else rank

    def _cross(self, wire: Wire, size: float, uses: Counter[Resource]) -> None:
        for link in wire.links:
            uses["link", link] += 1
            self.moved[link] += size

    def _posts(self, rank: int, wire: Wire) -> Iterator[Pause]:
        """The posts of a connection's parts, one after another, by the rank's proxy."""
        model = self.topology.model
        posts = max(model.post_us * model.posts[self.plan.protocol], model.proxy_us)
        busy: Counter[Resource] = Counter()
        if model.proxy_us:
            busy["proxy", rank] = model.proxy_us / posts  # type: ignore[assignment]
        while True:
            yield Pause("", ready=partial(self._seen, wire))
            if posts:
                yield Pause("", flow=Flow(wire.queue[0].post_us, 1.0, 0.0, busy))
            wire.posted.append(wire.queue.pop(0))

    def _seen(self, wire: Wire) -> bool:
        return bool(wire.queue) and wire.queue[0].ready_us <= self.now + self.near_us

    def _clear(self, wire: Wire) -> bool:
        return bool(wire.posted) and wire.far + wire.posted[0].share <= self.room

    def _proxy(self, key: Key, wire: Wire) -> Iterator[Pause]:
        behind = self.topology.model.network_block_GBps * 1000
        while True:
            yield Pause("", ready=partial(self._clear, wire))
            part = wire.posted.pop(0)
            wire.far += part.share
            uses = Counter([self._memory(key[0]), self._memory(key[1])])
            self._cross(wire, part.size, uses)
            yield Pause("", flow=Flow(part.size, math.inf, behind, uses))
            before = wire.latency_us * self.topology.model.post_share
            left = wire.latency_us - max(before, part.post_us)
            wire.last_us = max(wire.last_us, self.now + max(0.0, left))
            self._later(wire.last_us - self.now, lambda: self._arrive(wire))
            self._later(wire.credit_us, partial(self._leave, wire, part.share))

    def _capacity(self, resource: Resource, behind: float) -> float:
        """The rate in bytes a us with this number of active blocks."""
        kind, number = resource
        model = self.topology.model
        if kind == "proxy":
            return 1.0
        if kind == "memory":
            return float(model.memory_GBps * 1000)
        full = float(self.topology.links.GBps[number]) * 1000
        return full / (1 + model.contention * max(0.0, behind / full - 1))


def share_out(flows: list[Flow], capacity: Callable[[Resource, float], float]) -> None:
    """Max-min fair rates by filling: all rates rise together until a flow or a resource is full."""
    on: dict[Resource, list[Flow]] = {}
    for flow in flows:
        flow.rate = 0.0
        for resource in flow.uses:
            on.setdefault(resource, []).append(flow)
    left = {r: capacity(r, sum(f.behind for f in there)) for r, there in on.items()}
    rising = {id(flow): flow for flow in flows}
    while rising:
        weight = {r: sum(f.uses[r] for f in on[r] if id(f) in rising) for r in on}
        room = {r: left[r] / weight[r] for r in on if weight[r]}
        step = min([*room.values(), *(f.most - f.rate for f in rising.values())])
        full = [r for r in room if room[r] <= step + 1e-9 * (step + 1)]
        held = {id(f) for r in full for f in on[r]}
        held |= {i for i, f in rising.items() if f.most - f.rate <= step + 1e-9 * (step + 1)}
        for flow in rising.values():
            flow.rate += step
        for r in on:
            left[r] -= weight[r] * step
        rising = {i: f for i, f in rising.items() if i not in held}


def naive(
    plan: sley.Plan,
    topology: sley.Topology,
    size_bytes: int,
    *,
    interpreter: bool = False,
    slots: int | None = None,
) -> Naive:
    """A call, simulated to its end."""
    return Naive(plan, topology, size_bytes, interpreter, slots).run()


def columns(found: Naive) -> dict[str, np.ndarray]:
    """A block's times with the simulator's names."""
    words = ("moving", "waiting", "message", "slot", "overhead")
    table = {f"{w}_us": np.array([t[w] for t in found.times]) for w in words}
    return table | {"end_us": np.array(found.end_us)}
