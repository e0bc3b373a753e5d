"""Order: one call of an executor after the other, on whatever streams they are started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sley.devices.device import Device, Event


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
