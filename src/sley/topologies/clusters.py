"""Clusters: fully connected nodes, meshes and tori, and topologies by the texts of --topology."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace

import numpy as np

from sley.errors import Diagnostic, Place, did_you_mean, without_inner_frames
from sley.errors.compiler import C307, C308
from sley.errors.topology import T604, T611
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import MAX_RANKS, Builder, Topology
from sley.ir.words import is_integer
from sley.topologies.files import LoadedTopology, read
from sley.topologies.machine import Machine, find_machine, machine_names
from sley.topologies.one_gpu import ONE_H100

_NUMBERS = re.compile(r"([0-9]{1,9})x([0-9]{1,9})(?::([0-9]{1,9}))?")
_GRID = re.compile(r"(mesh|torus|routed-torus):([0-9]{1,9}(?:x[0-9]{1,9})*)")
_ONE_GPU = re.compile(r"one-h100:([0-9]{1,9})")
_NAME = re.compile(r"(.*?)(?:,like=([\w.-]*))?(?::([0-9]{1,9}))?", re.DOTALL)
_TURNED = re.compile(r"(.+)(:[0-9]{1,9})(,like=[\w.-]+)", re.DOTALL)
_PART = re.compile(r"([0-9]{1,9})x([0-9]{1,9}),like=([\w.-]+)")
_SUFFIXES = (".toml", ".xml", ".json", ".txt")


def cluster(nodes: int, gpus: int, nics: int | None = None) -> Topology:
    """Nodes of GPUs in which every rank is linked to every other, ranks numbered node by node.

    nics: number of network cards of each node, shared by neighbouring GPUs; by default one for
        each GPU.
    Errors: C308.
    """
    return Topology.cluster(nodes, gpus, nics)


def mesh(
    *sides: int,
    nominal_GBps: float = 25.0,  # noqa: N803 - a unit
    GBps: float = 20.0,  # noqa: N803
    model: CostModel | None = None,
) -> Topology:
    """A grid of GPUs in any number of dimensions, each linked to its neighbours in every
    dimension. Ranks count along the last dimension first: row by row in two dimensions.

    sides: number of GPUs along each dimension.
    nominal_GBps, GBps: nominal and reached rate of each link in each direction; by default those
        of one NVLink of a V100.
    Errors: C308, T602.
    """
    return _grid("mesh", sides, (nominal_GBps, GBps), model)


def torus(
    *sides: int,
    nominal_GBps: float = 25.0,  # noqa: N803 - a unit
    GBps: float = 20.0,  # noqa: N803
    model: CostModel | None = None,
    routed: bool = False,
) -> Topology:
    """A mesh whose last GPU along each dimension is also linked to the first; a side of two GPUs
    gets no second link.

    sides: number of GPUs along each dimension.
    nominal_GBps, GBps: nominal and reached rate of each link in each direction; by default those
        of one NVLink of a V100.
    routed: whether each GPU has a router, which the links join and which passes on the messages of
        others, so that all GPUs can send to one another.
    Errors: C308, T602.
    """
    return _grid("routed-torus" if routed else "torus", sides, (nominal_GBps, GBps), model)


def _grid(
    word: str, sides: tuple[int, ...], rate: tuple[float, float], model: CostModel | None
) -> Topology:
    right = bool(sides) and all(is_integer(s) and 1 <= s <= MAX_RANKS for s in sides)
    if not right or math.prod(sides) > MAX_RANKS:
        raise C308.error(
            expected=f"sides of at least 1, and at most {MAX_RANKS} GPUs",
            found=f"{word}:{'x'.join(map(repr, sides))}",
            remedy="Give the number of GPUs along each dimension, from 1.",
        )
    name = f"{word}:{'x'.join(map(str, sides))}"
    rank = np.arange(math.prod(sides)).reshape(sides)
    builder = Builder(name, np.zeros(rank.size, np.int32))
    place = rank
    if word == "routed-torus":
        place = builder.add(VertexKind.SWITCH, np.zeros(rank.size, np.int32)).reshape(sides)
        together = [2 * len(sides) * one for one in rate]  # a GPU can use all links of its router
        builder.both(rank.ravel(), place.ravel(), LinkKind.NVLINK, *together)
    for axis, side in enumerate(sides):
        along = np.moveaxis(place, axis, 0)
        pairs = [(along[:-1], along[1:])]
        if word != "mesh" and side > 2:
            pairs.append((along[-1:], along[:1]))
        for a, b in pairs:
            builder.both(a.ravel(), b.ravel(), LinkKind.NVLINK, *rate)
    return builder.topology(model)


@without_inner_frames
def find(name: str) -> Topology:
    """The topology with this name, as `look_up` finds it. Errors: those of `look_up`."""
    return look_up(name).topology


def topology_of(topology: Topology | str) -> Topology:
    """A topology as it is, or the one with this name. Errors: C307, and those of `look_up`."""
    if isinstance(topology, Topology):
        return topology
    if not isinstance(topology, str):
        raise C307.error(
            expected='a Topology, or the name of one, such as "ndv4:2"',
            found=repr(topology)[:60],
            remedy="The command `sley topology list` prints the names; sley.topologies builds "
            "others.",
        )
    return find(topology)


def look_up(name: str) -> LoadedTopology:
    """The topology with this name: MACHINE[:NODES], NODESxGPUS[:NICS], mesh:4x4, torus:4x4x4,
    routed-torus:4x4, one-h100:RANKS for ranks that share a GPU, NODESxGPUS,like=MACHINE for a part
    of each node, or FILE[,like=MACHINE][:NODES]; with its machine, and the importer's assumptions.

    Errors: T604, C308, and those of `read`.
    """
    if not isinstance(name, str):
        raise C307.error(expected="the name of a topology", found=repr(name)[:60])
    numbers = _NUMBERS.fullmatch(name)
    if numbers is not None:
        nodes, gpus, nics = (None if n is None else int(n) for n in numbers.groups())
        return LoadedTopology(Topology.cluster(nodes or 0, gpus or 0, nics), None)
    grid = _GRID.fullmatch(name)
    if grid is not None:
        sides = map(int, grid[2].split("x"))
        if grid[1] == "mesh":
            return LoadedTopology(mesh(*sides), None)
        return LoadedTopology(torus(*sides, routed=grid[1] != "torus"), None)
    ranks = _ONE_GPU.fullmatch(name)
    if ranks is not None:
        return LoadedTopology(ONE_H100.topology(int(ranks[1])), None)
    if part := _PART.fullmatch(name):
        machine = find_machine(part[3]).part(int(part[2]))
        topology = replace(machine.topology(int(part[1])), name=name)
        return LoadedTopology(topology, machine, _caution(machine))
    stem, like, nodes = parts_of(name)
    if like is None and stem in machine_names():
        machine = find_machine(stem)
        topology = machine.topology(1 if nodes is None else nodes)
        return LoadedTopology(topology, machine, _caution(machine))
    # Unlike Path's, this test is false for what is no possible name.
    if stem.lower().endswith(_SUFFIXES) or os.path.exists(stem):  # noqa: PTH110
        return read(stem, nodes=nodes, like=like)
    remedy = did_you_mean(stem, [*machine_names(), "mesh", "torus", "routed-torus", "one-h100"])
    if turned := _TURNED.fullmatch(name):
        remedy = "The number of nodes comes last: {0}{2}{1}".format(*turned.groups())
    elif (own := name.partition(":")[0]) in machine_names():
        remedy = f"Give a whole number of nodes, such as {own}:2."
    raise T604.error(
        expected="MACHINE[:NODES], NODESxGPUS[:NICS], mesh:4x4, torus:4x4x4, routed-torus:4x4, "
        "one-h100:RANKS, NODESxGPUS,like=MACHINE, or FILE[,like=MACHINE][:NODES]",
        found=repr(name[:60]),
        remedy=remedy,
    )


def parts_of(name: str) -> tuple[str, str | None, int | None]:
    """The path of FILE[,like=MACHINE][:NODES], or the name of a machine, and the other parts."""
    found = _NAME.fullmatch(name)
    stem, like, nodes = found.groups() if found else (name, None, None)
    return stem, like, None if nodes is None else int(nodes)


def _caution(machine: Machine) -> tuple[Diagnostic, ...]:
    if not machine.caution:
        return ()
    expected = "predictions close to measurements"
    place = Place(detail=machine.name)
    return (T611.diagnostic(at=place, expected=expected, found=machine.caution),)
