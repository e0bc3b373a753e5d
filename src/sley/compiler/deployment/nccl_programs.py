"""Programs that call NCCL: sley's library in its place, and how it reaches their calls."""

from __future__ import annotations

import mmap
import re
import shutil
import sys
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sley.errors.nccl import N701, N704
from sley.errors.recognition import PYTHON, kind_of
from sley.errors.runtime import R514
from sley.ir.collectives import SIZED

LIBRARY = "SLEY_NCCL_LIBRARY"
"""The variable with the path of the NCCL to which sley passes calls on."""

TABLES, KERNELS = "SLEY_NCCL_TABLES", "SLEY_NCCL_KERNELS"
"""The variables with the folders where the library finds plans and kernels for calls that sley
runs itself."""

WHICH = "SLEY_NCCL"
"""The variable that says which calls sley runs: "off", "only", "eager" or `FUNCTIONS`, separated by
commas, in upper or lower case, and with other characters in between, as in "all_reduce"."""

# As native/nccl/settings.hpp has them.
FUNCTIONS = (*(one.title for one in SIZED.values() if one.call), "Bcast", "Send", "Recv")

_OPENED = ("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SYMBOLS, _DYNAMIC, _RELOCATIONS = 11, 6, 4  # kinds of sections
_EVERY = (2, _SYMBOLS)  # those of symbols
_VERSION = re.compile(rb"NCCL version \d+\.\d+\.\d+\+cuda")  # that NCCL says itself
_NEEDED, _SONAME, _FLAGS = 1, 14, 0x6FFFFFFB  # tags of the dynamic section
_PROGRAM, _IS_PROGRAM = 2, 0x08000000  # its type, or one of its flags if it may lie anywhere
_SECTION = np.dtype("<u4,<u4,<u8,<u8,<u8,<u8,<u4,<u4,<u8,<u8")
_SYMBOL = np.dtype([("name", "<u4"), ("kind", "<u2"), ("section", "<u2"), ("rest", "V16")])
_RELOCATION = np.dtype([("place", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("added", "<i8")])


def library() -> Path:
    """sley's library with NCCL's interface. Errors: N704."""
    # Beside the extension module, also in an editable installation.
    spec = find_spec("sley.engine._native")
    folder = Path(spec.origin).parents[1] if spec and spec.origin else Path()
    path = folder / "nccl" / "libnccl.so.2"
    if not path.is_file() or re.search("[ :]", str(path)):
        raise N704.error(
            expected="sley's library at a path without spaces and colons",
            found=f"{path}" if path.is_file() else f"no {path}",
        )
    return path


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The variables for a program that is to call sley's library: `given`, with the library before
    the others of LD_PRELOAD. vLLM and SGLang open the file that a variable names: that one becomes
    the NCCL to which calls are passed on. Errors: N701, N704, R514."""
    _check_which(given.get(WHICH, ""))
    own = library()
    # By its name alone, the file that is preloaded is opened.
    opened = [name for name in _OPENED if given.get(name) not in (None, "", own.name)]
    found = {**given, "LD_PRELOAD": ":".join(filter(None, (str(own), given.get("LD_PRELOAD"))))}
    found |= dict.fromkeys(opened, str(own))
    named = LIBRARY if given.get(LIBRARY) else next(iter(opened), None)
    if named is None:
        return found
    path = Path(given[named])
    if not (path.is_absolute() and path.is_file()):
        raise N701.error(
            expected="the absolute path of NVIDIA's libnccl.so.2", found=f"{named}={path}"
        )
    return {**found, LIBRARY: str(path)}


def _check_which(text: str) -> None:
    known = [one.lower() for one in FUNCTIONS]
    names = [re.sub("[^a-z]", "", one.lower()) for one in text.split(",")]
    if text not in ("", "off", "only", "eager") and any(one not in known for one in names):
        expected = f"{WHICH} as off, only, eager, or some of {','.join(FUNCTIONS)}"
        raise R514.error(
            expected=expected, found=f"{WHICH}={text}", remedy="Give that, or leave it out."
        )


class Reach(Enum):
    """How the calls of a file to NCCL come to sley's library."""

    PRELOAD = "by preload: sley exec -- COMMAND"
    PATH = "by its path only: give the program the path of sley's library, where it takes one"
    NOT = "not at all"
    OTHERS = "by preload, if a library that it loads is"


def program_of(path: Path) -> Path | None:
    """A file if it is a program or a library for 64-bit Linux; of a script its interpreter, which
    may not be there; else None."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(256)
    if start.startswith(_MAGIC):
        return path
    if not start.startswith(b"#!"):
        return Path(sys.executable) if kind_of(path) is PYTHON else None
    words = start[2:].partition(b"\n")[0].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        named = next((one for one in words[1:] if one[0] != "-" and "=" not in one), "")
        words = [shutil.which(named) or named]
    return Path(*words[:1])


def reach_of(path: Path) -> tuple[Reach, str]:
    """How sley's library reaches the calls of a program or a library, and why."""
    if not path.is_file():
        return Reach.NOT, f"there is no {path}"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _reach(data)
        except (ValueError, IndexError):
            return Reach.NOT, "the file is damaged"


def _reach(data: mmap.mmap) -> tuple[Reach, str]:
    start, count = (int.from_bytes(data[a:b], "little") for a, b in ((40, 48), (60, 62)))
    sections = np.frombuffer(data[start : start + count * _SECTION.itemsize], _SECTION)

    def tables(kind: int) -> list[tuple[bytes, bytes]]:
        """The sections of a kind, each with the section that it refers to."""
        found = sections[sections["f1"] == kind]
        return [(content(row), content(sections[row["f6"]])) for row in found]

    def content(row: np.void) -> bytes:
        return data[int(row["f4"]) : int(row["f4"]) + int(row["f5"])]

    if not (dynamic := tables(_DYNAMIC)):
        return Reach.NOT, "it is linked statically: nothing can be loaded before it"
    tags = {_NEEDED: b"", _SONAME: b""}
    is_program = int.from_bytes(data[16:18], "little") == _PROGRAM
    for table, strings in dynamic:
        for tag, at in np.frombuffer(table, "<u8").reshape(-1, 2).tolist():
            is_program |= tag == _FLAGS and at & _IS_PROGRAM != 0
            if tag in tags and strings.startswith(b"libnccl.so", at):
                tags[tag] = strings[at : strings.index(b"\0", at)]
    if tags[_SONAME]:
        return Reach.PRELOAD, "it is an NCCL: programs that ask for it by name get sley's"
    for table, strings in tables(_SYMBOLS):
        is_named, is_defined = _functions(table, strings)
        # What a program has itself comes before what is preloaded.
        ours = np.flatnonzero(is_named & ~is_defined if is_program else is_named)
        for relocations, _ in tables(_RELOCATIONS):
            if np.isin(np.frombuffer(relocations, _RELOCATION)["symbol"], ours).any():
                return Reach.PRELOAD, "the loader looks NCCL's functions up for it"
    if tags[_NEEDED]:
        return Reach.PRELOAD, f"it needs {tags[_NEEDED].decode()}"
    inside = Reach.NOT, "NCCL is linked into it"
    if _VERSION.search(data):
        return inside
    if data.find(b"\0libnccl.so.2\0") >= 0:
        return Reach.PRELOAD, "it opens libnccl.so.2 by its name"
    if data.find(b"libnccl.so") >= 0:
        return Reach.PATH, "it opens a file of NCCL by a path or another name"
    if any(np.logical_and(*_functions(*each)).any() for kind in _EVERY for each in tables(kind)):
        return inside
    if data.find(b"\0ncclGetUniqueId\0") >= 0:
        return Reach.PRELOAD, "it looks NCCL's functions up by their names"
    return Reach.OTHERS, "it has no sign of NCCL itself"


def _functions(table: bytes, strings: bytes) -> tuple[Any, Any]:
    """Which symbols are functions of NCCL, and which are in the file."""
    # A name may be the end of another one, as ncclX is of pncclX.
    ends = [one.start() for one in re.finditer(rb"nccl[A-Z]\w+\0", strings)]
    symbols = np.frombuffer(table, _SYMBOL)
    is_named = np.isin(symbols["name"], [at for end in ends for at in (end, end - 1)])
    return is_named, symbols["section"] != 0
