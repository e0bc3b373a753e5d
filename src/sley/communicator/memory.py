"""Memory of a communicator: the file that the ranks of a host share, the fabric over it, and the
sizes of slots and tiles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import numpy as np

from sley.communicator.heap import heap
from sley.communicator.rendezvous.bootstrap import Rendezvous
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.settings import Copies, Settings
from sley.communicator.sharing import HEAPS, LIVES, sign_of_life
from sley.engine import native
from sley.engine.memory import allocate
from sley.engine.program import Loaded
from sley.errors import Place
from sley.errors.runtime import R506
from sley.ir.tables import distinct

_ENVELOPES = 64
"""Messages in flight on a connection whose receiver reads them in the sender's memory."""

COPY_METHODS = (Copies.CACHED, Copies.STREAMED, Copies.ATTACHED)
"""In the order of the engine's numbers."""


class Memory:
    """The memory of a rank that the other ranks of its host map: a file with the connections of all
    of them, which is that of the first rank, and each process' heap."""

    def __init__(self, rank: int, ranks: int, settings: Settings) -> None:
        self._rank, self._settings = rank, settings
        self._file = -1
        fifos = np.full(ranks, ranks * stride(settings), np.int32)
        room, envelopes = slot_bytes(ranks, settings), max(settings.slots, _ENVELOPES)
        self._shape = native.FabricShape.create(fifos, settings.slots, room, envelopes)

    def make(self) -> tuple[int, int, int]:
        """The descriptors for other ranks: of a file, of the heap, and of this process' sign of
        life. Errors: R507, N610."""
        create = partial(os.memfd_create, "sley", os.MFD_CLOEXEC)
        self._file = allocate(create, "the connections", 0)
        return self._file, heap().file.fd, sign_of_life()

    def attach(self, hosts: Hosts, fds: Mapping[int, tuple[int, ...]]) -> None:
        """Maps what the ranks of this host share. fds: what `make` returned on the others. Errors:
        R507, N610."""
        host = hosts.of_host(self._rank)
        fds = {**fds, self._rank: (self._file, heap().file.fd, sign_of_life())}
        heaps = [HEAPS.of(fds[r][1]) if r in fds else None for r in range(len(hosts.host))]
        join = partial(native.Fabric.join, self._shape, fds[host[0]][0], heaps, self._rank)
        self._fabric = allocate(join, "the connections", self._shape.bytes_of(host))
        self._fabric.watch([(LIVES.of(fds[r][2]), r) for r in host if r != self._rank])
        if self._settings.cma:
            self._fabric.announce()

    def fabric(self, rendezvous: Rendezvous) -> native.Fabric:
        """The connections to all ranks, after `attach` on all. Errors: N608."""
        fabric = self._fabric
        can = b"1" if fabric.reads_others() else b"0"
        fabric.is_attached = all(answer == b"1" for answer in rendezvous.exchange(can))
        if self._settings.copies is not Copies.AUTO:
            fabric.use_only(COPY_METHODS.index(self._settings.copies))
        return fabric

    def close(self) -> None:
        """Closes the file, which isn't needed once it is attached."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def check_slots(settings: Settings, hosts: Hosts) -> None:
    """Errors: R506 for slots that are too small for messages to other hosts."""
    if hosts.count > 1 and settings.slot_bytes and settings.slot_bytes < _LEAST_NETWORK_BYTES:
        raise R506.error(
            at=Place(detail="slot_bytes"),
            expected=f"{_LEAST_NETWORK_BYTES} or more for {hosts.count} hosts",
            found=str(settings.slot_bytes),
            remedy="Set `slot_bytes` to 4096 or more, or leave it out: the default is 128 KB "
            "or more.",
        )


def stride(settings: Settings) -> int:
    """FIFOs from a rank to another: one for each channel, and one for point-to-point messages."""
    return settings.channels + 1


IN_FLIGHT_BYTES = 4 << 20
"""The most bytes of messages in flight among the ranks of a host. Large pieces need few turns; but
messages that don't fit the caches are written to memory and read from there. Measured on two cores
with 1 MB of second-level cache each, AllReduce of 1 to 16 MB: 2 ranks are 1.3 to 2.8 times as fast
with pieces of 256 KB or 512 KB as with 64 KB, 8 ranks 1.2 times as fast with 32 KB as with 64 KB,
and 1.7 times as fast as with 128 KB. A Broadcast of 1 to 16 MB to 8 ranks is 1.2 times as fast
with 256 KB as with 64 KB (2 MB of second-level cache)."""

_STAGED = 2
"""Messages in flight on a connection: plans are ordered for two."""

_SPARE = 2
"""How many times the slots that a plan needs a connection keeps: a payload that goes to several
ranks stays in a slot until the last one has read it."""

_LARGEST_ELEMENT_BYTES = 8

_LEAST_BYTES, _MOST_BYTES = 32 << 10, 512 << 10

_LEAST_NETWORK_BYTES, _NETWORK_BYTES = 4 << 10, 128 << 10
"""The least size of a message between hosts. Measured with 4 hosts of 2 ranks on two cores, each
host at 1 Gbit/s, AllReduce of 64 MB: 1.06 to 1.09 times the links' bound with 128 KB to 512 KB, 1.1
to 1.2 with 64 KB."""


def slot_bytes(ranks: int, settings: Settings) -> int:
    """Size of a slot of any connection."""
    if settings.slot_bytes is not None:
        return settings.slot_bytes
    return max(_NETWORK_BYTES, _piece_bytes(ranks * (ranks - 1), _STAGED))


def tile_bytes(loaded: Loaded, hosts: Hosts, settings: Settings) -> int:
    """The bytes of a slot that a plan uses: on one host fewer than all where it has many
    connections, and more, of fewer slots, where it has few."""
    wiring = loaded.wiring
    largest = slot_bytes(wiring.ranks, settings)
    if settings.slot_bytes is not None or not wiring.src.size:
        return largest
    pairs = distinct(wiring.src * np.int64(wiring.ranks) + wiring.dst)
    busiest = np.bincount(np.array(hosts.host)[pairs // wiring.ranks]).max()
    element_of_each = loaded.max_count * _LARGEST_ELEMENT_BYTES
    fitting = _piece_bytes(int(busiest), wiring.slots)
    if hosts.count > 1:
        fitting = max(fitting, _NETWORK_BYTES)
    else:
        largest *= max(1, settings.slots // _SPARE // wiring.slots)
    return min(largest, max(element_of_each, fitting))


def _piece_bytes(pairs: int, staged: int) -> int:
    """The largest power of two with which the messages of all pairs fit `IN_FLIGHT_BYTES`."""
    room = IN_FLIGHT_BYTES // max(1, pairs * staged)
    return min(_MOST_BYTES, max(_LEAST_BYTES, 1 << max(room, 1).bit_length() - 1))
