"""DeviceRanks: the ranks of a communicator, on the devices of one process or several."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from sley.engine import native
from sley.engine.devices.device import Device, HostMemory, Memory, Window
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.errors import Diagnostic, SleyError, diagnostic_from_json, telling
from sley.errors.devices import K507, K514, K521, K523
from sley.errors.runtime import R503, R514

Exchange = Callable[[bytes], Sequence[bytes]]
"""An all-gather of bytes among the processes, in the same order in each."""


@dataclass(frozen=True)
class SharedMemory:
    """An allocation with memory for every rank. memories: those of this process's ranks. seen: for
    each rank, the addresses of all ranks' memory on its device."""

    memories: Mapping[int, Memory]
    seen: Sequence[Sequence[int]]


class DeviceRanks:
    """The devices and processes of a communicator's ranks.

    count: the number of ranks. devices: the device of each rank of this process, by rank,
    ascending. exchange: None if all ranks are in this process. has_lines: whether kernels write
    lines of LL128.
    """

    def __init__(
        self,
        count: int,
        devices: Sequence[Device] | Mapping[int, Device],
        exchange: Exchange | None,
        *,
        has_lines: bool,
    ) -> None:
        if exchange is not None and not callable(exchange):
            raise R514.error(
                expected="exchange to be a function, from bytes to the bytes of all processes",
                found=f"exchange={exchange!r}",
            )
        self.count = count
        said = None if exchange is None else partial(_answers, exchange)
        self._processes = native.Processes(count, said)
        self._has_lines = has_lines
        with self.telling():
            self.devices = _check_devices(devices, self.count, is_alone=exchange is None)
        places = self.places  # equal devices are one
        own = {rank: places[places.index(d)].native for rank, d in self.devices.items()}
        self.memory = native.MemoryExchange(self._processes, own, has_lines)

    @property
    def places(self) -> list[Device]:
        """The devices of this process, each once."""
        return list(dict.fromkeys(self.devices.values()))

    @property
    def is_one_process(self) -> bool:
        """Whether all ranks are in this process."""
        return self._processes.is_one

    @property
    def is_one_device(self) -> bool:
        """Whether all ranks are on one device."""
        return self.is_one_process and len(self.places) == 1

    def reach(self) -> None:
        """Lets the devices of this process access one another's memory. K509, K523 if they
        can't."""
        for device in self.places:
            for other in self.places:
                if device != other:
                    device.reach(other)
                    if self._has_lines and not device.carries_lines(other.identity):
                        raise K523.error(
                            expected="a link with native atomics, for LL128",
                            found=f"one without, from {device.name} to {other.name}",
                        )

    def on(self, device: Device) -> list[int]:
        """The ranks of this process on a device."""
        return [rank for rank, place in self.devices.items() if place == device]

    def gather(self, own: Mapping[int, bytes]) -> list[bytes]:
        """The values of all ranks, by rank; own: of the ranks of this process. All processes call
        this together. K514 if one has ended, R503 for a rank in two of them."""
        return self._processes.gather(own)

    def places_of_all(self) -> tuple[int, ...]:
        """For each rank the first one on its device; all processes call this together. K514 if one
        has ended."""
        every = self.gather({rank: device.identity for rank, device in self.devices.items()})
        return tuple(map(every.index, every))

    def allocate(self, sizes_bytes: Sequence[int]) -> SharedMemory:
        """Allocates sizes_bytes[r] bytes for each rank r; all processes call this together, with
        the same sizes. K507 if memory runs out, K514 if a process has ended, R503 if the processes'
        sizes differ."""
        with self.telling():
            for size in sizes_bytes:
                _check_size(size)
        made, seen = self.memory.allocate(list(sizes_bytes))
        memories = {rank: Memory(m.address, sizes_bytes[rank], m) for rank, m in made.items()}
        return SharedMemory(memories, seen)

    def allocate_on(self, rank: int, size_bytes: int) -> Memory:
        """Memory of a rank of this process alone. K507 if memory runs out."""
        _check_size(size_bytes)
        return self.devices[rank].allocate(size_bytes)

    def windows(self, teams: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[Window]:
        """The windows of teams of ranks, which share switches; sizes: the bytes of a part of each.
        K507 if memory runs out."""
        found = zip([[self.devices[r] for r in team] for team in teams], sizes, strict=True)
        return [devices[0].window(devices, size) for devices, size in found]

    def allocate_host(self, size_bytes: int) -> HostMemory:
        """Zeroed memory of the host that the devices of all processes can access; all processes
        call this together. K507 if memory runs out, K514 if the processes can't share it."""
        made = self.memory.allocate_host(size_bytes)
        return HostMemory(made.address, made.array(made.address, size_bytes), made)

    def telling(self) -> AbstractContextManager[None]:
        """A context for local work just before an exchange: the other processes raise its errors in
        that exchange, too, instead of waiting."""
        return telling(lambda error: self._processes.tell(refusal(error)))

    def meet(self) -> None:
        """Barrier: waits until all processes call this."""
        self._processes.meet()


def refusal(error: SleyError) -> bytes:
    """What other processes are told if this one can't continue: its diagnostics."""
    return json.dumps([d.to_json() for d in error.diagnostics]).encode()


def read_refusals(messages: Sequence[bytes]) -> SleyError:
    """The error made of all refusals; K514 for one that `refusal` didn't make."""
    found: dict[Diagnostic, None] = {}
    try:
        for value in chain(*map(json.loads, messages)):
            one = diagnostic_from_json(value)
            found[replace(one, notes=(*one.notes, "another process found this"))] = None
    except (TypeError, ValueError) as problem:
        return _no_exchange(str(problem))
    return SleyError(list(found))


def _answers(exchange: Exchange, message: bytes) -> list[bytes]:
    """The messages of all processes, from the caller's function, which may raise anything."""
    try:
        answers = list(exchange(message))
    except SleyError:
        raise
    except Exception as problem:
        raise K514.error(
            expected="an exchange with all processes", found=f"{type(problem).__name__}: {problem}"
        ) from problem
    for answer in answers:
        if not isinstance(answer, bytes | bytearray | memoryview):
            raise _no_exchange(type(answer).__name__)
    return [bytes(answer) for answer in answers]


def _check_size(size_bytes: int) -> None:
    if size_bytes > LARGEST:
        raise K507.error(expected=f"{size_bytes:,} bytes of memory of a device", found=BEYOND)


def _check_devices(devices: Any, ranks: int, *, is_alone: bool) -> dict[int, Device]:
    """The devices of this process by rank, ascending; every rank must have one if `is_alone`."""
    if ranks > native.RANKS:
        raise K521.error(expected=f"at most {native.RANKS} ranks", found=f"{ranks} ranks")
    given = _by_rank(devices, ranks)
    everyone = set(range(ranks))
    fits = bool(given) and (set(given) == everyone if is_alone else set(given) <= everyone)
    if not fits:
        expected = f"a device for {ranks} ranks" if is_alone else f"ranks from 0 to {ranks - 1}"
        raise R503.error(expected=expected, found=f"devices for ranks {list(given)}")
    return {rank: given[rank] for rank in sorted(given)}


def _by_rank(devices: Any, ranks: int) -> dict[int, Device]:
    """Devices by rank, from a mapping or a sequence; R503 for anything else."""
    try:
        given = dict(devices if isinstance(devices, Mapping) else enumerate(devices))
    except TypeError:
        raise R503.error(
            expected=f"a device for {ranks} ranks, in a list", found=f"{devices!r}"
        ) from None
    for rank, device in given.items():
        if not isinstance(device, Device):
            raise R503.error(
                expected="devices, as `open_devices` makes them",
                found=f"{device!r} for rank {rank}",
            )
    return given


def _no_exchange(found: str) -> SleyError:
    return K514.error(expected="the bytes that each process gave to `exchange`", found=found)
