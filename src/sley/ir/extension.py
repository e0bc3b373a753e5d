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
        remedy = (
            "Install the package (`pip install .`; it needs a C++17 compiler), and use the Python "
            "for which it was installed."
        )
        expected, found = f"the module {module}", str(error)
        raise R512.error(expected=expected, found=found, remedy=remedy) from error
