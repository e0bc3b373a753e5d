"""DeviceRanks: the ranks of a communicator, on the devices of one process or several."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sley.engine import native
from sley.engine.devices.device import Device, HostMemory, Memory, Window
from sley.engine.devices.shared_files import descriptor_box, pass_descriptors, shared_file
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.errors import Diagnostic, SleyError, diagnostic_from_json, telling
from sley.errors.devices import K507, K514, K521, K523
from sley.errors.runtime import R503, R514

_MARK = b"refused:"
"""Prefix of a refusal. No other message has it: the others are empty or JSON."""

Exchange = Callable[[bytes], Sequence[bytes]]
"""An all-gather of bytes among the processes, in the same order in each."""

Addresses = dict[Device, dict[int, int]]
"""For each device of this process: the addresses of the ranks' memory on that device, by rank."""


@dataclass(frozen=True)
class SharedMemory:
    """An allocation with memory for every rank. memories: those of this process's ranks.
    addresses: those of all ranks, here. seen: for each rank, the addresses of all ranks' memory on
    its device."""

    memories: Mapping[int, Memory]
    addresses: Addresses
    seen: Mapping[int, Sequence[int]]


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
        self._exchange = exchange
        self._has_lines = has_lines
        self._attached: dict[tuple[Device, bytes], Memory] = {}
        self._barrier: native.Barrier | None = None
        with self.telling():
            self.devices = _check_devices(devices, self.count, is_alone=exchange is None)

    @property
    def places(self) -> list[Device]:
        """The devices of this process, each once."""
        return list(dict.fromkeys(self.devices.values()))

    @property
    def is_one_process(self) -> bool:
        """Whether all ranks are in this process."""
        return self._exchange is None

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
                    self._check_lines(device, other, other.name)

    def on(self, device: Device) -> list[int]:
        """The ranks of this process on a device."""
        return [rank for rank, place in self.devices.items() if place == device]

    def most_on_a_device(self, of_ranks: Sequence[int]) -> int:
        """The largest of the devices' sums of a number of each rank; all processes call this
        together. K514, R503: see `gather`."""
        own: dict[int, str] = {r: device.identity.hex() for r, device in self.devices.items()}
        every = own if self._exchange is None else self.gather(own)
        sums: Counter[str] = Counter()
        for rank, identity in every.items():
            if not isinstance(identity, str):
                raise _no_exchange(f"{identity!r} for the device of rank {rank}")
            sums[identity] += of_ranks[rank]
        return max(sums.values())

    def allocate(self, sizes_bytes: Sequence[int]) -> SharedMemory:
        """Allocates sizes_bytes[r] bytes for each rank r; all processes call this together, with
        the same sizes. K507 if memory runs out, K514 if a process has ended, R503 if the processes'
        sizes differ."""
        with self.telling():
            exported = self._exchange is not None
            memories = {
                rank: self.allocate_on(rank, sizes_bytes[rank], exported=exported)
                for rank in self.devices
            }
        own = {rank: memory.address for rank, memory in memories.items()}
        found: Addresses = {device: dict(own) for device in self.places}
        if self._exchange is None:
            return SharedMemory(memories, found, {rank: list(own.values()) for rank in own})
        self._attach_others(memories, sizes_bytes, found)
        # Nobody goes on before: a process that ended would take its exported memory with it.
        seen = self.gather(
            {r: [found[d][rank] for rank in range(self.count)] for r, d in self.devices.items()}
        )
        return SharedMemory(memories, found, seen)

    def allocate_on(self, rank: int, size_bytes: int, *, exported: bool = False) -> Memory:
        """Memory of a rank of this process alone. K507 if memory runs out."""
        if size_bytes > LARGEST:
            raise K507.error(expected=f"{size_bytes:,} bytes of memory of a device", found=BEYOND)
        return self.devices[rank].allocate(size_bytes, exported=exported)

    def _attach_others(
        self, memories: Mapping[int, Memory], sizes_bytes: Sequence[int], found: Addresses
    ) -> None:
        """Exports the memory of this process's ranks, and adds that of the others to `found`."""
        with ExitStack() as stack:
            with self.telling():
                handles, descriptors = dict[int, str](), dict[int, int]()
                for rank, memory in memories.items():
                    handle, descriptor = self.devices[rank].export(memory)
                    handles[rank] = handle.hex()
                    if descriptor is not None:
                        stack.callback(os.close, descriptor)
                        descriptors[rank] = descriptor
                box = stack.enter_context(descriptor_box()) if descriptors else None
                path = box.getsockname() if box else ""
            gathered = self.gather({rank: [handle, path] for rank, handle in handles.items()})
            with self.telling():
                others = {r: _pair(r, v) for r, v in gathered.items() if r not in memories}
                if box:
                    paths = {path for _, path in others.values()}
                    descriptors = pass_descriptors(box, descriptors, paths, len(others))
                    for descriptor in descriptors.values():
                        stack.callback(os.close, descriptor)
                for rank, (handle, _) in others.items():
                    for device in self.places:
                        memory = self._attach(
                            device, rank, handle, sizes_bytes[rank], descriptors.get(rank)
                        )
                        found[device][rank] = memory.address

    def windows(self, teams: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[Window]:
        """The windows of teams of ranks, which share switches; sizes: the bytes of a part of each.
        K507 if memory runs out."""
        found = zip([[self.devices[r] for r in team] for team in teams], sizes, strict=True)
        return [devices[0].window(devices, size) for devices, size in found]

    def allocate_host(self, size_bytes: int) -> HostMemory:
        """Zeroed memory of the host that the devices of all processes can access; all processes
        call this together. K507 if memory runs out, K514 if the processes can't share it."""
        place = self.places[0]
        if self._exchange is None:
            return place.allocate_host(size_bytes)
        with ExitStack() as stack:
            path = ""
            with self.telling():
                if 0 in self.devices:
                    path = stack.enter_context(shared_file(size_bytes))
            path = str(self.gather(dict.fromkeys(self.devices, path))[0])
            with self.telling():
                memory = place.map_host(path, size_bytes)
            self.meet()  # the file goes when all have mapped it
        return memory

    def use(self, barrier: native.Barrier) -> None:
        """Processes meet at `barrier` before each later exchange."""
        self._barrier = barrier

    def gather(self, own: Mapping[int, Any]) -> dict[int, Any]:
        """Gathers one value for each rank from all processes. own: plain values, by rank of this
        process. K514 if a process has ended or the exchange is invalid, R503 for a rank in two
        processes."""
        found: dict[int, Any] = {}
        for message in self._exchange_all(json.dumps(own).encode()):
            for rank, value in _parse(message):
                if rank in found:
                    raise R503.error(
                        expected="each rank in one process", found=f"rank {rank} in two of them"
                    )
                found[rank] = value
        for rank in range(self.count):
            if rank not in found:
                raise K514.error(expected="an answer for every rank", found=f"none of rank {rank}")
            if rank in own and found[rank] != own[rank]:
                raise K514.error(
                    expected=f"this process's value for rank {rank}", found="another value"
                )
        return found

    def telling(self) -> AbstractContextManager[None]:
        """A context for local work just before an exchange: the other processes raise its errors in
        that exchange, too, instead of waiting."""
        return telling(self._refuse)

    def meet(self) -> None:
        """Barrier: waits until all processes call this."""
        if self._exchange is not None:
            self._exchange_all(b"")

    def detach(self) -> None:
        """Releases the memory of other processes."""
        self._attached.clear()

    def _refuse(self, error: SleyError) -> None:
        if self._exchange is not None:
            self._exchange_all(refusal(error))

    def _exchange_all(self, message: bytes) -> list[bytes]:
        """The messages of all processes; raises the error of a process that sent a refusal."""
        assert self._exchange is not None
        if self._barrier is not None:
            self._barrier.meet()
        try:
            answers = list(self._exchange(message))
        except SleyError:
            raise
        except Exception as problem:  # the caller's function, of any class
            raise K514.error(
                expected="an exchange with all processes",
                found=f"{type(problem).__name__}: {problem}",
            ) from problem
        for answer in answers:
            if not isinstance(answer, bytes | bytearray | memoryview):
                raise _no_exchange(f"{type(answer).__name__}")
        messages = [bytes(answer) for answer in answers]
        try:
            error = read_refusals(messages)
        except ValueError as problem:
            raise _no_exchange(str(problem)) from None
        if error is not None:
            raise error
        return messages

    def _attach(
        self, device: Device, rank: int, handle: bytes, size_bytes: int, descriptor: int | None
    ) -> Memory:
        """The memory of another process's rank, on a device of this process."""
        key = (device, handle)
        if key not in self._attached:
            self._attached[key] = device.attach(handle, descriptor)
            self._check_lines(device, key[1], f"the device of rank {rank}, in another process")
        memory = self._attached[key]
        if memory.size_bytes != size_bytes:
            raise R503.error(
                expected=f"{size_bytes} bytes of rank {rank}: the same plan, settings and calls "
                "in all processes",
                found=f"{memory.size_bytes} bytes",
            )
        return memory

    def _check_lines(self, device: Device, other: Device | bytes, name: str) -> None:
        """K523 if kernels write lines that wouldn't arrive as a whole."""
        if self._has_lines and not device.carries_lines(other):
            raise K523.error(
                expected="a link with native atomics, for LL128",
                found=f"one without, from {device.name} to {name}",
            )


def refusal(error: SleyError) -> bytes:
    """The message of a process that can't continue: its diagnostics."""
    return _MARK + json.dumps([d.to_json() for d in error.diagnostics]).encode()


def read_refusals(messages: Sequence[bytes]) -> SleyError | None:
    """The error made of all refusals among `messages`; None without any. ValueError for a refusal
    that `refusal` didn't make."""
    found: dict[Diagnostic, None] = {}
    for message in messages:
        if message.startswith(_MARK):
            for value in json.loads(message[len(_MARK) :]):
                one = diagnostic_from_json(value)
                found[replace(one, notes=(*one.notes, "another process found this"))] = None
    return SleyError(list(found)) if found else None


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


def _parse(message: bytes) -> Iterator[tuple[int, Any]]:
    """The (rank, value) pairs of a process's message."""
    try:
        yield from [(int(rank), value) for rank, value in json.loads(message).items()]
    except (ValueError, AttributeError):
        raise _no_exchange(f"{message[:40]!r}") from None


def _pair(rank: int, value: Any) -> tuple[bytes, str]:
    """What a process told of a rank's memory: its handle, and the path of the process's box."""
    try:
        handle, path = value
        return bytes.fromhex(handle), str(path)
    except (TypeError, ValueError):
        raise _no_exchange(f"{value!r} for the memory of rank {rank}") from None


def _no_exchange(found: str) -> SleyError:
    return K514.error(expected="the bytes that each process gave to `exchange`", found=found)
