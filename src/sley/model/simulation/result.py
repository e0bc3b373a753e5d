"""Simulation: the times of a simulated run of a plan on a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np

from sley.ir.collectives import bus_factor
from sley.ir.cost_model import CostModel
from sley.ir.plan import Plan
from sley.ir.sizes import size_text
from sley.ir.tables import ByteArray, FloatArray, IntArray, LongArray, Table, Value
from sley.ir.topology import Topology
from sley.model.bounds import Bound

ERRORS: Mapping[str, tuple[tuple[int, int] | None, ...]] = MappingProxyType(
    {
        "V100": ((63, 67), (20, 33), (17, 17)),
        "A100": ((50, 91), (25, 61), (6, 20)),
        "H100": ((41, 66), (10, 58), (3, 10)),
        "B200": (None, None, (5, 20)),
        "MI300": ((16, 33), (13, 30), (6, 7)),
    }
)
"""The median and the 90th percentile in per cent of the simulator's errors on published tables of
NCCL's collectives on machines of a family: below 1 MB, to 64 MB and above; None without a table.
Commands predicted them, with nothing fitted to the same machine (docs/measurements.md)."""

_FAMILIES = ((70, "V100"), (80, "A100"), (90, "H100"), (100, "B200"), (900, ""), (940, "MI300"))
"""The families by the least `CostModel.architecture`."""


def family_of(model: CostModel) -> str:
    """The family of a machine's GPUs in `ERRORS`; empty for one without a table."""
    return next((name for least, name in _FAMILIES[::-1] if model.architecture >= least), "")


_UNKNOWN = ("not known for this machine", "not known but on one GPU: docs/kernels.md")
"""Where no table is of a family's, and for sley's kernels, as published tables are NCCL's."""


def _of_all_sizes(topology: Topology) -> str:
    """What is known of a machine's errors without tables of its family: that of sley's kernels, or
    its own; "" if these tables tell."""
    if topology.model.runs:
        return _UNKNOWN[1]
    return topology.accuracy or ("" if family_of(topology.model) else _UNKNOWN[0])


def errors_text(topology: Topology) -> str:
    """The simulator's errors on a machine in words, by size."""
    if known := _of_all_sizes(topology):
        return known
    family = family_of(topology.model)
    found = (f"{one[0]} / {one[1]} %" if one else "not known" for one in ERRORS[family])
    small, middle, large = found
    return f"{small} below 1M, {middle} to 64M, {large} above, by tables of {family}s"


def error_text(topology: Topology, size_bytes: int) -> str:
    """The simulator's error on a machine for a size in words."""
    if known := _of_all_sizes(topology):
        return known
    family = family_of(topology.model)
    one = ERRORS[family][(size_bytes >= 2**20) + (size_bytes > 2**26)]
    if one is None:
        return _UNKNOWN[0]
    return f"median {one[0]} %, 90th percentile {one[1]} %: on published tables of {family}s"


class Cause(IntEnum):
    """What an execution waited for last. LAUNCH: the launch; TURN: the execution before it in its
    block; WAIT: an instruction of another block; MESSAGE: a message; SLOT: a free slot."""

    LAUNCH = 0
    TURN = 1
    WAIT = 2
    MESSAGE = 3
    SLOT = 4


@dataclass(frozen=True, eq=False, repr=False)
class BlockTimes(Table):
    """One row a thread block of the plan: its time by activity, from launch to its own exit.

    end_us: when it exits.
    moving_us: moving data.
    waiting_us: waiting for instructions of other blocks.
    message_us: waiting for messages.
    slot_us: waiting for free slots.
    overhead_us: cost of decoding, waits and fences.
    """

    end_us: FloatArray
    moving_us: FloatArray
    waiting_us: FloatArray
    message_us: FloatArray
    slot_us: FloatArray
    overhead_us: FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class TileExecutions(Table):
    """One row an execution (an instruction on a tile), in the order of their ends.

    instruction: row of the plan's instructions.
    tile: the tile.
    turn_us: when its block reached it.
    start_us: when it began to move data.
    end_us: when it was done.
    cause: Cause; what it waited for last.
    after: the row of the execution that it waited for; NONE for LAUNCH.
    moving_us: time moving data; the rest is waiting between parts, and overhead.
    """

    WORDS = MappingProxyType({"cause": Cause})

    instruction: IntArray
    tile: IntArray
    turn_us: FloatArray
    start_us: FloatArray
    end_us: FloatArray
    cause: ByteArray
    after: LongArray
    moving_us: FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class LinkLoad(Value):
    """The load of each link of the topology.

    moved_bytes: float64 (links,), with the protocol's flags.
    bin_us: length of a bin of `load_GBps`; bins begin at the call.
    load_GBps: float64 (bins, links), the average rate in each bin.
    """

    moved_bytes: FloatArray
    bin_us: float
    load_GBps: FloatArray  # noqa: N815 - a unit


