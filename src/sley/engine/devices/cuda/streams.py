"""CUDA streams, sley's and other libraries'."""

from __future__ import annotations

from typing import Any

from sley.errors.devices import K517


class CudaStream:
    """A stream, by its address; other libraries accept it, by `__cuda_stream__`. owner: keeps a
    stream of sley's."""

    def __init__(self, address: int, owner: object = None) -> None:
        self._address, self._owner = address, owner

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, and the address of the cudaStream_t."""
        return (0, self._address)


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
