"""Topologies: clusters found by name, read from files, and saved as TOML.

`find` accepts the same texts as --topology, and so does every function that has a topology as an
argument (`topology_of`); each machine has a function of its own.
Files: library (the machines of machines/*.toml), clusters (texts of --topology, meshes and tori),
files (load and save), machine (the TOML of machines), node (a node, and the machine of such nodes),
graph (whole topologies as TOML), nccl_xml, nccl_log, hwloc_xml, nvidia_smi, amd_smi, taccl (other
tools' files), assumptions (rates that those leave out), reading (checked access to tables),
xml_elements (XML as a tree), summary, link_rings (rings along links), lattice (the sides of meshes
and tori).
"""

from __future__ import annotations

from sley.topologies.clusters import cluster, find, look_up, mesh, topology_of, torus
from sley.topologies.files import LoadedTopology, load, read, save
from sley.topologies.library import (
    dgx1,
    dgx2,
    dgx_a100,
    dgx_b200,
    dgx_h100,
    dgx_h100_nvls,
    find_machine,
    machine,
    mi250x,
    mi300x,
    ndv2,
    ndv4,
    ndv5,
    ndv5_nvls,
    p5,
    pcie_8,
    resccl,
    resccl_4gpu,
)
from sley.topologies.link_rings import LinkRings, link_rings
from sley.topologies.machine import machine_names
from sley.topologies.node import Machine

__all__ = [
    "LinkRings",
    "LoadedTopology",
    "Machine",
    "cluster",
    "dgx1",
    "dgx2",
    "dgx_a100",
    "dgx_b200",
    "dgx_h100",
    "dgx_h100_nvls",
    "find",
    "find_machine",
    "link_rings",
    "load",
    "look_up",
    "machine",
    "machine_names",
    "mesh",
    "mi250x",
    "mi300x",
    "ndv2",
    "ndv4",
    "ndv5",
    "ndv5_nvls",
    "p5",
    "pcie_8",
    "read",
    "resccl",
    "resccl_4gpu",
    "save",
    "topology_of",
    "torus",
]
