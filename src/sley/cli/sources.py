"""Sources: from WHAT on the command line to programs and plans."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import click

from sley import formats
from sley.algorithms import CATALOG, build
from sley.cli.options import Selection, flag
from sley.cli.output import Phases, report_notes
from sley.compiler import Options, compile
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Allocation, LoopOrder, Schedule
from sley.lang import files, rescclang
from sley.passes.lift import lift
from sley.simulate.inputs import Connections
from sley.topologies import find_with_notes
from sley.verify import verify as prove

_SHARED = ("channels", "instances")
"""Options of the compiler that some algorithms of the library have as parameters of their own."""


def plan_of(selection: Selection, phases: Phases, *, verify: bool, per_chunk: bool = False) -> Plan:
    """The plan that a selection asks for; an imported one is verified here as well.

    per_chunk: for runtimes where every chunk of a message takes a slot, MSCCL's.
    """
    topology = topology_of(selection.topology)
    if _suffix(selection) != ".xml":
        with phases("tracing"):
            program = program_of(fitted(selection, topology))
    elif selection.options.schedule is None:
        plan = _imported(selection, phases, verify=verify)
        if topology is not None:
            Connections.of(plan, topology)  # refuses what the topology doesn't link
        return replace(plan, topology=topology)
    else:
        # What is lifted must be right: a program means what its plan does.
        plan = _imported(selection, phases, verify=True)
        with phases("lifting"):
            program = lift(plan)
    return compile(
        program,
        _options(selection, per_chunk=per_chunk),
        topology=topology,
        size_bytes=selection.size,
        verify=verify,
        phase=phases.run,
    )


def _options(selection: Selection, *, per_chunk: bool) -> Options:
    """The options of the compiler: without those that the algorithm takes itself."""
    options = selection.options
    own = {w: 1 for w in options.given() if w in _SHARED and _takes(selection.what, w)}
    options = Options.of(options, own)
    if not per_chunk:
        return options
    needed: dict[str, Any] = {"per_chunk": True}
    if options.schedule is Schedule.AUTO:
        # What MSCCL's runtimes read is in tile order, with blocks of one connection.
        needed |= {"allocate": Allocation.CONNECTION, "loop_order": LoopOrder.TILE}
    return options.filled(needed)


def _suffix(selection: Selection) -> str:
    """.xml, .resccl or .py for a file of that kind, nothing for an algorithm of the library."""
    what = selection.what.lower()
    if ".py:" in what:
        return ".py"
    return next((suffix for suffix in (".xml", ".resccl", ".py") if what.endswith(suffix)), "")


def in_place_by_default(selection: Selection) -> Selection:
    """In place where both are possible and neither is asked for: the library's algorithms copy the
    input out of place, which takes time that collectives of vendors don't need."""
    if goes_both_ways(selection) and selection.in_place is None:
        return selection.with_place(True)
    return selection


def goes_both_ways(selection: Selection) -> bool:
    """Whether WHAT can be compiled in and out of place: an algorithm of the library, or a text."""
    return _suffix(selection) in ("", ".resccl")


def _takes(what: str, parameter: str) -> bool:
    """Whether an algorithm of the library has this parameter of its own."""
    return what in CATALOG and parameter in CATALOG[what].parameters


def _own(selection: Selection, word: str) -> int | None:
    """The value of an option for an algorithm that has it as a parameter of its own."""
    value = getattr(selection.options, word)
    return value if _takes(selection.what, word) and (value or 1) > 1 else None


def topology_of(name: str | None) -> Topology | None:
    """A topology by name or from a file, and remarks on what had to be assumed. Errors: T604 and
    those of the file."""
    if name is None:
        return None
    found = find_with_notes(name)
    report_notes(found.notes)
    return found.topology


def fitted(selection: Selection, topology: Topology | None) -> Selection:
    """The selection with the topology's size for an algorithm of the library that is given
    none."""
    sizes = (selection.ranks, selection.nodes, selection.gpus)
    if topology is None or selection.what not in CATALOG or any(s is not None for s in sizes):
        return selection
    if _takes(selection.what, "ranks"):
        return replace(selection, ranks=topology.ranks)
    return replace(selection, nodes=topology.nodes, gpus=topology.ranks // topology.nodes)


def program_of(selection: Selection) -> Program:
    if selection.collective is not None:
        raise click.UsageError(f"--collective is for XML files; {selection.what} says it itself")
    if _suffix(selection) == ".py":
        _refuse_sizes(selection, ("ranks", "nodes", "gpus", "nics", "rings", "root", "in_place"))
        return program_of_file(selection.what)
    if _suffix(selection) == ".resccl":
        _refuse_sizes(selection, ("root", "stage_channels", "rings"))
        return rescclang.load(
            selection.what, in_place=bool(selection.in_place), **_header(selection)
        )
    return build(
        selection.what,
        ranks=selection.ranks,
        nodes=selection.nodes,
        gpus=selection.gpus,
        nics=selection.nics,
        root=selection.root,
        in_place=bool(selection.in_place),
        channels=_own(selection, "channels"),
        instances=_own(selection, "instances"),
        stage_channels=selection.stage_channels,
        rings=selection.rings,
    )


def _header(selection: Selection) -> dict[str, int]:
    """What the command line says in place of a text's header."""
    ranks = selection.ranks
    if selection.nodes is not None:
        if selection.gpus is None or ranks is not None:
            raise click.UsageError("--nodes goes with --gpus, and without --ranks")
        ranks = selection.nodes * selection.gpus
    values = {"nRanks": ranks, "GPUPerNode": selection.gpus, "NICPerNode": selection.nics}
    return {word: value for word, value in values.items() if value is not None}


def _refuse_sizes(selection: Selection, words: tuple[str, ...]) -> None:
    """What a file says itself; click's usage error where the command line says it too."""
    for word in words:
        if getattr(selection, word) is not None:
            raise click.UsageError(
                f"--{word.replace('_', '-')} is not for {selection.what}, which says it itself"
            )


def program_of_file(what: str) -> Program:
    """The program of FILE.py or FILE.py:NAME. Errors: those of `lang.files`."""
    file, _, name = what.partition(".py:")
    # What the file prints is for people; standard output is for the command's own.
    with redirect_stdout(sys.stderr):
        return files.program_of_file(f"{file}.py" if name else file, name)


def _imported(selection: Selection, phases: Phases, *, verify: bool) -> Plan:
    _refuse_sizes(selection, ("ranks", "nodes", "gpus", "nics", "stage_channels", "rings"))
    if selection.options.schedule is None:
        given = [word for word in selection.options.given() if word != "slots"]
        if selection.size is not None:
            given.append("size")
        for word in given:
            raise click.UsageError(
                f"{flag(word)} is for the compiler; {selection.what} is compiled. "
                "With --schedule it is lifted and compiled anew."
            )
    collective = None
    if selection.collective is not None:
        collective = program_of_file(selection.collective).collective
    with phases("reading"):
        imported = formats.load_with_notes(
            selection.what,
            collective=collective,
            in_place=selection.in_place,
            root=selection.root,
            slots=selection.options.slots,
        )
    report_notes(imported.notes)
    if verify:
        with phases("verification"):
            prove(imported.plan)
    return imported.plan
