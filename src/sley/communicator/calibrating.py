"""Calibrating: measures a topology of this machine with a few microbenchmarks on its CPUs.

The microbenchmarks run on the CPU runtime (docs/machine.md, "On CPUs"): ranks are processes that
share the machine's cores and memory, and one thread of a rank runs all its blocks. So the topology
has one node with `shared_memory`, and one bus for the messages of all ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sley.communicator import Settings, jobs
from sley.communicator.memory import tile_bytes
from sley.communicator.rendezvous.hosts import Hosts
from sley.compiler import compile
from sley.engine.limits import SLOT_BYTES, whole
from sley.engine.measure import Sweep
from sley.engine.program import load
from sley.ir.collective import Collective
from sley.ir.collectives import Custom
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Builder, Topology
from sley.lang import ChunkProgram, trace

MESSAGES = 16
"""Messages to each peer: enough that filling the pipeline is negligible."""

SMALL_BYTES = 64
LARGE_BYTES = 2**15
"""Bytes of a message whose time is mostly overhead, and of one whose time is mostly transfer, which
is a single tile with any number of ranks."""

MAX_PROCESSES = 64
"""The most ranks; each is a process that needs a core."""


@dataclass(frozen=True)
class Calibration:
    """The results of the microbenchmarks.

    ranks: number of processes.
    tile_bytes: of a tile of the CPU runtime, of a plan in which each rank sends to one other.
    launch_us: time of a call in which each rank copies a few bytes.
    copy_us: time to copy LARGE_BYTES within a rank's memory, while all ranks copy.
    round_us: time of a message of SMALL_BYTES, if each rank sends to the next one, in rounds.
    small_us, large_us: time of a message of SMALL_BYTES and of LARGE_BYTES, if every rank sends to
        all others without pause: the total time over the number of messages.
    alone_us: time of a message of LARGE_BYTES, if only one rank sends, to one other.
    """

    ranks: int
    tile_bytes: int
    launch_us: float
    copy_us: float
    round_us: float
    small_us: float
    large_us: float
    alone_us: float

    @cached_property
    def topology(self) -> Topology:
        """The topology that explains the measurements.

        A message's time is mostly its copies through the slots, from one core's cache to another's,
        over a bus that all ranks share. The bus's rate follows from the difference in bytes and
        time between a large and a small message; the rest of a small message's time is the overhead
        of a part. The time of a round beyond its messages is the latency of a hop, because a rank
        waits until its neighbour has run. The memory's rate follows from the copies, each of which
        reads and writes every byte.
        """
        byte_us = (self.large_us - self.small_us) / (LARGE_BYTES - SMALL_BYTES)
        byte_us = max(byte_us, self.large_us / LARGE_BYTES / 10)  # noise could make it negative
        bus_GBps = 1 / byte_us / 1e3  # noqa: N806 - a unit
        thread_GBps = max(LARGE_BYTES / self.alone_us / 1e3, bus_GBps / self.ranks)  # noqa: N806
        model = CostModel(
            launch_us=ByProtocol.same(self.launch_us),
            nvlink_latency_us=ByProtocol.same(0.0),
            pcie_latency_us=ByProtocol.same(max(self.round_us - self.ranks * self.small_us, 0.0)),
            network_call_us=0.0,
            network_latency_us=ByProtocol.same(0.0),
            nvlink_block_GBps=thread_GBps,
            pcie_block_GBps=thread_GBps,
            network_block_GBps=thread_GBps,
            local_block_GBps=max(LARGE_BYTES / self.copy_us / 1e3, thread_GBps),
            memory_GBps=2 * self.ranks * LARGE_BYTES / self.copy_us / 1e3,
            wire_efficiency=ByProtocol.same(1.0),
            tile_bytes=ByProtocol.same(self.tile_bytes),
            slices=ByProtocol.same(1),
            part_overhead_bytes=max(self.small_us / byte_us - SMALL_BYTES, 0.0),
            wait_us=0.0,
            fence_share=ByProtocol.same(0.0),
            interpreter_loss=0.0,
        )
        builder = Builder(f"this machine, {self.ranks} ranks", np.zeros(self.ranks, np.int32))
        up, down = builder.add(VertexKind.PCIE, [0, 0])
        rank = np.arange(self.ranks)
        builder.link(rank, up, LinkKind.PCIE, thread_GBps, thread_GBps)
        builder.link(up, down, LinkKind.PCIE, bus_GBps, bus_GBps)
        builder.link(down, rank, LinkKind.PCIE, thread_GBps, thread_GBps)
        return builder.topology(model, shared_memory=True)


def calibrate(ranks: int, *, repeats: int = 5) -> Calibration:
    """Measures this machine with `ranks` processes; each figure is the median of `repeats` runs.

    Errors: R514 for numbers out of range, R5xx of the runtime.
    """
    ranks, repeats = whole(ranks, "ranks", 2, MAX_PROCESSES), whole(repeats, "repeats", 1, 1000)

    settings = Settings.from_environment()

    def measure(name: str, benchmark: Benchmark, message_bytes: int) -> float:
        collective, body = benchmark
        plan = compile(trace(collective, body, name=name))
        size_bytes = message_bytes * collective.chunks * collective.blocks
        sizes = [size_bytes] * repeats
        runs = jobs.run(plan, Sweep(sizes, "uint8", check=False), settings)
        return statistics.median(run.time_us for run in runs)

    launch = measure("launch", _copies(ranks, 1), SMALL_BYTES)
    messages = ranks * (ranks - 1) * MESSAGES
    found = {"launch_us": launch}
    for word, name, benchmark, size_bytes, number in (
        ("copy_us", "copies", _copies(ranks, MESSAGES), LARGE_BYTES, MESSAGES),
        ("round_us", "one peer, small", _exchange(ranks, 1), SMALL_BYTES, MESSAGES),
        ("small_us", "all peers, small", _exchange(ranks, ranks - 1), SMALL_BYTES, messages),
        ("large_us", "all peers, large", _exchange(ranks, ranks - 1), LARGE_BYTES, messages),
        ("alone_us", "two ranks, large", _exchange(2, 1, one_way=True), LARGE_BYTES, MESSAGES),
    ):
        found[word] = max(measure(name, benchmark, size_bytes) - launch, 1e-3) / number
    ring = compile(trace(*_exchange(ranks, 1), name="ring"))
    tile = tile_bytes(load(ring, None, SLOT_BYTES), Hosts.of(["here"] * ranks), settings)
    return Calibration(ranks, tile, **found)


Benchmark = tuple[Collective, Callable[[ChunkProgram], None]]


def _copies(ranks: int, chunks: int) -> Benchmark:
    """A program in which each rank copies its chunks."""

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        for index in range(chunks):
            p.chunk(rank, "in", index).copy(rank, "out", index)

    return Custom("copies", ranks, chunks, chunks, lambda r, i: [(r, i)]), body


def _exchange(ranks: int, peers: int, *, one_way: bool = False) -> Benchmark:
    """A program in which each rank, or only rank 0, sends MESSAGES chunks to each of the next
    `peers` ranks."""
    senders = np.arange(1 if one_way else ranks)

    def body(p: ChunkProgram) -> None:
        for index in range(MESSAGES):
            for peer in range(peers):
                chunk = p.chunk(senders, "in", peer * MESSAGES + index)
                chunk.copy((senders + peer + 1) % ranks, "out", peer * MESSAGES + index)

    def expected(rank: int, index: int) -> list[tuple[int, int]] | None:
        sender = (rank - index // MESSAGES - 1) % ranks
        return [(sender, index)] if sender < len(senders) else None

    chunks = peers * MESSAGES
    return Custom("exchange", ranks, chunks, chunks, expected), body
