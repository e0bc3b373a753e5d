"""Packings of trees that reduce and copy, against all cuts and against the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import linprog

import sley
from sley.ir.collectives import AllReduce
from sley.ir.topology import Topology
from sley.model.bounds import Bounds
from sley.model.bounds.cuts import Cuts
from sley.model.bounds.network import CapacityGraph
from sley.model.bounds.packing import MOST_FLOWS, packed_GBps
from support.generators.bound_graphs import topologies, vertex_sets
from support.generators.examples import examples


def network_of(topology: Topology) -> CapacityGraph:
    return Cuts(topology, topology.ranks, nominal=False).network


def rate_by_all_cuts(topology: Topology) -> float:
    """The same linear program with a row for each cut: trees of copies must enter each set of
    GPUs as often as there are roots outside, and trees that reduce must leave it as often."""
    links, n = topology.links, topology.ranks
    m, rows = len(links), []
    for inside in vertex_sets(topology):
        enters = np.array([r.dst in inside and r.src not in inside for r in links], float)
        leaves = np.array([r.src in inside and r.dst not in inside for r in links], float)
        roots = np.array([float(v not in inside) for v in range(n)])
        rows += [np.concatenate([-enters, np.zeros(m), roots])]
        rows += [np.concatenate([np.zeros(m), -leaves, roots])]
    limits = np.zeros(len(rows))
    rows += list(np.hstack([np.eye(m), np.eye(m), np.zeros((m, n))]))
    cost = np.append(np.zeros(2 * m), -np.ones(n))
    solved = linprog(cost, A_ub=np.array(rows), b_ub=np.append(limits, links.GBps))
    return float(-solved.fun)


@examples(9)
@given(topologies(most_gpus=5, most_switches=0))
def test_trees_are_as_fast_as_all_cuts_allow(topology: Topology) -> None:
    found = packed_GBps(network_of(topology), topology.ranks)
    assert found == pytest.approx(rate_by_all_cuts(topology), rel=1e-6)


@examples(9)
@given(topologies())
def test_no_trees_are_faster_than_the_bound(topology: Topology) -> None:
    bounds = Bounds.of(AllReduce(topology.ranks), topology)
    found = packed_GBps(network_of(topology), topology.ranks)
    assert found <= bounds.algbw_GBps * (1 + 1e-6)
    assert bounds.exact or found < bounds.algbw_GBps * (1 - 1e-7)


@pytest.mark.parametrize("link", [0, 5, 9])
def test_a_slower_link_leaves_the_bound_exact(link: int) -> None:
    base = sley.topologies.ndv4()
    rates = base.links.GBps.copy()
    rates[link] /= 2
    slow = replace(base, links=replace(base.links, GBps=rates))
    bounds = Bounds.of(AllReduce(8), slow)
    assert bounds.exact
    assert bounds.algbw_GBps == pytest.approx(115), "all data cross the slow link once"


def test_large_programs_are_not_solved() -> None:
    ring = np.arange(MOST_FLOWS // 16 + 1)
    large = CapacityGraph(len(ring), ring, np.roll(ring, 1), np.ones(len(ring)))
    assert packed_GBps(large, 16) == 0


def test_a_switch_only_forwards() -> None:
    topology = sley.topologies.ndv4()
    found = packed_GBps(network_of(topology), 8)
    assert found == pytest.approx(230 * 8 / 14), "each GPU sends 14 of 8 parts of the data"
