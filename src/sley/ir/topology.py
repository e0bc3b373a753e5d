"""Topology: which ranks are linked, and which share a node and a network card."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sley.errors import counted
from sley.errors.compiler import C308
from sley.ir.tables import BoolArray, IntArray, frozen_array
from sley.ir.words import is_integer

MAX_RANKS = 2**14
"""Bound on the ranks of a topology: `linked` has their square."""


@dataclass(frozen=True)
class Topology:
    """A cluster as a graph of ranks.

    name: the cluster's name.
    linked: bool (ranks, ranks), whether the first can send to the second.
    node: int32 (ranks,), the node of each rank.
    nic: int32 (ranks,), the network card through which a rank sends to other nodes and receives
        from them, numbered over the whole cluster; ranks with one number share the card.

    Errors: C308 for tables that don't fit together.
    """

    name: str
    linked: BoolArray
    node: IntArray
    nic: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "linked", frozen_array(self.linked, np.bool_))
        if self.linked.ndim != 2 or len(set(self.linked.shape)) > 1:
            shape = f"{self.linked.shape}"
            raise C308.error(expected="linked as a square of ranks", found=f"shape {shape}")
        for name in ("node", "nic"):
            given = np.asarray(getattr(self, name))
            if given.shape != (self.ranks,) or given.dtype.kind not in "iu" or (given < 0).any():
                raise C308.error(
                    expected=f"{name} as a number from 0 for each of {counted(self.ranks, 'rank')}",
                    found=repr(given),
                )
            object.__setattr__(self, name, frozen_array(given, np.int32))

    __hash__ = None  # type: ignore[assignment]

    @property
    def ranks(self) -> int:
        return len(self.linked)

    def __repr__(self) -> str:
        return f"Topology({self.name}: {self.ranks} ranks, {int(self.linked.sum())} links)"

    @classmethod
    def from_links(
        cls, name: str, ranks: int, links: Iterable[tuple[int, int]], *, both_ways: bool = True
    ) -> Topology:
        """One node of ranks, linked by pairs (source, destination); both_ways adds each pair
        reversed. Errors: C308."""
        if not is_integer(ranks) or not 1 <= ranks <= MAX_RANKS:
            raise C308.error(expected=f"1 to {MAX_RANKS} ranks", found=f"ranks={ranks!r}")
        links = list(links)
        for link in links:
            if len(link) != 2 or not all(is_integer(r) and 0 <= r < ranks for r in link):
                raise C308.error(
                    expected=f"links between two ranks from 0 to {ranks - 1}", found=repr(link)
                )
        linked = np.zeros((ranks, ranks), bool)
        for source, destination in links:
            linked[source, destination] = True
            linked[destination, source] |= both_ways
        return cls(name, linked, np.zeros(ranks, np.int32), np.arange(ranks, dtype=np.int32))

    @classmethod
    def cluster(cls, nodes: int, gpus: int, nics: int | None = None) -> Topology:
        """Nodes of GPUs in which every rank is linked to every other, ranks numbered node by node.

        nics: network cards of each node, shared by neighbouring GPUs; one for each GPU by default.
        Errors: C308.
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
        rank = np.arange(nodes * gpus)
        node, gpu = np.divmod(rank, gpus)
        return cls(
            name=f"{nodes}x{gpus}" if nics == gpus else f"{nodes}x{gpus}, {nics} NICs",
            linked=~np.eye(len(rank), dtype=bool),
            node=node,
            nic=node * nics + gpu * nics // gpus,
        )
