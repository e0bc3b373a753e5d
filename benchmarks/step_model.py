"""Prints the estimated cost of a step of sley's kernels on 8 H100, as they were and as they are.

    python benchmarks/step_model.py

The times are estimates from latencies (`sley.engine.devices.step_model`), not measurements. Beside
them are the constants of NCCL 2.30's tuner for Hopper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sley
from sley.engine.devices.settings import Settings
from sley.engine.devices.step_model import COPIES, STEPS, SWITCHED, Latencies, Step, data_bytes
from sley.ir.words import Protocol

BLOCKS = 16
BULK_BYTES = 192 << 10
"""Of a multiprocessor's shared memory: what bulk copies could have in flight; it has 228 KiB."""
NCCL_CHANNEL_GBPS = 36.7
NCCL_STEP_US = {Protocol.SIMPLE: 3.4, Protocol.LL: 0.6, Protocol.LL128: 1.9}


@dataclass(frozen=True)
class Version:
    """A version of the kernels. slot_bytes, slices: of a ring with BLOCKS blocks on 8 GPUs."""

    steps: Mapping[Protocol, Step]
    slot_bytes: Mapping[Protocol, int]
    misaligned: Mapping[str, float]
    small: float
    slices: Mapping[Protocol, int]

    def step_us(self, protocol: Protocol) -> float:
        """A step with a message of one batch."""
        step = self.steps[protocol]
        return step.time_us(step.batch_bytes * step.threads, Latencies())

    def ring_GBps(self, protocol: Protocol, batch_bytes: float | None = None) -> float:  # noqa: N802
        """The bus bandwidth of a large AllReduce, as far as the blocks allow it."""
        step = self.steps[protocol]
        if batch_bytes is not None:
            step = replace(step, batch_bytes=batch_bytes)
        slices = self.slices[protocol]
        message = slices * data_bytes(self.slot_bytes[protocol], protocol)
        return BLOCKS * message / step.time_us(message, Latencies(), slices) / 1e3


BEFORE = Version(
    {
        Protocol.SIMPLE: Step(1, 2, 2, 4 * 16, ("memory",), threads=512),
        Protocol.LL: Step(1, 2, 2, 8, ("cache", "memory"), threads=512),
        Protocol.LL128: Step(1, 2, 2, 15, ("cache", "memory"), threads=512),
    },
    {Protocol.SIMPLE: 64 << 10, Protocol.LL: 16 << 10, Protocol.LL128: 16 << 10},
    {"float32": 4, "bfloat16": 2},
    small=2 * 16,
    slices=dict.fromkeys(NCCL_STEP_US, 1),
)
"""The kernels up to commit 048cfae: their messages' operands were loaded after the polls, a fence
followed every message, and misaligned elements were moved one by one."""


def now() -> Version:
    """The kernels as they are."""
    program = sley.algorithms.build("ring-allreduce", ranks=8, in_place=True)
    plans = {p: sley.compile(program, protocol=p, instances=BLOCKS) for p in NCCL_STEP_US}
    slots = {p: Settings().slots_of(plan, BLOCKS)[1] for p, plan in plans.items()}
    slices = {p: Settings().slices_of(plan) for p, plan in plans.items()}
    return Version(STEPS, slots, {"float32": 4 * 4, "bfloat16": 4 * 2}, 4 * 16, slices)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """The rows of the table: what, before, now, NCCL's constant."""
    versions = (BEFORE, now())
    topology = sley.topologies.dgx_h100()
    link = float(topology.links.GBps[0])
    limited = {
        p: min(link * topology.model.wire_efficiency[p], BLOCKS * NCCL_CHANNEL_GBPS)
        for p in NCCL_STEP_US
    }
    for protocol, us in NCCL_STEP_US.items():
        before, after = (f"{v.step_us(protocol):.1f} us" for v in versions)
        yield f"a step with one batch, {protocol.value}", before, after, f"{us} us"

    def rate(what: str, protocol: Protocol, *batches: float | None) -> tuple[str, str, str, str]:
        most = link * topology.model.wire_efficiency[protocol]
        found = [v.ring_GBps(protocol, b) for v, b in zip(versions, batches, strict=True)]
        before, after = (f"{min(most, g):.0f}{' (link)' if g > most else ''} GB/s" for g in found)
        return f"ring, {what}", before, after, f"{limited[protocol]:.0f} GB/s"

    yield rate("Simple, float32", Protocol.SIMPLE, None, None)
    yield rate("Simple, bfloat16", Protocol.SIMPLE, *(v.small for v in versions))
    for dtype in ("float32", "bfloat16"):
        batches = [v.misaligned[dtype] for v in versions]
        yield rate(f"Simple, {dtype}, misaligned", Protocol.SIMPLE, *batches)
    yield rate("LL128, float32", Protocol.LL128, None, None)


def table() -> str:
    """The table, in Markdown."""
    lines = ["| estimate | before | now | NCCL's constants |", "|---|---|---|---|"]
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


def copies_table() -> str:
    """The rate of a block that copies, by the bytes that it has in flight, and how many blocks fill
    a GPU's links, in Markdown."""
    link = float(sley.topologies.dgx_h100().links.GBps[0])
    lines = [
        "| a block's copy | in flight | of own memory | of a peer's memory | fill the links |",
        "|---|---|---|---|---|",
    ]
    step = COPIES[Protocol.SIMPLE]
    for what, copy in (
        ("eight vectors a thread, in registers", step),
        (
            "`cp.async.bulk`, through shared memory",
            replace(step, batch_bytes=BULK_BYTES / step.threads),
        ),
    ):
        in_flight = copy.batch_bytes * copy.threads
        own, remote = (
            replace(copy, turn=(place,)).rate_GBps(Latencies()) for place in ("memory", "remote")
        )
        lines.append(
            f"| {what} | {in_flight / 1e3:.0f} KB | {own:.0f} GB/s | {remote:.0f} GB/s "
            f"| {math.ceil(link / remote)} blocks |"
        )
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
    print("\n\n".join([table(), slices_table(), copies_table(), switch_table()]))
