"""Machine: a kind of node and its network, as a TOML file describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sley.errors import Place, SleyError
from sley.ir.cost_model import CostModel
from sley.ir.topology import MAX_RANKS, Topology
from sley.topologies.node import Node, Racks, cluster_of
from sley.topologies.parts import read_cards, read_model, read_nvlink
from sley.topologies.reading import Section, at_place


@dataclass(frozen=True)
class Machine:
    """A kind of node and the network between such nodes.

    name: its name.
    description: one sentence for lists.
    sources: the source of the numbers in each table of the file, by the table's path.
    node: the GPUs, switches, cards and links of a node.
    racks: the network's racks, None for one switch without bottlenecks.
    model: the cost model.
    in_network: whether switches reduce and multicast.
    """

    name: str
    description: str
    sources: Mapping[str, str]
    node: Node
    racks: Racks | None = None
    model: CostModel = field(default_factory=CostModel)
    in_network: bool = False

    def topology(self, nodes: int = 1) -> Topology:
        """A cluster of `nodes` such nodes. Errors: C308, T603."""
        return cluster_of(
            self.node,
            nodes,
            name=self.name if nodes == 1 else f"{self.name}:{nodes}",
            racks=self.racks,
            model=self.model,
            in_network=self.in_network,
        )


def _sources(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """The path and the source of each table that gives one."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _sources(value, f"{path}.{key}" if path else key)
        elif key == "source" and path:
            yield path, value


Lookup = Callable[[str, Section], Mapping[str, Any]]
"""Finds the tables of the machine with a name; errors point at the key "like" of the section."""


def complete(file: str, values: Mapping[str, Any], lookup: Lookup) -> Mapping[str, Any]:
    """A machine's tables, completed with those of the machine that it names under "like". A table
    replaces the other machine's whole table; [model] replaces single parameters. Errors: T604,
    T607."""
    if "like" not in values:
        return values
    top = Section(file, values)
    base = lookup(top.text("like"), top)
    own = {key: value for key, value in values.items() if key != "like"}
    if isinstance(own.get("model"), dict) and "model" in base:
        own["model"] = {**base["model"], **own["model"]}
    return {**base, **own}


def machine_from(file: str, values: Mapping[str, Any], lookup: Lookup) -> Machine:
    """The machine that a file's tables describe.

    lookup: finds the machine under "like".
    Errors: T602, T603, T604, T606, T607, T608.
    """
    tables = complete(file, values, lookup)
    top = Section(file, tables)
    node = Node(top.count("gpus", MAX_RANKS))
    names = ("nvlink", "pcie", "cards", "racks", "model")
    parts = nvlink, pcie, cards, racks, model = [top.optional_section(name) for name in names]
    if nvlink is not None:
        read_nvlink(nvlink, node)
    read_cards(cards, pcie, node)
    machine = Machine(
        top.text("name"),
        top.text("description", ""),
        {},
        node,
        None if racks is None else Racks(racks.count("nodes", MAX_RANKS), racks.rate()),
        CostModel() if model is None else read_model(model),
        top.flag("in_network"),
    )
    top.value("like", "", None)
    for part in (top, *parts):
        if part is not None:
            part.finish()
    try:
        machine.topology(1)
    except SleyError as error:
        raise at_place(error, Place(file)) from error
    return replace(machine, sources=dict(_sources(tables)))
