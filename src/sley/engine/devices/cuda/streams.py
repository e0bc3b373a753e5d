"""CUDA streams and events, sley's and other libraries'."""

from __future__ import annotations

from typing import Any

from sley.engine import native
from sley.engine.devices.device import Event
from sley.errors.devices import K517


class CudaStream:
    """A stream, by its address; other libraries accept it, by `__cuda_stream__`. owner: keeps a
    stream of sley's."""

    def __init__(self, address: int, owner: object = None) -> None:
        self._address, self._owner = address, owner

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, and the address of the cudaStream_t."""
        return (0, self._address)


class CudaEvent(Event):
    """An event of a device. It keeps the stream object on which it was recorded alive, so that no
    other stream gets the same address."""

    def __init__(self, device: native.CudaDevice) -> None:
        self._device, self._event = device, device.event()
        self._stream: Any = None
        self._address = -1

    def set(self, stream: Any) -> None:
        """See `Event.set`. The stream must not be captured."""
        self._stream, self._address = stream, stream_address(stream)
        self._device.record(self._event.address, self._address)

    def hold(self, stream: Any) -> None:
        """See `Event.hold`. Does nothing for the event's own stream, which runs in order."""
        address = stream_address(stream)
        if address != self._address:
            self._device.wait(address, self._event.address)


def stream_address(stream: Any) -> int:
    """The address of a cudaStream_t: from `__cuda_stream__`, torch's `cuda_stream`, CuPy's `ptr`,
    or the address itself. K517 for anything else."""
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        _, address = protocol()
        return int(address)
    for name in ("cuda_stream", "ptr"):
        address = getattr(stream, name, None)
        if isinstance(address, int):
            return address
    raise K517.error(
        expected="a stream: `__cuda_stream__`, `cuda_stream`, `ptr`, an address, or None",
        found=f"{stream!r}",
    )
