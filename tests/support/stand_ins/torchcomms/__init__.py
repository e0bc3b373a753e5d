"""A stand-in for torchcomms, where it isn't installed: as much of it as sley's tests call.

It calls a backend as the real one's C++ does: arguments by position, reductions as its own class,
and None or an object with `wait()` as the result.
"""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any

import torch
import torch.distributed as dist
from torchcomms._comms import RedOpType, ReduceOp, TorchCommBackend

__all__ = ["CommOptions", "RedOpType", "ReduceOp", "TorchComm", "TorchCommBackend", "TorchWork"]

_BACKENDS: dict[str, type[TorchCommBackend]] = {}


class CommOptions:
    def __init__(self) -> None:
        self.timeout = timedelta(seconds=600)
        self.store: dist.Store | None = None
        self.hints: dict[str, str] = {}


class TorchWork:
    """What a call of a communicator returns."""

    def __init__(self, of_backend: Any) -> None:
        assert of_backend is None or callable(of_backend.wait)
        self._of_backend = of_backend

    def wait(self) -> None:
        if self._of_backend is not None:
            self._of_backend.wait()


class TorchComm:
    """A communicator: passes calls on to its backend, arguments by position."""

    def __init__(self, backend: TorchCommBackend) -> None:
        self._backend = backend

    def get_name(self) -> str:
        return self._backend.get_comm_name()

    def get_backend(self) -> str:
        return self._backend.get_backend_name()

    def get_backend_impl(self) -> TorchCommBackend:
        return self._backend

    def split(
        self, ranks: list[int], name: str, timeout: timedelta | None = None
    ) -> TorchComm | None:
        options = CommOptions()
        options.timeout = timeout or options.timeout
        backend = self._backend.split(ranks, name, options)
        return None if backend is None else TorchComm(backend)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if name.startswith("get_") or name in ("finalize", "set_timeout"):
            return method

        def call(*arguments: Any) -> TorchWork:
            is_async = arguments[-1]
            assert isinstance(is_async, bool)
            result = method(*arguments)
            assert (result is None) == (not is_async)
            return TorchWork(result)

        return call


def register_backend(name: str, backend_class: type[TorchCommBackend]) -> None:
    _BACKENDS.setdefault(name, backend_class)


def new_comm(
    backend: str,
    device: torch.device,
    name: str,
    timeout: timedelta | None = None,
    store: dist.Store | None = None,
    hints: dict[str, str] | None = None,
) -> TorchComm:
    (entry,) = entry_points(group="torchcomms.backends", name=backend)
    entry.load()
    options = CommOptions()
    options.timeout = timeout or options.timeout
    options.store, options.hints = store, hints or {}
    made = _BACKENDS[backend]()
    made.init(device, name, options)
    return TorchComm(made)
