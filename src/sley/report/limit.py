"""Limit: what determines the time of a simulation, in a line; what would shorten it; and how much
sooner it would end with one cost or option changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from sley.errors import counted
from sley.ir.cost_model import MOST_GBPS, ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.tables import NONE, FloatArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER
from sley.model.bounds import Bounds
from sley.model.simulation import Simulator
from sley.model.simulation.inputs import LoopInputs
from sley.model.simulation.result import Cause, Simulation
from sley.model.simulation.routes import ConnectionRoutes
from sley.report.analysis import LinkClass, link_classes

AT_BOUND = 0.9
"""The share of the bound from which a remedy would gain little."""

NCCL_BLOCKS = 32
"""The most thread blocks of a GPU that NCCL uses: a channel is a block, and its search for rings
and trees gives 32 at most."""

_BUSY = 0.7
"""The share of its time that a link is used from which only less data shortens the time."""

_SHARED = 1.05
"""A move that takes this many times as long as its block needs alone shares a link or a memory."""


class Factor(StrEnum):
    """What limits a simulation.

    LAUNCH: the launch, with its start-up.
    BLOCK: the rate of single thread blocks.
    LINK: a link or a card that blocks share.
    MEMORY: the memory of a GPU, or of a node.
    SLOTS: the slots of connections.
    LATENCY: hops, and waits of blocks for one another.
    """

    LAUNCH = "launch"
    BLOCK = "blocks"
    LINK = "link"
    MEMORY = "memory"
    SLOTS = "slots"
    LATENCY = "latency"


FACTORS = {
    Factor.LAUNCH: ("launch", "larger calls, or one call for several small ones"),
    Factor.BLOCK: ("thread blocks' own rate", "more blocks that share the work: more instances"),
    Factor.LINK: ("links that are shared", "an algorithm that sends less over it"),
    Factor.MEMORY: ("memory", "an algorithm with fewer copies and reductions"),
    Factor.SLOTS: ("slots", "more slots, or more instances"),
    Factor.LATENCY: ("latency and waits", "fewer steps, or a protocol with shorter hops"),
}
"""Each factor in words, and what weakens it."""


@dataclass(frozen=True)
class Limit:
    """The limiting factor of a simulation.

    factor: the one with the longest time on the critical path.
    time_us: this time.
    parts_us: the time of every factor; together the whole time.
    detail: the factor in words, with its rate or place.
    remedy: what would shorten the time.
    """

    factor: Factor
    time_us: float
    parts_us: dict[Factor, float]
    detail: str
    remedy: str


def limit_of(simulation: Simulation) -> Limit:
    """The limiting factor: the critical path's time, split by what each part of it waits for.

    Data that move as fast as a block alone can move them are limited by the block; slower ones by
    the busiest link that they cross, or by memory if they cross none, or faster ones.
    """
    inputs = LoopInputs.of(simulation.plan, simulation.topology, interpreter=simulation.interpreter)
    times, alone_us, slowed = _split(simulation, inputs)
    factor = max(times, key=lambda one: times[one])
    link = _busiest_link(simulation, inputs, slowed) if factor is Factor.LINK else NONE
    detail = _detail(factor, simulation, inputs, alone_us, link)
    return Limit(factor, times[factor], times, detail, _remedy(factor, simulation, link))


def _split(s: Simulation, inputs: LoopInputs) -> tuple[dict[Factor, float], FloatArray, LongArray]:
    """The critical path's time by factor; the time in which data move at their block's own rate, by
    the class of the moves; and the classes of the moves that links make slower."""
    path = s.critical
    row = path.instruction
    end = np.maximum.accumulate(np.maximum(path.end_us, s.launch_us))
    span = np.diff(end, prepend=s.launch_us)
    moving = np.minimum(path.moving_us, span)
    kind = np.maximum(inputs.kind[row], 0).astype(np.int64)
    full = path.moving_us <= _SHARED * s.stretch * _alone_us(s, inputs)
    # A block that waits for the room of its own part waits for the network to take the part.
    same = np.append(False, s.plan.block[row[1:]] == s.plan.block[row[:-1]])[: len(row)]
    leaving = (path.cause == Cause.SLOT) & same
    slot = (path.cause == Cause.SLOT) & ~same
    # The data in the slot that the next execution waits for move on account of the slot.
    frees = np.append(slot[1:], False)
    byte_us = inputs.class_weight / inputs.capacity[inputs.class_resource]
    is_link, slowest = inputs.class_resource < inputs.links, np.zeros((2, len(inputs.class_cap)))
    np.maximum.at(slowest, (is_link.astype(int), inputs.class_of_use), byte_us)
    crosses = slowest[1] > slowest[0]  # links that are slower than memory
    alone = full & ~frees
    on_links = ~full & ~frees & crosses[kind]
    rest = span - moving
    connection = np.where(leaving, inputs.send[row], inputs.receive[row])
    # The network's moves for the message that an execution waits for, or for its own.
    wire_kind = np.append(inputs.wire, NONE)[connection].astype(np.int64)
    wire_kind[(path.cause != Cause.MESSAGE) & ~leaving] = NONE
    seen = np.append(inputs.latency_us, 0.0)[connection]
    freed = np.append(inputs.credit_us, 0.0)[connection]
    before = np.append(np.maximum(inputs.before_us, inputs.post_us), 0.0)[connection]
    hop = before + np.where(leaving, freed, seen)
    wire = np.where(wire_kind == NONE, 0.0, np.maximum(rest - hop, 0.0))
    waited = np.where(slot, rest, 0.0)
    times = {
        Factor.LAUNCH: s.launch_us,
        Factor.BLOCK: float(moving[alone].sum()),
        Factor.LINK: float(moving[on_links].sum() + wire.sum()),
        Factor.MEMORY: float(moving[~full & ~frees & ~crosses[kind]].sum()),
        Factor.SLOTS: float((waited + np.where(frees, moving, 0.0)).sum()),
        Factor.LATENCY: float((rest - wire - waited).sum()),
    }
    alone_us = np.bincount(kind[alone], moving[alone]).astype(np.float64)
    return times, alone_us, np.append(kind[on_links], wire_kind[wire > 0])


def blocks_text(blocks: int, model: CostModel) -> str:
    """What a number of thread blocks on a rank means for its GPU, if it is more than NCCL uses, or
    than the GPU holds."""
    held = model.most_blocks
    if blocks > held:
        return (
            f"more than a GPU's {held} multiprocessors: a plan hangs unless all of its blocks run "
            "at the same time"
        )
    if blocks <= NCCL_BLOCKS:
        return ""
    return (
        f"NCCL uses at most {NCCL_BLOCKS}; each takes one of a GPU's {held} multiprocessors from "
        "other kernels"
    )


def threads_of(plan: Plan, topology: Topology, size_bytes: int) -> int | None:
    """The threads of a block for a call by sley's kernels; None if the topology's cost model is of
    others."""
    from sley.engine.devices.settings import Settings

    if not topology.model.runs:
        return None
    c, shared = plan.collective, topology.shared_memory
    message = size_bytes / c.blocks / c.chunks * int(plan.instructions.count.max(initial=1))
    return Settings().threads_for(plan.protocol, message, is_one_device=shared)


def _alone_us(s: Simulation, inputs: LoopInputs) -> FloatArray:
    """float64 (critical executions,): how long each moves data if nothing shares its links."""
    path, row = s.critical, s.critical.instruction
    model, protocol = s.model, s.plan.protocol
    tile_bytes = np.where(path.tile == s.tiles - 1, s.last_tile_bytes, s.tile_bytes)
    message = tile_bytes / model.wire_efficiency[protocol] * inputs.chunks[row]
    remote = (inputs.send[row] != NONE) | (inputs.receive[row] != NONE)
    most = np.where(remote, inputs.slices, 1)
    parts = np.clip(np.ceil(message / inputs.least_slice_bytes), 1, most)
    moved = inputs.messages[row] * (message + parts * inputs.overhead_bytes * (message > 0))
    alone: FloatArray = moved / inputs.class_cap[np.maximum(inputs.kind[row], 0)]
    return alone


def _busiest_link(s: Simulation, inputs: LoopInputs, kinds: LongArray) -> int:
    """The busiest link that moves of these classes cross."""
    crossed = np.unique(inputs.class_resource[np.isin(inputs.class_of_use, kinds)])
    crossed = crossed[crossed < inputs.links]
    return int(crossed[s.utilisation[crossed].argmax()])


def _detail(
    factor: Factor, s: Simulation, inputs: LoopInputs, alone_us: FloatArray, link: int
) -> str:
    if factor is Factor.LAUNCH:
        return "the launch" if not s.startup_us else "the launch and start-up"
    if factor is Factor.BLOCK:
        rate = inputs.class_cap[int(alone_us.argmax())] / 1e3
        return f"single thread blocks, which move at most {rate:g} GB/s"
    if factor is Factor.LINK:
        return f"the link {s.topology.link_label(link)} ({s.utilisation[link]:.0%} used)"
    if factor is Factor.MEMORY:
        return f"memory, {s.model.memory_GBps:g} GB/s"
    if factor is Factor.SLOTS:
        return f"the {counted(s.plan.slots, 'slot')} of each connection"
    return "latency: hops, and waits of blocks for one another"


def _remedy(factor: Factor, s: Simulation, link: int) -> str:
    if factor is not Factor.LAUNCH and s.of_bound >= AT_BOUND:
        return f"none gains much: the plan reaches {s.of_bound:.0%} of the bound"
    if factor is Factor.LINK and s.utilisation[link] < _BUSY:
        return "phases that overlap, so that the link idles less: more chunks, or another protocol"
    used = s.utilisation.max(initial=0.0)
    if factor is Factor.BLOCK and used and (times := round(1 / used)) > 1:
        return f"{FACTORS[factor][1]}, up to {times} times as many, which fill a link"
    return FACTORS[factor][1]


BUSY = 0.9
"""The share of the busiest link's use from which a class of links counts among the busiest."""


