"""NCCL's own choice: its estimates computed by hand, and what it chooses by size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import Protocol, SleyError, Topology, topologies
from sley.algorithms import CATALOG, build
from sley.communicator.selection.policy import program_of
from sley.compiler import nccl_plan
from sley.ir.sizes import checked_size
from sley.model.nccl import choice as nccl
from sley.model.nccl.choice import NcclAlgorithm, as_run, tiled
from sley.model.nccl.graphs import Graph, MachineView
from sley.model.nccl.runs import NcclRuns
from sley.topologies import link_rings
from sley.tuning.arms import recipe_of

PROTOCOLS = nccl.PROTOCOLS
LL, LL128, SIMPLE = PROTOCOLS
RING, TREE, P2P = NcclAlgorithm.RING, NcclAlgorithm.TREE, NcclAlgorithm.P2P
MB = 2**20

CLUSTERS: dict[str, Callable[[], Topology]] = {
    "ndv4:1": topologies.ndv4,
    "dgx2:1": topologies.dgx2,
    "ndv4:2": lambda: topologies.ndv4(2),
    "resccl:4": lambda: topologies.resccl(4),
    "ndv5:2": lambda: topologies.ndv5(2),
}
SINGLE = topologies.cluster(4, 1)


def us(
    topology: Topology,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
    size: int = 64 * MB,
    collective: str = "allreduce",
) -> float:
    choice = nccl.forced(collective, topology, size, algorithm, protocol)
    assert choice is not None
    assert choice.predicted_us is not None
    return choice.predicted_us


@pytest.mark.parametrize(
    ("name", "graph", "channels"),
    [
        ("ndv4:1", (12, 20), 24),
        ("ndv5:1", (12, 30), 24),
        ("dgx2:1", (6, 20), 12),
        ("dgx1:1", (6, 20), 12),
        ("pcie-8:1", (1, 15), 2),
        ("mi300x:1", (7, 48), 56),
        ("ndv4:2", (8, 24), 16),
        ("ndv5:2", (8, 45), 16),
        ("resccl:4", (4, 24), 8),
        ("2x8:1", (1, 24), 2),
    ],
)
def test_a_machine_has_as_many_rings_as_nccl_makes(
    name: str, graph: tuple[int, float], channels: int
) -> None:
    view = MachineView.of(topologies.find(name))
    assert view.rings == Graph(graph[0], graph[1], graph[1])
    assert view.channels == channels


def test_few_fast_rings_of_newer_gpus_are_duplicated() -> None:
    """Four cards of 400 Gb/s and H100s: 4 rings of 48 GB/s become 8 of 24."""
    model = topologies.ndv5().model
    rates = {"nvlink_GBps": (450.0, 370.0), "nic_GBps": (50.0, 48.5)}
    view = MachineView.of(Topology.cluster(2, 8, 4, model=model, **rates))
    assert view.rings == Graph(8, 24, 24)
    assert view.channels == 16
    six = MachineView.of(Topology.cluster(2, 6, model=model, **rates))
    assert six.rings == Graph(6, 48, 48)
    assert six.channels == 24, "four for each ring"


def test_trees_on_two_nodes_are_faster_within_the_nodes() -> None:
    """At the busiest of 8 A100s 7 of 8 trees forward: 7 x 30 GB/s fit its 240, 7 x 48 don't."""
    assert MachineView.of(topologies.ndv4(2)).trees == Graph(8, 30, 24)
    assert MachineView.of(topologies.ndv4()).trees == Graph(12, 20, 20)


def test_trees_may_be_faster_than_rings() -> None:
    """On H100s 8 rings of 48 GB/s need more than a GPU's 370.8, 8 trees only 7 x 48."""
    assert MachineView.of(topologies.ndv5(2)).trees == Graph(8, 48, 48)


