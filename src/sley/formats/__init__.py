"""Formats: plans from files of other tools, and files for other tools from plans.

A format is a folder with a `Format`, and an entry in `FORMATS`; the end of a file's name says which
one it has. `program_source` writes programs as Python, `plan_bytes` keeps plans for sley itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sley.errors import Place
from sley.errors.formats import F461
from sley.formats import msccl_xml
from sley.formats.format import Format, Imported, Target, by_suffix, target_among
from sley.ir.plan import Plan

__all__ = [
    "FORMATS",
    "READERS",
    "TARGETS",
    "Format",
    "Imported",
    "Target",
    "by_suffix",
    "check",
    "check_folder",
    "read",
    "target_among",
    "target_named",
    "write_file",
]

FORMATS: Mapping[str, Format] = MappingProxyType({f.suffix: f for f in (msccl_xml.FORMAT,)})
"""The formats by the end of their files' names."""

READERS: Mapping[str, Callable[..., Imported]] = MappingProxyType(
    {suffix: form.read for suffix, form in FORMATS.items() if form.read is not None}
)
"""The readers of those that are not only written."""

TARGETS: Mapping[str, Target] = MappingProxyType(
    {target.name: target for form in FORMATS.values() for target in form.targets}
)
"""The runtimes that plans are written for, by name."""


def target_named(target: str | Target) -> Target:
    """The target of that name; a Target passes through. Errors: F440."""
    return target_among(TARGETS, target, Target)


def read(path: str | os.PathLike[str], **settings: Any) -> Imported:
    """The plan of a file, with the reader's remarks on the file.

    settings: what the file may leave open: collective, in_place, root, slots; `msccl_xml.read` says
    what they mean. Errors: F460 for a name without known end, otherwise what the format's reader
    raises.
    """
    return by_suffix(path, READERS)(Path(path), **settings)


def check(plan: Plan, target: str | Target) -> None:
    """Refuses a plan that can't be written for a target. Errors: F440, and those of the format."""
    target = target_named(target)
    of_format = FORMATS[target.suffix].check
    if of_format is not None:
        of_format(plan, target)


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
