"""The memory of a communicator: a segment for each rank of this host, and the fabric over them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from sley.communicator.heap import Heap, heap
from sley.communicator.settings import Copies, Settings
from sley.communicator.tiles import slot_bytes
from sley.engine.memory import allocate
from sley.engine.native import native
from sley.rendezvous.bootstrap import Rendezvous

_ENVELOPES = 64
"""Messages of a connection under way at once, where they are read where they lie."""

WAYS = (Copies.CACHED, Copies.STREAMED, Copies.ATTACHED)
"""In the order of the engine's numbers."""


@dataclass(frozen=True)
class Memory:
    """This rank's segment (`native.Segment`), in which the connections lie that it sends on, and
    its heap. shape: of the fabric (`native.FabricShape`)."""

    shape: Any
    segment: Any
    heap: Heap

    @classmethod
    def create(cls, rank: int, ranks: int, settings: Settings) -> Memory:
        """Errors: R507."""
        fifos = np.full(ranks, ranks * stride(settings), np.int32)
        shape = native().FabricShape.create(
            fifos, settings.slots, slot_bytes(ranks, settings), max(settings.slots, _ENVELOPES)
        )
        size_bytes = shape.bytes_of(rank)
        segment = allocate(lambda: native().Segment.sparse(size_bytes), "the connections", 0)
        head = size_bytes - int(fifos[rank]) * shape.fifo_bytes
        allocate(lambda: segment.reserve(0, head), "a rank's state", head)
        if settings.cma:
            segment.announce()
        return cls(shape, segment, heap())

    @property
    def descriptors(self) -> tuple[int, int]:
        """What the other ranks of this host need."""
        return self.segment.fd, self.heap.segment.fd

    def fabric(self, rendezvous: Rendezvous, settings: Settings) -> Any:
        """The connections to all ranks (`native.Fabric`). Errors: R507."""
        segments: list[Any] = [None] * rendezvous.ranks
        heaps: list[Any] = [None] * rendezvous.ranks
        segments[rendezvous.rank], heaps[rendezvous.rank] = self.segment, self.heap.segment
        for rank, (segment, of_heap) in rendezvous.fds.items():
            segments[rank] = _attach(segment, self.shape.bytes_of(rank), True)
            heaps[rank] = _attach(of_heap, os.fstat(of_heap).st_size, False)
        rendezvous.close_descriptors()
        fabric = native().Fabric.join(self.shape, segments, heaps, rendezvous.rank)
        can = b"1" if fabric.reads_others() else b"0"
        fabric.is_attached = all(said == b"1" for said in rendezvous.exchange(can))
        if settings.copies is not Copies.AUTO:
            fabric.go_only(WAYS.index(settings.copies))
        return fabric


def stride(settings: Settings) -> int:
    """FIFOs from a rank to another: one for each channel, and one for point-to-point messages."""
    return settings.channels + 1


def _attach(fd: int, size_bytes: int, writable: bool) -> Any:
    return allocate(
        lambda: native().Segment.attach(fd, size_bytes, writable), "a peer's addresses", 0
    )
