"""Tests that every algorithm compiles to a plan that the verifier proves, with all options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import CATALOG
from sley.ir.words import WRITES_DESTINATION, Buffer
from support.inputs.algorithm_cases import few, in_turn, label, program

SLOTS = (1, 2, 8)
WAYS = [(fusion, instances) for fusion in (True, False) for instances in (1, 2)]


@pytest.mark.parametrize(
    ("name", "parameters", "turn"),
    few(in_turn(range(len(WAYS))), in_pairs=True),
    ids=label,
)
def test_every_algorithm_compiles_to_a_correct_plan(
    name: str, parameters: dict[str, Any], turn: int
) -> None:
    built = program(name, parameters)
    assert built.name == name
    for slots, (fusion, instances) in zip(SLOTS, WAYS[turn:] + WAYS[:turn], strict=False):
        options = {"slots": slots, "fusion": fusion, "instances": instances}
        plan = sley.compile(built, **options, verify=False)
        sley.verify(plan)
        if not parameters["in_place"]:
            t = plan.instructions
            written = WRITES_DESTINATION[t.op]
            assert not np.any(t.dst_buffer[written] == Buffer.INPUT), "the caller's input changes"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("all-pairs-alltoall", {"ranks": 16}),
        ("double-binary-tree-allreduce", {"ranks": 17}),
        ("hierarchical-allreduce", {"nodes": 4, "gpus": 4}),
        ("recursive-halving-doubling-allreduce", {"ranks": 24}),
        ("three-step-alltoall", {"nodes": 4, "gpus": 4}),
        ("two-level-allgather", {"nodes": 4, "gpus": 4}),
        ("two-level-allreduce", {"nodes": 4, "gpus": 4}),
        ("two-level-broadcast", {"nodes": 4, "gpus": 4}),
        ("two-level-reducescatter", {"nodes": 4, "gpus": 4}),
        ("two-step-alltoall", {"nodes": 4, "gpus": 4}),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_algorithms_are_correct_on_larger_clusters(
    name: str, parameters: dict[str, Any], in_place: bool
) -> None:
    sley.compile(program(name, {**parameters, "in_place": in_place}))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("all-pairs-allreduce", {"ranks": 4}),
        ("all-pairs-reduce", {"ranks": 4}),
        ("two-level-allreduce", {"nodes": 2, "gpus": 3}),
        ("two-level-allgather", {"nodes": 2, "gpus": 3}),
        ("two-level-reduce", {"nodes": 2, "gpus": 3}),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_stages_with_different_channels_share_no_block(
    name: str, sizes: dict[str, int], in_place: bool
) -> None:
    """Otherwise the first stage of a tile would wait for the second stage of the tile before."""
    built = sley.algorithms.build(name, **sizes, stage_channels=(0, 1), in_place=in_place)
    plan = sley.compile(built)
    used = plan.instructions.channel >= 0
    stages = [set(plan.block[used & (plan.instructions.channel == c)].tolist()) for c in (0, 1)]
    assert all(stages)
    assert not stages[0] & stages[1]


@pytest.mark.parametrize("name", ["ring-allreduce", "ring-allgather", "ring-reducescatter"])
@pytest.mark.parametrize("channels", [1, 2, 3, 9])
def test_a_ring_uses_all_its_channels(name: str, channels: int) -> None:
    for ranks in (3, 8):
        plan = sley.compile(sley.algorithms.build(name, ranks=ranks, channels=channels))
        assert plan.channels == min(channels, ranks)


def test_phases_of_hierarchical_allreduce_have_their_channels_and_instances() -> None:
    built = sley.algorithms.hierarchical_allreduce(2, 4, node_instances=2, in_place=True)
    t = built.transfers
    within = t.src // 4 == t.dst // 4
    assert set(t.channel[within]) == {0, 2}
    assert set(t.channel[~within]) == {1}
    assert set(t.instances[within]) == {2}
    assert set(t.instances[~within]) == {1}
    assert sley.compile(built).channels == 5


@pytest.mark.parametrize("name", [name for name, a in CATALOG.items() if "root" in a.parameters])
@pytest.mark.parametrize("in_place", [False, True])
def test_algorithms_with_a_root_are_correct_for_every_root(name: str, in_place: bool) -> None:
    sizes = {"nodes": 3, "gpus": 2} if "nodes" in CATALOG[name].parameters else {"ranks": 6}
    for root in range(6):
        built = sley.algorithms.build(name, **sizes, root=root, in_place=in_place)
        assert built.collective.root == root
        sley.compile(built)


@pytest.mark.parametrize("in_place", [False, True])
def test_sccl_allgather_uses_only_links_of_a_dgx1(in_place: bool) -> None:
    built = sley.algorithms.sccl_allgather_dgx1(in_place=in_place)
    sley.compile(built, topology=sley.topologies.dgx1())
    t = built.transfers
    link = (t.src * 8 + t.dst)[t.src != t.dst]
    _, times = np.unique(link, return_counts=True)
    assert len(times) == 8 * 4
    assert sorted(set(times.tolist())) == [1, 2], "one chunk over a link in each of two rounds"
