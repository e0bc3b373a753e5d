"""Session: one run of a script: the program that is being traced, and the programs so far."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sley.ir.program import Program

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


Write = Callable[[ScriptProgram, str], str]
"""Returns the text of a program's plan, in the format of a suffix, ".xml" or ".json"."""


@dataclass
class Session:
    """A run of a script.

    write: makes the texts that XML() and Json() print. current: the program inside whose `with` the
    script is. programs: those whose `with` has ended, as they were then.
    """

    write: Write
    current: MSCCLProgram | None = None
    programs: dict[MSCCLProgram, ScriptProgram] = field(default_factory=dict)


SESSION: ContextVar[Session] = ContextVar("SESSION")
"""The run under way."""