def test_rings_on_one_node_take_the_times_computed_by_hand() -> None:
    moved, a100 = 64 * MB * 14 / 8 / 1e3, topologies.ndv4()
    assert us(a100, RING, SIMPLE) == pytest.approx(8.4 + 14 * 3.4 + moved / 240)
    assert us(a100, RING, LL128) == pytest.approx(14 + 14 * 1.9 + moved / (0.92 * 240))
    assert us(a100, RING, LL) == pytest.approx(6.6 + 14 * 0.6 + moved / 87.7)
    assert us(topologies.ndv5(), RING, LL) == pytest.approx(6.6 + 14 * 0.6 + moved / 141)
    gathered = us(a100, RING, SIMPLE, collective="allgather")
    assert gathered == pytest.approx(8.4 + 7 * 3.4 + moved / 2 / 240)
    assert us(a100, RING, SIMPLE, collective="reducescatter") == gathered


def test_rings_on_two_nodes_take_the_times_computed_by_hand() -> None:
    """Hops within nodes take at least the network's overhead, 2 us with AMD's processors."""
    moved, four_cards = 64 * MB * 30 / 16 / 1e3, topologies.cluster(2, 8, 4)
    simple = us(four_cards, RING, SIMPLE)
    assert simple == pytest.approx(1.4 * (8.4 + 28 * 6 + 2 * 14) + moved / 96)
    assert us(four_cards, RING, LL) == pytest.approx(6.6 + 28 * 2 + 2 * 2.7 + moved / 22.5)
    assert us(four_cards, RING, LL128) == pytest.approx(
        14 + 28 * 2 + 2 * 4 + moved / min(0.92 * 96, 4 * 20)
    )
    intel = us(topologies.ndv5(2), RING, LL)
    assert intel == pytest.approx(6.6 + 28 * 1 + 2 * 2.7 + moved / 39)
    more = us(topologies.cluster(3, 8, 4), RING, LL)
    assert more == pytest.approx(6.6 + 42 * 2 + 4 * 2.7 + 64 * MB * 46 / 24 / 19e3)


def test_the_plateau_of_simple_begins_at_64_bytes_for_each_channel_and_rank() -> None:
    cluster = topologies.ndv4(2)
    size = 64 * 16 * 16
    below, above = (us(cluster, RING, SIMPLE, n) for n in (size - 1, size))
    assert above - below == pytest.approx(0.4 * (8.4 + 28 * 6 + 2 * 14), rel=1e-3)


def test_trees_take_the_times_computed_by_hand() -> None:
    """64 MB are 2**20 times 64 bytes; the share of a tree's bandwidth at that power, 20."""
    a100, two = topologies.ndv4(), topologies.ndv4(2)
    data, bus = 2 * 64 * MB / 1e3, 0.92 * 240
    assert us(a100, TREE, SIMPLE) == pytest.approx(8.4 + 14 * 4 + data / (0.8 * bus))
    assert us(a100, TREE, LL128) == pytest.approx(14 + 14 * 1.25 + data / (0.9 * bus * 7 / 9))
    assert us(a100, TREE, LL) == pytest.approx(6.8 + 14 * 0.6 + data / (bus / 3.8))
    capped = 8 * 23.6
    assert us(two, TREE, SIMPLE) == pytest.approx(8.4 + 14 * 4 + 2 * 14 + data / (0.8 * capped))
    assert us(two, TREE, LL128) == pytest.approx(14 + 14 * 1.25 + 2 * 8.5 + data / (0.9 * 160))
    assert us(two, TREE, LL) == pytest.approx(6.8 + 14 * 0.6 + 2 * 5 + data / 22.5)


def test_a_tree_reaches_a_smaller_share_of_its_bandwidth_at_medium_sizes() -> None:
    """0.4 at 256 KB (2**12 times 64 bytes) and 1 from 32 MB up with LL; 1 below 64 bytes."""
    a100 = topologies.ndv4()
    bus, latency = 0.92 * 240 / 3.8, 6.8 + 14 * 0.6
    for size, share in ((63, 1), (2**18, 0.4), (2**25, 1), (2**30, 1)):
        found = us(a100, TREE, LL, size)
        assert found == pytest.approx(latency + 2 * size / (share * bus * 1e3)), size


