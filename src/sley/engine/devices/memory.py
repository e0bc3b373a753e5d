"""Memory of links: scratch, which grows, and arrays that other processes read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sley.engine.devices.arguments import Views
from sley.engine.devices.device import Device, View
from sley.engine.devices.device_ranks import DeviceRanks, SharedMemory
from sley.engine.limits import whole
from sley.engine.types import DATA_TYPES, data_type
from sley.errors import Place
from sley.errors.devices import K514
from sley.errors.runtime import R503

Pair = tuple[int, int]


class Scratch:
    """The ranks' scratch, which grows with the largest call of any plan."""

    def __init__(self, ranks: DeviceRanks) -> None:
        self._ranks = ranks
        self._sizes = [0] * ranks.count
        self._addresses: dict[tuple[Device, int], int] = {}
        self._made: list[SharedMemory] = []

    def has(self, sizes: Sequence[int]) -> bool:
        """Whether each rank r has scratch of sizes[r] bytes. All processes say the same, whether or
        not their own ranks have scratch."""
        return all(size <= present for size, present in zip(sizes, self._sizes, strict=True))

    def reserve(self, sizes: Sequence[int]) -> None:
        """Allocates scratch of sizes[r] bytes for each rank r, if there is less. Calls that use the
        scratch which it replaces must be done."""
        if self.has(sizes):
            return
        both = list(zip(sizes, self._sizes, strict=True))
        # At least doubled: then the outgrown memories together don't exceed the current one. Calls
        # on the caller's streams, and captured calls, may still use those.
        grown = [max(size, 2 * present) if size > present else 0 for size, present in both]
        memory = self._ranks.allocate(grown)
        self._made.append(memory)
        for rank, size in enumerate(grown):
            if size:
                self._sizes[rank] = size
                for device, addresses in memory.addresses.items():
                    self._addresses[device, rank] = addresses[rank]

    def address(self, device: Device, rank: int) -> int:
        """The address of a rank's scratch on a device of this process; 0 without scratch."""
        return self._addresses.get((device, rank), 0)


class SharedArrays:
    """Arrays that other processes can read; each allocation has one for every rank."""

    def __init__(self, ranks: DeviceRanks) -> None:
        self._ranks = ranks
        self._made: list[SharedMemory] = []

    def empty(self, dtype: str, elements: int) -> dict[int, Any]:
        """See `Executor.empty`."""
        with self._ranks.telling():
            elements, kind = whole(elements, "elements", 0), data_type(dtype)
        memory = self._ranks.allocate([elements * kind.size_bytes] * self._ranks.count)
        self._made.append(memory)
        return {
            rank: device.array(memory.memories[rank], dtype, elements)
            for rank, device in self._ranks.devices.items()
        }

    def remote(self, views: Views) -> dict[Device, dict[int, Pair]]:
        """The addresses, on each device of this process, of the arrays of other processes' ranks in
        a call: input and output, 0 for none. All processes call this together, each with the views
        of its own ranks. R503, in every process, for an array that `empty` didn't make."""
        own = {r: [self._place(r, view) for view in pair] for r, pair in views.items()}
        found: dict[Device, dict[int, Pair]] = {device: {} for device in self._ranks.places}
        for rank, places in self._ranks.gather(own).items():
            if not isinstance(places, list) or len(places) != 2:
                raise _no_place(rank, places)
            for device, by_rank in found.items():
                pair = [self._address(device, rank, place) for place in places]
                if rank not in own:
                    by_rank[rank] = (pair[0], pair[1])
        return found

    def _place(self, rank: int, view: View | None) -> list[int] | str | None:
        """The number of the array that contains a view, and the view's offset in it, in bytes; a
        description if no array contains it."""
        if view is None or not view.elements:
            return None
        size = view.elements * DATA_TYPES[view.dtype].size_bytes
        for number, made in enumerate(self._made):
            memory = made.memories[rank]
            at = view.address - memory.address
            if at >= 0 and at + size <= memory.size_bytes:
                return [number, at]
        return "another array"

    def _address(self, device: Device, rank: int, place: Any) -> int:
        if place is None:
            return 0
        if isinstance(place, str):
            raise R503.error(
                at=Place(detail=f"rank {rank}"),
                expected="arrays made by `empty`, since other processes read them",
                found=place,
            )
        try:
            number, at = place
            return int(self._made[number].addresses[device][rank] + at)
        except (TypeError, ValueError, IndexError):
            raise _no_place(rank, place) from None


def _no_place(rank: int, place: Any) -> Exception:
    return K514.error(
        expected=f"the place of an array of rank {rank}, in the order in which all processes made "
        "them",
        found=f"{place!r}",
    )
