"""Tests of the bounds of well-known clusters against values calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sley
from sley import topologies
from sley.ir.collectives import AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter
from sley.ir.topology import Topology
from sley.model.bounds import Bounds

CLUSTERS = {
    "1x8 A100": Topology.cluster(1, 8),
    "ResCCL 2x4": Topology.cluster(2, 4, 4),
    "ResCCL 2x8": Topology.cluster(2, 8, 4),
    "ResCCL 4x4": Topology.cluster(4, 4, 4),
    "ResCCL 4x8": Topology.cluster(4, 8, 4),
    "NDv4 2x8": Topology.cluster(2, 8),
    "NDv4 4x8": Topology.cluster(4, 8),
    "NDv5 2x8": Topology.cluster(2, 8, nvlink_GBps=(450, 370), nic_GBps=(50, 48.5)),
    "DGX-2 2x16": Topology.cluster(2, 16, 8, nvlink_GBps=(150, 120)),
}

# AllGather, AllReduce and AllToAll in GB/s, at nominal rates. The 32 GPUs of the DGX-2s receive
# 31/32 of the size each, over 150 GB/s of their own and 16 cards of 25: 5200 / 31 = 167.74 GB/s.
NOMINAL = {
    "1x8 A100": ("342.9", "171.4", "342.9"),
    "ResCCL 2x4": ("200.0", "100.0", "50.0"),
    "ResCCL 2x8": ("200.0", "100.0", "25.0"),
    "ResCCL 4x4": ("133.3", "66.7", "33.3"),
    "ResCCL 4x8": ("133.3", "66.7", "16.7"),
    "NDv4 2x8": ("346.7", "173.3", "50.0"),
    "NDv4 4x8": ("266.7", "133.3", "33.3"),
    "NDv5 2x8": ("533.3", "266.7", "100.0"),
    "DGX-2 2x16": ("167.7", "83.9", "25.0"),
}

# AllGather and AllReduce in GB/s, at reached rates.
REACHED = {
    "1x8 A100": ("262.9", "131.4"),
    "ResCCL 2x4": ("192.0", "96.0"),
    "ResCCL 2x8": ("192.0", "96.0"),
    "ResCCL 4x4": ("128.0", "64.0"),
    "ResCCL 4x8": ("128.0", "64.0"),
    "NDv4 2x8": ("270.9", "135.5"),
    "NDv4 4x8": ("256.0", "128.0"),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_bounds_at_nominal_rates_equal_the_worked_values(name: str) -> None:
    cluster = CLUSTERS[name]
    bounds = [
        Bounds.of(collective(cluster.ranks), cluster, nominal=True)
        for collective in (AllGather, AllReduce, AllToAll)
    ]
    assert tuple(f"{b.algbw_GBps:.1f}" for b in bounds) == NOMINAL[name]
    assert all(b.exact for b in bounds)


@pytest.mark.parametrize("name", REACHED)
def test_bounds_at_reached_rates_equal_the_worked_values(name: str) -> None:
    cluster = CLUSTERS[name]
    bounds = [Bounds.of(c(cluster.ranks), cluster) for c in (AllGather, AllReduce)]
    assert tuple(f"{b.algbw_GBps:.1f}" for b in bounds) == REACHED[name]


@pytest.mark.parametrize("name", CLUSTERS)
def test_reducescatter_has_the_bound_of_allgather(name: str) -> None:
    cluster = CLUSTERS[name]
    gather = Bounds.of(AllGather(cluster.ranks, 2), cluster)
    scatter = Bounds.of(ReduceScatter(cluster.ranks, in_place=True), cluster)
    assert gather.algbw_GBps == pytest.approx(scatter.algbw_GBps)


def test_the_cut_around_a_gpu_bounds_allgather_on_ndv4() -> None:
    bound = Bounds.of(AllGather(16), CLUSTERS["NDv4 2x8"], nominal=True).at(325 * 2**20)
    assert bound.bandwidth_reason == "0.9375 times the size into GPU 0 at 325 GB/s"
    assert bound.bandwidth_us == pytest.approx(15 / 16 * 2**20 / 1e3)
    assert bound.reason == bound.bandwidth_reason


def test_latency_bounds_small_sizes() -> None:
    bound = Bounds.of(AllGather(16), CLUSTERS["NDv4 2x8"]).at(1024)
    assert bound.latency_us == pytest.approx(6.6 + 2.7)
    assert bound.time_us == bound.latency_us
    assert bound.reason.startswith("6.6 us for the launch, 2.7 us for the path from GPU 0 to")


def test_only_the_bandwidth_bound_grows_with_the_size() -> None:
    bounds = Bounds.of(Broadcast(8), CLUSTERS["1x8 A100"])
    small, large = bounds.at(1000), bounds.at(3000)
    assert large.bandwidth_us == pytest.approx(3 * small.bandwidth_us)
    assert large.latency_us == small.latency_us
    assert large.algbw_GBps == pytest.approx(3000 / large.time_us / 1e3)


def test_the_bound_of_a_thousand_gpus_is_exact() -> None:
    bounds = Bounds.of(AllGather(1024), Topology.cluster(128, 8))
    # All but one node: 127/128 of the size over 8 cards of 24 GB/s.
    assert bounds.algbw_GBps == pytest.approx(192 * 128 / 127)
    assert bounds.exact


def test_linear_programs_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    Bounds.of(AllToAll(4), topologies.find("mesh:4")).at(1000)
    Bounds.of(AllReduce(4), topologies.find("mesh:4")).at(1000)
    assert capfd.readouterr() == ("", "")


def test_ranks_that_share_a_memory_are_bound_by_its_rate() -> None:
    """Each chunk is read once at least, and each result written; links are no limit there."""
    one = topologies.find("one-h100:4")
    for collective, share in (
        (AllGather(4), 4),
        (Broadcast(4), 4),
        (ReduceScatter(4), 5),
        (AllReduce(4), 8),
        (AllToAll(4), 6),
    ):
        bounds = Bounds.of(collective, one)
        assert bounds.algbw_GBps == pytest.approx(one.model.memory_GBps / share)
        assert bounds.reason.startswith(
            f"{share:.4g} times the size read and written in the memory"
        )
    model = replace(one.model, launch_us=0.0, nvlink_latency_us=0.0, wait_us=0.0, block_us=0.0)
    free = replace(model, nvlink_block_GBps=1e6, local_block_GBps=1e6)
    scatter = sley.algorithms.flat_scatter(4, in_place=True)
    plan = sley.compile(scatter, topology=one, protocol="direct")
    assert sley.simulate(plan, "1M", replace(one, model=free)).of_bound == pytest.approx(1)