def extended_us(few_us: float, many_us: float, factor: float, least_us: float) -> float:
    """The time of a run with more tiles, which take `factor` times as long as those that a run of
    many has more than one of few, or as their least time."""
    return many_us + factor * max(many_us - few_us, least_us)


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(Value):
    """A run of a plan under the cost model. Times count from the call; blocks start after its
    launch.

    size_bytes: of the call, as nccl-tests counts it (a whole number of bytes a block).
    tiles: tiles of a chunk.
    tile_bytes: bytes of a chunk in a full tile.
    interpreter: whether an interpreter runs the plan, or code made for it.
    launch_us, time_us: when blocks start, and when the last one exits.
    startup_us: the part of `launch_us` in which the host launches one GPU after another.
    bound: the lower bound for this collective, topology and size.
    blocks: each block's time by activity.
    links: the load of each link.
    critical: the critical path, the executions that determine the time, first to last: each waits
        for the one before it.
    executions: every execution, if requested.
    stretch: the time over what was simulated of it: above 1 if a call of fewer tiles was, with
        `critical` and `links.load_GBps` stretched to the whole time.
    measured: whether blocks noted these times (`Executor.timeline`).
    """

    plan: Plan
    topology: Topology
    model: CostModel
    size_bytes: int
    tiles: int
    tile_bytes: float
    interpreter: bool
    launch_us: float
    startup_us: float
    time_us: float
    bound: Bound
    blocks: BlockTimes
    links: LinkLoad
    critical: TileExecutions
    executions: TileExecutions | None = None
    stretch: float = 1.0
    measured: bool = False

    def extended(
        self, shorter: Simulation, factor: float, least_us: float, tiles: int
    ) -> Simulation:
        """This run with more tiles, `tiles` in all, which take `factor` times as long as those that
        it has more than a shorter run. least_us: the least time of these."""
        time_us = extended_us(shorter.time_us, self.time_us, factor, least_us)
        slower = (time_us - self.time_us) / max(self.time_us - shorter.time_us, 1e-12)

        def longer(name: str, ours: Any, theirs: Any, times: float = slower) -> Any:
            return getattr(ours, name) + times * (getattr(ours, name) - getattr(theirs, name))

        stretch = (time_us - self.launch_us) / max(self.time_us - self.launch_us, 1e-12)
        path, links = self.critical, self.links
        at = {
            name: self.launch_us + (getattr(path, name) - self.launch_us) * stretch
            for name in ("turn_us", "start_us", "end_us")
        }
        columns = BlockTimes.column_names()
        return replace(
            self,
            tiles=tiles,
            time_us=time_us,
            blocks=BlockTimes(**{n: longer(n, self.blocks, shorter.blocks) for n in columns}),
            links=LinkLoad(
                longer("moved_bytes", links, shorter.links, factor),
                links.bin_us * stretch,
                links.load_GBps,
            ),
            critical=replace(path, moving_us=path.moving_us * stretch, **at),
            stretch=stretch,
        )

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """Size over time, in 10^9 bytes a second; infinite if the time is 0."""
        return self.size_bytes / self.time_us / 1e3 if self.time_us else float("inf")

    @property
    def busbw_GBps(self) -> float:  # noqa: N802 - a unit
        """`algbw_GBps` times the collective's bus factor."""
        return self.algbw_GBps * bus_factor(self.plan.collective)

    @property
    def last_tile_bytes(self) -> float:
        """The size of a chunk's last tile."""
        chunk_bytes = self.size_bytes / self.plan.collective.blocks / self.plan.collective.chunks
        return chunk_bytes - (self.tiles - 1) * self.tile_bytes

    @property
    def of_bound(self) -> float:
        """The fraction of the bound's bandwidth that is reached, 0 to 1."""
        return self.bound.time_us / self.time_us if self.time_us else 1.0

    @property
    def utilisation(self) -> FloatArray:
        """float64 (links,): the fraction of each link's capacity in use, from launch to end."""
        running_us = max(self.time_us - self.launch_us, 1e-12)
        utilisation: FloatArray = self.links.moved_bytes / (
            self.topology.links.GBps * running_us * 1e3
        )
        return utilisation

    def __repr__(self) -> str:
        return (
            f"Simulation({self.plan.name} on {self.topology.name}: {size_text(self.size_bytes)}, "
            f"{self.time_us:.1f} us, {self.algbw_GBps:.2f} GB/s, {self.of_bound:.1%} of the bound)"
        )

    def idle(self, *, to_exit: bool = True) -> FloatArray:
        """float64 (blocks,): the fraction of each block's time in which it waits for other blocks,
        messages or slots, or has exited. The time ends at the block's own exit, or at the end of
        the kernel (ResCCL 5.4, table 3)."""
        end = self.blocks.end_us if to_exit else np.full(len(self.blocks), self.time_us)
        busy = self.blocks.moving_us + self.blocks.overhead_us
        idle: FloatArray = 1 - busy / np.maximum(end - self.launch_us, 1e-12)
        return idle
