"""Whole transfers from texts, the library and files of others: scheduled, merged, verified, run."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sley
from sley.communicator import Settings, jobs
from sley.engine.measure import Sweep
from sley.ir.words import LoopOrder
from support.inputs.files_of_others import OTHERS
from support.inputs.rescclang_cases import FIGURE_16

CLUSTERS = ((2, 4), (2, 8), (4, 4), (4, 8))
SCHEDULES = ("hpds", "round-robin")
SLOTS = (1, 2, 8)
COLLECTIVES = ("hm-allgather", "hm-reducescatter", "hm-allreduce")


def wrong(plan: sley.Plan) -> list[int]:
    """Wrong elements of two runs of several tiles, of even and odd size, between processes."""
    sizes = [64 * 1024, 100_001]
    rows = jobs.run(plan, Sweep(sizes, iterations=1, warmup=0), Settings(slot_bytes=512))
    return [row.wrong for row in rows]


def task_level() -> list[Any]:
    """Every collective on a cluster, with the schedules and the numbers of slots in turn; all other
    combinations are slow."""
    found = []
    for n, name in enumerate(COLLECTIVES):
        for c, cluster in enumerate(CLUSTERS):
            turn = SCHEDULES[n % len(SCHEDULES)], SLOTS[(n + c) % len(SLOTS)]
            for way in product(SCHEDULES, SLOTS):
                marks = [] if way == turn and c == n else [pytest.mark.slow]
                found.append(pytest.param(name, *cluster, *way, marks=marks))
    return found


@pytest.mark.parametrize(("name", "nodes", "gpus", "schedule", "slots"), task_level())
def test_hierarchical_mesh_runs_right_at_task_level(
    name: str, nodes: int, gpus: int, schedule: str, slots: int
) -> None:
    program = sley.algorithms.build(name, nodes=nodes, gpus=gpus, nics=gpus // 2, in_place=True)
    plan = sley.compile(program, schedule=schedule, allocate="state", slots=slots)
    assert plan.loop_order is LoopOrder.INSTRUCTION
    sley.verify(plan, 1)
    assert wrong(plan) == [0, 0]


@pytest.mark.parametrize(
    ("schedule", "slots"),
    [("hpds", 1), pytest.param("round-robin", 8, marks=pytest.mark.slow)],
)
def test_figure_16_runs_right_at_task_level(schedule: str, slots: int) -> None:
    program = sley.rescclang.parse(FIGURE_16, in_place=True, nChannels=2)
    plan = sley.compile(program, schedule=schedule, allocate="state", slots=slots)
    # nChannels parallel parts, 16 thread blocks each.
    assert np.bincount(plan.block_rank).max() == 2 * 16
    assert wrong(plan) == [0, 0]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_resccl_text_gives_the_program_of_the_library(name: str, in_place: bool) -> None:
    text = sley.algorithms.resccl_text(name)
    for nodes, gpus in CLUSTERS:
        header: dict[str, Any] = {"nRanks": nodes * gpus, "GPUPerNode": gpus, "NICPerNode": gpus}
        said = sley.rescclang.parse(text, in_place=in_place, **header)
        library = sley.algorithms.build(name, nodes=nodes, gpus=gpus, in_place=in_place)
        assert said.collective == library.collective
        assert rows(said) == rows(library)
        assert said.topology is not None
        assert library.topology is not None
        assert np.array_equal(said.topology.nic, library.topology.nic)


def rows(program: sley.Program) -> list[tuple[int, ...]]:
    """The transfers in the order of their steps, those of a step sorted."""
    t = program.transfers
    names = ("step", "kind", "src", "src_buffer", "src_index", "dst", "dst_buffer", "dst_index")
    return sorted(zip(*(getattr(t, name).tolist() for name in names), strict=True))


@pytest.mark.parametrize(
    "name",
    [n if k % 2 else pytest.param(n, marks=pytest.mark.slow) for k, n in enumerate(OTHERS)],
)
def test_files_of_others_run_right_as_whole_tasks(name: str, data_dir: Path) -> None:
    imported = sley.load(data_dir / "msccl-xml" / f"{name}.xml")
    sley.verify(imported)
    plan = sley.compile(sley.lift(imported), schedule="hpds", allocate="state")
    before, after = (np.bincount(p.block_rank).max() for p in (imported, plan))
    assert after <= before
    assert wrong(plan) == [0, 0]


def test_synthesised_blocks_fall_to_half_without_costing_time(data_dir: Path) -> None:
    imported = sley.load(data_dir / "msccl-xml" / "amd_32.xml")
    most = int(np.bincount(imported.block_rank).max())
    cluster = sley.topologies.cluster(2, 16, 8)
    plan = sley.compile(
        sley.lift(imported),
        schedule="hpds",
        allocate="state",
        max_blocks=most // 2,
        topology=cluster,
    )
    assert np.bincount(plan.block_rank).max() <= most // 2
    assert wrong(plan) == [0, 0]
