"""Topology: which ranks are linked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sley.ir.tables import BoolArray, frozen_array


@dataclass(frozen=True)
class Topology:
    """A cluster as a graph of ranks.

    name: the cluster's name.
    linked: bool (ranks, ranks), whether the first can send to the second.
    """

    name: str
    linked: BoolArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "linked", frozen_array(self.linked, np.bool_))

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
        """A topology from pairs (source, destination); both_ways adds each pair reversed."""
        linked = np.zeros((ranks, ranks), bool)
        for source, destination in links:
            linked[source, destination] = True
            linked[destination, source] |= both_ways
        return cls(name, linked)
