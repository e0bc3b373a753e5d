"""Session: one run of a script: the program that is being traced, and the programs so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sley.errors.language import L129
from sley.ir.program import Program
from sley.lang.recorder import refuse

if TYPE_CHECKING:
    from sley.lang.msccl.programs import MSCCLProgram


@dataclass(frozen=True)
class ScriptProgram:
    """A program of a script.

    program: the program, with its parallel parts. fusion: the compiler's option of this name: False
    if the script asks for no fused instructions, else None.
    """

    program: Program
    fusion: bool | None = None


@dataclass(eq=False)
class Session:
    """A run of a script.

    current: the program inside whose `with` the script is. programs: those whose `with` has ended,
    as they were then.
    """

    current: MSCCLProgram | None = None
    programs: dict[MSCCLProgram, ScriptProgram] = field(default_factory=dict)


_under_way: list[Session] = []
"""The runs under way, outermost first: a script may run another one. All threads share them, as
they share the modules and arguments that a script sees."""


@contextmanager
def under_way(session: Session) -> Iterator[None]:
    """Makes a run the current one."""
    _under_way.append(session)
    try:
        yield
    finally:
        _under_way.remove(session)


def current_session() -> Session:
    """The run under way. Errors: L129 if there is none."""
    if not _under_way:
        refuse(L129, "a call while the script runs", "one after the script's end")
    return _under_way[-1]