@dataclass(frozen=True)
class WhatIf:
    """A simulation again, with one cost or option changed.

    factor: the factor that the change weakens.
    text: the change in words: "twice the slots (4)".
    time_us: the time with it.
    share: the change of the time: -0.12 if it is 12 % shorter.
    """

    factor: Factor
    text: str
    time_us: float
    share: float


def what_if(simulation: Simulation, twice: Plan | None = None) -> list[WhatIf]:
    """A simulation again for each factor that could limit it, with half the times or twice the
    rates or slots; the greatest gain first. It takes as long as six to ten simulations.

    The links that get twice their rate are those of the busiest classes, since a message crosses
    several in turn; and in another simulation the network's, if they are less busy. If blocks send
    over several kinds of links, the rate over each kind is also a change of its own.

    twice: the plan of the same program with twice the instances, which is then simulated too.
    """
    s, t = simulation, simulation.topology
    slots = min(2 * s.plan.slots, MAX_NUMBER)
    used = [c for c in link_classes(s) if c.used]
    most = max((c.most for c in used), default=0.0)
    busiest = [c for c in used if c.most >= BUSY * most]
    names = list(dict.fromkeys(c.ends for c in busiest))
    card = VertexKind.NIC.word
    network = [c for c in used if card in c.ends.split(" -> ") and c.ends not in names]
    bounds = Bounds.of(s.plan.collective, t)
    changes: list[WhatIf] = []

    def add(
        factor: Factor,
        text: str,
        topology: Topology = t,
        plan: Plan = s.plan,
        slots: int | None = None,
    ) -> None:
        again = Simulator(plan, topology, interpreter=s.interpreter, slots=slots, bounds=bounds)
        us = again(s.size_bytes).time_us
        changes.append(WhatIf(factor, text, us, us / s.time_us - 1 if s.time_us else 0.0))

    add(Factor.LAUNCH, "half the time of the launch", _scaled(t, _LAUNCH))
    add(Factor.BLOCK, "thread blocks twice as fast", _scaled(t, _BLOCKS))
    add(Factor.LINK, f"links twice as fast: {', '.join(names)}", _faster(t, busiest))
    add(Factor.MEMORY, "memory twice as fast", _scaled(t, _MEMORY))
    add(Factor.LATENCY, "half the latency of hops and waits", _nearer(t))
    kinds = set(ConnectionRoutes.of(s.plan, t).kind.tolist())
    rates = {name: words for kind, (name, words) in _RATES.items() if kind in kinds}
    for name, words in rates.items() if len(rates) > 1 else ():
        faster = _scaled(t, {name: 2.0})
        add(Factor.BLOCK, f"thread blocks twice as fast {words} ({name})", faster)
    if network:
        add(Factor.LINK, "the network twice as fast", _faster(t, network))
    add(Factor.SLOTS, f"twice the slots ({slots})", slots=slots)
    if twice is not None:
        text = f"twice the instances ({twice.blocks_per_rank} blocks on a rank)"
        add(Factor.BLOCK, text, plan=twice)
    return sorted(changes, key=lambda change: change.time_us)


