"""The compiled engine: the names of `sley.engine._native`, loaded at the first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sley.ir.extension import load

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
        found = globals()[name] = getattr(load(module), name)  # the next time without this call
        return found
