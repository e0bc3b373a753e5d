"""Machine: a kind of node and the network between such nodes, read from the tables of a TOML file;
sley's own are in machines/*.toml.

Below: the inside of a node, and clusters of such nodes; then the tables of machines.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from itertools import combinations
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from sley.errors import Place, SleyError, counted, did_you_mean
from sley.errors.compiler import C308
from sley.errors.text_files import Section, excerpt
from sley.errors.topology import T602, T604, T607, T608
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, TopologyLinks, VertexKind, Vertices
from sley.ir.routes import card_groups
from sley.ir.tables import NONE, LongArray
from sley.ir.topology import MAX_RANKS, Builder, Topology
from sley.ir.words import is_integer


class Rate(NamedTuple):
    """The speed of a link in one direction.

    nominal_GBps: the data sheet's rate.
    GBps: the rate that transfers reach.
    latency_us: latency of a hop, NONE for the cost model's.
    """

    nominal_GBps: float  # noqa: N815 - a unit
    GBps: float
    latency_us: float = NONE

    def times(self, count: float) -> Rate:
        """The rate of `count` links side by side."""
        return Rate(self.nominal_GBps * count, self.GBps * count, self.latency_us)

    @classmethod
    def sum(cls, rates: Iterable[Rate]) -> Rate:
        """The rate of links side by side."""
        nominal, reached, latency = zip(*rates, strict=True)
        return cls(sum(nominal), sum(reached), max(latency))


class Link(NamedTuple):
    """A link inside a node, in one direction; src and dst count the vertices of that node."""

    src: int
    dst: int
    kind: LinkKind
    rate: Rate


@dataclass(frozen=True)
class Racks:
    """Racks of nodes, one switch for each rack, and a spine above: a Clos network of two tiers.

    nodes: number of nodes in each rack.
    uplink: total rate of the cables from a rack's switch to the spine.
    """

    nodes: int
    uplink: Rate


@dataclass(frozen=True)
class Rails:
    """Rails: a switch for each card of a node, which joins this card of all nodes, and a spine that
    joins these switches.

    oversubscription: the total rate of a rail's cards over that of its cables to the spine.
    """

    oversubscription: float


Network = Racks | Rails | None
"""The network between nodes; None is one switch without bottlenecks."""


@dataclass
class Node:
    """The inside of one node: its vertices (GPUs first), its links, and its cards' rates. Or of
    several hosts that NVLink joins, as in a rack of GB200s; then each host counts as a node.

    gpus: number of GPUs.
    kinds: the kind of each vertex.
    links: the links between vertices, one for each direction.
    cards: the rate of each card towards the network, by the card's vertex.
    hosts: the host of each vertex, NONE for a switch between hosts.
    """

    gpus: int
    kinds: list[VertexKind] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    cards: dict[int, Rate] = field(default_factory=dict)
    hosts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kinds = self.kinds or [VertexKind.GPU] * self.gpus
        self.hosts = self.hosts or [0] * self.gpus

    def add(self, kind: VertexKind, host: int = 0) -> int:
        """Adds a vertex; returns its number."""
        self.kinds.append(kind)
        self.hosts.append(host)
        return len(self.kinds) - 1

    def add_card(self, rate: Rate, host: int = 0) -> int:
        """Adds a network card; returns its number."""
        card = self.add(VertexKind.NIC, host)
        self.cards[card] = rate
        return card

    def join(self, a: int, b: int, kind: LinkKind, rate: Rate) -> None:
        """Adds a link in both directions."""
        self.links += [Link(a, b, kind, rate), Link(b, a, kind, rate)]


@dataclass(frozen=True)
class Machine:
    """A kind of node and the network between such nodes.

    name: its name.
    description: one sentence for lists.
    sources: the source of the numbers in each table of the file, by the table's path.
    node: the GPUs, switches, cards and links of a node.
    network: the network between nodes.
    model: the cost model.
    in_network: whether switches reduce and multicast.
    caution: how far predictions for it are known to be off; empty if nothing is known.
    """

    name: str
    description: str
    sources: Mapping[str, str]
    node: Node
    network: Network = None
    model: CostModel = field(default_factory=CostModel)
    in_network: bool = False
    caution: str = ""

    def topology(self, nodes: int = 1) -> Topology:
        """A cluster of `nodes` such nodes, joined through their cards. A single node gets neither
        cards nor a network. Several cards of a GPU are one (`bundled`). Errors: C308, T602, T603.
        """
        node, name = self.node, self.name if nodes == 1 else f"{self.name}:{nodes}"
        hosts = max(node.hosts) + 1
        most = MAX_RANKS // node.gpus
        if not is_integer(nodes) or not 1 <= nodes <= most:
            raise C308.error(
                expected=f"1 to {most} nodes of {self.name}",
                found=f"nodes={nodes!r}",
                remedy="Give a whole number of nodes in this range.",
            )
        if nodes > 1 and not node.cards:
            found = f"{counted(nodes, 'node')} of {name}"
            expected = "one node, as it has no network cards"
            remedy = "Leave the number of nodes out, or import the machine to TOML and add cards."
            raise C308.error(expected=expected, found=found, remedy=remedy)
        node = bundled(node)
        number, of_host = _numbers(node, nodes)
        builder = Builder(name, of_host[: node.gpus].T.ravel())
        joined = nodes * hosts > 1
        for kind in (VertexKind.SWITCH, VertexKind.PCIE, VertexKind.NIC):
            own = [v for v, k in enumerate(node.kinds) if k == kind]
            if own and (joined or kind != VertexKind.NIC):
                number[own] = builder.add(kind, of_host[own].T.ravel()).reshape(nodes, len(own)).T
        for link in node.links:
            src, dst = number[link.src], number[link.dst]
            if joined or (link.src not in node.cards and link.dst not in node.cards):
                builder.link(src, dst, link.kind, *link.rate)
        if joined and node.cards:
            _join_nodes(builder, node, number, of_host, self.network)
        return builder.topology(self.model, in_network=self.in_network)

    def part(self, gpus: int) -> Machine:
        """The machine with only the first GPUs of a node, and the cards next to them. Errors:
        C308."""
        node = bundled(self.node)
        if not 1 <= gpus <= node.gpus:
            expected = f"1 to {node.gpus} GPUs in a node of {self.name}"
            remedy = "Give a number in this range, or describe the machine in a file of TOML."
            raise C308.error(expected=expected, found=f"{gpus} GPUs", remedy=remedy)
        near = {card for cards, own in _near(node).items() if min(own) < gpus for card in cards}
        inner = (VertexKind.SWITCH, VertexKind.PCIE)
        kept = [v for v, kind in enumerate(node.kinds) if v < gpus or kind in inner or v in near]
        place = {vertex: i for i, vertex in enumerate(kept)}
        links = [
            link._replace(src=place[link.src], dst=place[link.dst])
            for link in node.links
            if link.src in place and link.dst in place
        ]
        cards = {place[card]: rate for card, rate in node.cards.items() if card in near}
        description = f"{gpus} of {node.gpus} GPUs of a node: {self.description}"
        kinds = [node.kinds[v] for v in kept]
        part = Node(gpus, kinds, links, cards, [node.hosts[v] for v in kept])
        return replace(self, description=description, node=part)


def _near(node: Node) -> dict[tuple[int, ...], list[int]]:
    """The GPUs of each group of cards that are next to the same ones."""
    columns = np.array([(a, b, kind, *rate) for a, b, kind, rate in node.links]).reshape(-1, 6)
    vertices = Vertices(np.array(node.kinds), np.array(node.hosts))
    return card_groups(vertices, TopologyLinks(*columns.T))


def _numbers(node: Node, nodes: int) -> tuple[LongArray, LongArray]:
    """int64 (vertices of a node, nodes): the numbers of the GPUs of every node, with room for those
    of the other vertices; and the node, or the host, of each vertex."""
    number = np.full((len(node.kinds), nodes), NONE)
    number[: node.gpus] = np.arange(nodes * node.gpus).reshape(nodes, node.gpus).T
    host = np.array(node.hosts)[:, None]
    of_host = np.arange(nodes) * (int(host.max()) + 1) + host
    return number, np.where(host == NONE, NONE, of_host)


def bundled(node: Node) -> Node:
    """The node with its cards as its GPUs use them: of the cards next to the same GPUs only the
    fastest, and where they are more than these GPUs, several as one with the sum of their rates.
    So NCCL divides a GPU's channels among its nearest cards."""
    groups = _near(node)
    near = Counter(card for cards in groups for card in cards)
    bundle = {card: [card] for card in node.cards}
    for cards, gpus in groups.items():
        if not cards or any(near[card] > 1 for card in cards):
            continue  # none, or other GPUs share some of them
        most = max(node.cards[card].GBps for card in cards)
        fast = [card for card in cards if node.cards[card].GBps == most]
        # Bundles of one size, the smallest whose number divides that of the GPUs.
        size = len(fast) // gcd(len(fast), len(gpus)) if len(fast) > len(gpus) else 1
        for card in cards:
            del bundle[card]
        bundle |= {fast[i]: fast[i : i + size] for i in range(0, len(fast), size)}
    if all(bundle.get(card) == [card] for card in node.cards):
        return node
    return _with_bundles(node, bundle)


