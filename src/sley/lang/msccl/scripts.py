"""Scripts: runs a script of msccl-tools, with stand-ins for the modules of msccl."""

from __future__ import annotations

import functools
import heapq
import inspect
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any

from sley.errors import Place
from sley.errors.language import L115
from sley.ir.program import Program
from sley.lang.interpreter import UserFile
from sley.lang.msccl import buffers, chunks, collectives, functions, programs, routines, topologies
from sley.lang.msccl.session import ScriptProgram, Session, under_way


def _own(module: ModuleType) -> tuple[Any, ...]:
    """The functions and classes that a module defines for scripts."""
    defined = (v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__)
    return tuple(value for value in defined if not value.__name__.startswith("_"))


_BUFFERS = _own(buffers)
_CHUNKS = (chunks.Chunk, chunks.ReduceChunk)
_TOPOLOGIES = _own(topologies)
_LANGUAGE = (
    *_BUFFERS,
    *_CHUNKS,
    *_own(functions),
    *(programs.MSCCLProgram, programs.Ref),
    # What `from msccl.language import *` brings along from the standard library.
    *(Enum, dataclass, defaultdict, field, functools, heapq, json),
)
_COLLECTIVES = (
    *(collectives.Collective, collectives.AllGather, collectives.AllReduce),
    *(collectives.AllToAll, collectives.ReduceScatter),
)
_ROUTINES = _own(routines)

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


def run(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> tuple[ScriptProgram, ...]:
    """Runs a script as `python path arguments...` would, and returns its programs in order, at
    least one. XML() and Json() print nothing.

    Errors: L115, L114, F404, L114, and L1xx of its programs.
    """
    file = UserFile(path, arguments, run_name="__main__", remedy="Correct the named line.")
    session = Session()
    with under_way(session), _stand_ins():
        file.run(may_exit=True)
    if not session.programs:
        found = "a script that ends without a program"
        remedy = "Give the arguments with which the script makes a program, or write one."
        if uncalled := _functions_of_programs(file.values):
            found += f", in which no call of {', '.join(uncalled)} makes one"
            remedy = f"Let the script call {uncalled[0]}, or give the arguments with which it does."
        if any(isinstance(value, Program) for value in file.values.values()):
            found = "a program in sley's own language"
            remedy = "Leave out the import of msccl."
        raise L115.error(
            at=Place(str(path)),
            expected="operations inside of `with MSCCLProgram(...)`",
            found=found,
            remedy=remedy,
        )
    return tuple(session.programs.values())


def _functions_of_programs(values: Mapping[str, object]) -> list[str]:
    """The names of a script's functions that begin a program."""
    functions = {name: value for name, value in values.items() if inspect.isfunction(value)}
    return [n for n, function in functions.items() if "MSCCLProgram" in function.__code__.co_names]


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
