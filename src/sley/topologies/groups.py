"""Groups: parts of a cluster's ranks, each with a topology of its own on the cluster's links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from sley.errors.topology import T613
from sley.ir.cost_model import LEAST_GBPS
from sley.ir.fabric import TopologyLinks, VertexKind, Vertices
from sley.ir.tables import NONE, FloatArray, LongArray, Value, frozen_array
from sley.ir.topology import Topology
from sley.ir.words import is_integer

_LEAST = 1e-3
"""The least part of a link's rate: links stay, since without them GPUs may not be joined."""


@dataclass(frozen=True, eq=False, repr=False)
class Group(Value):
    """Ranks of a cluster that call collectives with one another.

    ranks: int64 (ranks,), in the order of the group. topology: the group's part of the cluster:
    without the other GPUs, and the cards that only these use. links: int64, the cluster's row of
    each of its links.
    """

    ranks: LongArray
    topology: Topology
    links: LongArray

    @classmethod
    def of(cls, cluster: Topology, ranks: Sequence[int]) -> Group:
        """A group of ranks of a cluster. Errors: T603 if no links join them, T613."""
        wrong = [rank for rank in ranks if not (is_integer(rank) and 0 <= rank < cluster.ranks)]
        if not len(ranks) or wrong or len(set(ranks)) < len(ranks):
            raise T613.error(
                expected=f"ranks from 0 to {cluster.ranks - 1}, each once",
                found=f"a group {list(ranks)!r} on {cluster.name}",
            )
        own, kind = np.array(ranks, np.int64), cluster.vertices.kind
        cards = np.flatnonzero(kind == VertexKind.NIC)
        rest = (kind != VertexKind.GPU) & (kind != VertexKind.NIC)
        rest[cards[np.isin(np.arange(len(cards)), cluster.nic[own])]] = True
        # The nodes of its ranks come first, so that groups of other nodes are alike.
        node, used = cluster.vertices.node, np.unique(cluster.node[own])
        numbers = np.append(used, np.setdiff1d(node[node != NONE], used))
        number = np.full(len(node) + 1, NONE)
        number[numbers] = np.arange(len(numbers))
        node = np.where(node == NONE, NONE, number[node]).astype(np.int32)
        others = np.flatnonzero(rest)
        kept = np.append(own, others[np.argsort(node[others], kind="stable")])
        place = np.full(len(kind), NONE)
        place[kept] = np.arange(len(kept))
        table = cluster.links
        links = np.flatnonzero((place[table.src] >= 0) & (place[table.dst] >= 0))
        # In the order of their ends, since the cluster's order differs between nodes.
        ends = place[table.dst[links]], place[table.src[links]]
        links = links[np.lexsort((table.GBps[links], table.kind[links], *ends))]
        columns = {name: getattr(table, name)[links] for name in TopologyLinks.column_names()}
        columns |= {name: place[columns[name]] for name in ("src", "dst")}
        part = replace(
            cluster,
            name=f"{cluster.name} ranks {', '.join(map(str, ranks))}",
            vertices=Vertices(kind[kept], node[kept]),
            links=TopologyLinks(**columns),
        )
        return cls(frozen_array(own, np.int64), part, frozen_array(links, np.int64))

    def at(self, GBps: FloatArray) -> Topology:  # noqa: N803 - a unit
        """The group's topology with a part of the links' rates. GBps: float64, of the cluster's
        links."""
        least = np.maximum(self.topology.links.GBps * _LEAST, LEAST_GBPS)
        rates = np.maximum(GBps[self.links], least)
        return replace(self.topology, links=replace(self.topology.links, GBps=rates))


def grid_groups(ranks: int, sizes: Mapping[str, int]) -> dict[str, list[list[int]]]:
    """The groups along each dimension of a grid of ranks, by its name.

    sizes: of the dimensions, the one with neighbouring ranks first: {"tp": 4, "dp": 8} are
    tensor groups of 4 neighbours, and data groups of every fourth rank. Errors: T613.
    """
    shape = list(sizes.values())
    if not all(is_integer(size) and size > 0 for size in shape) or prod(shape) != ranks:
        raise T613.error(
            expected=f"sizes of a grid with a product of {ranks}, the number of ranks",
            found=", ".join(f"{name}={size}" for name, size in sizes.items()) or "none",
        )
    grid = np.arange(ranks).reshape(shape[::-1])
    return {
        name: np.moveaxis(grid, len(shape) - 1 - axis, -1).reshape(-1, size).tolist()
        for axis, (name, size) in enumerate(sizes.items())
    }
