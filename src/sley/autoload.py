"""Autoload: the function that PyTorch calls at the end of `import torch`."""

from __future__ import annotations

import importlib
import os
from typing import Any


def autoload() -> None:
    """Makes the backend "sley" known to PyTorch in programs that don't import `sley.torch`, which
    the first group loads; with SLEY_REPLACE_GLOO, loads it now.

    It is sley's entry point of the group `torch.backends`, so every `import torch` calls it.
    """
    dist = importlib.import_module("torch.distributed")
    if dist.is_available():
        dist.Backend.register_backend("sley", _create, extended_api=True, devices=["cpu"])
    if os.environ.get("SLEY_REPLACE_GLOO"):
        importlib.import_module("sley.torch")


def _create(options: Any, settings: Any) -> Any:
    """Makes the first group: `sley.torch` registers its own function for all others."""
    importlib.import_module("sley.torch")
    return importlib.import_module("sley.torch.group").create(options, settings)
