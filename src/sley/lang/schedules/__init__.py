"""Schedules: what synthesisers write, as programs.

A file for each synthesiser (teccl with teccl_files and teccl_machines, forestcoll, taccl) reads a
schedule, follows it, compares it with the file's own claims, and turns it into a program.
`building` makes the program, `documents` reads JSON within limits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Protocol

from sley.errors import Place, recognition
from sley.errors.recognition import Kind, kind_of, refuse_kind
from sley.errors.schedules import F560
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.lang.schedules import forestcoll, taccl, teccl, teccl_files
from sley.lang.schedules.documents import file_text

__all__ = [
    "ALLOWED",
    "COLLECTIVES",
    "ImportedSchedule",
    "changes",
    "program",
    "read",
]

ALLOWED = teccl.ALLOWED
"""What a caller may allow in schedules of TE-CCL, see `program`."""

COLLECTIVES = ("allgather", "alltoall", "allreduce", "reducescatter")
"""The collectives of schedules."""


class ImportedSchedule(Protocol):
    """A schedule of a synthesiser.

    name: the synthesiser. kind: that of its files. file: where it is from. collective: the one that
    it implements, by default. topology: the machine that it was solved for, with the synthesiser's
    rates and latencies, and the ranks of the program; None if the file does not tell. size_bytes:
    the size of the call that the file's time is for; None if it has none.
    """

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def file(self) -> str: ...

    @property
    def collective(self) -> str: ...

    @property
    def topology(self) -> Topology | None: ...

    @property
    def size_bytes(self) -> int | None: ...

    def facts(self) -> list[tuple[str, str]]:
        """What the file is and claims, for people: pairs of a word and a text."""

    def check(self) -> list[tuple[str, str]]:
        """What following the schedule shows, for people. Errors: F554, F556, F557."""

    def program(self, collective: str | None = None, *, in_place: bool = False) -> Program:
        """The program of the schedule.

        collective: one of those that the schedule can serve, by default its own. Errors: F403, F554
        to F424.
        """


_READERS: dict[Kind, Callable[[str | os.PathLike[str]], ImportedSchedule]] = {
    recognition.TECCL: teccl_files.read,
    recognition.FORESTCOLL: forestcoll.read,
    recognition.TACCL_SCHEDULE: taccl.read,
}


def read(path: str | os.PathLike[str]) -> ImportedSchedule:
    """The schedule in a file, which is recognised by its content. Errors: F404, F550 for a file of
    another kind, F551, F403, F424."""
    kind = kind_of(path)
    if kind is recognition.MISSING:
        file_text(path)
    if kind not in _READERS:
        raise refuse_kind(path, kind, "a schedule of TE-CCL, TACCL or ForestColl")
    return _READERS[kind](path)


def program(
    schedule: ImportedSchedule,
    collective: str | None = None,
    *,
    in_place: bool = False,
    allow: Iterable[str] = (),
) -> Program:
    """The program of a schedule.

    collective, in_place: as in `ImportedSchedule.program`. allow: of ALLOWED: "multicast" makes
    each copy of a switch a message of its own, "incomplete" leaves out GPUs without data. Errors:
    as there, and F560 for what a schedule of this synthesiser can't be allowed.
    """
    allowed = tuple(allow)
    known = ALLOWED if isinstance(schedule, teccl.TecclSchedule) else ()
    for word in allowed:
        if word not in known:
            raise F560.error(
                at=Place(schedule.file),
                expected=f"one of {', '.join(known)}" if known else "nothing to allow",
                found=f"{word!r} for a schedule of {schedule.name}",
            )
    if isinstance(schedule, teccl.TecclSchedule):
        return schedule.program(collective, in_place=in_place, allow=allowed)
    return schedule.program(collective, in_place=in_place)


def changes(schedule: ImportedSchedule, allow: Iterable[str]) -> list[tuple[str, str]]:
    """What the program of a schedule does otherwise than the schedule, if faults are allowed, for
    people: pairs of a word and a text."""
    return schedule.changes(allow) if isinstance(schedule, teccl.TecclSchedule) else []
