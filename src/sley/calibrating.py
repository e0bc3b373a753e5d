"""Calibrating: a topology of this machine, measured by a few microbenchmarks on its CPUs.

What is measured is the CPU runtime (docs/machine.md, "On CPUs"): ranks are processes that share the
machine's cores and its memory, and every rank does all its blocks on one thread. So the topology
has one node with `shared_memory`, whose rate is that of all ranks together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sley import runtime
from sley.compiler import compile
from sley.errors.simulation import S704
from sley.ir.collective import Collective
from sley.ir.collectives import Custom
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Builder, Topology
from sley.ir.words import is_integer
from sley.lang import ChunkProgram, trace

MESSAGES = 32
"""Messages of one exchange: enough for the pipeline's fill not to count."""

SMALL_BYTES = 64
LARGE_BYTES = 2**20
"""Bytes of a message where its overhead decides, and where its bytes do."""

MAX_RANKS = 64
"""A rank is a process; nobody has that many cores to spare for one measurement."""


@dataclass(frozen=True)
class Calibration:
    """What the microbenchmarks found, and the topology made of it.

    ranks: how many processes took part.
    launch_us: a call in which each rank copies a few bytes.
    hop_us: a message's way to the next rank, in a chain through all of them.
    small_us, large_us: a message of SMALL_BYTES and one of LARGE_BYTES, when all ranks send and
        receive as many as they can.
    alone_us: the latter when just two ranks do.
    """

    ranks: int
    launch_us: float
    hop_us: float
    small_us: float
    large_us: float
    alone_us: float
    topology: Topology


def calibrate(
    ranks: int, *, repeats: int = 5, progress: Callable[[str], None] | None = None
) -> Calibration:
    """Measures this machine with `ranks` processes; each figure is the median of `repeats` runs.

    progress: called with the name of each microbenchmark before it starts.
    Errors: S704 for numbers out of range, R5xx of the runtime.
    """
    for word, value, least, most in (("ranks", ranks, 2, MAX_RANKS), ("repeats", repeats, 1, 1000)):
        if not is_integer(value) or not least <= value <= most:
            expected = f"{word} from {least} to {most}"
            raise S704.error(expected=expected, found=f"{word}={value!r}")

    def measure(
        name: str, collective: Collective, body: Callable[[ChunkProgram], None], size: int
    ) -> float:
        if progress is not None:
            progress(name)
        plan = compile(trace(collective, body, name=name))
        size_bytes = size * collective.chunks * collective.blocks
        runs = [
            runtime.run(plan, [size_bytes], iterations=20, warmup=3, check=False, dtype="uint8")
            for _ in range(repeats)
        ]
        return statistics.median(run[0].time_us for run in runs)

    launch = measure("launch", *_copies(ranks), SMALL_BYTES)
    chain = measure("chain", *_chain(ranks), SMALL_BYTES)
    small = measure("small messages", *_exchange(ranks), SMALL_BYTES)
    large = measure("large messages", *_exchange(ranks), LARGE_BYTES)
    alone = measure("two ranks", *_exchange(2), LARGE_BYTES)
    found = {
        "launch_us": launch,
        "hop_us": max(chain - launch, 0.0) / (ranks - 1),
        "small_us": max(small - launch, 0.0) / MESSAGES,
        "large_us": max(large - launch, 0.0) / MESSAGES,
        "alone_us": max(alone - launch, 0.0) / MESSAGES,
    }
    return Calibration(ranks=ranks, topology=topology_of(ranks, **found), **found)


def topology_of(
    ranks: int,
    *,
    launch_us: float,
    hop_us: float,
    small_us: float,
    large_us: float,
    alone_us: float,
) -> Topology:
    """The topology that explains the measurements.

    A message counts four times its bytes in memory: read and written by the sender, and again by
    the receiver. A large one is `parts` parts of a slot each. From both sizes follow what a byte
    takes and what a part takes besides, of all ranks' time together.
    """
    parts = LARGE_BYTES / runtime.SLOT_BYTES
    byte_us = (large_us - parts * small_us) / (LARGE_BYTES - parts * SMALL_BYTES) / ranks
    byte_us = max(byte_us, large_us / LARGE_BYTES / ranks / 10)  # noise must not make it negative
    memory_GBps = 4 / byte_us / 1e3  # noqa: N806 - a unit
    overhead = max(small_us / ranks / byte_us - SMALL_BYTES, 0.0)
    thread_GBps = 2 * LARGE_BYTES / alone_us / 1e3  # noqa: N806
    latency = ByProtocol(*(max(hop_us - 2 * small_us / ranks, 0.0),) * 3)
    model = CostModel(
        launch_us=ByProtocol(*(launch_us,) * 3),
        nvlink_latency_us=latency,
        pcie_latency_us=latency,
        network_latency_us=latency,
        nvlink_block_GBps=thread_GBps,
        pcie_block_GBps=thread_GBps,
        network_block_GBps=thread_GBps,
        local_block_GBps=thread_GBps,
        memory_GBps=memory_GBps,
        wire_efficiency=ByProtocol(1, 1, 1),
        tile_bytes=ByProtocol(*(runtime.SLOT_BYTES,) * 3),
        slices=ByProtocol(1, 1, 1),
        part_overhead_bytes=overhead,
        wait_us=0.0,
        fence_share=ByProtocol(0, 0, 0),
        interpreter_loss=0.0,
    )
    builder = Builder(f"this machine, {ranks} ranks", np.zeros(ranks, np.int32))
    switch = builder.add(VertexKind.PCIE, [0])
    rank = np.arange(ranks)
    builder.both(rank, switch, LinkKind.PCIE, thread_GBps, thread_GBps)
    return builder.topology(model, shared_memory=True)


Benchmark = tuple[Collective, Callable[[ChunkProgram], None]]


def _copies(ranks: int) -> Benchmark:
    """Each rank copies its chunk."""

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        p.chunk(rank, "in", 0).copy(rank, "out", 0)

    return Custom("copies", ranks, 1, 1, lambda r, i: [(r, 0)]), body


def _chain(ranks: int) -> Benchmark:
    """A chunk goes from rank to rank."""

    def body(p: ChunkProgram) -> None:
        chunk = p.chunk(0, "in", 0)
        for rank in range(1, ranks):
            chunk = chunk.copy(rank, "out", 0)

    def expected(rank: int, index: int) -> list[tuple[int, int]] | None:
        return [(0, 0)] if rank else None

    return Custom("chain", ranks, 1, 1, expected), body


def _exchange(ranks: int) -> Benchmark:
    """Each rank sends MESSAGES chunks to the next one round a ring."""

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        for index in range(MESSAGES):
            p.chunk((rank - 1) % ranks, "in", index).copy(rank, "out", index)

    def expected(rank: int, index: int) -> list[tuple[int, int]]:
        return [((rank - 1) % ranks, index)]

    return Custom("exchange", ranks, MESSAGES, MESSAGES, expected), body
