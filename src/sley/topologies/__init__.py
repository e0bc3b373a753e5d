"""Topologies: clusters found by name, read from files, and saved as TOML.

`find` accepts the same texts as --topology, and so does every function that has a topology as an
argument (`topology_of`). Each machine of machines/*.toml has a function of its own: `ndv4(2)` is a
cluster of two nodes of "ndv4", `dgx_a100()` one node of "dgx-a100".
Files: clusters (texts of --topology, meshes and tori), files (load and save), machine (machines and
their TOML), graph (whole topologies as TOML), nccl_log, xml_trees, smi, taccl (other tools' files),
assumptions (rates that those leave out), structure (what the links of a topology form).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from sley.ir.topology import Topology
from sley.topologies.clusters import cluster, find, look_up, mesh, topology_of, torus
from sley.topologies.files import LoadedTopology, load, read, save
from sley.topologies.machine import Machine, find_machine, machine, machine_names
from sley.topologies.structure import LinkRings, link_rings

__all__ = [
    "LinkRings",
    "LoadedTopology",
    "Machine",
    "cluster",
    "find",
    "find_machine",
    "link_rings",
    "load",
    "look_up",
    "machine",
    "machine_names",
    "mesh",
    "read",
    "save",
    "topology_of",
    "torus",
]


@cache  # so that a function is itself, as pickle and comparisons need it
def __getattr__(name: str) -> Callable[..., Topology]:
    """The function of a machine: a cluster of its nodes, by default one. Errors: C308."""
    known = name.replace("_", "-")
    if "-" in name or known not in machine_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def clusters_of(nodes: int = 1) -> Topology:
        return machine(known, nodes)

    clusters_of.__name__ = clusters_of.__qualname__ = name
    clusters_of.__doc__ = find_machine(known).description
    return clusters_of


def __dir__() -> list[str]:
    return sorted([*__all__, *(name.replace("-", "_") for name in machine_names())])
