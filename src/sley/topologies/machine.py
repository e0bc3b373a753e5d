"""Machine: a kind of node and its network, read from the tables of a TOML file; sley's own are in
machines/*.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any

from sley.errors import Place, SleyError, did_you_mean
from sley.errors.topology import T602, T604, T608
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import MAX_RANKS, Topology
from sley.ir.words import is_integer
from sley.topologies.node import Machine, Network, Node, Racks, Rails
from sley.topologies.reading import Section, at_place, excerpt

_MAX_LINKS = 64
"""The most links side by side between two GPUs."""

_NETWORKS = ("racks", "rails")
"""The tables with a network, of which a machine has one."""


_RATE = ("nominal_GBps", "GBps")
_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (
        ("name", "gpus"),
        (
            *("description", "caution", "like", "in_network"),
            *("nvlink", "pcie", "cards", "racks", "rails", "model"),
        ),
    ),
    "nvlink": (_RATE, ("latency_us", "boards", "between_boards", "links")),
    "pcie": (("vertices", "links"), ()),
    "cards": (_RATE, ("latency_us", "count", "gpus")),
    "racks": (("nodes", *_RATE), ("latency_us",)),
    "rails": (("oversubscription",), ()),
    "model": ((), tuple(f.name for f in fields(CostModel))),
}
"""The required and the optional keys of each table, and of the file's top level."""


