"""Step model: an estimate of the time of a step of sley's kernels, from latencies.

    python benchmarks/step_model.py

It prints the estimates for 8 H100 beside the constants of NCCL 2.30's tuner for Hopper. What a step
does is counted in the machine code; how long that takes on an H100 is published in part and assumed
for the rest, as `Latencies` says, until a GPU has run these kernels. So the times are no
measurements. `estimated_model` makes a cost model of them for the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

import sley
from sley.engine.devices.settings import THREADS, Settings
from sley.ir.connections import Messages
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.plan import Plan
from sley.ir.words import Protocol

BLOCKS = 16
NCCL_CHANNEL_GBPS = 36.7
NCCL_STEP_US = {Protocol.SIMPLE: 3.4, Protocol.LL: 0.6, Protocol.LL128: 1.9}

_WARP = 32


@dataclass(frozen=True)
class Latencies:
    """Latencies of an H100 under load, in us, and the rate of one of its multiprocessors.

    memory_us: a load from a GPU's own memory (assumption; 400 cycles, 0.23 us, on an idle one:
        doi 10.1016/j.ultsonch.2023.106546, table 3).
    cache_us: a load that the L2 cache answers, such as a poll (assumption; 200 cycles, 0.11 us, on
        an idle one: the same table).
    fence_us: a fence of all GPUs while stores over NVLink are under way (assumption; it waits
        until they have arrived, so it takes at least a hop there and back. Without such stores a
        fence, a store, a hop and a poll take 1.3 together: MSCCL++'s SignalPingPong between two
        H100 takes 2.6 there and back, by the message of the commit that gives `signal()` a
        `red.release.sys`. So with the hop and the poll below an idle fence takes 0.4).
    barrier_us: a barrier of a block (assumption: some 80 cycles).
    hop_us: from a store to the peer's memory until a poll there can see it (NCCL 2.30's tuner: 0.6
        for a step of LL over NVLink, which contains little else).
    remote_us: a load from a peer's memory (assumption: a hop there and back, and its memory).
    switch_us: a load through the switch (assumption: as one from a peer's memory, whose way leads
        through the switch, too).
    idle_fence_us: a fence of all GPUs without stores under way (see fence_us).
    load_GBps: the most that a multiprocessor loads (assumption: 64 bytes a cycle at 1.755 GHz; the
        same table has 8,986 GB/s for 144 that load at once, 62 each).
    """

    memory_us: float = 0.6
    cache_us: float = 0.3
    fence_us: float = 1.2
    barrier_us: float = 0.05
    hop_us: float = 0.6
    remote_us: float = 1.8
    switch_us: float = 1.8
    idle_fence_us: float = 0.4
    load_GBps: float = 112.0  # noqa: N815 - a unit


@dataclass(frozen=True)
class Step:
    """What one step that receives and sends on costs a block, besides the hop.

    fences, loads of counters, barriers: those on the way of a message, one after another.
    batch_bytes: the data of one operand that a thread loads before it stores any.
    threads: those that move data. turn: the loads of a batch that follow one another, each
    "memory", "cache", "remote" or "switch". operands: loads for each result. idle_fences: fences
    without stores under way.
    """

    fences: int
    counters: int
    barriers: int
    batch_bytes: float
    turn: tuple[str, ...]
    threads: int = THREADS - _WARP
    operands: int = 2
    idle_fences: int = 0

    def with_threads(self, threads: int) -> Step:
        """The step in blocks of `threads` threads. Their last warp publishes, if there are others;
        threads of larger blocks than the default have half of the data in flight."""
        share = 2 if threads > THREADS else 1
        workers = threads - _WARP if threads > _WARP else threads
        return replace(self, threads=workers, batch_bytes=self.batch_bytes / share)

    def fixed_us(self, latencies: Latencies) -> float:
        """The time of a step besides its data."""
        return (
            self.fences * latencies.fence_us
            + self.idle_fences * latencies.idle_fence_us
            + self.counters * latencies.cache_us
            + self.barriers * latencies.barrier_us
            + latencies.hop_us
        )

    def turn_us(self, latencies: Latencies) -> float:
        """The time in which each thread moves a batch."""
        waiting: float = sum(getattr(latencies, f"{place}_us") for place in self.turn)
        loading = self.threads * self.batch_bytes * self.operands / latencies.load_GBps / 1e3
        return max(waiting, loading)

    def rate_GBps(self, latencies: Latencies) -> float:  # noqa: N802 - a unit
        """The rate of a block that need not wait."""
        return self.threads * self.batch_bytes / self.turn_us(latencies) / 1e3

    def time_us(self, message_bytes: float, latencies: Latencies, slices: int = 1) -> float:
        """The time of a step with so much data, in messages of so many slices.

        Steps follow one another. A block has to move all slices of a step, and to publish each; the
        first slice of the next step can't end before the same one of this step has come.
        """
        turns = math.ceil(message_bytes / slices / (self.threads * self.batch_bytes))
        moved_us = turns * self.turn_us(latencies)
        slice_us = max(
            moved_us + self.barriers * latencies.barrier_us, self.fences * latencies.fence_us
        )
        return max(slices * slice_us, self.fixed_us(latencies) + moved_us)


STEPS = MappingProxyType(
    {
        Protocol.SIMPLE: Step(1, 1, 2, 4 * 16, ("memory",)),
        Protocol.LL: Step(0, 1, 1, 4 * 8, ("memory",)),
        Protocol.LL128: Step(0, 1, 1, 3 * 15, ("memory",)),
        Protocol.DIRECT: Step(1, 1, 2, 4 * 16, ("remote",)),
    }
)
"""The steps of the kernels as they are, with a reduction. Operands and messages are loaded at once,
so a turn takes the longer of both. LL and LL128 poll for the words themselves, and the barrier
after them is on the way of no message."""

COPIES = MappingProxyType(
    {
        Protocol.SIMPLE: replace(STEPS[Protocol.SIMPLE], batch_bytes=8 * 16, operands=1),
        Protocol.LL: replace(STEPS[Protocol.LL], operands=1),
        Protocol.LL128: replace(STEPS[Protocol.LL128], batch_bytes=4 * 15, operands=1),
        Protocol.DIRECT: replace(STEPS[Protocol.DIRECT], batch_bytes=8 * 16, operands=1),
    }
)
"""The same without a reduction."""

SWITCHED = Step(1, 1, 2, 4 * 16, ("switch",), idle_fences=2)
"""A step that reduces and multicasts through a switch. Of its fences one, before the message's, has
stores under way. That after the loads of counters has none, and the second before the message's has
nothing left to wait for."""

_DATA_SHARE = MappingProxyType({Protocol.LL: 0.5, Protocol.LL128: 120 / 128})


def data_bytes(slot_bytes: int, protocol: Protocol) -> float:
    """The data of a message that fills a slot."""
    return slot_bytes * _DATA_SHARE.get(protocol, 1.0)


def estimated_model(
    plan: Plan,
    model: CostModel,
    *,
    settings: Settings | None = None,
    latencies: Latencies | None = None,
) -> CostModel:
    """`model` with the block rates, latencies over NVLink and tiles of sley's own kernels for a
    plan whose ranks have a GPU each: an estimate, for `sley.simulate(..., model=...)`."""
    settings, latencies = settings or Settings(), latencies or Latencies()
    step = (STEPS if plan.reduces else COPIES)[plan.protocol].with_threads(settings.most_threads)
    dst = Messages.of(plan).connections.dst
    _, slot_bytes = settings.slots_of(plan, int(np.bincount(dst, minlength=1).max()))
    slices = settings.slices_of(plan)
    seen_us = step.fixed_us(latencies)
    rate = step.rate_GBps(latencies)
    return replace(
        model,
        nvlink_latency_us=ByProtocol.same(seen_us),
        fence_share=ByProtocol.same(step.fences * latencies.fence_us / seen_us),
        nvlink_block_GBps=rate,
        local_block_GBps=rate,
        tile_bytes=ByProtocol.same(data_bytes(slices * slot_bytes, plan.protocol)),
        slices=ByProtocol.same(slices),
        wait_us=latencies.fence_us + latencies.cache_us,
        runs=1,
        interpreter_loss=0.0,
        decode_us=0.15,
    )


def ring_GBps(protocol: Protocol, batch_bytes: float | None = None) -> float:  # noqa: N802
    """The bus bandwidth of a large AllReduce on 8 GPUs with BLOCKS blocks, as far as the blocks
    allow it. batch_bytes: of a thread, if it isn't the step's."""
    program = sley.algorithms.build("ring-allreduce", ranks=8, in_place=True)
    plan = sley.compile(program, protocol=protocol, instances=BLOCKS)
    settings, step = Settings(), STEPS[protocol]
    if batch_bytes is not None:
        step = replace(step, batch_bytes=batch_bytes)
    slices = settings.slices_of(plan)
    message = slices * data_bytes(settings.slots_of(plan, BLOCKS)[1], protocol)
    return BLOCKS * message / step.time_us(message, Latencies(), slices) / 1e3


def rows() -> Iterator[tuple[str, str, str]]:
    """The rows of the table: what, its estimate, NCCL's constant."""
    topology = sley.topologies.dgx_h100()
    link = float(topology.links.GBps[0])
    for protocol, us in NCCL_STEP_US.items():
        step = STEPS[protocol]
        own = step.time_us(step.batch_bytes * step.threads, Latencies())
        yield f"a step with one batch, {protocol.value}", f"{own:.1f} us", f"{us} us"

    def rate(what: str, protocol: Protocol, batch: float | None = None) -> tuple[str, str, str]:
        most = link * topology.model.wire_efficiency[protocol]
        own, theirs = ring_GBps(protocol, batch), min(most, BLOCKS * NCCL_CHANNEL_GBPS)
        limit = " (link)" if own > most else ""
        return f"ring, {what}", f"{min(most, own):.0f}{limit} GB/s", f"{theirs:.0f} GB/s"

    yield rate("Simple, float32", Protocol.SIMPLE)
    yield rate("Simple, bfloat16", Protocol.SIMPLE, 4 * 16)
    yield rate("Simple, misaligned", Protocol.SIMPLE, 2 * 16)
    yield rate("LL128, float32", Protocol.LL128)


