"""Device rules: which algorithm and protocol run for a call on devices of one host.

A search by simulation (`sley.choose`) finds them for the machine that `DeviceLimits` tells.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from sley.algorithms import CATALOG, build
from sley.communicator.selection.kinds import CALLS
from sley.errors import SleyError, counted
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.program import Program
from sley.ir.sizes import SizeRange, size_text
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import FIFO_PROTOCOLS, Allocation, Protocol, Schedule
from sley.topologies import find_machine

if TYPE_CHECKING:
    from sley.compiler import Choice

SMALL_BYTES = 16 << 10
"""Size up to which only plans with the fewest blocks are compared. In the model blocks cost
nothing; on an H100 1 KB took rings of 16 blocks 1.3 times as long as those of one."""

_LEAST_BYTES, _MOST_BYTES = 1 << 10, 256 << 20
"""The sizes between which plans are compared; beyond them the nearest one's plan runs."""

_INSTANCES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class DeviceLimits:
    """What the rules know of the devices of one host; equal on all ranks.

    topology: the machine, whose first GPUs are the ranks. None: one H100 that all ranks share
        (`is_one_device`), 8 GPUs on PCIe (without `has_lines`, if they suffice), or H100s around
        NVSwitches.
    has_lines: whether all 128 bytes that a warp stores into another device's memory arrive at once
        (`Device.carries_lines`); else nothing runs with LL128.
    is_one_device: whether all ranks are on one device. Then receivers read large messages in place
        (Direct), as their senders' memory is as near as slots.
    max_blocks: the most thread blocks of a rank: those of all ranks on a device must run at the
        same time. By default as many as NCCL's.
    """

    topology: Topology | None = None
    has_lines: bool = True
    is_one_device: bool = False
    max_blocks: int = 32

    def machine(self, ranks: int) -> Topology:
        """The topology on which plans are compared."""
        if self.topology is not None:
            return self.topology
        if self.is_one_device:
            return _one_h100(ranks)
        if not self.has_lines and ranks <= (pcie := find_machine("pcie-8").topology()).ranks:
            return pcie
        known = find_machine("ndv5").topology()
        nvlink = known.links.nominal_GBps[0], known.links.GBps[0]
        name = f"{ranks} H100 around NVSwitches"
        return Topology.cluster(1, ranks, name=name, nvlink_GBps=nvlink, model=known.model)


def _one_h100(ranks: int) -> Topology:
    """The memory of one H100 as links among its ranks. It was fitted to AllReduces along rings and
    by all pairs of 4 and 8 ranks, 256 KB to 64 MB (`kernels-nvidia-h100-*.json` of
    `benchmarks/results`), most of which it predicts within 25 %. The numbers of Simple are those of
    Direct, which replaces it there."""
    rate = 1350.0 / ranks
    model = CostModel(
        launch_us=ByProtocol.same(5.5),
        nvlink_latency_us=ByProtocol(0.9, 1.2, 1.7),
        fence_share=ByProtocol(0.0, 0.0, 0.6),
        wire_efficiency=ByProtocol(0.4, 0.58, 1.0),
        memory_GBps=1e6,  # the links are the memory
    )
    return Topology.cluster(1, ranks, name="one H100", nvlink_GBps=(2 * rate, rate), model=model)


_LOCK = threading.Lock()


def device_rows(kind: str, ranks: int, limits: DeviceLimits, *, disk: bool) -> list[PlanRow]:
    """What runs for a kind of call: rows without place and root, by ascending ends of sizes; the
    last one has no end. Plans for root 0 are compared, for all roots.

    disk: whether the result of the search is kept in the cache on disk. Errors: those of
    `sley.choose`; C305 or C301 if the machine has too few GPUs or links for every algorithm.
    """
    with _LOCK:  # one is enough for ranks that are threads
        return _rows(CALLS[kind].name, ranks, limits, disk)


@cache
def _rows(collective: str, ranks: int, limits: DeviceLimits, disk: bool) -> list[PlanRow]:
    from sley.communicator.selection.plan_cache import cached_choice

    def found() -> str:
        return json.dumps(_found(collective, ranks, limits))

    request = f"{collective} {ranks} {hashlib.sha256(pickle.dumps(limits)).hexdigest()}"
    rows = json.loads(cached_choice(request, found) if disk else found())
    return [
        PlanRow(
            Recipe(name, {"ranks": ranks}, options), SizeRange(0, end), note=note, refused=refused
        )
        for name, options, end, note, refused in rows
    ]


def _found(collective: str, ranks: int, limits: DeviceLimits) -> list[tuple[object, ...]]:
    """For each row the algorithm, its options, the last size, the note, and what was refused."""
    from sley.compiler import choose

    machine = limits.machine(ranks)
    programs = _programs(collective, ranks, machine)
    choices: list[Choice] = []
    for sizes, instances in (
        ((_LEAST_BYTES, SMALL_BYTES), [1]),
        ((SMALL_BYTES, _MOST_BYTES), _INSTANCES),
    ):
        choices += choose(
            programs,
            sizes,
            machine,
            interpreter=False,
            most_blocks=limits.max_blocks,
            protocol=[p for p in FIFO_PROTOCOLS if p is not Protocol.LL128 or limits.has_lines],
            instances=instances,
            channels=1,
            schedule=Schedule.MSCCL,
            allocate=Allocation.CONNECTION,
        ).ranges
    ends = [*(choice.end.size_bytes for choice in choices[:-1]), None]
    return [
        (choice.algorithm, _options(choice, limits), end, _note(end, machine), _refused(choice))
        for choice, end in zip(choices, ends, strict=True)
    ]


def _note(end: int | None, machine: Topology) -> str:
    few = "small, so with few blocks; " if end is not None and end <= SMALL_BYTES else ""
    return f"{few}the fastest by the model of {machine.name}, not measured here"


def _options(choice: Choice, limits: DeviceLimits) -> dict[str, object]:
    protocol = choice.plan.protocol
    if limits.is_one_device and protocol is Protocol.SIMPLE:
        protocol = Protocol.DIRECT
    options: dict[str, object] = {"protocol": protocol.value, "instances": choice.options.instances}
    if choice.plan.blocks_per_rank > limits.max_blocks:  # as have all candidates
        options["max_blocks"] = limits.max_blocks
    return options


def _refused(choice: Choice) -> list[str]:
    """The runner-up, in words."""
    if choice.runner_up is None:
        return []
    name, options, size_bytes, slower, _ = vars(choice.runner_up).values()
    made = f"{options.protocol.value}, {counted(options.instances, 'instance')}"
    by = f"{abs(slower):.0%} {'slower' if slower >= 0 else 'faster'}"
    return [f"{name} ({made}): {by} at {size_text(size_bytes)}, by the model"]


def _programs(collective: str, ranks: int, machine: Topology) -> list[Program]:
    """The algorithms for a collective that the machine links, without those for switches: with a
    process for each rank no switch runs them. Errors: as `device_rows`."""
    from sley.compiler.passes.links import check_links

    found: list[Program] = []
    problems: list[SleyError] = []
    for one in CATALOG.values():
        if one.collective != collective or "ranks" not in one.parameters:
            continue
        try:
            program = build(one.name, ranks=ranks, in_place=True)
            check_links(program, machine)
        except SleyError as problem:  # of an algorithm for other numbers of ranks too
            problems.append(problem)
        else:
            found += [program] if (program.transfers.group == NONE).all() else []
    if not found:
        raise problems[0]
    return found
