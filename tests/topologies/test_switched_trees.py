"""AllReduces along trees of nodes whose switches reduce and multicast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import SleyError, Topology, topologies
from sley.compiler import tree_search
from sley.compiler.synthesis import Synthesis, through_switches
from sley.compiler.tree_search import fastest
from sley.engine.devices import Executor, ThreadsDevice
from sley.ir.fabric import LinkKind
from sley.ir.groups import without_groups
from sley.ir.tables import NONE
from sley.ir.words import Op
from sley.model.bounds import Bounds
from sley.model.simulation import Simulator
from sley.topologies.rates import RankPairs, tree_rates
from support.generators.examples import examples
from support.generators.fabrics import switched_topologies
from topologies.test_forests import check_trees


def nvls(nodes: int, gpus: int, cards: int | None = None) -> Topology:
    return replace(Topology.cluster(nodes, gpus, cards), in_network=True)


def made_for(topology: Topology, **options: float) -> Synthesis:
    return through_switches(topology, **options)[-1]


def relayed() -> Topology:
    """Nodes with slow switches, of which one has lost a card: its GPU's data passes others."""
    plain = nvls(2, 3)
    rates = np.where(plain.links.kind == LinkKind.NVLINK, 30.0, plain.links.GBps)
    return replace(plain, links=replace(plain.links, GBps=rates)).without("nic1@0")


@given(switched_topologies(), st.integers(0, 3), st.booleans())
@examples(15)
def test_switched_trees_are_right(plain: Topology, lost: int, in_place: bool) -> None:
    """Each tree has a head in every node, the links carry what the simulator counts, and the sums
    are proven, through switches and without."""
    topology = replace(plain, in_network=True)
    if not topology.has_switches:
        assert through_switches(topology) == []
        return
    try:
        topology = topology.without(f"nic{lost}@0")
        found = through_switches(topology)
    except SleyError as error:  # no such card, or no trees without it
        assert error.code in ("T603", "T608", "T612")
        found = through_switches(topology) if error.code == "T608" else []
    for made in found[-1:]:
        down = made.parts[-1]
        check_trees(down)
        node = topology.node
        for parent in down.parent:
            outside = (parent == NONE) | (node[np.maximum(parent, 0)] != node)
            assert np.bincount(node[outside]).tolist() == [1] * topology.nodes
            heads = np.flatnonzero(outside)[node[np.flatnonzero(outside)].argsort()]
            assert (parent[~outside] == heads[node[~outside]]).all()
        rate = tree_rates(RankPairs.through_switches(topology), (False,), None).algbw_GBps
        assert made.algbw_GBps <= rate * (1 + 1e-6)
        bounds = Bounds.of(sley.AllReduce(topology.ranks), topology)
        assert rate <= bounds.algbw_GBps * (1 + 1e-6)
        program = made.program(in_place=in_place)
        plan = sley.compile(program, topology=topology, protocol="Direct")
        sley.verify(without_groups(plan))
        # With fast blocks and memories, nothing but links takes time.
        fast = {f"{what}_block_GBps": 1e6 for what in ("nvlink", "pcie", "network", "local")}
        model = replace(topology.model, **fast, memory_GBps=1e7)
        least = Simulator(plan, replace(topology, model=model)).least
        assert made.algbw_GBps == pytest.approx(1e-3 / least.us_per_byte)


