"""Sources: from WHAT on the command line to programs and plans."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace

import click

from sley.algorithms import CATALOG, build
from sley.cli.options import Selection, flag
from sley.cli.output import Phases, report_notes
from sley.compiler import Options, compile
from sley.formats import READERS, Format, read
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.lang import files, rescclang
from sley.passes.lift import lift
from sley.simulate.inputs import Routes
from sley.topologies import look_up
from sley.verify import verify as prove

_SHARED = ("channels",)
"""Options of the compiler that some algorithms of the library have as parameters of their own."""

_PARAMETERS = ("ranks", "nodes", "gpus", "nics", "stage_channels", "rings", "node_instances")
"""Parameters of the library's algorithms; a file has fixed values for them."""


def plan_of(
    selection: Selection, phases: Phases, *, verify: bool, form: Format | None = None
) -> Plan:
    """The plan that a selection asks for; an imported one is verified here as well.

    form: the format that it is to be written in.
    """
    topology = topology_of(selection.topology)
    if not is_plan(selection):
        with phases("tracing"):
            program = program_of(fitted(selection, topology))
    elif selection.options.schedule is None:
        plan = _imported(selection, phases, verify=verify)
        if topology is not None:
            Routes.of(plan, topology)  # refuses what the topology doesn't link
        return replace(plan, topology=topology)
    else:
        # What is lifted must be right: a program means what its plan does.
        plan = _imported(selection, phases, verify=True)
        with phases("lifting"):
            program = lift(plan)
    return compile(
        program,
        _options(selection, {} if form is None else form.needs),
        topology=topology,
        size_bytes=selection.size,
        verify=verify,
        phase=phases.run,
    )


def _options(selection: Selection, needs: Mapping[str, object]) -> Options:
    """The options of the compiler: without those that the algorithm takes itself, with what is
    needed for those that are left open."""
    options = selection.options
    own = {w: 1 for w in options.given() if w in _SHARED and _takes(selection.what, w)}
    return Options.of(options, own).filled(needs)


def _suffix(selection: Selection) -> str:
    """The end of the name of a file with a plan or a program, nothing for an algorithm of the
    library."""
    what = selection.what.lower()
    if ".py:" in what:
        return ".py"
    return next((suffix for suffix in (*READERS, ".resccl", ".py") if what.endswith(suffix)), "")


def is_plan(selection: Selection) -> bool:
    """Whether WHAT is a file with a plan."""
    return _suffix(selection) in READERS


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
    found = look_up(name)
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
        _refuse_sizes(selection, (*_PARAMETERS, "root", "in_place"))
        return program_of_file(selection.what)
    if _suffix(selection) == ".resccl":
        _refuse_sizes(selection, ("root", "stage_channels", "rings", "node_instances"))
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
        node_instances=selection.node_instances,
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
    _refuse_sizes(selection, _PARAMETERS)
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
        imported = read(
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
