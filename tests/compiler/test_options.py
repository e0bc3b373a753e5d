"""Refusals of compile, costs and clusters, with their codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sley
from sley.ir.words import Schedule

RING = sley.algorithms.hm_allgather(1, 4, in_place=True)


def code(call: Any) -> str:
    with pytest.raises(sley.SleyError) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "fifo"},
        {"schedule": np.array([1, 2])},
        {"allocate": "states"},
        {"loop_order": "sideways"},
        {"max_blocks": 0},
        {"max_blocks": 1.5},
        {"fusion": "no"},
        {"verify": "no"},
        {"per_chunk": 1},
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    assert code(lambda: sley.compile(RING, **options)) == "C304"


def test_a_topology_of_another_type_is_refused() -> None:
    assert code(lambda: sley.compile(RING, schedule="hpds", topology=1)) == "C307"  # type: ignore[arg-type]


def test_costs_are_those_of_the_topology() -> None:
    with pytest.raises(sley.SleyError, match=r"C304[^E]*'costs'[^E]*model"):
        sley.compile(RING, costs=1)  # type: ignore[call-arg]


def test_an_option_that_is_unknown_is_refused_with_the_one_meant() -> None:
    with pytest.raises(sley.SleyError, match=r"C304[^E]*'instance'[^E]*instances"):
        sley.compile(RING, instance=2)


@pytest.mark.parametrize("options", [{"schedule": "hpds"}, "hpds"])
def test_options_are_a_value(options: Any) -> None:
    assert code(lambda: sley.compile(RING, options)) == "C307"


def test_what_is_given_by_name_goes_before_the_options() -> None:
    options = sley.Options(protocol="ll", instances=4)  # type: ignore[arg-type]
    plan = sley.compile(RING, options, instances=2)
    assert (plan.protocol, plan.collective.chunks) == (sley.Protocol.LL, 2)
    assert options.instances == 4
    assert sley.compile(RING, options, protocol=None).protocol is sley.Protocol.SIMPLE


def test_options_show_what_is_given_as_members() -> None:
    options = sley.Options(schedule="hpds", protocol="ll", instances=4)  # type: ignore[arg-type]
    assert options.given() == {
        "protocol": sley.Protocol.LL,
        "schedule": Schedule.HPDS,
        "instances": 4,
    }
    assert repr(options) == "Options(protocol='LL', schedule='hpds', instances=4)"


@pytest.mark.parametrize(
    ("name", "call"),
    [("mine.py", "sley.load('mine.py')"), ("ring", "algorithms.build('ring', ranks=8)")],
)
def test_a_name_instead_of_a_program_is_told_how_it_becomes_one(name: str, call: str) -> None:
    with pytest.raises(sley.SleyError, match="C307") as caught:
        sley.compile(name)  # type: ignore[arg-type]
    assert call in caught.value.diagnostics[0].remedy


def test_a_program_for_another_kind_of_cluster_is_refused() -> None:
    program = replace(RING, topology="x")  # type: ignore[arg-type]
    assert code(lambda: sley.compile(program)) == "C307"


@pytest.mark.parametrize(
    "make",
    [
        lambda: sley.Topology.from_links("x", 4, [(0, 9)]),
        lambda: sley.Topology.from_links("x", 4, [(0, -1)]),
        lambda: sley.Topology.from_links("x", -1, []),
        lambda: sley.topologies.cluster(2, 8, 3),
        lambda: sley.topologies.cluster(4096, 4096),
        lambda: sley.topologies.cluster(0, 8),
    ],
)
def test_clusters_whose_numbers_dont_fit_are_refused(make: Any) -> None:
    assert code(make) == "C308"


def test_a_limit_that_does_not_bind_changes_nothing() -> None:
    program = sley.algorithms.hm_allreduce(2, 4, in_place=True)
    plain, limited = (sley.compile(program, schedule="hpds", max_blocks=n) for n in (None, 999))
    assert plain.instructions == limited.instructions
    assert plain.waits == limited.waits


def test_state_never_makes_a_limited_plan_worse_than_it_alone() -> None:
    program = sley.algorithms.hm_allreduce(2, 4, nics=2, in_place=True)
    for limit in (2, 4, 6):
        times = []
        for allocate in ("state", "connection"):
            plan = sley.compile(program, schedule="hpds", allocate=allocate, max_blocks=limit)
            assert plan.estimate is not None
            assert np.bincount(plan.block_rank).max() <= limit
            times.append(plan.estimate.time_us)
        assert times[0] <= times[1]


def test_cards_follow_the_gpus_where_each_has_its_own() -> None:
    text = sley.algorithms.resccl_text("hm-allgather")
    own = sley.rescclang.parse(text, nRanks=8, GPUPerNode=4)
    assert own.topology is not None
    assert len(set(own.topology.nic.tolist())) == 8
    shared = text.replace("NICPerNode=8", "NICPerNode=2")
    kept = sley.rescclang.parse(shared, nRanks=8, GPUPerNode=4)
    assert kept.topology is not None
    assert len(set(kept.topology.nic.tolist())) == 4
