"""Topology: a cluster as a graph of GPUs, switches and network cards with capacities."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from sley.errors import counted
from sley.errors.compiler import C305, C308
from sley.errors.topology import T601, T602, T603, T608
from sley.ir.cost_model import LEAST_GBPS, MOST_GBPS, CostModel
from sley.ir.fabric import LinkKind, TopologyLinks, VertexKind, Vertices
from sley.ir.graph import strong_components
from sley.ir.routes import Pairs, Routes, nearest_cards
from sley.ir.tables import (
    NONE,
    BoolArray,
    ByteArray,
    Edges,
    FloatArray,
    IntArray,
    LongArray,
    Value,
    frozen_array,
)
from sley.ir.words import is_integer, is_real

MOST_US = 1e12
"""Bound on latencies."""

_PART = re.compile(r"([a-z]+)([0-9]{1,6})(?:-([a-z]+)([0-9]{1,6}))?(?:@([0-9]{1,6}))?")
"""A part of a topology, as for `Topology.without`."""

MAX_RANKS = 2**14
"""Bound on the ranks of a topology: `linked` has an entry for each pair."""


def _joined(vertices: Vertices, links: TopologyLinks) -> BoolArray:
    """bool (ranks,): of the most GPUs that all reach one another."""
    src, dst = links.src.astype(np.int64), links.dst.astype(np.int64)
    part = strong_components(len(vertices.kind), src, dst)[: vertices.ranks]
    joined: BoolArray = part == np.bincount(part).argmax()
    return joined


@dataclass(frozen=True, eq=False, repr=False)
class Topology(Value):
    """A cluster as a graph.

    name: the cluster's name.
    vertices: its GPUs, then switches and network cards.
    links: the links between them, one for each direction.
    model: the cost of moving bytes.
    in_network: whether its switches reduce and multicast (NVLS, SHARP); bounds rely on it, and
        plans with groups need it within a node.
    shared_memory: whether the ranks of a node share one memory, as processes on CPUs do.
    accuracy: how well simulations meet measured times of it, in words; "" if nothing is known but
        of its family.

    Errors: T601, T602, T603.
    """

    name: str
    vertices: Vertices
    links: TopologyLinks
    model: CostModel = field(default_factory=CostModel)
    in_network: bool = False
    shared_memory: bool = False
    accuracy: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, t, ranks = self.vertices.kind, self.links, self.vertices.ranks
        if not 1 <= ranks <= MAX_RANKS or (kind[:ranks] != VertexKind.GPU).any():
            expected = f"1 to {MAX_RANKS} GPUs, before all other vertices"
            raise T601.error(expected=expected, found=f"{self.name}: {counted(ranks, 'GPU')}")
        node = self.vertices.node[:ranks]
        if node.min() < 0 or node.max() >= MAX_RANKS:  # counts by node are arrays of this length
            expected = f"a node from 0 to {MAX_RANKS - 1} for every GPU"
            raise T601.error(expected=expected, found=self.name)
        outside = (np.minimum(t.src, t.dst) < 0) | (np.maximum(t.src, t.dst) >= len(kind))
        if (outside | (t.src == t.dst)).any():
            row = int(np.flatnonzero(outside | (t.src == t.dst))[0])
            expected = f"links between two of {len(kind)} vertices"
            raise T601.error(expected=expected, found=f"{self.name}, link {row}: {t[row]}")
        rates = (LEAST_GBPS, MOST_GBPS)
        for name, least, most in (
            *(("nominal_GBps", *rates), ("GBps", *rates)),
            ("latency_us", 0, MOST_US),
        ):
            values = getattr(t, name)
            wrong = ~((values >= least) & (values <= most))
            if name == "latency_us":
                wrong &= values != NONE
            for row in np.flatnonzero(wrong)[:1].tolist():
                raise T602.error(
                    expected=f"{name} from {least:g} to {most:g} for every link",
                    found=f"{self.name}, {self.link_label(row)}: {values[row]:g}",
                )
        joined = _joined(self.vertices, t)
        if not joined.all():
            raise T603.error(
                expected="a path from every GPU to every other",
                found=f"{self.name}: GPU {int(joined.argmax())} has none to, or none from, "
                f"{counted(int((~joined).sum()), 'GPU')}, such as GPU {int(joined.argmin())}",
            )

    @cached_property
    def ranks(self) -> int:
        """The number of GPUs."""
        return self.vertices.ranks

    @property
    def startup_us(self) -> float:
        """The time of the host until all GPUs are launched (`CostModel.launch_gpus`)."""
        return self.model.startup_us(int(np.bincount(self.node).max()))

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return int(self.node.max()) + 1

    @property
    def node(self) -> IntArray:
        """int32 (ranks,): the node of each rank."""
        return self.vertices.node[: self.ranks]

    @cached_property
    def nic(self) -> IntArray:
        """int32 (ranks,): the network card of each rank, numbered over the whole cluster; ranks
        with the same number share a card. A rank without a card has its own number."""
        cards = np.flatnonzero(self.vertices.kind == VertexKind.NIC)
        own = len(cards) + np.arange(self.ranks)
        number = np.where(self._card == NONE, own, np.searchsorted(cards, self._card))
        return frozen_array(number, np.int32)

    @cached_property
    def _card(self) -> LongArray:
        return nearest_cards(self.vertices, self.links)

    @cached_property
    def linked(self) -> BoolArray:
        """bool (ranks, ranks): whether the first can send to the second without passing a third
        GPU: inside a node over NVLink and PCIe, between nodes over all links."""
        rank = np.arange(self.ranks, dtype=np.int32)
        rows = [self.are_linked(np.full_like(rank, r), rank) for r in rank]
        return frozen_array(np.stack(rows), np.bool_)

    def are_linked(self, src: IntArray, dst: IntArray) -> BoolArray:
        """`linked` for pairs of ranks."""
        same = self.node[src] == self.node[dst]
        inside, outside = self._pairs
        linked = np.where(same, inside.linked(src, dst), outside.linked(src, dst))
        return frozen_array(linked & (src != dst), np.bool_)

    def crosses_network(self, src: IntArray, dst: IntArray) -> BoolArray:
        """Whether each pair of ranks is on two nodes that NVLink doesn't join, so that transfers
        pass network cards."""
        apart = self.node[src] != self.node[dst]
        if self._joined_nodes is not None:
            apart &= ~self._joined_nodes.linked(src, dst)
        return frozen_array(apart, np.bool_)

    @cached_property
    def _joined_nodes(self) -> Pairs | None:
        # The ranks that NVLink links; None if it joins no nodes.
        used, node = self.links.kind == LinkKind.NVLINK, self.vertices.node
        fast = TopologyLinks(*(getattr(self.links, n)[used] for n in TopologyLinks.column_names()))
        if (node[fast.src] == node[fast.dst]).all():
            return None
        return Pairs(self.vertices, fast, cards=False)

    @cached_property
    def _pairs(self) -> tuple[Pairs, Pairs]:
        v, t = self.vertices, self.links
        return Pairs(v, t, cards=False), Pairs(v, t, cards=True)

    @cached_property
    def _routes(self) -> Routes:
        return Routes(self.vertices, self.links, self._card)

    def check_ranks(self, ranks: int) -> None:
        """Refuses a topology with fewer ranks. Errors: C305."""
        if self.ranks < ranks:
            found = f"{self.name}: {self.ranks} ranks"
            raise C305.error(expected=f"at least {ranks} ranks", found=found)

    def paths(self, src: ArrayLike, dst: ArrayLike) -> Edges:
        """For each pair of ranks (source, destination), the links that a transfer between them
        crosses, in order: the fewest links of the fastest kind inside a node or where NVLink joins
        nodes, else through both ranks' cards. Empty for pairs that are not linked."""
        found = [self._routes.path(a, b) for a, b in np.column_stack((src, dst)).tolist()]
        offset = np.concatenate([[0], np.cumsum([len(p) for p in found])])
        return Edges(offset, np.array([row for p in found for row in p], np.int32))

    def loads(self, src: ArrayLike, dst: ArrayLike, carried: ArrayLike) -> LongArray:
        """int64 (links,): what transfers carry over each link. src, dst, carried: of each transfer,
        its ends, which are linked, and an amount of data."""
        paths = self.paths(src, dst)
        crossing = np.repeat(carried, np.diff(paths.offset))
        return np.bincount(paths.target, crossing, len(self.links)).astype(np.int64)

    @property
    def has_switches(self) -> bool:
        """Whether its switches reduce and multicast for all ranks of each node, more than two."""
        if not self.in_network or np.bincount(self.node).min() < 3:
            return False
        inside = (self.node[:, None] == self.node) & ~np.eye(self.ranks, dtype=bool)
        return bool(self.linked[inside].all())

    def switch_links(self, rank: int, *, up: bool, members: ArrayLike | None = None) -> list[int]:
        """The links that carry a message once when a switch combines the members' messages for a
        rank, or copies the rank's to them. The switch reads and writes the rank's own chunks too.

        up: whether it combines messages. members: by default the others of the rank's node.
        """
        if members is None:
            members = np.setdiff1d(np.flatnonzero(self.node == self.node[rank]), [rank])
        own = np.full(np.shape(members), rank)
        away, back = self.paths(own, members), self.paths(members, own)
        if up:
            return sorted({*back.target.tolist(), int(away.target[0])})
        return sorted({*away.target.tolist(), int(back.target[-1])})

    def algbw_GBps(self, loads: LongArray | FloatArray, size: int) -> float:  # noqa: N802 - a unit
        """The algorithm bandwidth of a size that loads links so much, if only the busiest one takes
        time; infinite without loads. loads: (links,), in units of the size."""
        busiest = float((loads / self.links.GBps).max(initial=0))
        return size / busiest if busiest else float("inf")

    def slowest_kinds(self, paths: Edges) -> ByteArray:
        """int8 (paths,): the slowest LinkKind of each path, none of which is empty."""
        if not len(paths.target):
            return np.zeros(0, np.int8)
        return np.maximum.reduceat(self.links.kind[paths.target], paths.offset[:-1])

    def hop_latencies(self, paths: Edges, by_kind: FloatArray) -> FloatArray:
        """float64 (paths,): the latency of a hop over each path: the sum of the links' latencies if
        all links on it have one, else the cost model's, `by_kind` (paths,)."""
        if not len(paths.target):
            return np.zeros(0)
        own, first = self.links.latency_us[paths.target], paths.offset[:-1]
        complete = np.logical_and.reduceat(own >= 0, first)
        return np.where(complete, np.add.reduceat(own, first), by_kind)

    def without(self, *parts: str) -> Topology:
        """The topology after parts have failed: without their links.

        parts: a vertex, which is all links from and to it, such as "nic3@1", the card 3 of node 1;
        or two vertices, the links between them, such as "gpu0-gpu1" of node 0. Vertices are gpu,
        switch, pcie, nic and network, each numbered within its node. Errors: T603 if a GPU is cut
        off, T608.
        """
        name = f"{self.name} without {', '.join(map(str, parts))}"
        return replace(self, name=name, links=self._links_without(parts))

    def ranks_without(self, *parts: str) -> LongArray:
        """int64: the most ranks that still reach one another after parts have failed. Errors:
        T608."""
        return np.flatnonzero(_joined(self.vertices, self._links_without(parts)))

    def _links_without(self, parts: Iterable[str]) -> TopologyLinks:
        """The links that are left. Errors: T608."""
        kept = np.setdiff1d(np.arange(len(self.links)), [row for p in parts for row in self._of(p)])
        return TopologyLinks(*(getattr(self.links, n)[kept] for n in TopologyLinks.column_names()))

    def degraded(self, part: str, share: float) -> Topology:
        """The topology with the links of a part, as for `without`, at a share of their rates, above
        0 and up to 1. Errors: T602, T608."""
        if not is_real(share) or not 0 < share <= 1:
            expected = "a share of the rates above 0, up to 1"
            raise T602.error(expected=expected, found=f"{part}: {share!r}")
        factor = np.ones(len(self.links))
        factor[self._of(part)] = share
        rates = {name: getattr(self.links, name) * factor for name in ("nominal_GBps", "GBps")}
        name = f"{self.name} with {part} at {share:g}"
        return replace(self, name=name, links=replace(self.links, **rates))

    def _of(self, part: str) -> LongArray:
        """The links of a part. Errors: T608."""
        match = _PART.fullmatch(str(part).lower())
        expected = "a part such as nic3@1, gpu0-gpu1 or gpu2-switch0@1"
        if match is None:
            raise T608.error(expected=expected, found=repr(part))
        node = int(match[5] or 0)
        if node >= self.nodes:
            raise T608.error(expected=f"a node from 0 to {self.nodes - 1}", found=repr(part))
        ends = []
        for word, number in (match.group(1, 2), match.group(3, 4)):
            if word is not None:
                kind = next((k for k in VertexKind if k.word.lower() == word), None)
                inside = self.vertices.node == (NONE if word == "network" else node)
                found = np.flatnonzero((self.vertices.kind == kind) & inside)
                if kind is None or int(number) >= len(found):
                    last = f" to {word}{len(found) - 1}" if len(found) > 1 else ""
                    has = f"{word}0{last}" if len(found) else f"no {word}"
                    on = f"node {node} of {self.name} has {has}"
                    raise T608.error(expected=expected, found=f"{part!r}; {on}")
                ends.append(int(found[int(number)]))
        t = self.links
        rows = np.isin(t.src, ends) & np.isin(t.dst, ends)
        if len(ends) == 1:
            rows = (t.src == ends[0]) | (t.dst == ends[0])
        if not rows.any():
            raise T608.error(expected=expected, found=f"{part!r}: {self.name} has no such link")
        return np.flatnonzero(rows)

    def link_label(self, link: int) -> str:
        """A link's name for messages: "GPU 3 -> switch 0"."""
        ends = (self.links.src[link], self.links.dst[link])
        return " -> ".join(self.vertex_label(int(end)) for end in ends)

    def vertex_label(self, vertex: int) -> str:
        """A vertex's name for messages: "NIC 2"."""
        kind = self.vertices.kind[vertex]
        return f"{VertexKind(kind).word} {int((self.vertices.kind[:vertex] == kind).sum())}"

    def __repr__(self) -> str:
        return (
            f"Topology({self.name}: {counted(self.ranks, 'rank')}, {counted(self.nodes, 'node')}, "
            f"{counted(len(self.links), 'link')})"
        )

    @classmethod
    def from_links(
        cls,
        name: str,
        ranks: int,
        links: Iterable[tuple[int, int]],
        *,
        both_ways: bool = True,
        nominal_GBps: float = 25.0,  # noqa: N803 - a unit
        GBps: float = 20.0,  # noqa: N803
        model: CostModel | None = None,
    ) -> Topology:
        """One node of ranks, linked directly by pairs (source, destination); a pair that occurs k
        times has k times the rate.

        both_ways: adds the opposite of each pair. nominal_GBps, GBps: rates of each link in each
        direction; by default those of one NVLink of a V100. Errors: C308, T602, T603.
        """
        if not is_integer(ranks) or not 1 <= ranks <= MAX_RANKS:
            raise C308.error(expected=f"1 to {MAX_RANKS} ranks", found=f"ranks={ranks!r}")
        links = list(links)
        for link in links:
            if len(link) != 2 or not all(is_integer(r) and 0 <= r < ranks for r in link):
                raise C308.error(
                    expected=f"links between two ranks from 0 to {ranks - 1}", found=repr(link)
                )
        count = np.zeros((ranks, ranks), int)
        np.add.at(count, tuple(np.reshape(np.array(links, int), (-1, 2)).T), 1)
        count += both_ways * count.T
        np.fill_diagonal(count, 0)
        src, dst = np.nonzero(count)
        builder = Builder(name, np.zeros(ranks, np.int32))
        times = count[src, dst]
        builder.link(src, dst, LinkKind.NVLINK, nominal_GBps * times, GBps * times)
        return builder.topology(model)

    @classmethod
    def cluster(
        cls,
        nodes: int,
        gpus: int,
        nics: int | None = None,
        *,
        name: str | None = None,
        nvlink_GBps: tuple[float, float] = (300.0, 230.0),  # noqa: N803 - a unit
        nic_GBps: tuple[float, float] = (25.0, 24.0),  # noqa: N803
        model: CostModel | None = None,
    ) -> Topology:
        """Nodes of GPUs around one switch each, connected by one network without bottlenecks; ranks
        are numbered node by node.

        nics: network cards of each node, shared by neighbouring GPUs; by default one for each GPU.
        nvlink_GBps: nominal and reached rate of each GPU in each direction; by default an A100's.
        nic_GBps: the same of each card; by default those of 200 Gb/s. Errors: C308, T602.
        """
        nics = gpus if nics is None else nics
        numbers = (nodes, gpus, nics)
        right = all(is_integer(n) and 1 <= n <= MAX_RANKS for n in numbers)
        if not right or gpus % nics or nodes * gpus > MAX_RANKS:
            raise C308.error(
                expected=f"nodes and gpus from 1, {MAX_RANKS} GPUs at most, and nics that divide "
                "gpus",
                found=f"nodes={nodes!r}, gpus={gpus!r}, nics={nics!r}",
            )
        name = name or (f"{nodes}x{gpus}" if nics == gpus else f"{nodes}x{gpus}, {nics} NICs")
        rank = np.arange(nodes * gpus)
        node, gpu = np.divmod(rank, gpus)
        builder = Builder(name, node)
        if gpus > 1:
            switch = builder.add(VertexKind.SWITCH, np.arange(nodes))
            builder.both(rank, switch[node], LinkKind.NVLINK, *nvlink_GBps)
        if nodes > 1:
            card = builder.add(VertexKind.NIC, np.repeat(np.arange(nodes), nics))
            builder.both(rank, card[node * nics + gpu * nics // gpus], LinkKind.PCIE, *nic_GBps)
            network = builder.add(VertexKind.NETWORK, [NONE])
            builder.both(card, network, LinkKind.NETWORK, *nic_GBps)
        return builder.topology(model)


class Builder:
    """Builds a Topology from its GPUs, further vertices and links.

    node: int (ranks,), the node of each GPU.
    """

    def __init__(self, name: str, node: ArrayLike) -> None:
        self._name = name
        self._node = [np.asarray(node, np.int32)]
        self._kind = [np.full(len(self._node[0]), VertexKind.GPU, np.int8)]
        self._links: list[tuple[LongArray | FloatArray, ...]] = []

    def add(self, kind: VertexKind, node: ArrayLike) -> LongArray:
        """Adds a vertex of a kind for each entry of `node` (NONE: outside of nodes); returns their
        numbers."""
        first = sum(map(len, self._node))
        self._node.append(np.asarray(node, np.int32))
        self._kind.append(np.full(len(self._node[-1]), kind, np.int8))
        return first + np.arange(len(self._node[-1]))

    def link(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        kind: LinkKind,
        nominal_GBps: ArrayLike,  # noqa: N803 - a unit
        GBps: ArrayLike,  # noqa: N803
        latency_us: ArrayLike = NONE,
    ) -> None:
        """Adds links from src to dst, element by element."""
        columns = np.broadcast_arrays(src, dst, int(kind), nominal_GBps, GBps, latency_us)
        self._links.append(tuple(np.atleast_1d(c) for c in columns))

    def both(self, src: ArrayLike, dst: ArrayLike, kind: LinkKind, *rates: ArrayLike) -> None:
        """Adds links in both directions. rates: as for `link`, and perhaps the latency."""
        self.link(src, dst, kind, *rates)
        self.link(dst, src, kind, *rates)

    def topology(
        self,
        model: CostModel | None = None,
        *,
        in_network: bool = False,
        shared_memory: bool = False,
    ) -> Topology:
        """The topology. Errors: T601, T602, T603."""
        parts = [(np.zeros(0),) * 6, *self._links]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return Topology(
            self._name,
            Vertices(np.concatenate(self._kind), np.concatenate(self._node)),
            TopologyLinks(*columns),
            model or CostModel(),
            in_network,
            shared_memory,
        )
