"""Formats: files with plans, sley's own, and of other tools and for other tools.

What a runtime reads is a folder with a `RuntimeFormat` (`format`), and an entry in `FORMATS` by the
suffix of its files: `msccl_xml` and `mscclpp`. `files` has the other formats, loads, saves and
verifies files of all: `chakra` (execution traces) and `kernel_files` are only written.
`rewriting` replaces instructions that a target doesn't run. `program_source` writes programs as
Python. `plan_file` is sley's own format.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sley.errors import Place, reason_of, recognition, shortened
from sley.errors.formats import F461
from sley.formats import msccl_xml, mscclpp, plan_file
from sley.formats.format import (
    Content,
    Format,
    Imported,
    RuntimeFormat,
    Target,
    by_suffix,
    keywords,
    refuse_varying_counts,
    target_among,
)
from sley.ir.plan import Plan

__all__ = [
    "FORMATS",
    "TARGETS",
    "Content",
    "Format",
    "Imported",
    "RuntimeFormat",
    "Target",
    "by_suffix",
    "check",
    "check_folder",
    "form_of",
    "is_own",
    "keywords",
    "make_folder",
    "new_folder",
    "read",
    "refuse_varying_counts",
    "target_named",
    "write_file",
    "write_files",
]

FORMATS: Mapping[str, RuntimeFormat] = MappingProxyType(
    {f.suffix: f for f in (msccl_xml.FORMAT, mscclpp.FORMAT)}
)
"""The formats that runtimes read, by suffix."""

TARGETS: Mapping[str, Target] = MappingProxyType({**msccl_xml.TARGETS, **mscclpp.TARGETS})
"""The runtimes that read these files, by name. A name with a version, as mscclpp@v0.9.0, is one
version of a runtime; without it, it is the newest one."""


def target_named(target: str | Target) -> Target:
    """The target of this name; one of a known kind passes through. Errors: F440."""
    return target_among(TARGETS, target, tuple(map(type, TARGETS.values())))


_BY_KIND = {recognition.MSCCL_XML: msccl_xml.FORMAT, recognition.MSCCLPP: mscclpp.FORMAT}


def form_of(path: str | os.PathLike[str]) -> RuntimeFormat:
    """The format of an existing file for runtimes, by its content, or by the suffix of its name if
    the content shows none. Errors: F460 for an unknown suffix, F550 for a file of another kind."""
    kind = recognition.kind_of(path)
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    if kind in (*recognition.VAGUE, *recognition.ABSENT):
        return by_suffix(path, FORMATS)
    raise recognition.refuse_kind(path, kind, "a plan of a runtime")


def is_own(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a plan file of sley, perhaps a damaged one."""
    return recognition.presumed_kind(path, recognition.kind_of(path)) is recognition.SLEY_PLAN


def read(path: str | os.PathLike[str], **settings: Any) -> Imported:
    """The plan of a file, with the reader's remarks.

    settings: collective, in_place, root, slots, see `msccl_xml.read` and `mscclpp.read`; None for
    the default. sley's own files have none. Errors: those of `form_of`, C309 for settings that the
    format doesn't have, and those of the format's reader.
    """
    if is_own(path):
        plan_file.FORMAT.settings_of(path, (), settings)
        return plan_file.read(path)
    form = form_of(path)
    return form.read(Path(path), **form.settings_of(path, keywords(form.read), settings))


def check(plan: Plan, target: str | Target) -> None:
    """Refuses a plan that can't be written for a target. Errors: F440, and those of the format."""
    target = target_named(target)
    FORMATS[target.suffix].check(plan, target)


def write_file(path: str | os.PathLike[str], content: Content) -> None:
    """Writes a text, or bytes, atomically: after an error the file is unchanged. Errors: F461."""
    write_files({Path(path): content})


def write_files(contents: Mapping[Path, Content]) -> None:
    """Writes texts, or bytes, to files. None is changed before the contents of all are on the disk.
    Errors: F461."""
    with contextlib.ExitStack() as undo:
        temporaries = []
        for path, content in contents.items():
            with _unwritable(path):
                temporaries.append(_temporary(path.resolve(), content, undo))
        for path, temporary in zip(contents, temporaries, strict=True):
            with _unwritable(path):
                temporary.replace(path.resolve())


@contextlib.contextmanager
def _unwritable(
    path: str | os.PathLike[str], expected: str = "a file that can be written"
) -> Iterator[None]:
    """Turns errors of the operating system into F461."""
    try:
        yield
    except (OSError, ValueError) as problem:
        raise F461.error(
            at=Place(str(path)), expected=expected, found=reason_of(problem)
        ) from problem


def _temporary(path: Path, content: Content, undo: contextlib.ExitStack) -> Path:
    """A new file beside `path` with the content; `undo` deletes it if it is still there."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():  # root would replace /dev/null
        raise OSError(errno.EINVAL, "a device, a pipe or a socket")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with temporary.open("xb") as stream:
        undo.callback(_delete, temporary)
        if isinstance(content, list):
            stream.writelines(content)
        else:
            stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()
        os.fsync(stream.fileno())
    return temporary


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def make_folder(path: str | os.PathLike[str]) -> Path:
    """A folder, which is made if it doesn't exist. Errors: F461."""
    folder = Path(path)
    with _unwritable(path, "a folder that can be made"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder that becomes the folder `path` at the end of the `with` statement, with
    all of its files; after an error, or without files, `path` is unchanged.

    path: a folder that doesn't exist, or an empty one: a runtime would also read older files.
    Errors: F461.
    """
    folder = Path(path)
    parent = make_folder(folder.absolute().parent)
    with _unwritable(path, "a folder that can be written"):
        found = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
        if found:
            problem = ", ".join(shortened(found))
            raise F461.error(
                at=Place(str(path)),
                expected="an empty folder",
                found=problem,
                remedy="Name a new folder: a runtime would read these files, too.",
            )
        temporary = parent / f".{folder.name}.{secrets.token_hex(4)}.tmp"
        temporary.mkdir()
        try:
            yield temporary
            if any(temporary.iterdir()):
                temporary.replace(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Refuses a path whose folder doesn't exist, before long work. Errors: F461."""
    if not Path(path).absolute().parent.is_dir():
        found = os.strerror(errno.ENOENT)
        raise F461.error(
            at=Place(str(path)), expected="a file in a folder that exists", found=found
        )