def test_nodes_of_single_gpus_take_the_latency_of_trees_in_the_network() -> None:
    ring = us(SINGLE, RING, LL, 64)
    assert ring == pytest.approx(6.6 + 6 * 5 + 64 * 6 / 4 / 12e3)
    tree = us(SINGLE, TREE, LL, 64)
    assert tree == pytest.approx(6.8 + 2 * 2 * 5 + 2 * 64 / (0.85 * 17.8 / 3.8 * 1e3))


def test_rings_of_broadcast_and_reduce_take_the_times_computed_by_hand() -> None:
    """One hop where all rings visit the GPUs in one order, else a hop for each rank."""
    data, a100, two = 64 * MB / 1e3, topologies.ndv4(), topologies.ndv4(2)
    for collective in ("broadcast", "reduce"):
        one = us(a100, RING, SIMPLE, collective=collective)
        assert one == pytest.approx(8.4 + 3.4 + data / 240)
        many = us(two, RING, LL, collective=collective)
        assert many == pytest.approx(6.6 + 16 * 2.7 + data / 22.5)
        chunked = us(two, RING, SIMPLE, collective=collective)
        assert chunked == pytest.approx(8.4 + 16 * 14 + data / 192)


def test_what_nccl_does_not_use_cannot_be_forced() -> None:
    a100, pcie = topologies.ndv4(), topologies.pcie_8()
    assert nccl.forced("allgather", a100, "1M", TREE, LL) is None
    assert nccl.forced("allreduce", pcie, "1M", RING, LL128) is None
    assert nccl.forced("allreduce", a100, "1M", P2P, LL) is None
    assert nccl.forced("alltoall", a100, "1M", RING, LL) is None


def steps(collective: str, cluster: str) -> list[tuple[NcclAlgorithm, Protocol]]:
    """The algorithms and protocols that are chosen from 1 KB to 1 GB, in order."""
    topology = CLUSTERS[cluster]()
    choices = [nccl.default(collective, topology, 2**power) for power in range(10, 31)]
    return [key for key, _ in groupby((c.algorithm, c.protocol) for c in choices)]


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_rings_go_from_ll_over_ll128_to_simple_as_sizes_grow(collective: str, cluster: str) -> None:
    assert steps(collective, cluster) == [(RING, LL), (RING, LL128), (RING, SIMPLE)]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_allreduce_goes_from_ll_to_simple_and_on_several_nodes_from_trees_to_rings(
    cluster: str,
) -> None:
    rings = [(RING, LL128), (RING, SIMPLE)]
    one = cluster.endswith(":1")
    assert steps("allreduce", cluster) == (
        [(RING, LL), *rings] if one else [(TREE, LL), (TREE, LL128), *rings]
    )


def test_nccl_has_24_instances_of_one_ring_on_8_a100s() -> None:
    """MSCCLang 7.1.1; with fewer bytes NCCL uses fewer: 512 threads of 8 bytes a rank with LL."""
    a100 = topologies.ndv4()
    large = nccl.default("allreduce", a100, "256M")
    assert (large.program, large.instances, large.protocol) == ("ring-allreduce", 24, SIMPLE)
    few = {size: nccl.default("allreduce", a100, size).channels for size in ("1K", "95K", "96K")}
    assert few == {"1K": 1, "95K": 2, "96K": 3}


def test_the_estimate_is_that_of_the_choice() -> None:
    choice, two = nccl.default("allreduce", topologies.ndv4(2), "1M"), topologies.ndv4(2)
    assert choice == nccl.forced("allreduce", two, MB, choice.algorithm, choice.protocol)
    assert choice.predicted_us == min(us(two, a, p, MB) for a in (RING, TREE) for p in PROTOCOLS)


