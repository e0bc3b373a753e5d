"""The way to the compiled engine; says what to do where it is missing."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from sley.errors.runtime import R512

LARGEST = 1 << 62
"""The largest number the engine is given: sums of two still fit its 64 bits."""


@cache
def native() -> Any:
    """The extension module; R512 where it cannot be loaded."""
    try:
        return importlib.import_module("sley.engine._native")
    except ImportError as error:
        raise R512.error(expected="the module sley.engine._native", found=str(error)) from error
