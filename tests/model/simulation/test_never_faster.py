"""No simulation is faster than the bound: every algorithm on every machine that sley includes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import cycle, islice, repeat

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sley
from sley.algorithms import CATALOG, build
from sley.ir.plan import Plan
from sley.ir.topology import Topology
from sley.model.simulation import Simulator
from sley.topologies import machine, machine_names
from support.inputs.algorithm_cases import GROUPED

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
    options = WAYS["msccl" if name in GROUPED else way]
    return sley.compile(program, verify=False, **options)  # type: ignore[arg-type]


def simulators(topology: Topology, nodes: int, ways: Iterable[str]) -> Iterator[Simulator]:
    """Every algorithm on a cluster that has the links for it. ways: of each algorithm."""
    for name, way in zip(CATALOG, ways, strict=False):
        plan = plan_of(name, way, nodes, topology.ranks // nodes)
        if plan is None:
            continue
        try:
            yield Simulator(plan, topology)
        except sley.SleyError as error:
            assert error.code == "C301" or (error.code == "C315" and name in GROUPED)


def check(name: str, nodes: int, ways: Iterable[str], sizes: Iterator[Sequence[str]]) -> None:
    topology = machine(name, nodes)
    seen = set()
    for simulator in simulators(topology, nodes, ways):
        seen.add(simulator.plan.collective.name)
        for size in next(sizes):
            found = simulator(size)
            faster = f"{simulator.plan.name} on {topology.name} at {size}: {found.bound.reason}"
            assert found.time_us >= found.bound.time_us > 0, faster
            assert 0 < found.of_bound <= 1
    assert {"allreduce", "allgather", "broadcast", "reduce"} <= seen


RANKS = {name: machine(name, 1).ranks for name in machine_names()}
MOST_RANKS = 72
"""Of a cluster: plans of all pairs grow by its square, and those of 72 ranks take minutes."""
QUICK = [(name, 1) for name, ranks in RANKS.items() if ranks <= 8]
QUICK += [("resccl-4gpu", 2)]


@pytest.mark.parametrize(
    "turn",
    [pytest.param(n, marks=[pytest.mark.slow] * (n % 11 > 0)) for n in range(len(QUICK))],
    ids=lambda n: "-".join(map(str, QUICK[n])),
)
def test_no_simulation_is_faster_than_the_bound(turn: int) -> None:
    """The ways in turn, on neighbouring machines the other way round; the sizes, too."""
    sizes = ([size] for size in islice(cycle(SIZES), turn % len(SIZES), None))
    check(*QUICK[turn], islice(cycle(WAYS), turn % len(WAYS), None), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "nodes"), [(n, k) for n in RANKS for k in (1, 2, 4) if k * RANKS[n] <= MOST_RANKS]
)
def test_no_simulation_on_large_clusters_is_faster_than_the_bound(
    name: str, nodes: int, way: str
) -> None:
    check(name, nodes, repeat(way), repeat(SIZES))


@st.composite
def uneven(draw: st.DrawFn) -> Topology:
    """A ring, perhaps of one direction, with further links, some several times; each at a rate of
    its own."""
    ranks = draw(st.integers(3, 5))
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    ends = st.lists(st.integers(0, ranks - 1), min_size=2, max_size=2, unique=True).map(tuple)
    pairs += draw(st.lists(ends, max_size=ranks))
    found = Topology.from_links("uneven", ranks, pairs, both_ways=draw(st.booleans()), GBps=20.0)
    rates = st.sampled_from([1.0, 0.7, 0.5, 0.1])
    for src, dst in sorted({*zip(found.links.src.tolist(), found.links.dst.tolist(), strict=True)}):
        if (share := draw(rates)) < 1:
            found = found.degraded(f"gpu{src}-gpu{dst}@0", share)
    return found


SLOW_LINK = Topology.from_links(
    "slow link", 4, [(0, 1), (1, 0), (1, 2), (2, 3), (3, 0)], both_ways=False, GBps=20.0
).degraded("gpu1-gpu2@0", 0.1)


@settings(deadline=None, max_examples=12)
@given(uneven(), st.sampled_from(["allgather", "reducescatter", "allreduce", "alltoall"]))
@example(SLOW_LINK, "alltoall")
def test_no_simulation_on_uneven_links_is_faster_than_the_bound(
    topology: Topology, collective: str
) -> None:
    """Long calls, too, which are extrapolated. Nor is one faster than a far smaller call, on
    which `choose` counts; and one that ends early does so only when its time is over."""
    program = sley.synthesize(collective, topology, in_place=True)
    simulator = Simulator(sley.compile(program, topology=topology, verify=False))
    smaller_us = 0.0
    for size in ("64K", "4M", "1G", "16G"):
        found = simulator(size)
        assert found.time_us >= found.bound.time_us, f"{size}: {found.bound.reason}"
        assert found.time_us >= simulator.least(found.size_bytes) * (1 - 1e-12)
        assert found.time_us >= smaller_us
        for share in (0.5, 1 - 1e-9):
            assert simulator.time_us(size, found.time_us * share) == float("inf")
        assert simulator.time_us(size, found.time_us) == found.time_us
        smaller_us = found.time_us
