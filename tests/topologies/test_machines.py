"""Tests of the machines that sley includes: their structure, and bounds on them."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

import sley
from sley import topologies
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Topology
from sley.topologies.machine import machine_tables

NAMES = topologies.machine_names()


def rows(topology: Topology) -> list[tuple[float, ...]]:
    """The links in sorted order."""
    columns = [getattr(topology.links, name) for name in topology.links.column_names()]
    return sorted(map(tuple, np.column_stack(columns).tolist()))


def holds_allgather(topology: Topology, algbw: float, column: str) -> bool:
    """Whether all GPUs can receive all data at this rate: no cut is narrower (ForestColl)."""
    scale = 1000
    n, links = len(topology.vertices), topology.links
    share = int(algbw * scale / topology.ranks)
    rank = np.arange(topology.ranks)
    src = np.concatenate([links.src, np.full(topology.ranks, n)])
    dst = np.concatenate([links.dst, rank])
    rate = (getattr(links, column) * scale).astype(int)
    capacity = np.concatenate([rate, np.full(topology.ranks, share)]).astype(np.int32)
    graph = csr_array((capacity, (src, dst)), shape=(n + 1, n + 1))
    wanted = share * topology.ranks
    return all(maximum_flow(graph, n, int(v)).flow_value >= wanted for v in rank)


# Algorithm bandwidths of AllGather with nominal and reached rates, calculated by hand.
WORKED = [
    ("ndv4", 342.9, 262.9),
    ("resccl-4gpu:2", 200, 192),
    ("resccl:2", 200, 192),
    ("resccl-4gpu:4", 133.3, 128),
    ("resccl:4", 133.3, 128),
    ("ndv4:2", 346.7, 270.9),
    ("ndv4:4", 266.7, 256),
    ("ndv5:2", 533.3, None),
    ("dgx2:2", 180.7, None),
]


@pytest.mark.parametrize(("name", "nominal", "reached"), WORKED)
def test_allgather_reaches_the_worked_bound_and_no_more(
    name: str, nominal: float, reached: float | None
) -> None:
    topology = topologies.find(name)
    for value, column in ((nominal, "nominal_GBps"), (reached, "GBps")):
        if value is not None:
            assert holds_allgather(topology, value * 0.9995, column)
            assert not holds_allgather(topology, value * 1.0005, column)


def test_gpus_of_an_architecture_have_its_multiprocessors() -> None:
    """As data sheets have them, and CUDA shows for B200 and GB200."""
    held = {70: {80}, 80: {108}, 90: {132}, 100: {148, 152}, 103: {148, 152}}
    held |= {910: {110}, 942: {304}, 950: {256}}
    for name in NAMES:
        model = topologies.find(name).model
        assert model.multiprocessors in held[int(model.architecture)], name
    assert topologies.find("one-h100:8").model.multiprocessors == 16


@pytest.mark.parametrize("name", NAMES)
def test_each_machine_has_a_function_and_sources(name: str) -> None:
    function = getattr(topologies, name.replace("-", "_"))
    assert function() == topologies.find(name) == topologies.machine(name)
    assert function(nodes=2) == topologies.find(f"{name}:2")
    assert function().name == name
    assert function(2).name == f"{name}:2"
    machine = topologies.find_machine(name)
    assert machine.name == name
    assert machine.description
    tables = machine_tables()[name]
    own = {key for key, value in tables.items() if isinstance(value, dict)}
    assert own <= set(machine.sources)


def test_only_machines_have_functions_which_describe_them() -> None:
    assert topologies.ndv4.__doc__ == topologies.find_machine("ndv4").description
    assert pickle.loads(pickle.dumps(topologies.dgx_a100)) is topologies.dgx_a100
    assert {name.replace("-", "_") for name in NAMES} == set(topologies._MACHINES)
    assert set(topologies._MACHINES) < set(dir(topologies))
    for name in ("ndv44", "dgx-a100"):
        with pytest.raises(AttributeError, match=name):
            getattr(topologies, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [1, 3])
def test_every_rank_reaches_its_card_and_the_other_nodes(name: str, nodes: int) -> None:
    topology = topologies.machine(name, nodes)
    machine = topologies.find_machine(name)
    kind = topology.vertices.kind
    assert topology.nodes == nodes
    assert topology.ranks == nodes * machine.node.gpus
    assert (topology.node == np.arange(topology.ranks) // machine.node.gpus).all()
    if nodes == 1:
        assert not (kind >= VertexKind.NIC).any()
        assert not (topology.links.kind == LinkKind.NETWORK).any()
        return
    cards = min(len(machine.node.cards), machine.node.gpus)  # several cards of a GPU are one
    assert (kind == VertexKind.NIC).sum() == cards * nodes
    assert (topology.nic == np.arange(topology.ranks) * cards // machine.node.gpus).all()
    other = topology.node[:, None] != topology.node
    assert topology.linked[other].all()


def test_ndv4_equals_the_cluster_of_8_gpus_a_node() -> None:
    machine, cluster = topologies.ndv4(3), Topology.cluster(3, 8)
    assert machine.vertices == cluster.vertices
    assert rows(machine) == rows(cluster)


@pytest.mark.parametrize("name", ["dgx1", "ndv2"])
def test_each_gpu_of_a_hybrid_cube_mesh_has_six_links_to_four_gpus(name: str) -> None:
    one = topologies.find(name)
    assert np.bincount(one.links.src, one.links.nominal_GBps).tolist() == [6 * 25.0] * 8
    assert one.linked.sum(axis=1).tolist() == [4] * 8
    assert not one.linked[0, 5]
    two = topologies.machine(name, 2)
    assert (two.linked[:8, :8] == one.linked).all()


def test_both_hybrid_cube_meshes_have_two_double_links_a_gpu() -> None:
    def doubles(name: str) -> list[int]:
        t = topologies.find(name).links
        return np.bincount(t.src[t.nominal_GBps > 25]).tolist()

    assert doubles("dgx1") == doubles("ndv2") == [2] * 8


def test_mi250x_has_seven_links_a_die() -> None:
    t = topologies.mi250x().links
    fast = t.kind == LinkKind.NVLINK
    assert np.bincount(t.src[fast], t.nominal_GBps[fast]).tolist() == [350.0] * 16
    assert topologies.mi250x().linked.sum() == 16 * 15


def test_a_plan_synthesised_for_mi250x_uses_its_direct_links(data_dir: Path) -> None:
    """TE-CCL's AllGather sends within a node mostly over xGMI, so the dies' order is the same."""
    plan = sley.load(data_dir / "msccl-xml" / "amd_32.xml")
    peer = plan.instructions.send_peer
    used = peer >= 0
    src, dst = plan.rank[used], peer[used]
    topology = topologies.mi250x(2)
    inside = topology.node[src] == topology.node[dst]
    paths = topology.paths(src[inside], dst[inside])
    direct = np.diff(paths.offset) == 1
    assert direct.mean() > 0.9


def test_dgx2_crosses_its_boards_over_both_switches() -> None:
    topology = topologies.dgx2()
    assert np.diff(topology.paths([0, 0], [7, 8]).offset).tolist() == [2, 3]


def test_each_rack_has_a_switch_below_the_spine() -> None:
    def network(nodes: int) -> int:
        kind = topologies.resccl(nodes).vertices.kind
        return int((kind == VertexKind.NETWORK).sum())

    assert [network(n) for n in (2, 3, 4, 5)] == [1, 3, 3, 4]
    # PCIe, the card, a switch and the other card; to another rack, two more switches.
    hops = np.diff(topologies.resccl(4).paths([0, 0, 8, 16], [8, 16, 16, 24]).offset)
    assert hops.tolist() == [4, 6, 6, 4]


def test_machines_that_reduce_in_switches_differ_only_in_the_flag() -> None:
    plain, reducing = topologies.ndv5(2), topologies.ndv5_nvls(2)
    assert (plain.in_network, reducing.in_network) == (False, True)
    assert (plain.vertices, plain.links) == (reducing.vertices, reducing.links)
    assert plain.model == reducing.model
    assert plain.model.nvlink_block_GBps == 36.7


def test_a_thousand_gpus_are_built_in_well_under_a_second() -> None:
    topologies.find_machine("ndv4")
    start = time.process_time()
    topology = topologies.ndv4(128)
    assert time.process_time() - start < 0.5
    assert topology.ranks == 1024


@pytest.mark.parametrize(
    ("name", "neighbours"),
    [("mesh:3x3", 24), ("torus:3x3", 36), ("torus:4x4x4", 384), ("torus:2x2", 8), ("mesh:5", 8)],
)
def test_grids_link_only_neighbours(name: str, neighbours: int) -> None:
    topology = topologies.find(name)
    assert topology.name == name
    assert topology.linked.sum() == len(topology.links) == neighbours


def test_ranks_may_share_a_gpu() -> None:
    topology = topologies.find("one-h100:4")
    assert topology.shared_memory
    assert (topology.ranks, topology.model.runs) == (4, 1)


def test_ranks_of_grids_count_row_by_row() -> None:
    linked = topologies.mesh(2, 3).linked
    assert np.flatnonzero(linked[1]).tolist() == [0, 2, 4]
    linked = topologies.torus(3, 4).linked
    assert np.flatnonzero(linked[0]).tolist() == [1, 3, 4, 8]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_all_gpus_is_the_machine(name: str) -> None:
    whole = topologies.find(f"{name}:2")
    part = topologies.find(f"2x{whole.ranks // 2},like={name}")
    assert replace(part, name=whole.name) == whole


@pytest.mark.parametrize(
    ("name", "links", "cards"),
    [
        ("dgx-h100", 4 * 2, [0, 1, 2, 3]),  # to a switch
        ("resccl", 4 * 2, [0, 0, 1, 1]),  # two GPUs share a card
        ("p5", 4 * 2, [0, 1, 2, 3]),  # four cards of a GPU are one
        ("dgx1", 6 * 2, [0, 0, 1, 1]),  # a mesh: the links between these GPUs
    ],
)
def test_a_part_has_the_links_and_cards_of_its_gpus(
    name: str, links: int, cards: list[int]
) -> None:
    part, whole = topologies.find(f"2x4,like={name}"), topologies.find(f"{name}:2")
    nvlink = part.links.kind == LinkKind.NVLINK
    assert (part.ranks, part.nodes, nvlink.sum()) == (8, 2, 2 * links)
    assert part.nic.tolist() == [card + base for base in (0, cards[-1] + 1) for card in cards]
    assert part.model == whole.model
    rates = [set(zip(of.links.kind, of.links.GBps, strict=True)) for of in (part, whole)]
    assert rates[0] <= rates[1]


@pytest.mark.parametrize(
    ("name", "code", "remedy"),
    [
        ("ndv44:2", "T604", "ndv4"),
        ("dgx-h10", "T604", "dgx-h100"),
        ("taurus:3x3", "T604", ""),
        ("", "T604", ""),
        ("ndv4:0", "C308", "number of nodes in this range"),
        ("x.txt:2,like=ndv4", "T604", "x.txt,like=ndv4:2"),
        ("1x6,like=ndv55", "T604", ""),
        ("1x9,like=ndv5", "C308", "a number in this range"),
        ("1x6,like=ndv5:2", "T604", ""),
        ("ndv4:9999", "C308", ""),
        ("ndv4:-1", "T604", "ndv4"),
        ("0x8", "C308", ""),
        ("2x8:3", "C308", ""),
        ("mesh:0x3", "C308", ""),
        ("routed-torus:0x4", "C308", "along each dimension"),
        ("torus:999x999", "C308", ""),
        ("there-is-none.toml", "T605", ""),
    ],
)
def test_an_unknown_topology_is_refused_with_a_suggestion(
    name: str, code: str, remedy: str
) -> None:
    with pytest.raises(sley.SleyError) as caught:
        topologies.find(name)
    assert caught.value.code == code
    assert remedy in caught.value.diagnostics[0].remedy
