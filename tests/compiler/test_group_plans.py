"""Plans of groups that call collectives at the same time."""

from __future__ import annotations

from typing import Any

import pytest

import sley
from sley import GroupCall, Options, Plan, Program, SleyError, topologies
from sley.compiler import Choice, group_plans, tree_search
from sley.compiler.tree_search import Fastest
from sley.ir.cost_model import CostModel
from sley.model.simulation import GroupRun, simulate_at_once
from sley.topologies import grid_groups


@pytest.fixture
def _few_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as these plans have; the page of `sley groups` shows the choice among all."""
    monkeypatch.setattr(group_plans, "_INSTANCES", (1, 4))


@pytest.mark.usefixtures("_few_instances")
def test_groups_that_hinder_one_another_are_planned_together() -> None:
    cluster = topologies.mi250x()
    calls = [GroupCall("allgather", "64M", grid_groups(16, {"tp": 2, "dp": 8})["dp"])]
    found = sley.plan_groups(calls, cluster)
    assert found.time_us.max() < 0.8 * found.apart_us.max()
    assert found.time_us.max() >= found.bound_us
    assert (found.alone_us <= found.apart_us).all()
    runs = [GroupRun(p, g, "64M") for p, g in zip(found.plans, found.groups, strict=True)]
    assert (simulate_at_once(runs, cluster) == found.time_us).all()
    for program, plan in zip(found.programs, found.plans, strict=True):
        assert sley.verify(plan)
        assert program.name == "forest-allgather"


@pytest.mark.usefixtures("_few_instances")
def test_expert_groups_are_planned_beside_tensor_groups() -> None:
    cluster = topologies.mi250x()
    grid = grid_groups(16, {"tp": 4, "ep": 4})
    calls = [GroupCall("allreduce", "4M", grid["tp"]), GroupCall("alltoall", "16M", grid["ep"])]
    found = sley.plan_groups(calls, cluster)
    assert found.bound_us <= found.time_us.max() < 0.8 * found.apart_us.max()
    assert {one.name for one in found.programs} == {"forest-allreduce", "routed-alltoall"}
    alone = sley.plan_groups(calls[1:], cluster)
    assert found.bound_us >= alone.bound_us * (1 - 1e-6)


def test_layers_of_groups_share_links_and_blocks() -> None:
    grid = grid_groups(4, {"tp": 2, "dp": 2})
    calls = [
        GroupCall("allreduce", 1 << 20, grid["tp"]),
        GroupCall("reduce_scatter", "4M", grid["dp"]),
    ]
    found = sley.plan_groups(calls, "2x2", in_place=True)
    assert found.call.tolist() == [0, 0, 1, 1]
    most = [
        max(p.blocks_per_rank for p, c in zip(found.plans, found.call, strict=True) if c == k)
        for k in range(2)
    ]
    assert sum(most) <= CostModel().multiprocessors
    alone = [sley.plan_groups([call], "2x2", in_place=True) for call in calls]
    assert found.bound_us >= max(one.bound_us for one in alone)
    for one in alone:
        assert one.bound_us <= one.time_us.max() <= one.apart_us.max()
        assert one.apart_us == pytest.approx(one.alone_us)  # their groups share no links


def test_plans_of_the_search_are_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, compiled = list[Choice](), list[tuple[Program, Options]]()

    def fastest(*arguments: Any, **words: Any) -> Fastest:
        found = tree_search.fastest(*arguments, **words)
        chosen.append(found.choice)
        return found

    def compile(program: Program, options: Options, **words: Any) -> Plan:
        compiled.append((program, options))
        return sley.compile(program, options, **words)

    monkeypatch.setattr(group_plans, "fastest", fastest)
    monkeypatch.setattr(group_plans, "compile", compile)
    calls = [GroupCall("allreduce", "1M", [[0, 1], [2, 3]])]
    sley.plan_groups(calls, "2x2")
    assert compiled
    assert chosen
    for one in chosen:
        assert (one.program, one.options) not in compiled
        assert sley.compile(one.program, one.options, topology=one.plan.topology) == one.plan


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        ([], "T613"),
        ([GroupCall("allgather", "1M", [])], "T613"),
        ([GroupCall("allgather", "1M", [[0, 1], [1, 2]])], "T613"),
        ([GroupCall("allgather", "1M", [[0, 8]])], "T613"),
        ([GroupCall("allgather", "1M", [[0], [1, 2]])], "T613"),
        ([GroupCall("broadcast", "1M", [[0, 1]])], "T612"),
        ([GroupCall("allgather", "1X", [[0, 1]])], "S702"),
    ],
)
def test_calls_that_do_not_fit_are_refused(calls: list[GroupCall], code: str) -> None:
    with pytest.raises(SleyError, match=code):
        sley.plan_groups(calls, "2x4")
