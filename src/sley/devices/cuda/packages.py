"""The packages that the extra `cuda` brings."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sley.errors.devices import K501


def module(name: str) -> Any:
    """A module of them; K501 where it isn't installed."""
    package, _, _ = name.rpartition(".")
    try:
        import_module(package)  # a module that was imported earlier says nothing of its package
        return import_module(name)
    except ImportError as error:
        raise K501.error(
            expected="the packages cuda-core, cuda-bindings and nvidia-cuda-nvrtc",
            found=str(error),
            remedy='`pip install "sley[cuda]"`',
        ) from None
