"""Scripts: runs a script of msccl-tools, with stand-ins for the modules of msccl."""

from __future__ import annotations

import functools
import heapq
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

from sley.errors import Place
from sley.errors.language import L113
from sley.ir.program import Program
from sley.lang.interpreter import run_file
from sley.lang.msccl import buffers, chunks, collectives, functions, programs, routines, topologies
from sley.lang.msccl.session import ScriptProgram, Session, Write, under_way

_SLEY = Path(__file__).parents[2]
"""The folder of sley's modules."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""The names of folders of installed modules, also of those that `sysconfig` does not list."""

_BUFFERS = (buffers.Buffer, buffers.BufferSlice, buffers.ThreadblockPolicy)
_CHUNKS = (chunks.Chunk, chunks.ReduceChunk)
_LANGUAGE = (
    *_BUFFERS,
    *_CHUNKS,
    programs.MSCCLProgram,
    functions.MSCCLPPProgram,
    programs.Ref,
    functions.chunk,
    functions.Check,
    functions.Json,
    functions.Print,
    functions.XML,
    # What `from msccl.language import *` brings along from the standard library.
    Enum,
    dataclass,
    defaultdict,
    field,
    functools,
    heapq,
    json,
)
_COLLECTIVES = (
    collectives.Collective,
    collectives.AllGather,
    collectives.AllReduce,
    collectives.AllToAll,
    collectives.ReduceScatter,
)
_TOPOLOGIES = (
    topologies.Topology,
    topologies.dgx1,
    topologies.dgx_a100,
    topologies.distributed_fully_connected,
    topologies.distributed_hub_and_spoke,
    topologies.distributed_node_local,
    topologies.fully_connected,
    topologies.hub_and_spoke,
    topologies.line,
    topologies.nvlink_only,
    topologies.ring,
    topologies.star,
)
_ROUTINES = (routines.allgather_ring_inplace, routines.allreduce_ring_inplace)

MODULES: dict[str, tuple[Any, ...]] = {
    "msccl": (),
    "msccl.collectives": (),
    "msccl.language": _LANGUAGE,
    "msccl.language.buffer": _BUFFERS,
    "msccl.language.chunk": _CHUNKS,
    "msccl.language.collectives": (*_LANGUAGE, *_COLLECTIVES),
    "msccl.language.ir": _BUFFERS,
    "msccl.language.routines": (*_LANGUAGE, *_COLLECTIVES, *_TOPOLOGIES, *_ROUTINES),
    "msccl.topologies": _TOPOLOGIES,
    "msccl.topologies.distributed": _TOPOLOGIES,
    "msccl.topologies.generic": _TOPOLOGIES,
    "msccl.topologies.nvidia": _TOPOLOGIES,
    "msccl.topologies.topology": _TOPOLOGIES,
}
"""The contents of the stand-ins."""


def run(
    path: str | os.PathLike[str],
    arguments: Sequence[str],
    write: Write,
    *,
    may_be_empty: bool = False,
) -> tuple[ScriptProgram, ...]:
    """Runs a script, and returns its programs in order.

    path: the script. arguments: its arguments, those after its name in `sys.argv`. write: makes the
    texts that XML() and Json() print. may_be_empty: whether there may be no program if the script
    exits with code 0 before it begins one, as it does after `--help`; else there is at least one.

    Errors: L113, L114, L117, L131, L1xx of its programs, and those of `write`.
    """
    path = Path(path)
    session = Session(write)
    # The script may go to another folder; its caller stays.
    with (
        under_way(session),
        chdir(Path.cwd()),
        _stand_ins(),
        _own_modules(path),
    ):
        values = run_file(
            path, arguments, run_name="__main__", remedy="Correct the named line.", may_exit=True
        )
    only_exits = values is None and not session.begun
    if not session.programs and not (may_be_empty and only_exits):
        found = "a script that ends without a program"
        remedy = "Give the arguments with which the script makes a program, or write one."
        if any(isinstance(value, Program) for value in (values or {}).values()):
            found = "a program in sley's own language"
            remedy = f"Use the commands for programs: sley compile {path}, sley verify {path}."
        raise L113.error(
            at=Place(str(path)),
            expected="operations inside of `with MSCCLProgram(...)`",
            found=found,
            remedy=remedy,
        )
    return tuple(session.programs.values())


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Stand-ins for msccl's modules in `sys.modules`; other ones of these names come back."""
    others = {name: sys.modules.pop(name) for name in _msccl_modules()}
    try:
        for name, contents in MODULES.items():
            module = ModuleType(name)
            # A package without folders: no other module of its name is found.
            module.__path__ = []
            vars(module).update({value.__name__: value for value in contents})
            sys.modules[name] = module
        _join_modules()
        yield
    finally:
        for name in _msccl_modules():
            del sys.modules[name]
        sys.modules.update(others)


def _join_modules() -> None:
    """Makes every module an attribute of its package, unless that has another of the name: `chunk`
    of msccl.language is the function."""
    for name in MODULES:
        package, _, own = name.rpartition(".")
        if package:
            vars(sys.modules[package]).setdefault(own, sys.modules[name])


def _msccl_modules() -> list[str]:
    """The names of all msccl's modules that are loaded."""
    return [name for name in sys.modules if name.split(".")[0] == "msccl"]


@contextmanager
def _own_modules(path: Path) -> Iterator[None]:
    """Forgets the modules that a script loads from its own folder: another script may have modules
    of the same names. Installed modules stay, even if they are below that folder. Modules that the
    script replaces or removes come back."""
    modules, before = sys.modules, dict(sys.modules)
    folder = path.resolve().parent
    installed = _installed_below(folder)
    try:
        yield
    finally:
        sys.modules = modules
        # The path of a package may depend on other modules: it is looked up before they are gone.
        loaded = {name: modules[name] for name in set(modules) - set(before)}
        for name in [n for n, module in loaded.items() if _is_own(module, folder, installed)]:
            del modules[name]
        modules.update(before)


def _is_own(module: object, folder: Path, installed: Sequence[Path]) -> bool:
    """Whether a module is of a script's folder, outside of the folders of installed ones; also what
    a script has put in a module's place."""
    if not isinstance(module, ModuleType):
        return True
    place = _place_of(module)
    return (
        place is not None
        and folder in place.parents
        and not any(root in place.parents for root in installed)
        and _INSTALLED.isdisjoint(place.relative_to(folder).parts)
    )


def _place_of(module: ModuleType) -> Path | None:
    """The file of a module, or the folder of a package without one; None for other modules."""
    values = vars(module)
    place = values.get("__file__")
    if place is None:
        try:
            place = next(iter(values.get("__path__") or ()), None)
        except (AttributeError, KeyError, TypeError):  # a script may set it to anything
            return None
    return Path(place).resolve() if isinstance(place, str) and "\0" not in place else None


def _installed_below(folder: Path) -> list[Path]:
    """The folders of installed modules and of sley that are in a folder, or are the folder."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [root.resolve() for root in (*(Path(get_path(name)) for name in names), _SLEY)]
    return [root for root in roots if folder in (root, *root.parents)]