@pytest.mark.parametrize(
    ("topology", "share"),
    [
        (topologies.dgx_h100_nvls(1), 1.0),
        (topologies.dgx_h100_nvls(2), 0.946),
        (topologies.dgx_h100_nvls(4), 1.0),
        (topologies.dgx_h100_nvls(2).without("nic3@0"), 0.95),
        (topologies.dgx_h100_nvls(4).without("nic3@0"), 0.95),
        (topologies.find("gb200-nvl72"), 1.0),
        (topologies.find("gb200-nvl72:2"), 0.94),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else "",
)
def test_link_loads_are_near_the_bound(topology: Topology, share: float) -> None:
    bounds = Bounds.of(sley.AllReduce(topology.ranks), topology)
    assert made_for(topology).algbw_GBps >= share * bounds.algbw_GBps * (1 - 1e-6)


def test_switches_are_used_where_they_help() -> None:
    """Two GPUs exchange sums as well without: the switch would read and write their own data."""
    assert Synthesis.of("allreduce", nvls(1, 8)).switched
    assert not Synthesis.of("allreduce", nvls(1, 8), switches=False).switched
    assert not Synthesis.of("allreduce", nvls(1, 2)).switched
    assert not Synthesis.of("allgather", nvls(1, 8)).switched
    assert sley.synthesize("allreduce", nvls(1, 4)).transfers.group.max() >= 0
    assert sley.synthesize("allreduce", nvls(1, 4), switches=False).transfers.group.max() < 0


@pytest.mark.parametrize(("in_place", "protocol"), [(True, "Simple"), (False, "Direct")])
def test_switched_trees_run(in_place: bool, protocol: str) -> None:
    """Between processes, and with switches as threads imitate them; heads wait for the sums of
    GPUs that pass on data for one without a card."""
    topology = relayed()
    made = made_for(topology)
    depth = made.parts[-1].depth
    assert depth.max() > 2, "no rank but a head passes data on"
    program = made.program(in_place=in_place)
    plan = sley.compile(program, topology=topology, protocol=protocol)
    (row,) = sley.run(plan, "48K", dtype="int32")
    assert row.wrong == 0
    sums = Executor(plan, [ThreadsDevice()] * plan.collective.ranks)
    data = [np.full(made.chunks * 100, 1 << rank, np.int32) for rank in range(6)]
    outputs = data if in_place else [np.zeros_like(one) for one in data]
    sums(data) if in_place else sums(data, outputs)
    assert all((one == (1 << 6) - 1).all() for one in outputs)


def test_the_fastest_plan_uses_switches_for_large_sizes() -> None:
    """On 4 GPUs trees are as fast, with Direct."""
    cluster = nvls(1, 8)
    found = fastest("allreduce", cluster, 1 << 30, in_place=True)
    large, choice = found.synthesis, found.choice
    assert large.switched
    assert len(choice.plan.grouped)
    bounds = Bounds.of(sley.AllReduce(8), cluster)
    assert choice.end.algbw_GBps >= 0.9 * bounds.algbw_GBps
    small = fastest("allreduce", cluster, 1 << 10, in_place=True).synthesis
    assert not small.switched


def test_switches_that_are_no_numbers_of_ranks_are_refused() -> None:
    for wrong in ([0], [0, "1"], [0.5, 0]):
        with pytest.raises(SleyError, match="L138"):
            sley.algorithms.forest_allreduce(2, switches=wrong)


def test_late_announcements_delay_no_early_ones() -> None:
    """In a block that only sends, all instructions wait for sums of other ranks, or none does."""
    topology = relayed()
    plan = sley.compile(made_for(topology).program(in_place=True), topology=topology)
    t, waits = plan.instructions, np.diff(plan.waits.offset) > 0
    announcing = [
        {bool(one) for one in waits[rows]}
        for block in range(len(plan.block_rank))
        if (t.op[rows := np.flatnonzero(plan.block == block)] == Op.SEND).all() and len(rows) > 1
    ]
    assert {True} in announcing or {False} in announcing
    assert {True, False} not in announcing


def test_a_file_without_switches_takes_other_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """MSCCL++ passes nothing through switches of several nodes."""
    few = {"instances": 1, "schedule": "msccl", "protocol": ["Simple"]}
    monkeypatch.setattr(tree_search, "COMPARED", {**tree_search.COMPARED, **few})
    topology = topologies.find("dgx-h100-nvls:2")
    found = fastest("allreduce", topology, 1 << 24, in_place=True, target="mscclpp")
    assert not found.synthesis.switched
    programs = [one.program(in_place=True) for one in through_switches(topology)]
    with pytest.raises(SleyError, match="F438"):
        sley.choose(programs, 1 << 24, topology, target="mscclpp", **few)
