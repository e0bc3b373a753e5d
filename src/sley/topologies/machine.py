"""Machine: a node and how nodes are joined, as its TOML file describes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sley.errors import Place, SleyError
from sley.ir.cost_model import CostModel
from sley.ir.topology import MAX_RANKS, Topology
from sley.topologies.node import Node, Racks, cluster_of
from sley.topologies.parts import read_cards, read_model, read_nvlink
from sley.topologies.reading import Section, placed


@dataclass(frozen=True)
class Machine:
    """A kind of node and how such nodes are joined.

    name: its name.
    description: what it is, in a sentence.
    sources: where the numbers come from, by the table of the file that they stand in.
    node: what is inside.
    racks: how the network is built, None for one switch without bottlenecks.
    model: what moving bytes costs.
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
        """So many nodes of it. Errors: C308, T603."""
        return cluster_of(
            self.node,
            nodes,
            name=self.name if nodes == 1 else f"{self.name}:{nodes}",
            racks=self.racks,
            model=self.model,
            in_network=self.in_network,
        )


def _sources(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """The sources that tables name, by the tables' paths."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _sources(value, f"{path}.{key}" if path else key)
        elif key == "source" and path:
            yield path, value


Lookup = Callable[[str, Section], Mapping[str, Any]]
"""The tables of another machine, by its name; errors are about the key "like" of a section."""


def complete(file: str, values: Mapping[str, Any], lookup: Lookup) -> Mapping[str, Any]:
    """A machine's tables with those of the machine that it is like, where it has none of its own;
    parameters of the model by themselves. Errors: T604, T607."""
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

    lookup: finds what "like" names.
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
        raise placed(error, Place(file)) from error
    return replace(machine, sources=dict(_sources(tables)))