def what_if_lines(changes: Sequence[WhatIf]) -> list[str]:
    """The changes as text, a line each."""
    width = max(len(change.text) for change in changes)
    lines = ["", f"{'what if':<{width + 2}}  {'time us':>10}  {'change':>7}"]
    for c in changes:
        lines.append(f"  {c.text:<{width}}  {c.time_us:>10.1f}  {change_text(c)}")
    return lines


def change_text(change: WhatIf) -> str:
    """The change of the time in per cent: " -12.0%"; nothing below 0.05 %."""
    return f"{'-':>7}" if abs(change.share) < 5e-4 else f"{change.share:>+7.1%}"


_LAUNCH = {"launch_us": 0.5, "host_launch_us": 0.5}
_MEMORY = {"memory_GBps": 2.0}
_BLOCKS = dict.fromkeys(
    ("nvlink_block_GBps", "pcie_block_GBps", "network_block_GBps", "local_block_GBps"), 2.0
)
_RATES = {
    LinkKind.NVLINK: ("nvlink_block_GBps", "over NVLink"),
    LinkKind.PCIE: ("pcie_block_GBps", "over PCIe"),
    LinkKind.NETWORK: ("network_block_GBps", "over the network"),
}
"""A thread block's rate to a peer by the slowest kind of link on the way, and the way in words."""

