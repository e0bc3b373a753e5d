"""Autoload: the function that PyTorch calls at the end of `import torch`."""

from __future__ import annotations

import importlib
import os


def autoload() -> None:
    """Loads `sley.torch` if the environment asks for it, in programs that don't import it.

    It is sley's entry point of the group `torch.backends`, so every `import torch` calls it. It
    loads nothing unless SLEY_REPLACE_GLOO is set.
    """
    if os.environ.get("SLEY_REPLACE_GLOO"):
        importlib.import_module("sley.torch")