def table() -> str:
    """The table, in Markdown."""
    lines = ["| estimate | sley | NCCL's constants |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows())])


def slices_table() -> str:
    """The time of a step of Simple by its data, as one message and in slices, in Markdown."""
    step, sizes = STEPS[Protocol.SIMPLE], (32, 64, 128, 256, 512)
    lines = ["| a step of Simple | " + " | ".join(f"{kib} KiB" for kib in sizes) + " |"]
    lines.append("|---" * (1 + len(sizes)) + "|")
    for slices, what in ((1, "as one message"), (2, "in two slices"), (4, "in four slices")):
        times = [step.time_us(kib << 10, Latencies(), slices) for kib in sizes]
        lines.append(f"| {what} | " + " | ".join(f"{us:.1f} us" for us in times) + " |")
    return "\n".join(lines)


def switch_table() -> str:
    """A step from rank to rank and one through a switch, in Markdown. Of each byte of a rank's part
    every link of the 8 GPUs carries 9 in each direction: the switch reads and writes 8 parts, and
    the rank that reduces its own part reads the sum and writes it."""
    link, latencies = float(sley.topologies.dgx_h100().links.GBps[0]), Latencies()
    lines = ["| a step | one batch | a block's rate | fill the links |", "|---|---|---|---|"]
    for what, step, carried in (
        ("Simple, from a rank to the next", STEPS[Protocol.SIMPLE], 1),
        ("through the switch, from 7 ranks and to them", SWITCHED, 9),
    ):
        us = step.time_us(step.batch_bytes * step.threads, latencies)
        rate = step.rate_GBps(latencies)
        blocks = math.ceil(link / carried / rate)
        lines.append(f"| {what} | {us:.1f} us | {rate:.0f} GB/s | {blocks} blocks |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join([table(), slices_table(), switch_table()]))
