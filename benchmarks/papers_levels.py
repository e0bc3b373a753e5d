"""ResCCL's three levels of execution on its four topologies, and their simulations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from papers_common import GB, MB

import sley
from sley.ir.fabric import LinkKind
from sley.model.simulation import Simulator

TOPOLOGIES = ((2, 4), (2, 8), (4, 4), (4, 8))
"""Topo1 to Topo4: number of nodes, and of GPUs in each (5.4)."""

SIZES = [8 * MB, 32 * MB, 128 * MB, 512 * MB, GB, 4 * GB]
AT = GB
"""The size for results without a size in the paper: utilisation, idle times."""

CHUNK = MB
"""Bytes of a tile of a chunk (table 2)."""

SLOTS = 4
"""Number of tiles of one chunk that fit into the 4 MiB of a Simple connection."""

INSTANCES = 4
"""Parallel parts of the custom algorithms (table 2)."""

CHANNELS = 16
"""Number of channels of NCCL's rings: the smallest number that fills the cards."""

GAMMA = 0.25
"""The contention in the examples of its effect; the paper gives no value."""

STAGES = {"allgather": (0, 1, 2), "allreduce": (0, 1, 1, 2)}
"""The channel of each stage, which give the paper's numbers of blocks (table 3)."""

PIPELINED = {
    "task": {"schedule": "hpds", "allocate": "state"},
    "hpds": {"schedule": "hpds"},
    "round-robin": {"schedule": "round-robin"},
}
"""The options of levels whose transfers are scheduled whole."""

NAMES = {"allgather": "AllGather", "allreduce": "AllReduce"}


@dataclass(frozen=True)
class Run:
    """The results of one simulation that the page uses.

    time_us: time of the call. blocks: largest number of blocks on a rank. links, nvlinks, cards:
    mean utilisation of all links that carry data, of those inside nodes, of those between nodes.
    to_exit, to_end: mean and largest idle share of blocks, until their own exit and the kernel's.
    """

    time_us: float
    blocks: int
    links: float
    nvlinks: float
    cards: float
    to_exit: tuple[float, float]
    to_end: tuple[float, float]


def parts(level: str, gpus: int) -> int:
    """Number of instances at a level."""
    return CHANNELS // gpus if level == "rings" else INSTANCES


def cluster(nodes: int, gpus: int, gamma: float = 0.0) -> sley.Topology:
    """The testbed, with tiles of the paper's size."""
    build = sley.topologies.resccl if gpus == 8 else sley.topologies.resccl_4gpu
    topology = build(nodes=nodes)
    tile = replace(topology.model.tile_bytes, simple=CHUNK)
    return replace(topology, model=replace(topology.model, tile_bytes=tile, contention=gamma))


@cache
def plan(kind: str, level: str, nodes: int, gpus: int, instances: int) -> sley.Plan:
    """An algorithm at a level: one of `PIPELINED`, stage, stage4, algorithm or NCCL's rings."""
    topology = cluster(nodes, gpus)
    if level == "rings":
        build: Any = getattr(sley.algorithms, f"multi_ring_{kind}")
        program = build(nodes, gpus, in_place=True)
        return sley.compile(program, topology=topology, instances=instances, verify=False)
    build = getattr(sley.algorithms, f"hm_{kind}")
    stages = {
        "stage": STAGES[kind],
        "stage4": tuple(range(len(STAGES[kind]))),
        "algorithm": (0,) * len(STAGES[kind]),
    }
    options: dict[str, Any] = PIPELINED.get(level, {"fusion": False})
    program = build(
        nodes,
        gpus,
        nics=None if gpus == 4 else 4,
        stage_channels=stages.get(level),
        in_place=True,
    )
    return sley.compile(program, topology=topology, instances=instances, verify=False, **options)


@cache
def simulator(
    kind: str, level: str, where: tuple[int, int], instances: int, gamma: float, interpreter: bool
) -> Simulator:
    """The simulator of an algorithm at a level, for all sizes."""
    made = plan(kind, level, *where, instances)
    return Simulator(
        made,
        cluster(*where, gamma),
        interpreter=interpreter,
        slots=max(SLOTS, made.slots),
    )


@cache
def run(
    kind: str,
    level: str,
    where: tuple[int, int],
    size: int,
    *,
    instances: int | None = None,
    gamma: float = 0.0,
    interpreter: bool | None = None,
) -> Run:
    """Simulates a call. By default an interpreter runs MSCCL's levels, but not ResCCL's and
    NCCL's."""
    interpreted = level in ("stage", "stage4", "algorithm") if interpreter is None else interpreter
    count = instances or parts(level, where[1])
    found = simulator(kind, level, where, count, gamma, interpreted)(size)
    used, inside = found.utilisation, found.topology.links.kind == LinkKind.NVLINK
    idle = {exits: found.idle(to_exit=exits) for exits in (True, False)}
    return Run(
        time_us=found.time_us,
        blocks=found.plan.blocks_per_rank,
        links=_mean(used[used > 0]),
        nvlinks=_mean(used[(used > 0) & inside]),
        cards=_mean(used[(used > 0) & ~inside]),
        to_exit=(float(idle[True].mean()), float(idle[True].max())),
        to_end=(float(idle[False].mean()), float(idle[False].max())),
    )


def _mean(values: np.ndarray[Any, Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def speedup(
    kind: str,
    slow: str,
    fast: str,
    where: Iterable[tuple[int, int]],
    over: Iterable[int] = SIZES,
    **settings: Any,
) -> dict[int, float]:
    """The time of one level over that of another, for each size; of several topologies the largest
    ratio of each size."""
    found: dict[int, float] = {}
    for one in where:
        for size in over:
            times = [run(kind, level, one, size, **settings).time_us for level in (slow, fast)]
            found[size] = max(found.get(size, 0.0), times[0] / times[1])
    return found
