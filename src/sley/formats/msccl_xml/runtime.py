"""Runtime: what a target executes when it reads an MSCCL XML file."""

from __future__ import annotations

import os

from sley.formats.format import Execution, Executions, Target
from sley.formats.msccl_xml.reader import read
from sley.formats.msccl_xml.writer import check
from sley.ir.collective import Collective


def executions(
    source: str | os.PathLike[str],
    target: str | Target,
    *,
    collective: Collective | None = None,
    in_place: bool | None = None,
    root: int | None = None,
    slots: int | None = None,
    file: str | None = None,
) -> Executions:
    """The ways in which a target (msccl, executor, rccl) executes an MSCCL XML file (a path, or its
    text).

    collective, in_place, root, slots, file: as of `read`.
    Errors: F401 to F424, F440 to F450.
    """
    found = read(
        source, collective=collective, in_place=in_place, root=root, slots=slots, file=file
    )
    check(found.plan, target)
    return Executions((Execution(found.plan, found.plan.slots, True),), found.notes)
