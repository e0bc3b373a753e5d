"""Prebuilt kernels: the interpreter's, as machine code, from the package sley-kernels.

`.ci/prebuild.py` makes the package. It has a fat binary for each text of the interpreter, with the
code of several GPU architectures, of which the driver takes the device's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from sley.errors import Place, SleyError, reason_of, shortened
from sley.errors.devices import K502
from sley.errors.selection import N653
from sley.errors.text_files import MAX_FILE_BYTES, Section, open_file, text_of, toml_tables

PACKAGE = "sley_kernels"


def file_of(text: str, suffix: str = ".fatbin") -> str:
    """The name of the file with a text's kernels: a digest, so that a package for other texts, of
    another version of sley, has no file for this one."""
    return f"{_digest(text.encode())[:32]}{suffix}"


CODE = "kernels"
"""The folder with machine code in a folder of plans, with one for each architecture in it."""

DIGESTS = "digests.toml"
"""The file beside machine code from which readers know that all of it is there and right: a driver
reads whatever it gets as code."""


def architectures(major: int, minor: int) -> list[str]:
    """The architectures of which a GPU of a compute capability runs the code, the best first."""
    return [f"sm_{major}{least}" for least in range(minor, -1, -1)]


def digests_of(arch: str, code: Mapping[str, bytes], cuda: int) -> str:
    """The text of `DIGESTS`, given the content of each file, and the major version of the CUDA of
    which it is."""
    head = [f'sley = "{version("sley")}"', f'arch = "{arch}"', f"cuda = {cuda}", "[files]"]
    rows = (f'"{name}" = "{_digest(content)}"' for name, content in code.items())
    return "\n".join([*head, *rows, ""])


def code_in(folder: Path, driver: tuple[int, int], capability: tuple[int, int]) -> dict[str, bytes]:
    """The machine code in a folder of plans, by the names of its files (`file_of`), for a driver
    and a GPU as in `has_prebuilt`; nothing if there is none for any GPU. Errors: K502 if there is
    none for these; N653 for other code than `sley package` of this version wrote."""
    here = folder / CODE
    try:
        found = sorted(each.name for each in here.iterdir())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unfit(here, "a readable folder", reason_of(error)) from error
    major, minor = capability
    fit = [arch for arch in architectures(major, minor) if arch in found]
    if not fit:
        raise K502.error(
            at=Place(str(here)),
            expected=f"machine code for compute capability {major}.{minor}",
            found=", ".join(shortened(found)) or "none",
            remedy=f"Write the folder with `sley package --arch sm_{major}{minor}`, or leave the "
            "code out: kernels are then compiled where they run.",
        )
    every = (code_of(here / arch, driver) for arch in reversed(fit))
    return {name: code for own in every for name, code in own.items()}


def code_of(place: Path, driver: tuple[int, int] | None = None) -> dict[str, bytes]:
    """The machine code in the folder of an architecture; as `code_in`."""
    file = place / DIGESTS
    said = Section(str(file), toml_tables(str(file), text_of(file, N653), N653), N653)
    for word, here in (("sley", version("sley")), ("arch", place.name)):
        if (found := said.typed(word, str)) != here:
            raise _unfit(file, f"{word} = {here!r}", f"{word} = {found!r}")
    cuda = said.number("cuda")
    if driver and cuda > driver[0]:
        expected = f"machine code of CUDA {driver[0]} or older, as the driver is"
        raise K502.error(at=Place(str(file)), expected=expected, found=f"CUDA {cuda:g}")
    code = {}
    for name, digest in said.typed("files", dict).items():
        try:
            with open_file(place / name) as stream:
                code[name] = stream.read(MAX_FILE_BYTES)
        except (OSError, ValueError) as error:
            raise _unfit(place / name, "a file that can be read", reason_of(error)) from error
        if _digest(code[name]) != digest:
            raise _unfit(place / name, "the content that `sley package` wrote", "another one")
    return code


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _unfit(at: Path, expected: str, found: str) -> SleyError:
    remedy = "Copy the folder again, or write it again with `sley package`."
    return N653.error(at=Place(str(at)), expected=expected, found=found, remedy=remedy)


def has_prebuilt(driver: tuple[int, int], capability: tuple[int, int]) -> bool:
    """Whether the package is installed, and its code runs with a driver, by the newest CUDA that it
    supports, on a GPU, by its compute capability."""
    try:
        package = import_module(PACKAGE)
    except ImportError:
        return False
    return bool(package.CUDA[0] <= driver[0] and capability >= package.LEAST)


def prebuilt_folder() -> Path | None:
    """The folder of the package; None if it isn't installed."""
    spec = find_spec(PACKAGE)
    return Path(spec.origin).parent if spec and spec.origin else None


def prebuilt(text: str) -> bytes | None:
    """The fat binary with a text's kernels; None if the installed package has no such text."""
    file = files(PACKAGE) / file_of(text)
    return file.read_bytes() if file.is_file() else None
