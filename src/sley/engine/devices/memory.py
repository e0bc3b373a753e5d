"""Memory of links: what peers read of it, scratch, which grows, and arrays that other processes
read."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sley.engine import native
from sley.engine.devices.device import Device, Memory
from sley.engine.devices.device_ranks import DeviceRanks, SharedMemory
from sley.engine.limits import whole
from sley.engine.types import data_type
from sley.errors.devices import K514

_MOST = 2**16
"""The most rows of the table: calls have their numbers in 16 bits."""


class Registered:
    """The memory of this process that peers read with Direct, by number; kernels have a table of it
    (`Setup::shifts` in `primitives/layout.hpp`).

    Memory number 0 is what no peer reads, number 1 what only ranks of this process read, at the
    addresses that it has here. The others are pieces that all peers have mapped. Rows of the table
    never change, and tables that were outgrown stay, since calls may read both at any time.
    """

    def __init__(self, ranks: DeviceRanks) -> None:
        self._ranks, self._places = ranks, ranks.places
        self._pieces: list[tuple[int, int, int]] = []
        """The begin, end and number of each piece, ascending."""
        self._rows = np.full((4, ranks.count), native.HIDDEN, np.uint64)
        self._rows[1, list(ranks.devices)] = 0
        self._tables: list[dict[Device, Memory]] = []
        self._room = 0
        self._used = 0
        self._use(2)

    def add(self, memory: SharedMemory) -> None:
        """Registers memory that all ranks have mapped, unless number 1 serves all of them. K514 if
        they say of it no addresses."""
        if self._ranks.is_one_process:
            return
        try:
            count = self._ranks.count
            seen = np.array([memory.seen[r] for r in range(count)], np.uint64).reshape(count, count)
        except (TypeError, ValueError, OverflowError) as problem:
            raise K514.error(
                expected="the addresses of memory in all processes", found=str(problem)
            ) from None
        for rank, own in memory.memories.items():
            if not own.size_bytes or self._used == _MOST:
                continue
            if self._used == len(self._rows):
                self._rows = np.concatenate([self._rows, np.full_like(self._rows, native.HIDDEN)])
            self._rows[self._used] = seen[:, rank] - np.uint64(own.address)
            insort(self._pieces, (own.address, own.address + own.size_bytes, self._used))
            self._use(1)
        self._ranks.meet()  # a kernel that starts earlier may wait for a rank that allocates

    def number(self, rank: int, address: int, size_bytes: int) -> int:
        """The number of a rank's memory; 0 for none."""
        if not size_bytes:
            return 0
        at = bisect_right(self._pieces, (address, native.HIDDEN)) - 1
        if at >= 0 and address + size_bytes <= self._pieces[at][1]:
            return self._pieces[at][2]
        own = self._ranks.devices[rank]
        return int(all(own.lends(address, place) for place in self._places if place != own))

    def table(self, device: Device) -> int:
        """The address of the table on a device of this process."""
        return self._tables[-1][device].address

    def _use(self, more: int) -> None:
        """Gives the devices `more` rows, in a new table if the present one is full."""
        first, row_bytes = self._used, self._rows[0].nbytes
        self._used += more
        if self._used > self._room:
            first, self._room = 0, len(self._rows)
            size = self._rows.nbytes
            self._tables.append({place: place.allocate(size) for place in self._places})
        for device, memory in self._tables[-1].items():
            data = self._rows[first : self._used].view(np.uint8).reshape(-1)
            device.write(memory, first * row_bytes, data)


class Scratch:
    """The ranks' scratch, which grows with the largest call of any plan."""

    def __init__(self, ranks: DeviceRanks, registered: Registered) -> None:
        self._ranks, self._registered = ranks, registered
        self._together = [0] * ranks.count
        """The size of each rank's scratch that all processes made together."""
        self._made: dict[int, list[Memory]] = {rank: [] for rank in ranks.devices}
        """Calls on the caller's streams, and captured ones, may still use any of them."""

    def reserve(self, sizes: Sequence[int]) -> None:
        """Makes scratch of sizes[r] bytes for each rank r, which all processes read, when no call
        is under way. All processes call this together, and decide alike."""
        both = list(zip(sizes, self._together, strict=True))
        if all(size <= present for size, present in both):
            return
        # At least doubled: then the outgrown memories together don't exceed the current one.
        grown = [max(size, 2 * present) if size > present else 0 for size, present in both]
        memory = self._ranks.allocate(grown)
        self._registered.add(memory)
        self._together = [max(new, present) for new, (_, present) in zip(grown, both, strict=True)]
        for rank, own in memory.memories.items():
            if own.size_bytes:
                self._made[rank].insert(0, own)

    def of(self, rank: int, size_bytes: int, wait: Callable[[], None]) -> int:
        """The address of at least so many bytes of scratch of a rank of this process; 0 for none.
        If there are too few, makes more after `wait`, which other processes don't read."""
        if not size_bytes:
            return 0
        made = self._made[rank]
        # Of those that all read, the first one is the largest.
        found = next((one for one in made if one.size_bytes >= size_bytes), None)
        if found is None:
            wait()
            most = max((one.size_bytes for one in made), default=0)
            found = self._ranks.allocate_on(rank, max(size_bytes, 2 * most))
            made.append(found)
        return found.address


class SharedArrays:
    """Arrays that other processes can read; each allocation has one for every rank."""

    def __init__(self, ranks: DeviceRanks, registered: Registered) -> None:
        self._ranks, self._registered = ranks, registered
        self._made: list[SharedMemory] = []

    def empty(self, dtype: str, elements: int) -> dict[int, Any]:
        """See `Executor.empty`."""
        with self._ranks.telling():
            elements, kind = whole(elements, "elements", 0), data_type(dtype)
        memory = self._ranks.allocate([elements * kind.size_bytes] * self._ranks.count)
        self._made.append(memory)
        self._registered.add(memory)
        return {
            rank: device.array(memory.memories[rank], dtype, elements)
            for rank, device in self._ranks.devices.items()
        }
