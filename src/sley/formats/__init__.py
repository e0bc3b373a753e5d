"""Formats: plans from files of other tools, and files for other tools from plans.

The end of a file's name says its format; .xml is MSCCL XML, the only one so far.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from sley.errors import Place
from sley.errors.formats import F460, F461
from sley.formats import msccl_xml
from sley.formats.msccl_xml import Imported
from sley.formats.targets import EXECUTOR, MSCCL, RCCL, TARGETS, Target, target_named
from sley.ir.collective import Collective
from sley.ir.plan import Plan

__all__ = [
    "EXECUTOR",
    "MSCCL",
    "RCCL",
    "TARGETS",
    "Imported",
    "Target",
    "load",
    "load_with_notes",
    "save",
    "target_named",
    "write_file",
]

_SUFFIXES = (".xml",)


def load(
    path: str | os.PathLike[str],
    *,
    collective: Collective | None = None,
    in_place: bool | None = None,
    root: int | None = None,
    slots: int | None = None,
) -> Plan:
    """The plan of a file; `msccl_xml.read` says what the arguments mean.

    Raises SleyError: F460 for a name without known end, otherwise what the format's reader raises.
    """
    return load_with_notes(
        path, collective=collective, in_place=in_place, root=root, slots=slots
    ).plan


def load_with_notes(
    path: str | os.PathLike[str],
    *,
    collective: Collective | None = None,
    in_place: bool | None = None,
    root: int | None = None,
    slots: int | None = None,
) -> Imported:
    """As `load`, with the reader's remarks on the file."""
    _check_suffix(path)
    return msccl_xml.read_with_notes(
        Path(path), collective=collective, in_place=in_place, root=root, slots=slots
    )


def save(
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    target: str | Target = EXECUTOR,
    name: str | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    threads: int | None = None,
) -> None:
    """Write a plan to a file, for a target; `msccl_xml.write` says what the arguments mean.

    The file is there whole or not at all: whatever goes wrong, what stood there before stays.
    Raises SleyError: F460, F461, or what the format's writer raises.
    """
    _check_suffix(path)
    text = msccl_xml.write(
        plan, target, name=name, min_bytes=min_bytes, max_bytes=max_bytes, threads=threads
    )
    write_file(path, text)


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text, whole or not at all: whatever goes wrong, what stood there before stays.

    Errors: F461."""
    try:
        _replace(Path(path), text)
    except (OSError, ValueError) as problem:
        raise F461.error(
            at=Place(str(path)), expected="a file that can be written", found=str(problem)
        ) from problem


def check_folder(path: str | os.PathLike[str]) -> None:
    """That the folder of a file to be written is there, before long work. Errors: F461."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise F461.error(
            at=Place(str(path)), expected="a file in a folder that exists", found=f"no {folder}"
        )


def _check_suffix(path: str | os.PathLike[str]) -> None:
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise F460.error(
            at=Place(str(path)),
            expected=f"a name that ends in {' or '.join(_SUFFIXES)}",
            found=repr(suffix) if suffix else "none",
        )


def _replace(path: Path, text: str) -> None:
    """Put the text at `path` in one move."""
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