def test_rings_over_all_cards_count_as_rings_of_a_multi_ring_algorithm() -> None:
    two = nccl.default("allgather", topologies.ndv4(2), "256M")
    assert (two.program, two.channels, two.instances) == ("multi-ring-allgather", 16, 2)
    four = nccl.default("allreduce", topologies.resccl(4), "256M")
    assert (four.program, four.channels, four.instances) == ("multi-ring-allreduce", 8, 1)
    small = nccl.default("allgather", topologies.ndv4(2), "1K")
    assert (small.program, small.instances) == ("ring-allgather", 1)
    card = nccl.default("allgather", topologies.cluster(2, 8, 1), "256M")
    assert (card.program, card.instances) == ("ring-allgather", 2)


@pytest.mark.parametrize("channels", [2, 5, 11])
def test_channels_that_are_no_multiple_of_the_gpus_are_rings(channels: int) -> None:
    topology = topologies.h200(2)
    choice = nccl.forced("allgather", topology, channels << 16, RING, LL)
    assert choice is not None
    assert (choice.program, choice.channels) == ("multi-ring-allgather", channels)
    assert nccl_plan("allgather", choice, topology).channels == channels
    assert recipe_of(choice).arguments == {"rings": channels}


def test_the_two_trees_of_a_double_tree_are_two_channels() -> None:
    two = nccl.default("allreduce", topologies.ndv4(2), "64K")
    assert (two.program, two.channels, two.instances) == ("multi-tree-allreduce", 16, 1)
    plan = sley.compile(build("multi-tree-allreduce", nodes=2, gpus=8), verify=False)
    assert plan.channels == two.channels
    single = nccl.default("allreduce", topologies.cluster(8, 1), "1K")
    assert (single.program, single.channels, single.instances) == ("multi-tree-allreduce", 1, 1)


def test_trees_forward_less_at_once_the_smaller_the_call() -> None:
    """On 2 nodes of 8, LL128 wants (1 + 1 + 0.8) / 8 x 64 = 22.4 pieces of 128 KiB or more in each
    of 16 channels, then 5.6 of 32 KiB or more: 4 MB are 1 piece of 144,000 bytes each, 3 of 72,000,
    7 of 36,000. Simple has pieces of 512 KiB at most, a quarter of a ring's."""
    two = topologies.ndv4(2)
    tiles = {size: nccl.default("allreduce", two, size).tile for size in ("64K", "256K", "4M")}
    assert tiles == {"64K": 1, "256K": 1 / 32, "4M": 1 / 16}
    assert nccl.default("allreduce", two, "64M").tile == 1
    halved = nccl.forced("allreduce", two, "176M", TREE, LL128)
    assert halved is not None
    assert halved.tile == 1 / 2, "20 pieces are fewer than 22.4"
    sizes = ("1M", "32M", "64M", "1G")
    simple = [nccl.forced("allreduce", two, size, TREE, SIMPLE) for size in sizes]
    assert [choice.tile for choice in simple if choice] == [1 / 64, 1 / 32, 1 / 16, 1 / 4]
    low = [nccl.forced("allreduce", two, size, TREE, LL) for size in ("1K", "64M")]
    assert [choice.tile for choice in low if choice] == [1, 1]


def test_both_ways_of_a_tree_share_the_threads_of_a_block() -> None:
    """LL128: 14 of 20 warps reduce. Simple: 384 of 640 threads; a warp of each way posts."""
    two = topologies.ndv4(2)
    shares = {
        p: choice.block_shares
        for p in PROTOCOLS
        if (choice := nccl.forced("allreduce", two, "64M", TREE, p))
    }
    assert shares[LL128] == (0.7, 0.3)
    assert shares[SIMPLE] == (352 / 512, 224 / 512)
    ring = nccl.forced("allreduce", two, "64M", RING, SIMPLE)
    assert ring is not None
    assert ring.block_shares == (1, 1)
    run = as_run(two, 0.5, (0.7, 0.3), streams=True).model
    assert (run.nvlink_block_GBps, run.network_block_GBps) == (14, 14)
    assert run.nvlink_block_GBps * run.copy_share == pytest.approx(6)
    assert run.tile_bytes.simple == two.model.tile_bytes.simple / 2


