"""Prepared calls."""

from __future__ import annotations

from typing import Any

from sley.engine import native
from sley.engine.devices.links import LinkSet
from sley.engine.devices.stamps import Stamps
from sley.errors.runtime import R503


class PreparedCall:
    """A validated call on fixed arrays; made by `Executor.prepare`. The call, the executor and the
    arrays must outlive every graph into which the call was captured."""

    def __init__(
        self, call: native.PlanCall, links: LinkSet, size_bytes: int, stamps: Stamps | None
    ) -> None:
        self._start, self._links = call.start, links
        self._size_bytes, self._stamps = size_bytes, stamps
        self._devices = list(links.launches)
        own = [(device, stream) for device, on in links.launches.items() for _, stream in on]
        self._streams = [stream for _, stream in own]
        self._address_of = [device.stream_address for device, _ in own]

    def __call__(self, streams: Any = None) -> None:
        """Makes the call. streams: as for `Executor.__call__`."""
        self._links.check()
        given = streams if isinstance(streams, list | tuple) else [streams]
        if streams is None:
            # The arrays were made on the default streams; the call may run on others.
            for device in self._devices:
                device.synchronize(device.default_stream())
            given = self._streams
        elif len(given) != len(self._streams):
            raise R503.error(
                expected=f"{len(self._streams)} streams, one for each launch",
                found=f"{len(given)} streams",
            )
        pairs = zip(self._address_of, given, strict=True)
        addresses = [address_of(stream) for address_of, stream in pairs]
        if not self._start(addresses, streams is not None):
            self._links.check()
        if self._stamps is not None:
            self._stamps.size_bytes = self._size_bytes
        if streams is None:
            self._links.synchronize()
