"""Calls that are prepared, and their order on whatever streams they are started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sley.devices.device import Device, Event, Launch
from sley.errors.runtime import R503


@dataclass(frozen=True)
class Start:
    """Launches of a call on one stream of a device. stream: the executor's own."""

    device: Device
    program: Any
    launches: tuple[Launch, ...]
    stream: Any


class PreparedCall:
    """A call on certain arrays, checked and laid out; made by `Executor.prepare`. It must live,
    as the executor and the arrays must, for as long as a graph that it was captured into."""

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
        # All runs come before all divisions: a rank's division that waits in a queue for the
        # rank's run mustn't stand before the run of another rank, for which that one waits.
        most = max((len(start.launches) for start in starts), default=0)
        self._turns = [
            (number, start.device, start.program, start.launches[turn])
            for turn in range(most)
            for number, start in enumerate(starts)
            if turn < len(start.launches)
        ]

    def __call__(self, streams: Any = None) -> None:
        """Makes the call. streams: as for a call of the executor."""
        self._check()
        given = self._streams_of(streams)
        captured = self._order.before(self._devices, given)
        if streams is None:
            # What made the arrays ran on the default streams, and the call may run on others.
            for device in dict.fromkeys(self._devices):
                device.synchronize(device.default_stream())
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
    """Keeps calls apart whose blocks share connections and counters.

    Behind each launch of a call an event is set, for which the same launch of the next call waits
    if it is on another stream. It is set at once, since the caller may destroy the stream before
    the next call. Launches that are captured into a graph are left out: they run when the graph
    does, and an event of theirs would draw other streams into the capture.
    """

    def __init__(self) -> None:
        self._events: dict[int, Event] = {}

    def before(self, devices: Sequence[Device], streams: Sequence[Any]) -> list[bool]:
        """Lets a call's launches wait for those of the calls before; which of them are captured.
        K517 where one isn't a stream of its device; nothing has been started then."""
        captured = [d.is_captured(s) for d, s in zip(devices, streams, strict=True)]
        for number, stream in enumerate(streams):
            if number in self._events and not captured[number]:
                self._events[number].hold(stream)
        return captured

    def after(
        self, devices: Sequence[Device], streams: Sequence[Any], captured: Sequence[bool]
    ) -> None:
        """Takes note that a call's launches were started on streams."""
        for number, (device, stream) in enumerate(zip(devices, streams, strict=True)):
            if captured[number]:
                continue
            if number not in self._events:
                self._events[number] = device.event()
            self._events[number].set(stream)
