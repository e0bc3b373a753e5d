"""Prebuilt kernels: the interpreter's, as machine code, from the package sley-kernels.

`.ci/prebuild.py` makes the package. It has a fat binary for each text of the interpreter, with the
code of several GPU architectures, of which the driver takes the device's.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from importlib.resources import files
from pathlib import Path

PACKAGE = "sley_kernels"


def file_of(text: str, suffix: str = ".fatbin") -> str:
    """The name of the file with a text's kernels: a digest, so that a package for other texts, of
    another version of sley, has no file for this one."""
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{suffix}"


CODE = "kernels"
"""The folder with machine code in a folder of plans, with one for each architecture in it."""


def architectures(major: int, minor: int) -> list[str]:
    """The architectures of which a GPU of a compute capability runs the code, the best first."""
    return [f"sm_{major}{least}" for least in range(minor, -1, -1)]


def code_in(folder: Path, capability: tuple[int, int], text: str) -> bytes | None:
    """The machine code of a text's kernels in a folder of plans, for a GPU; None without."""
    for arch in architectures(*capability):
        file = folder / CODE / arch / file_of(text, ".cubin")
        if file.is_file():
            return file.read_bytes()
    return None


def has_prebuilt(driver: tuple[int, int], capability: tuple[int, int]) -> bool:
    """Whether the package is installed, and its code runs with a driver, by the newest CUDA that it
    supports, on a GPU, by its compute capability."""
    try:
        package = import_module(PACKAGE)
    except ImportError:
        return False
    return bool(package.CUDA[0] <= driver[0] and capability >= package.LEAST)


def prebuilt(text: str) -> bytes | None:
    """The fat binary with a text's kernels; None if the installed package has no such text."""
    file = files(PACKAGE) / file_of(text)
    return file.read_bytes() if file.is_file() else None