_LATENCY = dict.fromkeys(
    (
        "nvlink_latency_us",
        "pcie_latency_us",
        "network_latency_us",
        "switch_latency_us",
        "post_us",
        "proxy_us",
        "wait_us",
    ),
    0.5,
)
"""The parameters of the cost model that a change multiplies, and by how much."""


def _scaled(topology: Topology, factors: dict[str, float]) -> Topology:
    """The topology with these parameters of its cost model multiplied."""
    model = topology.model
    scaled = {name: _times(getattr(model, name), by) for name, by in factors.items()}
    return replace(topology, model=replace(model, **scaled))


def _times(value: float | ByProtocol, by: float) -> Any:
    if isinstance(value, ByProtocol):
        return value * by
    return min(value * by, MOST_GBPS) if by > 1 else value * by


def _faster(topology: Topology, classes: Sequence[LinkClass]) -> Topology:
    """The topology with twice the rates of these links, nominal and reached."""
    links = topology.links
    by = np.ones(len(links))
    for c in classes:
        by[c.links] = 2.0
    reached, nominal = (np.minimum(r * by, MOST_GBPS) for r in (links.GBps, links.nominal_GBps))
    return replace(topology, links=replace(links, GBps=reached, nominal_GBps=nominal))


def _nearer(topology: Topology) -> Topology:
    """The topology with half of all latencies, the model's and the links' own."""
    links = topology.links
    own = np.where(links.latency_us >= 0, links.latency_us / 2, links.latency_us)
    return replace(_scaled(topology, _LATENCY), links=replace(links, latency_us=own))
