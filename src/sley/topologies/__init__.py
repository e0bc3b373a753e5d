"""Topologies: clusters found by name, read from files, and saved as TOML.

`find` accepts the same texts as --topology, and so does every function that has a topology as an
argument (`topology_of`). Each machine of machines/*.toml has a function of its own: `ndv4(2)` is a
cluster of two nodes of "ndv4", `dgx_a100()` one node of "dgx-a100".
Files: clusters (texts of --topology, meshes and tori), files (load and save), machine (machines and
their TOML), one_gpu (a GPU that all ranks share), graph (whole topologies as TOML), nccl_log,
xml_trees, smi, taccl (other tools' files), assumptions (rates that those leave out), structure
(what the links of a topology form), groups (parts of a cluster), rates and forests (trees that
reach its bandwidth bound), routes (the same for an AllToAll), matching (low trees).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol

from sley.ir.topology import Topology
from sley.topologies.clusters import cluster, find, look_up, mesh, topology_of, torus
from sley.topologies.files import LoadedTopology, load, read, save
from sley.topologies.forests import Forest, pack_forest
from sley.topologies.groups import Group, grid_groups
from sley.topologies.machine import Machine, find_machine, machine, machine_names
from sley.topologies.matching import least_height, match_forest
from sley.topologies.routes import Routing, find_routes
from sley.topologies.structure import LinkRings, link_rings

__all__ = [
    "Forest",
    "Group",
    "LinkRings",
    "LoadedTopology",
    "Machine",
    "Routing",
    "cluster",
    "find",
    "find_machine",
    "find_routes",
    "grid_groups",
    "least_height",
    "link_rings",
    "load",
    "look_up",
    "machine",
    "machine_names",
    "match_forest",
    "mesh",
    "pack_forest",
    "read",
    "save",
    "topology_of",
    "torus",
]


class MachineClusters(Protocol):
    """Makes a cluster of nodes of one machine. Errors: C308."""

    def __call__(self, nodes: int = 1) -> Topology: ...


# Type checkers see the machines here; `__getattr__` makes their functions.
a3_mega: MachineClusters
a3_ultra: MachineClusters
a4: MachineClusters
b200: MachineClusters
b300: MachineClusters
dgx1: MachineClusters
dgx2: MachineClusters
dgx_a100: MachineClusters
dgx_b200: MachineClusters
dgx_h100: MachineClusters
dgx_h100_nvls: MachineClusters
gb200_nvl72: MachineClusters
gb300_nvl72: MachineClusters
h200: MachineClusters
mi250x: MachineClusters
mi300x: MachineClusters
mi325x: MachineClusters
mi355x: MachineClusters
nd_gb200: MachineClusters
ndv2: MachineClusters
ndv4: MachineClusters
ndv5: MachineClusters
ndv5_nvls: MachineClusters
p4d: MachineClusters
p5: MachineClusters
p5en: MachineClusters
p6_b200: MachineClusters
pcie_8: MachineClusters
resccl: MachineClusters
resccl_4gpu: MachineClusters

_MACHINES = tuple(__annotations__)
__all__ += _MACHINES

if not TYPE_CHECKING:  # they would take any name

    @cache  # so that a function is itself, as pickle and comparisons need it
    def __getattr__(name: str) -> MachineClusters:
        if name not in _MACHINES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        known = name.replace("_", "-")

        def clusters_of(nodes: int = 1) -> Topology:
            return machine(known, nodes)

        clusters_of.__name__ = clusters_of.__qualname__ = name
        clusters_of.__doc__ = find_machine(known).description
        return clusters_of

    def __dir__() -> list[str]:
        return sorted(__all__)
