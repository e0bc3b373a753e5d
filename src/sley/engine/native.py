"""The compiled engine: what `sley.engine._native` has, loaded when it is first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sley.errors.runtime import R512

LARGEST = 1 << 62
"""The largest number the engine is given: sums of two still fit its 64 bits."""

if TYPE_CHECKING:
    from sley.engine._native import *  # noqa: F403 - the stub says what there is
else:

    def __getattr__(name: str) -> object:
        """What the extension module has by this name; R512 where it cannot be loaded."""
        module = "sley.engine._native"
        if name.startswith("_"):  # `import` asks for some of those
            raise AttributeError(name, name=name, obj=module)
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise R512.error(expected=f"the module {module}", found=str(error)) from error
