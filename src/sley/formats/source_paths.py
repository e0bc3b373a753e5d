"""Source paths: names of source files in files that others read.

A file must not tell where the folders of its user are, and the folders of its reader are elsewhere.
So an absolute path is stored as the rest after the folder of sley, or after the current folder, and
others by their last name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from sley.errors import printable

_PACKAGE = str(Path(__file__).resolve().parents[1])
_OF_SLEY, _OF_FOLDER = "<sley>", "<folder>"


def portable_path(file: str) -> str:
    """A path without the folders above the current one, and above sley."""
    name = file.rpartition("/")[2]
    if ".." not in file.split("/"):
        if not file.startswith("/"):
            name = file
        elif file.startswith(f"{_PACKAGE}/"):
            name = _OF_SLEY + file[len(_PACKAGE) :]
        elif (folder := _current()) and file.startswith(f"{folder}/"):
            name = _OF_FOLDER + file[len(folder) :]
    return printable(name, kept="")


def is_portable(name: str) -> bool:
    """Whether `portable_path` may have returned a name."""
    return not name.startswith("/") and ".." not in name.split("/")


def local_path(name: str) -> str:
    """The path for a name of `portable_path`: absolute again, if the file is in the current
    folder."""
    mark, _, rest = name.partition("/")
    if mark == _OF_SLEY:
        return f"{_PACKAGE}/{rest}"
    if mark != _OF_FOLDER:
        return name
    path = f"{_current()}/{rest}"
    return path if Path(path).is_file() else rest


def _current() -> str:
    """The current folder; "" if it was deleted, or is the root, which tells nothing."""
    with contextlib.suppress(OSError):
        return str(Path.cwd()).rstrip("/")
    return ""
