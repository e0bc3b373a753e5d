"""Prepared calls, and their order across streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sley.engine.devices.device import Device, Event, Launch
from sley.engine.native import LaunchTurn
from sley.errors.runtime import R503


@dataclass(frozen=True)
class Start:
    """A call's launches on one stream of a device. stream: the executor's, used by default."""

    device: Device
    program: Any
    launches: tuple[Launch, ...]
    stream: Any


class PreparedCall:
    """A validated call on fixed arrays; made by `Executor.prepare`. The call, the executor and the
    arrays must outlive every graph into which the call was captured."""

    def __init__(
        self,
        starts: tuple[Start, ...],
        order: Order,
        synchronize: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._starts, self._order = starts, order
        self._synchronize, self._check = synchronize, check
        self._devices = [start.device for start in starts]
        # All runs are launched before all divisions. Otherwise a division that waits in a queue for
        # its rank's run could block the run of another rank, for which the first run waits.
        most = max((len(start.launches) for start in starts), default=0)
        self._turns = [
            (number, start.device, start.program, start.launches[turn])
            for turn in range(most)
            for number, start in enumerate(starts)
            if turn < len(start.launches)
        ]

    def __call__(self, streams: Any = None) -> None:
        """Makes the call. streams: as for `Executor.__call__`."""
        self._check()
        given = self._streams_of(streams)
        captured = self._order.before(self._devices, given)
        if streams is None:
            # The arrays were made on the default streams; the call may run on others.
            for device in dict.fromkeys(self._devices):
                device.synchronize(device.default_stream())
        with LaunchTurn():
            for number, device, program, launch in self._turns:
                device.launch(program, launch, given[number])
        if streams is None:
            self._synchronize()
        else:
            self._order.after(self._devices, given, captured)

    def _streams_of(self, streams: Any) -> list[Any]:
        if streams is None:
            return [start.stream for start in self._starts]
        given = list(streams) if isinstance(streams, list | tuple) else [streams]
        if len(given) != len(self._starts):
            raise R503.error(
                expected=f"{len(self._starts)} streams, one for each launch",
                found=f"{len(given)} streams",
            )
        return given


class Order:
    """Serialises calls, since their blocks share connections and counters.

    An event is recorded after each launch of a call; the same launch of the next call waits for it
    if it is on another stream. The event is recorded at once, since the caller may destroy the
    stream before the next call. Captured launches record no event: they run when the graph does,
    and waiting for their events would pull other streams into the capture.
    """

    def __init__(self) -> None:
        self._events: dict[int, Event] = {}

    def before(self, devices: Sequence[Device], streams: Sequence[Any]) -> list[bool]:
        """Makes a call's launches wait for those of earlier calls; returns which of the streams are
        captured. K517, before anything is started, if a stream doesn't belong to its device."""
        captured = [d.is_captured(s) for d, s in zip(devices, streams, strict=True)]
        for number, stream in enumerate(streams):
            if number in self._events and not captured[number]:
                self._events[number].hold(stream)
        return captured

    def after(
        self, devices: Sequence[Device], streams: Sequence[Any], captured: Sequence[bool]
    ) -> None:
        """Records an event after each of a call's launches on `streams`."""
        for number, (device, stream) in enumerate(zip(devices, streams, strict=True)):
            if captured[number]:
                continue
            if number not in self._events:
                self._events[number] = device.event()
            self._events[number].set(stream)
