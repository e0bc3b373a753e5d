"""Limit: what determines the time of a simulation, in a line, and what would shorten it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sley.errors import counted
from sley.ir.tables import NONE, FloatArray, LongArray
from sley.model.simulation.inputs import LoopInputs
from sley.model.simulation.result import Cause, Simulation

AT_BOUND = 0.9
"""The share of the bound from which a remedy would gain little."""

RESIDENT_BLOCKS = 108
"""The thread blocks of a rank that an A100 holds, one on each multiprocessor: all of a plan's must
be on the GPU at the same time, because they wait for one another. An H100 has 132."""

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
    the busiest link that they cross, or by memory if they cross none.
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
    full = path.moving_us <= _SHARED * _alone_us(s, inputs)
    # A block that waits for the room of its own part waits for the network to take the part.
    same = np.append(False, s.plan.block[row[1:]] == s.plan.block[row[:-1]])[: len(row)]
    leaving = (path.cause == Cause.SLOT) & same
    slot = (path.cause == Cause.SLOT) & ~same
    # The data in the slot that the next execution waits for move on account of the slot.
    frees = np.append(slot[1:], False)
    crosses = np.zeros(len(inputs.class_cap), bool)
    crosses[inputs.class_of_use[inputs.class_resource < inputs.links]] = True
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


def blocks_text(blocks: int) -> str:
    """What a number of thread blocks on a rank means for its GPU, if it is more than NCCL uses."""
    if blocks <= NCCL_BLOCKS:
        return ""
    if blocks <= RESIDENT_BLOCKS:
        return (
            f"NCCL uses at most {NCCL_BLOCKS}; each takes one of a GPU's multiprocessors "
            f"({RESIDENT_BLOCKS} of an A100) from other kernels"
        )
    return (
        f"more than the {RESIDENT_BLOCKS} multiprocessors of an A100: a plan hangs unless all of "
        "its blocks run at the same time"
    )


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
    return FACTORS[factor][1]
