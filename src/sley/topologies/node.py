"""Node: the inside of one node, and machines, which are clusters of identical nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

import numpy as np

from sley.errors import counted
from sley.errors.compiler import C308
from sley.ir.cost_model import CostModel
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
            raise C308.error(expected=f"1 to {most} nodes of {name}", found=f"nodes={nodes!r}")
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
    columns = np.array([(a, b, kind, *rate) for a, b, kind, rate in node.links]).reshape(-1, 6)
    groups = card_groups(
        Vertices(np.array(node.kinds), np.array(node.hosts)), TopologyLinks(*columns.T)
    )
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
