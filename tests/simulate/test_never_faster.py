"""No simulation is faster than the bound: every algorithm on every machine that comes with sley."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

import sley
from sley.algorithms import CATALOG, build
from sley.ir.plan import Plan
from sley.ir.topology import Topology
from sley.simulate import Simulator
from sley.topologies import machine, machine_names

SIZES = ("1K", "1M", "256M")
WAYS = {
    "msccl": {"schedule": "msccl"},
    "hpds": {"schedule": "hpds", "allocate": "state"},
}
"""Tile after tile, and instruction after instruction."""


@cache
def plan_of(name: str, way: str, nodes: int, gpus: int) -> Plan | None:
    """The algorithm for a number of nodes; None where it has no such form."""
    try:
        program = build(name, nodes=nodes, gpus=gpus)
    except sley.SleyError as error:
        assert error.code == "L121"
        return None
    return sley.compile(program, verify=False, **WAYS[way])  # type: ignore[arg-type]


def plans_on(topology: Topology, nodes: int) -> Iterator[Simulator]:
    """Every algorithm, each way, on a cluster that has the links for it."""
    for name in CATALOG:
        for way in WAYS:
            plan = plan_of(name, way, nodes, topology.ranks // nodes)
            if plan is None:
                continue
            try:
                yield Simulator(plan, topology)
            except sley.SleyError as error:
                assert error.code == "C301"


def check(name: str, nodes: int) -> None:
    topology = machine(name, nodes)
    seen = set()
    for simulator in plans_on(topology, nodes):
        seen.add(simulator.plan.collective.name)
        for size in SIZES:
            found = simulator(size)
            faster = f"{simulator.plan.name} on {topology.name} at {size}: {found.bound.reason}"
            assert found.time_us >= found.bound.time_us > 0, faster
            assert 0 < found.of_bound <= 1
    assert {"allreduce", "allgather", "broadcast", "reduce"} <= seen


LARGE_NODES = ("dgx2", "mi250x")
QUICK = [(name, 1) for name in machine_names() if name not in LARGE_NODES]
QUICK += [("resccl-4gpu", 2), ("resccl", 2), ("ndv4", 2)]


@pytest.mark.parametrize(("name", "nodes"), QUICK)
def test_never_faster_than_the_bound(name: str, nodes: int) -> None:
    check(name, nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("name", machine_names())
def test_never_faster_than_the_bound_on_large_clusters(name: str, nodes: int) -> None:
    check(name, nodes)
