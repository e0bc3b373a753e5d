"""Sources: from WHAT on the command line to programs and plans."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import click

from sley import formats, topologies
from sley.algorithms import CATALOG, build
from sley.cli.options import Selection
from sley.cli.output import Phases, report_notes
from sley.compiler import compile
from sley.errors import Place, SleyError
from sley.errors.language import L113, L114, L115, L117
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.verify import verify as prove

_TOPOLOGIES: dict[str, Callable[[], Topology]] = {"dgx1": topologies.dgx1}


def plan_of(selection: Selection, phases: Phases, *, verify: bool, per_chunk: bool = False) -> Plan:
    """The plan that a selection asks for; an imported one is verified here as well.

    per_chunk: for runtimes where every chunk of a message takes a slot, MSCCL's.
    """
    if selection.what.lower().endswith(".xml"):
        return _imported(selection, phases, verify=verify)
    with phases("tracing"):
        program = _program(selection)
    return compile(
        program,
        topology=_topology(selection.topology),
        protocol=selection.protocol,
        slots=selection.slots,
        channels=_left_over(selection, "channels"),
        instances=_left_over(selection, "instances"),
        fusion=selection.fusion,
        per_chunk=per_chunk,
        verify=verify,
        phase=phases,
    )


def is_algorithm(selection: Selection) -> bool:
    """Whether WHAT is one of the library's algorithms, which can be in and out of place."""
    return not selection.what.lower().endswith((".xml", ".py")) and ".py:" not in selection.what


def _takes(what: str, parameter: str) -> bool:
    """Whether an algorithm of the library has this parameter of its own."""
    return what in CATALOG and parameter in CATALOG[what].parameters


def _own(selection: Selection, parameter: str) -> int | None:
    """The value of an option for an algorithm that has it as a parameter of its own."""
    value: int = getattr(selection, parameter)
    return value if _takes(selection.what, parameter) and value > 1 else None


def _left_over(selection: Selection, parameter: str) -> int:
    """The value of an option for the compiler, 1 where the algorithm has it of its own."""
    value: int = getattr(selection, parameter)
    return 1 if _takes(selection.what, parameter) else value


def _topology(name: str | None) -> Topology | None:
    if name is None:
        return None
    if name not in _TOPOLOGIES:
        raise click.BadParameter(f"{name!r} is none of: {', '.join(_TOPOLOGIES)}")
    return _TOPOLOGIES[name]()


def _program(selection: Selection) -> Program:
    if selection.collective is not None:
        raise click.UsageError(f"--collective is for XML files; {selection.what} says it itself")
    if not is_algorithm(selection):
        _refuse_sizes(selection)
        return program_of_file(selection.what)
    return build(
        selection.what,
        ranks=selection.ranks,
        nodes=selection.nodes,
        gpus=selection.gpus,
        root=selection.root,
        in_place=bool(selection.in_place),
        channels=_own(selection, "channels"),
        instances=_own(selection, "instances"),
    )


def _refuse_sizes(selection: Selection) -> None:
    """A file says itself how large it is; click's usage error where the command line does too."""
    for word in ("ranks", "nodes", "gpus", "root", "in_place"):
        if getattr(selection, word) is not None:
            raise click.UsageError(
                f"--{word.replace('_', '-')} is for algorithms of the library; "
                f"{selection.what} says it itself"
            )


def program_of_file(what: str) -> Program:
    """The program of FILE.py or FILE.py:NAME. Errors: L113, L114, L115, and L1xx of the program."""
    file, _, name = what.partition(".py:")
    path = Path(f"{file}.py" if name else file)
    values = _run_file(path)
    programs = {key: value for key, value in values.items() if isinstance(value, Program)}
    if not programs:
        raise L113.error(
            at=Place(str(path)),
            expected="a function decorated with @sley.program(collective)",
            found="no program in this file",
        )
    if name and name not in programs:
        expected = f"one of {', '.join(programs)}"
        raise L115.error(at=Place(str(path)), expected=expected, found=name)
    if not name and len({id(p) for p in programs.values()}) > 1:
        found = f"{len(programs)} programs: {', '.join(programs)}"
        raise L115.error(at=Place(str(path)), expected="one program", found=found)
    return programs[name] if name else next(iter(programs.values()))


def _run_file(path: Path) -> dict[str, object]:
    """The globals of a Python file after it has run, with its folder importable."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing there"
        raise L117.error(at=Place(str(path)), expected="a Python file", found=found)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        # What the file prints is for people; standard output is for the command's own.
        with redirect_stdout(sys.stderr):
            return runpy.run_path(str(path), run_name="__sley__")
    except SleyError:
        raise
    except SyntaxError as error:
        place = Place(error.filename or str(path), error.lineno or 0, error.offset or 0)
        raise L114.error(at=place, expected="Python", found=str(error.msg)) from error
    except (Exception, SystemExit) as error:
        raise L114.error(
            at=_own_line(path, error),
            expected="code that runs to its end",
            found=f"{type(error).__name__}: {error}",
        ) from error
    finally:
        sys.path.pop(0)


def _own_line(path: Path, error: BaseException) -> Place:
    """The innermost line of the user's file that led to the error."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return Place(str(path), frames[-1].lineno or 0) if frames else Place(str(path))


def _imported(selection: Selection, phases: Phases, *, verify: bool) -> Plan:
    for word in ("ranks", "nodes", "gpus"):
        if getattr(selection, word) is not None:
            raise click.UsageError(f"--{word} is for algorithms; {selection.what} says it itself")
    changed = {
        "--channels": selection.channels != 1,
        "--instances": selection.instances != 1,
        "--protocol": selection.protocol is not None,
        "--no-fusion": not selection.fusion,
        "--topology": selection.topology is not None,
    }
    for option, given in changed.items():
        if given:
            raise click.UsageError(f"{option} is for the compiler; {selection.what} is compiled")
    collective = None
    if selection.collective is not None:
        collective = program_of_file(selection.collective).collective
    with phases("reading"):
        imported = formats.load_with_notes(
            selection.what,
            collective=collective,
            in_place=selection.in_place,
            root=selection.root,
            slots=selection.slots,
        )
    report_notes(imported.notes)
    if verify:
        with phases("verification"):
            prove(imported.plan)
    return imported.plan
