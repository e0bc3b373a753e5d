"""Opening: what users bring, as a program or a plan. `Source` looks once what it is; `load` is for
those who want its content alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, overload

from sley.algorithms import CATALOG, build, find
from sley.errors import Place, did_you_mean, recognition, without_inner_frames
from sley.errors.compiler import C307
from sley.errors.formats import F404
from sley.errors.language import L112, L115
from sley.errors.recognition import Kind
from sley.formats import files
from sley.ir.one_sided import OneSidedPlan
from sley.ir.plan import Plan
from sley.ir.plan_table import file_and_name
from sley.ir.program import Program
from sley.ir.words import is_integer
from sley.lang import files as python_files
from sley.lang import msccl, rescclang, schedules

READABLE = (*recognition.PLANS, *recognition.PROGRAMS, *recognition.SCHEDULES)
"""The kinds of files with a plan or a program."""

_SIZES = ("ranks", "nodes", "gpus", "nics")
"""The parameters of a text in ResCCLang, besides those of its header."""

_Loaded = TypeVar("_Loaded", bound=Program | Plan | OneSidedPlan)


@overload
def load(
    what: str | os.PathLike[str], /, *, script: Sequence[str] = ..., **arguments: Any
) -> Any: ...


@overload
def load(
    what: str | os.PathLike[str],
    type: type[_Loaded],
    /,
    *,
    script: Sequence[str] = ...,
    **arguments: Any,
) -> _Loaded: ...


@without_inner_frames
def load(
    what: str | os.PathLike[str],
    type: Any = object,
    /,
    *,
    script: Sequence[str] = (),
    **arguments: Any,
) -> Any:
    """The program or the plan that `what` stands for.

    what: the name of an algorithm of the library, a Python file with a program (FILE.py, or
        FILE.py:NAME for one of several, and for a function that returns one), a script for
        msccl-tools, a text in ResCCLang, a synthesiser's schedule, or a file with a plan. What a
        file is, its content shows.
    type: the class that it must have, Program, Plan or OneSidedPlan. Only with it do type checkers
        know the class of a value that a file decides.
    script: the words after the file's name in `sys.argv`, for a Python file.
    arguments: those of the algorithm or the function; ranks, or nodes and gpus, and nics of a text,
        and other parameters of its header; collective and in_place of a schedule; collective,
        in_place, root and slots of a plan's file (`formats.read`). A script prints no plan: XML()
        and Json() have no effect.
    Errors: C307, also for a value of another class; F404, F550, L120; L112 for arguments that
    `what` doesn't take, or lacks; those of the languages, of schedules and of `formats.read`.
    """
    if type not in (object, Program, Plan, OneSidedPlan):
        raise C307.error(expected="sley.Program or sley.Plan", found=repr(type)[:60])
    loaded = Source.of(what, script).load(arguments)
    if not isinstance(loaded, type):
        raise C307.error(
            at=Place(os.fspath(what)),
            expected=f"a {type.__name__}",
            found=f"a {loaded.__class__.__name__}",
            remedy="sley.compile makes a plan of a program, and sley.lift a program of a plan.",
        )
    return loaded


@dataclass(frozen=True)
class Maker:
    """What makes the programs of a source.

    make: the program of arguments by name. parameters: the names that it takes, besides in_place.
    required: those without a default. takes_any: whether it takes others too (``**options``).
    takes_place: whether it takes in_place, which says if input and output share memory.
    has_both_places: whether both are programs.
    fusion: the compiler's option of this name, which a script for msccl-tools may turn off.
    """

    make: Callable[[Mapping[str, Any]], Program]
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    takes_any: bool = False
    takes_place: bool = False
    has_both_places: bool = False
    fusion: bool | None = None

    def takes(self, parameter: str) -> bool:
        """Whether it has this parameter. Of any (``**options``), a number of ranks is the one that
        every program can use."""
        return parameter in self.parameters or (self.takes_any and parameter == "ranks")


@dataclass(frozen=True)
class Source:
    """What a user brings, once it is known what it is.

    what: as it was given. kind: that of the file; None for an algorithm of the library.
    file, name: the file, and the name in it that follows FILE.py:, else "".
    script: the words after the file's name in `sys.argv`.
    """

    what: str
    kind: Kind | None
    file: str = ""
    name: str = ""
    script: tuple[str, ...] = ()

    @classmethod
    def of(cls, what: str | os.PathLike[str], script: Sequence[str] = ()) -> Source:
        """The source that `what` stands for; no file runs yet. Errors: F404 for a path without a
        file, F550 for a file without a plan, a program or a schedule, L120, C307."""
        if not isinstance(what, (str, os.PathLike)):
            raise C307.error(
                expected="the name of an algorithm, or the path of a file",
                found=repr(what),
                remedy="Give it as a text.",
            )
        text = os.fspath(what)
        if text in CATALOG:
            return cls(text, None)
        file, name = file_and_name(text)
        kind = recognition.kind_of(file)
        if kind is recognition.MISSING and not _is_path(file):
            if did_you_mean(text, CATALOG):
                find(text)  # refuses it with similar names
            raise F404.error(
                expected="an algorithm that `sley list` prints, or a file",
                found=f"{text!r}: neither",
                remedy="Check the name and the path.",
            )
        kind = recognition.presumed_kind(file, kind)
        if kind is recognition.MISSING:
            raise F404.error(
                at=Place(file),
                expected="a file with a plan, a program or a schedule",
                found="no such file",
            )
        if kind not in READABLE:
            raise recognition.refuse_kind(file, kind, "a plan, a program or a schedule")
        return cls(text, kind, file, name, tuple(script))

    @property
    def is_plan(self) -> bool:
        """Whether it is a file with a plan; otherwise it has a `maker`."""
        return self.kind in recognition.PLANS

    @property
    def is_of_runtime(self) -> bool:
        """Whether it is a file with a plan that a runtime reads."""
        return self.kind in recognition.RUNTIME_PLANS

    @property
    def is_python(self) -> bool:
        """Whether it is a file that Python runs."""
        return self.kind in recognition.EXECUTED

    @property
    def takes_collective(self) -> bool:
        """Whether the caller may say the collective."""
        return self.is_of_runtime or self.kind in recognition.SCHEDULES

    @cached_property
    def maker(self) -> Maker:
        """What makes its programs; a Python file runs once, for this. Not for plans. Errors: those
        of the file."""
        if self.kind is None:
            return self._algorithm()
        return _MAKERS[self.kind](self)

    def load(self, arguments: Mapping[str, Any]) -> Program | Plan | OneSidedPlan:
        """The plan or the program. Errors: those of `load`."""
        if self.is_plan:
            return files.load(self.file, **arguments)
        given = {word: value for word, value in arguments.items() if value is not None}
        return self.maker.make(given)

    def _algorithm(self) -> Maker:
        own = CATALOG[self.what]
        return Maker(
            lambda given: build(self.what, **given),
            own.parameters,
            own.required,
            takes_place=True,
            has_both_places=own.has_both_places,
        )

    def _python(self) -> Maker:
        """The maker of FILE.py or FILE.py:NAME. Errors: those of `python_files.load` and
        `PythonFile`."""
        file = python_files.load(self.file, self.script)
        found = file.find(self.name) if self.name else file.program()
        if isinstance(found, Program):
            return Maker(partial(self._fixed, found))
        has_place = found.takes("in_place")
        return Maker(
            found.program,
            tuple(word for word in found.parameters if word != "in_place"),
            found.required,
            found.takes_any,
            takes_place=has_place,
            has_both_places=has_place,
        )

    def _msccl_script(self) -> Maker:
        """The maker of a script's program, by its name if there are several. Errors: L115, and
        those of `msccl.run`."""
        programs = msccl.run(self.file, self.script)
        chosen = [one for one in programs if self.name in ("", one.program.name)]
        if len(chosen) != 1:
            names = [one.program.name for one in programs]
            raise L115.error(
                at=Place(self.file),
                expected=f"a program called {self.name}" if self.name else "one program",
                found=f"{len(programs)} programs: {', '.join(names)}",
                remedy=f"Select one, as in {self.file}:{names[0]}, or give the arguments with "
                "which the script makes one program.",
            )
        return Maker(partial(self._fixed, chosen[0].program), fusion=chosen[0].fusion)

    def _fixed(self, program: Program, given: Mapping[str, Any]) -> Program:
        """A program that takes no arguments. Errors: L112."""
        if given:
            raise L112.error(
                at=Place(self.what),
                expected="no arguments: only a function that returns a program takes some",
                found=", ".join(given),
            )
        return program

    def _text(self) -> Maker:
        def make(given: Mapping[str, Any]) -> Program:
            header = dict(given)
            ranks, nodes, gpus, nics = (header.pop(word, None) for word in _SIZES)
            if nodes is not None:
                if ranks is not None or not (is_integer(nodes) and is_integer(gpus)):
                    raise L112.error(
                        at=Place(self.what),
                        expected="nodes and gpus as whole numbers, or ranks",
                        found=f"{ranks=}, {nodes=}, {gpus=}",
                    )
                ranks = nodes * gpus
            words = {"nRanks": ranks, "GPUPerNode": gpus, "NICPerNode": nics}
            header |= {word: value for word, value in words.items() if value is not None}
            return rescclang.load(self.file, **header)

        names = (*_SIZES, *rescclang.HEADER)
        return Maker(make, names, takes_place=True, has_both_places=True)

    def _schedule(self) -> Maker:
        found = schedules.read(self.file)
        both = found.collective != "alltoall"
        return Maker(lambda given: found.program(**given), takes_place=True, has_both_places=both)


_MAKERS: Mapping[Kind, Callable[[Source], Maker]] = {
    recognition.PYTHON: Source._python,
    recognition.MSCCL_TOOLS: Source._msccl_script,
    recognition.RESCCLANG: Source._text,
    **dict.fromkeys(recognition.SCHEDULES, Source._schedule),
}
"""What makes the programs of a kind of file."""


def _is_path(text: str) -> bool:
    """Whether a text looks like the path of a file rather than like a name."""
    return text.startswith(("~", ".")) or bool(Path(text).suffix) or len(Path(text).parts) != 1
