"""The compiled engine: the names of `sley.engine._native`, loaded at the first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sley.errors.runtime import R512

LARGEST = 1 << 62
"""The largest number passed to the engine: the sum of two still fits 64 bits."""

if TYPE_CHECKING:
    from sley.engine._native import *  # noqa: F403 - the stub lists the names
else:

    def __getattr__(name: str) -> object:
        """The extension module's attribute `name`; R512 if the module can't be loaded."""
        module = "sley.engine._native"
        if name.startswith("_"):  # `import` looks up some of those
            raise AttributeError(name, name=name, obj=module)
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise R512.error(expected=f"the module {module}", found=str(error)) from error
