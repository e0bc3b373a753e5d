"""Functions: those of msccl.language, which scripts call inside a program's ``with``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NoReturn

from sley.errors.language import L129, L134
from sley.lang.msccl.programs import MSCCLProgram, Ref
from sley.lang.msccl.session import current_session
from sley.lang.recorder import refuse


def _current() -> MSCCLProgram:
    """The program inside whose ``with`` the script is. Errors: L129."""
    found = current_session().current
    if found is None:
        refuse(L129, "a call inside of `with MSCCLProgram(...)`", "none of a program")
    return found


def chunk(rank: int, buffer: Hashable, index: int, size: int = 1) -> Ref:
    """The reference to `size` chunks at (rank, buffer, index ...). Errors: L101 to L105, L129."""
    prog = _current()
    found = prog.get_ref(rank, buffer, index, size)
    prog.read(found)
    return found


def Check() -> bool:
    """Whether the collective's check accepts what the program has left so far."""
    return _current().check()


def XML() -> None:
    """Prints nothing: who runs the script writes the proven plan. Errors: L129."""
    _current()


def Json() -> None:
    """Prints nothing, as `XML`."""
    _current()


def Print() -> None:
    """Prints the operations so far."""
    print("\n".join(_current().lines()))


def MSCCLPPProgram(*arguments: object, **keywords: object) -> NoReturn:
    """Refuses a program for MSCCL++."""
    refuse(L134, "MSCCLProgram", "MSCCLPPProgram")