def test_sends_on_one_node_use_ll_up_to_16_kib_for_each_channel() -> None:
    """AllToAll on 8 A100s: a message is an eighth; 64 KiB of a message for each of 4 channels."""
    a100 = topologies.ndv4()
    chosen = {
        size: nccl.default("alltoall", a100, size)
        for size in ("128K", "129K", "512K", "513K", "2M", "512M", "1G")
    }
    assert [c.protocol for c in chosen.values()] == [LL, *[SIMPLE] * 6]
    assert [c.instances for c in chosen.values()] == [1, 1, 1, 2, 4, 4, 8]
    assert {(c.algorithm, c.program) for c in chosen.values()} == {(P2P, "all-pairs-alltoall")}
    assert all(c.predicted_us is None for c in chosen.values())
    pcie = [nccl.default("alltoall", topologies.pcie_8(), size) for size in ("128K", "32M", "33M")]
    assert [c.channels for c in pcie] == [1, 1, 2]


def test_sends_between_nodes_use_simple() -> None:
    """AllToNext sends whole buffers: 64 KiB in each of 2 channels on two nodes of A100s, 4 of
    H100s."""
    a100, h100 = topologies.ndv4(2), topologies.ndv5(2)
    chosen = [nccl.default("alltonext", a100, size) for size in ("1K", "64K", "1M")]
    assert {c.protocol for c in chosen} == {SIMPLE}
    assert [c.channels for c in chosen] == [1, 1, 2]
    assert nccl.default("alltonext", h100, "1M").channels == 4
    assert nccl.default("alltonext", topologies.ndv4(16), "1M").channels == 1


def test_broadcast_and_reduce_run_on_rings() -> None:
    choice = nccl.default("broadcast", topologies.ndv4(), "1M")
    assert (choice.algorithm, choice.program) == (RING, "ring-broadcast")
    assert choice.instances == choice.channels
    assert nccl.default("reduce", topologies.ndv4(2), "256M").program == "multi-ring-reduce"
    # Pieces of a step, and LL128 where the machine has it.
    assert nccl.default("reduce", topologies.ndv4(), "1G").protocol is Protocol.LL128
    amd = nccl.default("broadcast", topologies.mi300x(), "1G")
    assert (amd.protocol, amd.tile) == (SIMPLE, 0.25)


@pytest.mark.parametrize("name", ["dgx1", "mi300x", "mi300x:2"])
@pytest.mark.parametrize(
    "collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"]
)
def test_without_switches_the_rings_of_a_choice_go_along_the_links(
    name: str, collective: str
) -> None:
    topology = topologies.find(name)
    for size in ("1K", "256K", "256M"):
        choice = nccl.forced(collective, topology, size, RING, SIMPLE)
        assert choice is not None
        assert choice.program == f"multi-ring-{collective}"
        along = topologies.link_rings(topology).orders[: choice.channels].tolist()
        assert [list(order) for order in choice.orders] == along
        assert choice.instances == max(choice.channels // len(along), 1)
        program = program_of(recipe_of(choice), topology.nodes, 8, in_place=False)
        plan = sley.compile(program, topology=topology)
        assert plan.channels == len(along)


@pytest.mark.parametrize("nodes", [1, 2])
def test_mi300x_have_no_ll128(nodes: int) -> None:
    """RCCL has it for MI200s alone."""
    assert nccl.forced("allreduce", topologies.mi300x(nodes), "4M", RING, LL128) is None
    assert nccl.forced("allreduce", topologies.dgx1(nodes), "4M", RING, LL128) is not None


@pytest.mark.parametrize(
    ("name", "size", "time_us"),
    [("mi325x:4", "4G", 23904.0), ("mi355x:2", "1G", 5525.0), ("mi355x:2", "16M", 261.6)],
)
def test_published_times_of_rccl_between_nodes_are_predicted(
    name: str, size: str, time_us: float
) -> None:
    """hisohara/ai-scripts: RCCL on MI325X with rings, on MI355X by itself (rings, then trees).
    With all rings in one order they were 3.3 times as long."""
    runs = NcclRuns(topologies.find(name), nccl_plan)
    assert runs("allreduce", checked_size(size)).time_us == pytest.approx(time_us, rel=0.1)
    assert runs.choice("allreduce", 2**30).channels == 64


def test_trees_without_switches_go_along_the_links() -> None:
    choice = nccl.forced("allreduce", topologies.mi300x(2), "4M", TREE, SIMPLE)
    assert choice is not None
    assert (choice.program, choice.channels, choice.instances) == ("multi-tree-allreduce", 64, 4)
    assert [list(o) for o in choice.orders] == link_rings(topologies.mi300x(2)).orders.tolist()


@pytest.mark.parametrize(
    ("machine", "generation"),
    [("dgx2", 0), ("p4d", 1), ("mi250x", 1), ("h200", 2), ("mi355x", 2), ("b300", 3)],
)
def test_the_architecture_tells_the_generation(machine: str, generation: int) -> None:
    """Whatever the rate of the memory."""
    topology = topologies.machine(machine)
    fast = replace(topology, model=replace(topology.model, memory_GBps=9000))
    assert MachineView.of(fast).generation == generation


@given(
    collective=st.sampled_from(
        ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "scatter")
    ),
    nodes=st.integers(1, 5),
    gpus=st.integers(1, 5),
    nics=st.booleans(),
    size=st.integers(1, 2**32),
)
def test_every_cluster_has_a_choice_that_can_be_built(
    collective: str, nodes: int, gpus: int, nics: bool, size: int
) -> None:
    if nodes * gpus == 1:
        return
    topology = topologies.cluster(nodes, gpus, None if nics else 1)
    choice = nccl.default(collective, topology, size)
    assert choice.program in CATALOG
    assert build(choice.program, nodes=nodes, gpus=gpus).collective.name == collective
    assert 1 <= choice.instances <= choice.channels <= 64
    assert choice.predicted_us is None or 0 < choice.predicted_us < float("inf")