def _with_bundles(node: Node, bundle: dict[int, list[int]]) -> Node:
    """The node with a card for each bundle of cards, named by its first, and without the others.
    Every slot of a bundle has the rate of all of them, so that each path carries its sum."""
    kept = [v for v in range(len(node.kinds)) if v not in node.cards or v in bundle]
    place = {vertex: i for i, vertex in enumerate(kept)}
    links = [
        Link(place[a], place[b], kind, rate)
        for a, b, kind, rate in node.links
        if a not in node.cards and b not in node.cards
    ]
    new = Node(node.gpus, [node.kinds[v] for v in kept], links, {}, [node.hosts[v] for v in kept])
    slots: dict[int, dict[int, Rate]] = {card: {} for card in node.cards}
    for a, b, _, rate in node.links:
        if a in slots:
            slots[a][b] = rate
    for card, members in sorted(bundle.items()):
        new.cards[place[card]] = Rate.sum(node.cards[member] for member in members)
        rate = Rate.sum(next(iter(slots[member].values())) for member in members)
        for end in dict.fromkeys(end for member in members for end in slots[member]):
            new.join(place[card], place[end], LinkKind.PCIE, rate)
    return new


def _join_nodes(
    builder: Builder, node: Node, number: LongArray, of_host: LongArray, network: Network
) -> None:
    """Adds the network: a switch for each rack or rail, and a spine if there are several."""
    network = network or Racks(MAX_RANKS, Rate(1.0, 1.0))
    nodes = number.shape[1]
    cards = list(node.cards.items())
    if isinstance(network, Rails):
        leaf = builder.add(VertexKind.NETWORK, np.full(len(cards), NONE))
        own = [np.full(nodes, switch) for switch in leaf]
        up = [rate.times(nodes / network.oversubscription) for _, rate in cards]
    else:
        racks = int(of_host.max()) // network.nodes + 1
        leaf = builder.add(VertexKind.NETWORK, np.full(racks, NONE))
        own = [leaf[of_host[card] // network.nodes] for card, _ in cards]
        up = [network.uplink] * len(leaf)
    for (card, rate), switches in zip(cards, own, strict=True):
        builder.both(number[card], switches, LinkKind.NETWORK, *rate)
    if len(leaf) > 1:
        spine = builder.add(VertexKind.NETWORK, [NONE])
        for switch, rate in zip(leaf, up, strict=True):
            builder.both(switch, spine, LinkKind.NETWORK, *rate)


def at_place(error: SleyError, place: Place) -> SleyError:
    """The error, with `place` in each diagnostic that has no place."""
    return SleyError([d if d.places else replace(d, places=(place,)) for d in error.diagnostics])


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


def count_of(section: Section, key: str, most: int, default: int | None = None) -> int:
    """A whole number from 1 to `most`. Errors: T607."""
    expected = f"a whole number from 1 to {most}"
    found = default if default is not None and key not in section else section.value(key, expected)
    if not is_integer(found) or not 1 <= found <= most:
        raise section.refuse(key, expected, found)
    return int(found)


def _positive(section: Section, key: str) -> float:
    """A number above 0. Errors: T602, T607."""
    found = section.number(key)
    if not math.isfinite(found) or found <= 0:
        raise section.refuse(key, "a number above 0", found, T602)
    return found


def _rate(section: Section) -> Rate:
    """nominal_GBps, GBps and optionally latency_us. Errors: T602, T607."""
    nominal, reached = (_positive(section, key) for key in _RATE)
    latency = section.number("latency_us", NONE)
    if "latency_us" in section and not (math.isfinite(latency) and latency >= 0):
        raise section.refuse("latency_us", "a number from 0", latency, T602)
    if reached > nominal:
        raise section.refuse("GBps", f"at most nominal_GBps, {nominal:g}", reached, T602)
    return Rate(nominal, reached, latency)


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
    """The error about a name without a machine (T604), which suggests similar names, or the machine
    in a name of several nodes."""
    remedy = did_you_mean(excerpt(name).strip("'"), machine_names())
    if isinstance(name, str) and (stem := name.partition(":")[0]) in machine_names():
        remedy = (
            f"Name the machine alone, {stem}. A number of nodes goes behind a topology: FILE:2."
        )
    return T604.error(
        at=at or (),
        expected="a machine",
        found=excerpt(name),
        remedy=remedy,
    )


def complete(file: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A machine's tables, completed with those of the machine that it names under "like". A table
    replaces the other machine's whole table; [model] replaces single parameters. Errors: T604,
    T607."""
    if "like" not in values:
        return values
    top = Section(file, values, T607)
    name = top.typed("like", str)
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
    top = Section(file, tables, T607)
    parts = {name: top.section(name) for name in _KEYS if name in top}
    given = {"": top, **parts}
    faults = [one for name, part in given.items() for one in part.key_faults(*_KEYS[name])]
    if faults:
        raise SleyError(faults)
    nvlink, pcie, cards, racks, rails, model = (parts.get(name) for name in _KEYS if name)
    node = Node(count_of(top, "gpus", MAX_RANKS))
    if nvlink is not None:
        _read_nvlink(nvlink, node)
    _read_cards(cards, pcie, node)
    machine = Machine(
        top.typed("name", str),
        top.typed("description", str, ""),
        {},
        node,
        _network(racks, rails),
        CostModel() if model is None else read_model(model),
        top.typed("in_network", bool, False),
        top.typed("caution", str, ""),
    )
    for part in parts.values():
        part.typed("source", str, "")
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
        ratio = _positive(rails, "oversubscription")
        if ratio < 1:
            raise rails.refuse("oversubscription", "a number from 1", ratio, T602)
        return Rails(ratio)
    return None if racks is None else Racks(count_of(racks, "nodes", MAX_RANKS), _rate(racks))


def _read_nvlink(section: Section, node: Node) -> None:
    """Reads [nvlink]: a switch for each board, or links between pairs of GPUs. Errors: T602, T607,
    T608."""
    rate = _rate(section)
    if "links" in section:
        section.check_keys((*_RATE, "links"), ("latency_us",))
        for a, b, times in _gpu_links(section, node.gpus):
            node.join(a, b, LinkKind.NVLINK, rate.times(times))
        return
    boards = count_of(section, "boards", node.gpus, 1)
    if node.gpus % boards:
        raise section.refuse("boards", f"a divisor of {node.gpus} GPUs", boards)
    if boards == 1:
        section.check_keys(_RATE, ("latency_us", "boards", "links"))
    switches = [node.add(VertexKind.SWITCH) for _ in range(boards)]
    for gpu in range(node.gpus):
        node.join(gpu, switches[gpu * boards // node.gpus], LinkKind.NVLINK, rate)
    if boards > 1:
        between = section.section("between_boards")
        between.check_keys(_RATE, ("latency_us",))
        for a, b in combinations(switches, 2):
            node.join(a, b, LinkKind.NVLINK, _rate(between))


def _gpu_links(section: Section, gpus: int) -> list[tuple[int, int, int]]:
    """The links as (GPU, GPU, count); "all" in the file means one link for every pair."""
    if section.value("links", "an array") == "all":
        return [(a, b, 1) for a, b in combinations(range(gpus), 2)]
    found: dict[tuple[int, int], int] = {}
    for i, link in enumerate(section.typed("links", list)):
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
        rate = _rate(cards)
        vertices = [
            node.add_card(rate) for _ in range(count_of(cards, "count", MAX_RANKS, node.gpus))
        ]
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
        if gpus % cards and cards % gpus:
            more = "or gpus with the list of each card's GPUs"
            expected = f"a divisor or a multiple of {gpus} GPUs, {more}"
            raise section.refuse("count", expected, cards)
        share = max(gpus // cards, 1)
        first = [card * gpus // cards for card in range(cards)]
        return [list(range(gpu, gpu + share)) for gpu in first]
    near = section.typed("gpus", list)
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
    for i, name in enumerate(section.typed("vertices", list)):
        if not isinstance(name, str):
            raise section.refuse(f"vertices[{i}]", "a name", name)
        if name in names:
            raise section.refuse(f"vertices[{i}]", "a unique name", name, T608)
        names[name] = node.add(VertexKind.PCIE)
    used: set[int] = set()
    for link in section.sections("links"):
        link.check_keys(("from", "to", *_RATE), ("latency_us",))
        rate = _rate(link)
        end = _vertex(link, "to", link.typed("to", str), names)
        starts = link.value("from", "a name or an array of names")
        for start in starts if isinstance(starts, list) else [starts]:
            vertex = _vertex(link, "from", start, names)
            if vertex == end:
                raise link.refuse("from", 'a vertex other than "to"', start, T608)
            node.join(vertex, end, LinkKind.PCIE, rate)
            used |= {vertex, end}
    return used & set(cards)


def _vertex(link: Section, key: str, name: Any, names: dict[str, int]) -> int:
    if isinstance(name, str) and name in names:
        return names[name]
    expected, remedy = (
        "gpu NUMBER, nic NUMBER or one of [pcie] vertices",
        did_you_mean(excerpt(name).strip("'"), names),
    )
    raise link.refuse(key, expected, name, T608, remedy)


def read_model(section: Section) -> CostModel:
    """Reads [model]: parameters of CostModel; parameters that it leaves out keep their default
    values. Errors: T602, T607."""
    values: dict[str, Any] = {}
    for f in fields(CostModel):
        if isinstance(f.default, ByProtocol) and isinstance(section.values.get(f.name), dict):
            one, words = section.section(f.name), ("LL", "LL128", "Simple")
            one.check_keys(words)
            values[f.name] = ByProtocol(*map(one.number, words))
        elif f.name in section:
            values[f.name] = section.number(f.name)
    try:
        return CostModel(**values)
    except SleyError as error:
        raise at_place(error, section.place()) from error
