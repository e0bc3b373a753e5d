"""Memory of links: what peers read of it, scratch, which grows, and arrays that other processes
read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sley.engine import native
from sley.engine.devices.device import Memory
from sley.engine.devices.device_ranks import DeviceRanks, SharedMemory
from sley.engine.limits import whole
from sley.engine.types import data_type


class LinkMemory:
    """The memory of links, beside their connections. index: what calls look up of it."""

    def __init__(self, ranks: DeviceRanks) -> None:
        self._ranks = ranks
        places = [(rank, device.native) for device in ranks.places for rank in ranks.on(device)]
        self.index = native.MemoryIndex(ranks.count, places)
        self._together = [0] * ranks.count
        """The size of each rank's scratch that all processes made together."""
        self._largest = dict.fromkeys(ranks.devices, 0)
        """The size of the largest scratch of each rank of this process."""
        self._made: list[Any] = []
        """Calls may use any of it: those on the caller's streams, and captured ones."""

    def reserve(self, sizes: Sequence[int]) -> None:
        """Makes scratch of sizes[r] bytes for each rank r, which all processes read, when no call
        is under way. All processes call this together, and decide alike."""
        both = list(zip(sizes, self._together, strict=True))
        if all(size <= present for size, present in both):
            return
        # At least doubled: then the outgrown memories together don't exceed the current one.
        grown = [max(size, 2 * present) if size > present else 0 for size, present in both]
        memory = self._allocate(grown)
        self._together = [max(new, present) for new, (_, present) in zip(grown, both, strict=True)]
        for rank, own in memory.memories.items():
            if own.size_bytes:
                self._add(rank, own, all_read=True)

    def grow(self, sizes: Sequence[int], wait: Callable[[], None]) -> None:
        """Makes scratch of at least sizes[r] bytes for each rank r of this process that has less,
        after `wait`; other processes don't read it."""
        for rank, most in self._largest.items():
            if sizes[rank] > most:
                wait()
                own = self._ranks.allocate_on(rank, max(sizes[rank], 2 * most))
                self._made.append(own)
                self._add(rank, own, all_read=False)

    def empty(self, dtype: str, elements: int) -> dict[int, Any]:
        """See `Executor.empty`."""
        with self._ranks.telling():
            elements, kind = whole(elements, "elements", 0), data_type(dtype)
        memory = self._allocate([elements * kind.size_bytes] * self._ranks.count)
        return {
            rank: device.array(memory.memories[rank], dtype, elements)
            for rank, device in self._ranks.devices.items()
        }

    def _add(self, rank: int, own: Memory, *, all_read: bool) -> None:
        self._largest[rank] = max(self._largest[rank], own.size_bytes)
        self.index.add_scratch(rank, own.address, own.size_bytes, all_read)

    def _allocate(self, sizes: Sequence[int]) -> SharedMemory:
        """Memory for every rank, which all processes read."""
        memory = self._ranks.allocate(sizes)
        self._made.append(memory)
        if self._ranks.is_one_process:
            return memory
        seen = np.array(memory.seen, np.uint64)
        with self._ranks.telling():
            for rank, own in memory.memories.items():
                if own.size_bytes:
                    shifts = seen[:, rank] - np.uint64(own.address)
                    self.index.add(own.address, own.size_bytes, shifts.tolist())
        self._ranks.meet()  # a kernel that starts earlier may wait for a rank that allocates
        return memory
