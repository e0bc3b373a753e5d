"""Extension modules, loaded at their first use."""

from __future__ import annotations

import importlib
from types import ModuleType

from sley.errors.runtime import R512


def load(module: str) -> ModuleType:
    """The extension module of this name. Errors: R512 if it can't be loaded."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise R512.error(expected=f"the module {module}", found=str(error)) from error