@pytest.mark.parametrize("name", topologies.machine_names())
def test_every_machine_has_choices(name: str) -> None:
    for nodes in (1, 2):
        topology = topologies.machine(name, nodes)
        assert nccl.default("allreduce", topology, "1M").predicted_us
        assert nccl.default("alltoall", topology, "1M").channels >= 1


def test_meshes_have_choices() -> None:
    assert nccl.default("allreduce", topologies.torus(4, 4), "16M").channels == 8


def test_calls_that_nccl_does_not_have_are_refused() -> None:
    with pytest.raises(SleyError, match="D931") as refusal:
        nccl.default("all_reduce", topologies.ndv4(), "1M")
    assert "Did you mean allreduce" in str(refusal.value)
    with pytest.raises(SleyError, match="D931"):
        nccl.forced("allgather", topologies.cluster(1, 1), 64, RING, LL)
    with pytest.raises(SleyError, match="S702"):
        nccl.default("allreduce", topologies.ndv4(), 0)


def test_nvls_has_the_rows_of_nccl() -> None:
    """8 heads of 40 GB/s on a DGX H100: 0.85 x 7/8 x 2 x 40 x 8 = 476 GB/s on the bus, after 25 us;
    16 channels for every size; rings where AllReduce isn't the collective."""
    h100 = topologies.dgx_h100_nvls()
    large = nccl.default("allreduce", h100, "1G")
    assert (large.algorithm, large.protocol, large.channels) == (NcclAlgorithm.NVLS, SIMPLE, 16)
    assert large.predicted_us == pytest.approx(25 + 2**30 * 7 / 4 / 476e3)
    assert (large.program, large.instances, large.tile) == ("nvls-allreduce", 16, 1 / 16)
    assert nccl.default("allreduce", h100, "1M").algorithm is RING
    assert nccl.default("allgather", h100, "1G").algorithm is RING
    sizes = ("4M", "16M", "256M")
    assert [nccl.default("allreduce", h100, size).tile for size in sizes] == [
        1 / 128,
        1 / 64,
        1 / 32,
    ]
    gathered = nccl.forced("allgather", h100, "1G", NcclAlgorithm.NVLS, SIMPLE)
    assert gathered is not None
    assert gathered.predicted_us == pytest.approx(25 + 2**30 / (40e3 * 8 * 0.85 * (7 / 8) ** 2))


