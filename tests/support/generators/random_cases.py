"""Random clusters, cost models and calls, for plans from the other random generators."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import sley
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.topology import Builder, Topology
from support.generators.random_plans import random_plan
from support.generators.random_programs import random_programs
from support.generators.random_transfers import random_transfers, random_trees

MOST_BYTES = 2**24
MOST_EXECUTIONS = 600
"""The most executions that the plain simulator handles in well under a second."""


@dataclass(frozen=True)
class Call:
    """One call and the parameters of its simulation."""

    plan: Plan
    topology: Topology
    size_bytes: int
    interpreter: bool
    slots: int

    def simulated(self, **others: Any) -> sley.Simulation:
        """Simulates the call and keeps all executions."""
        said = {"interpreter": self.interpreter, "slots": self.slots, "executions": True}
        return sley.simulate(self.plan, self.size_bytes, self.topology, **(said | others))


def rates() -> st.SearchStrategy[float]:
    return st.sampled_from([1.0, 3.7, 10.0, 20.0, 24.0, 24.0, 51.3, 230.0])


@dataclass
class _Cluster:
    """A topology under construction."""

    draw: st.DrawFn
    node: np.ndarray
    builder: Builder
    latency_us: tuple[float, ...]

    def both(self, src: Any, dst: Any, kind: LinkKind) -> None:
        """Adds links in both directions, each with a separate rate and latency."""
        for a, b in ((src, dst), (dst, src)):
            for x, y in zip(*np.broadcast_arrays(np.atleast_1d(a), b), strict=True):
                rate = self.draw(rates())
                latency = self.draw(st.sampled_from(self.latency_us))
                self.builder.link(x, y, kind, 2 * rate, rate, latency)

    def inside(self, node: int) -> np.ndarray:
        """Joins the GPUs of a node; returns the vertices to which its cards may be linked."""
        gpus = np.flatnonzero(self.node == node)
        style = self.draw(st.sampled_from(["switch", "mesh", "pcie", "both"]))
        if style == "switch":
            self.both(gpus, self.builder.add(VertexKind.SWITCH, [node]), LinkKind.NVLINK)
            return gpus
        if style == "mesh":
            for i, gpu in enumerate(gpus[:-1]):
                self.both(gpu, gpus[i + 1 :], LinkKind.NVLINK)
            return gpus
        leaves = self.builder.add(VertexKind.PCIE, [node, node])
        self.both(leaves, self.builder.add(VertexKind.PCIE, [node]), LinkKind.PCIE)
        self.both(gpus, leaves[np.arange(len(gpus)) % 2], LinkKind.PCIE)
        if style == "both" and len(gpus) > 1:
            self.both(gpus[0], gpus[1], LinkKind.NVLINK)
        return leaves

    def outside(self, places: list[np.ndarray]) -> None:
        """Adds one or several cards to every node, and joins them, with or without racks."""
        racks = self.builder.add(VertexKind.NETWORK, [NONE] * self.draw(st.integers(1, 2)))
        kind = self.draw(st.sampled_from([LinkKind.NETWORK] * 3 + [LinkKind.PCIE]))
        if len(racks) > 1:
            self.both(racks, self.builder.add(VertexKind.NETWORK, [NONE]), kind)
        for node, near in enumerate(places):
            cards = self.builder.add(VertexKind.NIC, [node] * self.draw(st.integers(1, 2)))
            for card in cards:
                self.both(near, card, LinkKind.PCIE)
            self.both(cards, racks[node % len(racks)], kind)


@st.composite
def clusters(draw: st.DrawFn, ranks: int) -> Topology:
    """Nodes with switches, meshes or PCIe trees, joined by separate or shared cards; every rank
    reaches every other."""
    nodes = draw(st.integers(1, min(ranks, 3)))
    node = np.array(draw(st.permutations(range(ranks)))) % nodes
    # All, none or some of the links have an explicit latency.
    own = draw(st.sampled_from([(NONE,), (NONE,), (0.3, 1.1), (NONE, 0.0, 0.7)]))
    cluster = _Cluster(draw, node, Builder("random", node), own)
    places = [cluster.inside(n) for n in range(nodes)]
    if nodes > 1:
        cluster.outside(places)
    return cluster.builder.topology(shared_memory=draw(st.sampled_from([False, False, True])))


def _protocols(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[ByProtocol]:
    return st.builds(ByProtocol, numbers, numbers, numbers)


@st.composite
def models(draw: st.DrawFn, plan: Plan, size_bytes: int) -> CostModel:
    """Cost models of all kinds, under which a call has a few tiles of a few parts."""
    chunk = size_bytes / plan.collective.blocks / plan.collective.chunks
    longest = 1 if plan.per_chunk else max(int(plan.instructions.count.max(initial=1)), 1)
    most = MOST_EXECUTIONS / max(len(plan.instructions), 1)
    tiles = draw(st.sampled_from([0.4, 1.0, 1.3, 2.0, 2.7, 4.1]))
    tile = chunk * longest / max(min(tiles, most), 0.1)
    times = st.sampled_from([0.0, 0.1, 0.6, 2.7, 14.0])
    shares = st.sampled_from([0.0, 0.35, 1.0])
    return CostModel(
        launch_us=draw(_protocols(st.sampled_from([0.0, 6.6]))),
        launch_gpus=draw(st.sampled_from([1, 1, 2, 8])),
        host_launch_us=draw(st.sampled_from([0.0, 4.2])),
        network_call_us=draw(st.sampled_from([0.0, 24.0])),
        nvlink_latency_us=draw(_protocols(times)),
        pcie_latency_us=draw(_protocols(times)),
        network_latency_us=draw(_protocols(times)),
        post_share=draw(st.sampled_from([0.0, 0.5, 1.0])),
        post_us=draw(st.sampled_from([0.0, 0.3, 1.0, 5.0])),
        posts=draw(_protocols(st.sampled_from([0.0, 1.0, 3.0]))),
        proxy_us=draw(st.sampled_from([0.0, 0.6, 2.0])),
        nvlink_block_GBps=draw(rates()),
        pcie_block_GBps=draw(rates()),
        network_block_GBps=draw(rates()),
        local_block_GBps=draw(rates()),
        copy_share=draw(st.sampled_from([0.3, 1.0])),
        memory_GBps=draw(st.sampled_from([15.0, 77.7, 1555.0])),
        wire_efficiency=draw(_protocols(st.sampled_from([0.5, 0.93, 1.0]))),
        tile_bytes=ByProtocol(tile, tile, tile),
        slices=draw(_protocols(st.sampled_from([1, 2, 3, 4]))),
        least_slice_bytes=tile / draw(st.sampled_from([0.71, 1.83, 3.17, 40.0])),
        part_overhead_bytes=draw(st.sampled_from([0.0, 0.0, 100.0])),
        wait_us=draw(times),
        fence_share=draw(_protocols(shares)),
        block_us=draw(times),
        decode_us=draw(times),
        interpreter_loss=draw(st.sampled_from([0.0, 0.171, 0.6])),
        contention=draw(st.sampled_from([0.0, 0.0, 0.3, 2.0])),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Random plans that send early and receive late, and compiled plans of every kind."""
    protocol = draw(st.sampled_from(list(sley.Protocol)))
    if draw(st.booleans()):
        plan = replace(random_plan(draw(st.integers(0, 10**6))), protocol=protocol)
        return replace(plan, per_chunk=draw(st.booleans()), slots=2 * plan.slots)
    programs = [random_programs(max_operations=16), random_transfers(), random_trees()]
    random = draw(st.one_of(programs))
    schedule = draw(st.sampled_from(["msccl", "hpds", "round-robin"]))
    whole = schedule != "msccl"
    return sley.compile(
        random.program,
        protocol=protocol,
        schedule=schedule,
        allocate=draw(st.sampled_from(["connection", "state", "instance"])),
        loop_order=draw(st.sampled_from(["tile", "instruction"] if whole else ["tile"])),
        slots=draw(st.integers(1, 3)),
        channels=draw(st.integers(1, 2)),
        instances=draw(st.sampled_from([1, 1, 2])),
        max_blocks=draw(st.sampled_from([None, None, 2])),
        per_chunk=not whole and draw(st.booleans()),
    )


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Calls of random plans on random clusters, from a byte to megabytes."""
    plan = draw(plans())
    size = round(math.exp(draw(st.integers(0, 100)) / 100 * math.log(MOST_BYTES)))
    topology = draw(clusters(plan.collective.ranks))
    return Call(
        plan,
        replace(topology, model=draw(models(plan, size))),
        size,
        interpreter=draw(st.booleans()),
        slots=plan.slots + draw(st.integers(0, 2)),
    )
