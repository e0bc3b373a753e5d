"""CUDA streams and events, sley's and other libraries', and their capture into graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sley.engine.devices import deferred_free
from sley.engine.devices.cuda.driver import apart_from_captures, bindings, call, current
from sley.engine.devices.device import Event
from sley.errors.devices import K517
from sley.errors.diagnostic import SleyError

STREAM_ERRORS = {
    "CUDA_ERROR_INVALID_HANDLE": K517,
    "CUDA_ERROR_INVALID_CONTEXT": K517,
}


class CudaStream:
    """A stream, by its address; other libraries accept it, by `__cuda_stream__`."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, and the address of the cudaStream_t."""
        return (0, self._address)


class CudaEvent(Event):
    """A CUevent in the context of a device. It keeps the stream object on which it was recorded
    alive, so that no other stream gets the same address."""

    def __init__(self, context: Any) -> None:
        self._cu = bindings()
        self._context = context
        self._stream: Any = None
        self._address = -1
        flags = self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        with apart_from_captures(context):
            self._event = call(self._cu.cuEventCreate, flags, doing="making an event")
        weakref.finalize(
            self, release, context, self._cu.cuEventDestroy, self._event
        ).atexit = False

    def set(self, stream: Any) -> None:
        """See `Event.set`. The stream must not be captured."""
        self._stream, self._address = stream, stream_address(stream)
        with current(self._context):
            call(
                self._cu.cuEventRecord,
                self._event,
                self._cu.CUstream(self._address),
                doing="setting an event behind a call",
                meaning=STREAM_ERRORS,
            )

    def hold(self, stream: Any) -> None:
        """See `Event.hold`. Does nothing for the event's own stream, which runs in order."""
        address = stream_address(stream)
        if address == self._address:
            return
        with current(self._context):
            call(
                self._cu.cuStreamWaitEvent,
                self._cu.CUstream(address),
                self._event,
                0,
                doing="letting a call wait for the one before",
                meaning=STREAM_ERRORS,
            )


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


def is_captured(stream: Any, context: Any, device: Any, name: str) -> bool:
    """See `Device.is_captured`; the device's context is current. K518 for the legacy default stream
    while a stream that synchronises with it is captured."""
    cu = bindings()
    handle = cu.CUstream(stream_address(stream))
    doing = f"looking at a stream of {name}"
    status = call(cu.cuStreamIsCapturing, handle, doing=doing, meaning=STREAM_ERRORS)
    if status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        return True  # further queries could invalidate the capture
    own = call(cu.cuStreamGetCtx, handle, doing=doing, meaning=STREAM_ERRORS)
    if int(own) != int(context):
        with current(own):
            other = int(call(cu.cuCtxGetDevice, doing=doing))
        if other != int(device):
            raise K517.error(expected=f"a stream of {name}", found="one of another device")
    return False


def release(context: Any, free: Callable[[Any], Any], handle: Any) -> None:
    """Free `handle`, now or after the launches that are being made. A failure is ignored, since no
    caller could handle it: the device has failed, and its next use raises the error."""

    def freed() -> None:
        with suppress(SleyError), apart_from_captures(context):
            free(handle)

    deferred_free.release(freed)
