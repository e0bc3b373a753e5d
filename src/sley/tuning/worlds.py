"""Worlds: clusters that differ from their description, for drift and degraded links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.errors.tuning import D923
from sley.ir.fabric import VertexKind
from sley.ir.topology import Topology
from sley.ir.words import is_integer, is_real


def degrade_card(topology: Topology, card: int = 0, share: float = 0.5) -> Topology:
    """The cluster with a slower network card, in both directions.

    card: its number among all cards. share: the share of its rate that is left. Errors: D923.
    """
    cards = np.flatnonzero(topology.vertices.kind == VertexKind.NIC)
    if not is_integer(card) or not 0 <= card < len(cards):
        expected = f"a network card of {topology.name}, 0 to {len(cards) - 1}"
        raise D923.error(
            expected=expected if len(cards) else "a cluster with cards", found=f"{card}"
        )
    if not is_real(share) or not 0 < share <= 1:
        raise D923.error(expected="a share above 0, up to 1", found=repr(share))
    links = topology.links
    touches = (links.src == cards[card]) | (links.dst == cards[card])
    slowed = replace(links, GBps=np.where(touches, links.GBps * share, links.GBps))
    return replace(topology, name=f"{topology.name}, card {card} at {share:.0%}", links=slowed)
