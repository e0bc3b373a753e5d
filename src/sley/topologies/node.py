"""Node: the inside of one node, and clusters of identical nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sley.errors import counted
from sley.errors.compiler import C308
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind, VertexKind
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
    """The inside of one node: its vertices (GPUs first), its links, and its cards' rates.

    gpus: number of GPUs.
    kinds: the kind of each vertex.
    links: the links between vertices, one for each direction.
    cards: the rate of each card towards the network, by the card's vertex.
    """

    gpus: int
    kinds: list[VertexKind] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    cards: dict[int, Rate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds = self.kinds or [VertexKind.GPU] * self.gpus

    def add(self, kind: VertexKind) -> int:
        """Adds a vertex; returns its number."""
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def add_card(self, rate: Rate) -> int:
        """Adds a network card; returns its number."""
        card = self.add(VertexKind.NIC)
        self.cards[card] = rate
        return card

    def join(self, a: int, b: int, kind: LinkKind, rate: Rate) -> None:
        """Adds a link in both directions."""
        self.links += [Link(a, b, kind, rate), Link(b, a, kind, rate)]


def cluster_of(
    node: Node,
    nodes: int,
    *,
    name: str,
    network: Network,
    model: CostModel,
    in_network: bool,
) -> Topology:
    """A cluster of identical nodes, joined through their cards. A single node gets neither cards
    nor a network.

    Errors: C308, T602, T603.
    """
    most = MAX_RANKS // node.gpus
    if not is_integer(nodes) or not 1 <= nodes <= most:
        raise C308.error(expected=f"1 to {most} nodes of {name}", found=f"nodes={nodes!r}")
    if nodes > 1 and not node.cards:
        found = f"{counted(nodes, 'node')} of {name}"
        raise C308.error(expected="one node, as it has no network cards", found=found)
    builder = Builder(name, np.repeat(np.arange(nodes), node.gpus))
    number = _vertices(builder, node, nodes)
    for link in node.links:
        src, dst = number[link.src], number[link.dst]
        if nodes > 1 or (link.src not in node.cards and link.dst not in node.cards):
            builder.link(src, dst, link.kind, *link.rate)
    if nodes > 1:
        _join_nodes(builder, node, number, network or Racks(nodes, Rate(1.0, 1.0)))
    return builder.topology(model, in_network=in_network)


def _vertices(builder: Builder, node: Node, nodes: int) -> LongArray:
    """Adds the vertices of every node. Returns int64 (vertices of a node, nodes): their numbers."""
    number = np.full((len(node.kinds), nodes), NONE)
    number[: node.gpus] = np.arange(nodes * node.gpus).reshape(nodes, node.gpus).T
    for kind in (VertexKind.SWITCH, VertexKind.PCIE, VertexKind.NIC):
        own = [v for v, k in enumerate(node.kinds) if k == kind]
        if own and (nodes > 1 or kind != VertexKind.NIC):
            added = builder.add(kind, np.repeat(np.arange(nodes), len(own)))
            number[own] = added.reshape(nodes, len(own)).T
    return number


def _join_nodes(builder: Builder, node: Node, number: LongArray, network: Racks | Rails) -> None:
    """Adds the network: a switch for each rack or rail, and a spine if there are several."""
    nodes = number.shape[1]
    cards = list(node.cards.items())
    if isinstance(network, Rails):
        leaf = builder.add(VertexKind.NETWORK, np.full(len(cards), NONE))
        own = [np.full(nodes, switch) for switch in leaf]
        up = [rate.times(nodes / network.oversubscription) for _, rate in cards]
    else:
        leaf = builder.add(VertexKind.NETWORK, np.full(-(-nodes // network.nodes), NONE))
        own = [leaf[np.arange(nodes) // network.nodes]] * len(cards)
        up = [network.uplink] * len(leaf)
    for (card, rate), switches in zip(cards, own, strict=True):
        builder.both(number[card], switches, LinkKind.NETWORK, *rate)
    if len(leaf) > 1:
        spine = builder.add(VertexKind.NETWORK, [NONE])
        for switch, rate in zip(leaf, up, strict=True):
            builder.both(switch, spine, LinkKind.NETWORK, *rate)
