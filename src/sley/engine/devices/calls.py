"""Prepared calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sley.engine import native
from sley.engine.devices.device import Start, ordered
from sley.errors.runtime import R503


class PreparedCall:
    """A validated call on fixed arrays; made by `Executor.prepare`. The call, the executor and the
    arrays must outlive every graph into which the call was captured."""

    def __init__(
        self,
        starts: tuple[Start, ...],
        order: native.CallOrder,
        synchronize: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._starts = starts
        self._start = ordered(order, starts).start
        self._address_of = starts[0].device.stream_address  # all devices are of one kind
        self._synchronize, self._check = synchronize, check

    def __call__(self, streams: Any = None) -> None:
        """Makes the call. streams: as for `Executor.__call__`."""
        self._check()
        if streams is None:
            # The arrays were made on the default streams; the call may run on others.
            for device in dict.fromkeys(start.device for start in self._starts):
                device.synchronize(device.default_stream())
            given = [start.stream for start in self._starts]
        else:
            given = list(streams) if isinstance(streams, list | tuple) else [streams]
            if len(given) != len(self._starts):
                raise R503.error(
                    expected=f"{len(self._starts)} streams, one for each launch",
                    found=f"{len(given)} streams",
                )
        if not self._start([self._address_of(each) for each in given], streams is not None):
            self._check()
        if streams is None:
            self._synchronize()
