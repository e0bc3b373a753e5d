"""Clusters: topologies found by the texts that --topology accepts."""

from __future__ import annotations

import re
from pathlib import Path

from sley.errors import did_you_mean
from sley.errors.compiler import C307
from sley.errors.topology import T604
from sley.ir.topology import Topology
from sley.topologies.files import Loaded, read
from sley.topologies.grids import mesh, torus
from sley.topologies.library import find_machine, machine_names

_NUMBERS = re.compile(r"([0-9]{1,9})x([0-9]{1,9})(?::([0-9]{1,9}))?")
_GRID = re.compile(r"(mesh|torus):([0-9]{1,9}(?:x[0-9]{1,9})*)")
_NAME = re.compile(r"(.*?)(?::([0-9]{1,9}))?", re.DOTALL)
_SUFFIXES = (".toml", ".xml", ".json", ".txt")


def fully_connected(ranks: int) -> Topology:
    """One node in which every rank is linked to every other."""
    return cluster(1, ranks)


def cluster(nodes: int, gpus: int, nics: int | None = None) -> Topology:
    """Nodes of GPUs in which every rank is linked to every other, ranks numbered node by node.

    nics: number of network cards of each node, shared by neighbouring GPUs; by default one for
        each GPU.
    Errors: C308.
    """
    return Topology.cluster(nodes, gpus, nics)


def find(name: str) -> Topology:
    """The topology with this name, as `look_up` finds it. Errors: those of `look_up`."""
    return look_up(name).topology


def look_up(name: str) -> Loaded:
    """The topology with this name: MACHINE[:NODES], NODESxGPUS[:NICS], mesh:4x4, torus:4x4x4, or
    FILE[:NODES]; with its machine, and the importer's assumptions.

    Errors: T604, C308, and those of `read`.
    """
    if not isinstance(name, str):
        raise C307.error(expected="the name of a topology", found=repr(name)[:60])
    numbers = _NUMBERS.fullmatch(name)
    if numbers is not None:
        nodes, gpus, nics = (None if n is None else int(n) for n in numbers.groups())
        return Loaded(Topology.cluster(nodes or 0, gpus or 0, nics), None)
    grid = _GRID.fullmatch(name)
    if grid is not None:
        sides = map(int, grid[2].split("x"))
        return Loaded((mesh if grid[1] == "mesh" else torus)(*sides), None)
    found = _NAME.fullmatch(name)
    stem, count = (found[1], found[2]) if found else (name, None)
    if stem in machine_names():
        machine = find_machine(stem)
        return Loaded(machine.topology(1 if count is None else int(count)), machine)
    if stem.lower().endswith(_SUFFIXES) or _is_file(stem):
        return read(stem, nodes=None if count is None else int(count))
    raise T604.error(
        expected=f"{', '.join(machine_names())}, each optionally with :NODES; NODESxGPUS[:NICS], "
        "mesh:4x4, torus:4x4x4, or a file",
        found=repr(name[:60]),
        remedy=did_you_mean(stem, [*machine_names(), "mesh", "torus"]),
    )


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # not a possible file name
        return False
