"""How large the pieces are that messages are cut into, so that caches hold what is under way."""

from __future__ import annotations

import numpy as np

from sley.communicator.settings import Settings
from sley.engine.program import Loaded
from sley.rendezvous.hosts import Hosts

UNDER_WAY_BYTES = 4 << 20
"""Bytes of messages under way among the ranks of a host, at most. Large pieces cost few turns; but
what no longer fits the caches is written to memory and read from there. Measured on two cores with
1 MB of second-level cache each, AllReduce of 1 to 16 MB: 2 ranks are 1.3 to 2.8 times as fast with
pieces of 256 KB or 512 KB as with 64 KB, 8 ranks 1.2 times as fast with 32 KB as with 64 KB, and
1.7 times as fast as with 128 KB."""

_STAGED = 2
"""Messages under way on a connection: plans are ordered for two."""

_LARGEST_ELEMENT_BYTES = 8

_LEAST_BYTES, _DEFAULT_BYTES, _MOST_BYTES = 32 << 10, 64 << 10, 512 << 10


def slot_bytes(ranks: int, settings: Settings) -> int:
    """Room of a slot of any connection among so many ranks."""
    if settings.slot_bytes is not None:
        return settings.slot_bytes
    return max(_DEFAULT_BYTES, _fitting(ranks * (ranks - 1), _STAGED))


def tile_bytes(loaded: Loaded, hosts: Hosts, settings: Settings) -> int:
    """Room of a slot that a plan makes use of: all of it, or less where the plan has many
    connections."""
    wiring = loaded.wiring
    largest = slot_bytes(wiring.ranks, settings)
    if settings.slot_bytes is not None or not wiring.src.size:
        return largest
    pairs = np.unique(np.stack([wiring.src, wiring.dst]), axis=1)
    busiest = np.bincount(np.array(hosts.host)[pairs[0]]).max()
    element_of_each = loaded.max_count * _LARGEST_ELEMENT_BYTES
    return min(largest, max(element_of_each, _fitting(int(busiest), wiring.slots)))


def _fitting(pairs: int, staged: int) -> int:
    """The largest power of two so that the messages of all pairs fit."""
    room = UNDER_WAY_BYTES // max(1, pairs * staged)
    return min(_MOST_BYTES, max(_LEAST_BYTES, 1 << max(room, 1).bit_length() - 1))