def _sources(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """The path and the source of each table that gives one."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _sources(value, f"{path}.{key}" if path else key)
        elif key == "source" and path:
            yield path, value


@cache
def machine_tables() -> dict[str, dict[str, Any]]:
    """The tables of each machine's file, by the machine's name."""
    folder = resources.files("sley.topologies") / "machines"
    files = [f.name for f in folder.iterdir() if f.name.endswith(".toml")]
    names = sorted(name.removesuffix(".toml") for name in files)
    return {n: tomllib.loads((folder / f"{n}.toml").read_text("utf-8")) for n in names}


def machine_names() -> tuple[str, ...]:
    """The names of the machines that sley includes."""
    return tuple(machine_tables())


def find_machine(name: str) -> Machine:
    """The machine with this name. Errors: T604, which suggests similar names."""
    if not isinstance(name, str) or name not in machine_tables():
        raise _unknown_machine(name)
    return _machine(name)


@cache
def _machine(name: str) -> Machine:
    return machine_from(f"{name}.toml", machine_tables()[name])


def machine(name: str, nodes: int = 1) -> Topology:
    """A cluster of `nodes` nodes of the machine with this name. Errors: C308, T604."""
    return find_machine(name).topology(nodes)


def _unknown_machine(name: object, at: Place | None = None) -> SleyError:
    """The error about a name without a machine (T604), which suggests similar names."""
    return T604.error(
        at=at or (),
        expected="one of " + ", ".join(machine_names()),
        found=excerpt(name),
        remedy=did_you_mean(str(name), machine_names()),
    )


def complete(file: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A machine's tables, completed with those of the machine that it names under "like". A table
    replaces the other machine's whole table; [model] replaces single parameters. Errors: T604,
    T607."""
    if "like" not in values:
        return values
    top = Section(file, values)
    name = top.text("like")
    if name not in machine_tables():
        raise _unknown_machine(name, top.place("like"))
    base = dict(complete(f"{name}.toml", machine_tables()[name]))
    own = {key: value for key, value in values.items() if key != "like"}
    if not own.keys().isdisjoint(_NETWORKS):
        base = {key: value for key, value in base.items() if key not in _NETWORKS}
    if isinstance(own.get("model"), dict) and "model" in base:
        own["model"] = {**base["model"], **own["model"]}
    return {**base, **own}


def machine_from(file: str, values: Mapping[str, Any]) -> Machine:
    """The machine that a file's tables describe. Errors: T602, T603, T604, T607, T608."""
    tables = complete(file, values)
    top = Section(file, tables)
    parts = {name: top.optional_section(name) if name else top for name in _KEYS}
    given = {name: part for name, part in parts.items() if part is not None}
    faults = [one for name, part in given.items() for one in part.key_faults(*_KEYS[name])]
    if faults:
        raise SleyError(faults)
    _, nvlink, pcie, cards, racks, rails, model = parts.values()
    node = Node(top.count("gpus", MAX_RANKS))
    if nvlink is not None:
        _read_nvlink(nvlink, node)
    _read_cards(cards, pcie, node)
    machine = Machine(
        top.text("name"),
        top.text("description", ""),
        {},
        node,
        _network(racks, rails),
        CostModel() if model is None else read_model(model),
        top.flag("in_network"),
        top.text("caution", ""),
    )
    top.value("like", "", None)
    for part in given.values():
        part.finish()
    try:
        machine.topology(1)
    except SleyError as error:
        raise at_place(error, Place(file)) from error
    return replace(machine, sources=dict(_sources(tables)))


def _network(racks: Section | None, rails: Section | None) -> Network:
    """The network of [racks] or [rails]. Errors: T602, T607, T608."""
    if racks is not None and rails is not None:
        found = "[racks] and [rails]"
        raise T608.error(at=rails.place(), expected="one kind of network", found=found)
    if rails is not None:
        ratio = rails.positive("oversubscription")
        if ratio < 1:
            raise rails.refuse("oversubscription", "a number from 1", ratio, T602)
        return Rails(ratio)
    return None if racks is None else Racks(racks.count("nodes", MAX_RANKS), racks.rate())


def _read_nvlink(section: Section, node: Node) -> None:
    """Reads [nvlink]: a switch for each board, or links between pairs of GPUs. Errors: T602, T607,
    T608."""
    rate = section.rate()
    if "links" in section:
        for a, b, times in _gpu_links(section, node.gpus):
            node.join(a, b, LinkKind.NVLINK, rate.times(times))
        return
    section.value("links", "", None)
    boards = section.count("boards", node.gpus, 1)
    if node.gpus % boards:
        raise section.refuse("boards", f"a divisor of {node.gpus} GPUs", boards)
    switches = [node.add(VertexKind.SWITCH) for _ in range(boards)]
    for gpu in range(node.gpus):
        node.join(gpu, switches[gpu * boards // node.gpus], LinkKind.NVLINK, rate)
    if boards > 1:
        between = section.section("between_boards")
        for a, b in combinations(switches, 2):
            node.join(a, b, LinkKind.NVLINK, between.rate())
        between.finish()


def _gpu_links(section: Section, gpus: int) -> list[tuple[int, int, int]]:
    """The links as (GPU, GPU, count); "all" in the file means one link for every pair."""
    if section.value("links", "an array") == "all":
        return [(a, b, 1) for a, b in combinations(range(gpus), 2)]
    found: dict[tuple[int, int], int] = {}
    for i, link in enumerate(section.items("links")):
        key = f"links[{i}]"
        right = isinstance(link, list) and len(link) in (2, 3) and all(map(is_integer, link))
        times = link[2] if right and len(link) == 3 else 1
        if not right or not 1 <= times <= _MAX_LINKS:
            raise section.refuse(key, "[GPU, GPU] or [GPU, GPU, count]", link)
        a, b = sorted(link[:2])
        if not 0 <= a < b < gpus:
            raise section.refuse(key, f"two GPUs from 0 to {gpus - 1}", link, T608)
        if (a, b) in found:
            raise section.refuse(key, "each pair of GPUs once", link, T608)
        found[a, b] = times
    return [(a, b, times) for (a, b), times in found.items()]


def _read_cards(cards: Section | None, pcie: Section | None, node: Node) -> None:
    """Reads [cards] and [pcie]: the network cards, and the PCIe links between them and the GPUs.
    Without cards in [pcie], each card is linked to its GPUs at its own rate. Errors: T602, T607,
    T608."""
    vertices: list[int] = []
    if cards is not None:
        rate = cards.rate()
        vertices = [node.add_card(rate) for _ in range(cards.count("count", MAX_RANKS, node.gpus))]
    hung = _read_pcie(pcie, node, vertices) if pcie is not None else set()
    if cards is None:
        return
    if not hung:
        neighbours = _gpus_of_cards(cards, node.gpus, len(vertices))
        for card, gpus in zip(vertices, neighbours, strict=True):
            for gpu in gpus:
                node.join(gpu, card, LinkKind.PCIE, node.cards[card])
    elif len(hung) < len(vertices) or "gpus" in cards:
        missing = [i for i, card in enumerate(vertices) if card not in hung]
        raise T608.error(
            at=cards.place("gpus" if "gpus" in cards else "count"),
            expected="either every card in the links of [pcie], or none",
            found=", ".join(f"no nic {i}" for i in missing[:4]) or "all of them, and gpus",
        )


def _gpus_of_cards(section: Section, gpus: int, cards: int) -> list[list[int]]:
    """The GPUs next to each card: the file's lists, or equal shares of neighbouring GPUs, or of
    the cards for each GPU."""
    if "gpus" not in section:
        section.value("gpus", "", None)
        if gpus % cards and cards % gpus:
            more = "or gpus with the list of each card's GPUs"
            expected = f"a divisor or a multiple of {gpus} GPUs, {more}"
            raise section.refuse("count", expected, cards)
        share = max(gpus // cards, 1)
        first = [card * gpus // cards for card in range(cards)]
        return [list(range(gpu, gpu + share)) for gpu in first]
    near = section.items("gpus")
    if len(near) != cards:
        raise section.refuse("gpus", f"a list for each of {cards} cards", near)
    for i, one in enumerate(near):
        if not isinstance(one, list) or not one or not all(map(is_integer, one)):
            raise section.refuse(f"gpus[{i}]", "GPUs, such as [0, 1]", one)
        if not all(0 <= gpu < gpus for gpu in one) or len(set(one)) < len(one):
            raise section.refuse(f"gpus[{i}]", f"GPUs from 0 to {gpus - 1}", one, T608)
    lost = sorted(set(range(gpus)) - {gpu for one in near for gpu in one})
    if lost:
        raise section.refuse("gpus", "a card for every GPU", f"none for GPU {lost[0]}", T608)
    return near


def _read_pcie(section: Section, node: Node, cards: list[int]) -> set[int]:
    """Adds the vertices and links of [pcie]; returns the cards that these links name."""
    names = {f"gpu {i}": i for i in range(node.gpus)}
    names |= {f"nic {i}": card for i, card in enumerate(cards)}
    for i, name in enumerate(section.items("vertices")):
        if not isinstance(name, str):
            raise section.refuse(f"vertices[{i}]", "a name", name)
        if name in names:
            raise section.refuse(f"vertices[{i}]", "a unique name", name, T608)
        names[name] = node.add(VertexKind.PCIE)
    used: set[int] = set()
    for link in section.sections("links"):
        rate = link.rate()
        end = _vertex(link, "to", link.text("to"), names)
        starts = link.value("from", "a name or an array of names")
        for start in starts if isinstance(starts, list) else [starts]:
            vertex = _vertex(link, "from", start, names)
            if vertex == end:
                raise link.refuse("from", 'a vertex other than "to"', start, T608)
            node.join(vertex, end, LinkKind.PCIE, rate)
            used |= {vertex, end}
        link.finish()
    return used & set(cards)


def _vertex(link: Section, key: str, name: Any, names: dict[str, int]) -> int:
    if isinstance(name, str) and name in names:
        return names[name]
    expected, remedy = (
        "gpu NUMBER, nic NUMBER or one of [pcie] vertices",
        did_you_mean(str(name), names),
    )
    raise link.refuse(key, expected, name, T608, remedy)


def read_model(section: Section) -> CostModel:
    """Reads [model]: parameters of CostModel; parameters that it leaves out keep their default
    values. Errors: T602, T607."""
    values: dict[str, Any] = {}
    for f in fields(CostModel):
        if f.name not in section:
            section.value(f.name, "", None)
        elif isinstance(f.default, ByProtocol) and section.is_table(f.name):
            one = section.section(f.name)
            values[f.name] = ByProtocol(*(one.number(word) for word in ("LL", "LL128", "Simple")))
            one.finish()
        else:
            values[f.name] = section.number(f.name)
    try:
        return CostModel(**values)
    except SleyError as error:
        raise at_place(error, section.place()) from error
