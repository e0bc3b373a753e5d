"""Schedules: what synthesisers write, as programs.

A file for each synthesiser (teccl, forestcoll, taccl) reads a
schedule, follows it, compares it with the file's own claims, and turns it into a program.
`building` has what they share, `teccl_machines` the machines that TE-CCL knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sley.errors import recognition
from sley.errors.recognition import Kind, kind_of, refuse_kind
from sley.lang.schedules import forestcoll, taccl, teccl
from sley.lang.schedules.building import ImportedSchedule, file_text

__all__ = ["ALLOWED", "COLLECTIVES", "ImportedSchedule", "read"]

ALLOWED = teccl.ALLOWED
"""What a caller may allow in schedules of TE-CCL, see `ImportedSchedule.program`."""

COLLECTIVES = ("allgather", "alltoall", "allreduce", "reducescatter")
"""The collectives of schedules."""

_READERS: dict[Kind, Callable[[str | os.PathLike[str]], ImportedSchedule]] = {
    recognition.TECCL: teccl.read,
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