def test_nvls_tree_joins_nodes() -> None:
    two = nccl.default("allreduce", topologies.dgx_h100_nvls(2), "1G")
    assert (two.algorithm, two.program) == (NcclAlgorithm.NVLS_TREE, "nvls-tree-allreduce")
    assert (two.channels, two.instances) == (16, 8)
    # 57.7 GB/s of a head at most; 25 us and two hops of 20.9 over the network.
    assert two.predicted_us == pytest.approx(25 + 2 * 20.9 + 2**30 * 15 / 8 / (8 * 57.7e3))
    four = nccl.forced("allreduce", topologies.ndv5_nvls(4), "1G", NcclAlgorithm.NVLS_TREE, SIMPLE)
    assert four is not None
    assert four.tile == 1 / 32


def test_nvls_has_32_heads_at_most() -> None:
    """A rack of 72 GPUs: 33 shares of 20 GB/s fit on 722, of which NCCL counts 0.74 x 31/32; only
    AllReduce uses it with more GPUs than heads."""
    rack = topologies.gb200_nvl72()
    choice = nccl.default("allreduce", rack, "64M")
    assert (choice.algorithm, choice.heads, choice.channels) == (NcclAlgorithm.NVLS, 32, 24)
    moved = 2**26 * 2 * 71 / 72
    assert choice.predicted_us == pytest.approx(25 + moved / (2 * 20e3 * 0.74 * 31))
    assert nccl_plan("allreduce", choice, rack).collective.chunks == 32 * 24
    assert recipe_of(choice).arguments == {"heads": 32}
    assert nccl.forced("allgather", rack, "1G", NcclAlgorithm.NVLS, SIMPLE) is None
    assert nccl.default("allreduce", topologies.gb200_nvl72(2), "1G").heads == 32


def test_nvls_needs_switches_simple_and_three_gpus() -> None:
    def none(
        collective: str, topology: Topology, algorithm: NcclAlgorithm, protocol: Protocol
    ) -> bool:
        return nccl.forced(collective, topology, "64M", algorithm, protocol) is None

    h100, two = topologies.dgx_h100_nvls(), topologies.dgx_h100_nvls(2)
    assert none("allreduce", topologies.dgx_h100(), NcclAlgorithm.NVLS, SIMPLE)
    assert none("allreduce", h100, NcclAlgorithm.NVLS, LL)
    assert none("allreduce", h100, NcclAlgorithm.NVLS_TREE, SIMPLE)
    assert none("allreduce", two, NcclAlgorithm.NVLS, SIMPLE), "NVLS on several nodes needs CollNet"
    assert none("allgather", two, NcclAlgorithm.NVLS_TREE, SIMPLE)
    assert none("broadcast", h100, NcclAlgorithm.NVLS, SIMPLE)
    pair = replace(topologies.cluster(1, 2), in_network=True)
    assert none("allreduce", pair, NcclAlgorithm.NVLS, SIMPLE)
    a100 = replace(topologies.ndv4(), in_network=True)
    assert none("allreduce", a100, NcclAlgorithm.NVLS, SIMPLE), "A100s' switches don't reduce"


def test_a_published_table_of_nvls_is_predicted() -> None:
    """1x8 H100 (NVIDIA/dgxc-benchmarking, README of microbenchmark_nccl): nothing here was fitted
    to it."""
    topology = topologies.dgx_h100_nvls()
    measured = {"64M": 324.7, "256M": 1112.5, "1G": 4029.4}
    for size, us_measured in measured.items():
        choice = nccl.default("allreduce", topology, size)
        assert choice.program is not None
        program = build(choice.program, ranks=8, in_place=True)
        plan = sley.compile(program, instances=choice.instances, topology=topology, verify=False)
        time_us = sley.simulate(plan, size, tiled(topology, choice.tile)).time_us
        assert time_us == pytest.approx(us_measured, rel=0.15)
