"""Calls of several groups at once: alone on their links as if alone, else sharing them."""

from __future__ import annotations

import numpy as np
import pytest

import sley
from sley import SleyError, Topology, topologies
from sley.model.simulation import GroupRun, simulate_at_once
from sley.topologies import Group


def run_of(group: Group, size: str, **options: object) -> GroupRun:
    program = sley.load("ring-allreduce", ranks=len(group.ranks), in_place=True)
    plan = sley.compile(program, topology=group.topology, **{"protocol": "Simple", **options})  # type: ignore[arg-type]
    return GroupRun(plan, group, size)


def alone_us(run: GroupRun) -> float:
    return sley.simulate(run.plan, run.size, run.group.topology).time_us


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("ndv4:1", [[0, 1, 2, 3], [7, 5, 6]]),
        ("p4d:2", [[0, 8], [3, 10, 11]]),
        ("2x4", [[0, 4], [6, 2]]),  # a card for each GPU
    ],
)
def test_groups_on_disjoint_links_are_as_fast_as_alone(name: str, groups: list[list[int]]) -> None:
    cluster = topologies.find(name)
    sizes, instances, schedules = ("64M", "1M"), (2, 3), ("hpds", "msccl")
    runs = [
        run_of(Group.of(cluster, ranks), size, instances=count, schedule=schedule)
        for ranks, size, count, schedule in zip(groups, sizes, instances, schedules, strict=True)
    ]
    assert len({run.plan.loop_order for run in runs}) == 2
    found = simulate_at_once(runs, cluster)
    assert found == pytest.approx([alone_us(run) for run in runs])


def test_groups_share_links_memories_and_cards() -> None:
    cluster = topologies.find("p4d:2")
    pair = Group.of(cluster, [0, 8])
    for other in ([0, 8], [1, 9]):  # the second pair has other GPUs, and the same cards
        groups = pair, Group.of(cluster, other)
        runs = [run_of(group, "16M", instances=4) for group in groups]
        found = simulate_at_once(runs, cluster)
        assert found.min() > 1.8 * alone_us(runs[0])


@pytest.mark.parametrize("name", ["ndv4:2", "mi250x:1"])
def test_calls_at_once_never_exceed_the_links(name: str) -> None:
    cluster = topologies.find(name)
    half = cluster.ranks // 2
    order = np.arange(cluster.ranks).reshape(half, 2)
    groups = [list(range(half)), order[:, 0].tolist(), order[:, 1].tolist()]
    runs = [run_of(Group.of(cluster, ranks), "16M") for ranks in groups]
    found = simulate_at_once(runs, cluster)
    moved = np.zeros(len(cluster.links))
    for run, time_us in zip(runs, found.tolist(), strict=True):
        alone = sley.simulate(run.plan, run.size, run.group.topology)
        moved[run.group.links] += alone.links.moved_bytes
        assert time_us >= alone.time_us * (1 - 1e-9)
    assert found.max() >= (moved / cluster.links.GBps).max() / 1e3


def test_plans_of_several_protocols_are_refused() -> None:
    cluster = Topology.from_links("square", 4, [(0, 1), (2, 3), (1, 2)])
    groups = [Group.of(cluster, ranks) for ranks in ([0, 1], [2, 3])]
    runs = [run_of(g, "1M", protocol=p) for g, p in zip(groups, ("Simple", "LL"), strict=True)]
    for wrong in (runs, []):
        with pytest.raises(SleyError, match="T613"):
            simulate_at_once(wrong, cluster)


def test_groups_of_another_cluster_are_refused() -> None:
    runs = [run_of(Group.of(topologies.find("ndv4:2"), range(8)), "1M")]
    for other in ("ndv4", "dgx-h100:2"):
        with pytest.raises(SleyError, match="T613"):
            simulate_at_once(runs, topologies.find(other))
