"""Sources: the programs and plans that WHAT stands for on the command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from sley.algorithms import CATALOG, build, find
from sley.cli import collectives, python_files
from sley.cli.options import PARAMETERS, Selection, flag
from sley.cli.output import Phases, print_note, report_notes
from sley.compiler import Options, compile_in_phases
from sley.compiler.passes import links
from sley.compiler.passes.lift import lift
from sley.errors import Place, did_you_mean, recognition
from sley.errors.formats import F404
from sley.errors.recognition import Kind
from sley.formats import FORMATS, TARGETS, Format, Imported, read, refuse_varying_counts
from sley.formats.source_paths import portable_path
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import Schedule
from sley.lang import rescclang, schedules
from sley.lang.files import ProgramFunction
from sley.model.simulation.routes import Routes
from sley.topologies import link_rings, look_up
from sley.verification import verify as prove


def plan_of(
    selection: Selection, phases: Phases, *, verify: bool, form: Format | None = None
) -> Plan:
    """The plan of a selection: compiled, or imported without --schedule.

    verify: whether to verify it. form: the format to write it in.
    """
    return plan_and_file(selection, phases, verify=verify, form=form)[0]


def plan_and_file(
    selection: Selection, phases: Phases, *, verify: bool, form: Format | None = None
) -> tuple[Plan, Imported | None]:
    """`plan_of`, and the file of an imported plan, which also has a range of sizes."""
    if selection.size is not None and selection.options.schedule is not Schedule.AUTO:
        raise click.UsageError("--size is for --schedule auto")
    topology = topology_of(selection.topology)
    if is_plan(selection) and selection.options.schedule is None:
        imported = _read_plan(selection, phases, verify=verify)
        return _on(topology, imported.message_plan), imported
    program = program_or_lifted(selection, topology, phases)
    options = _options(selection, {} if form is None else form.needs)
    if form is not None and not form.is_own:
        refuse_varying_counts(program.collective)
        without = options.switches is False and selection.options.switches is None
        if without and (program.transfers.group != NONE).any():
            print_note(f"{form.name} has no switches: groups get a message for each rank")
    plan = compile_in_phases(
        program,
        options,
        phases.run,
        topology=topology,
        size=selection.size,
        verify=verify,
    )
    return plan, None


def recipe_of(selection: Selection) -> dict[str, str]:
    """What a plan is compiled from, in words, for its file: "what", "arguments", "options". Paths
    in them are those of `portable_path`."""
    given = {
        word: getattr(selection, word)
        for word in (*PARAMETERS, "root", "in_place", "size", "collective", "topology")
    }
    parts = {
        "what": [selection.what],
        "arguments": [*_words({**given, **selection.arguments}), *selection.script],
        "options": _words(selection.options.given()),
    }
    return {
        word: _PATH.sub(lambda found: portable_path(found[0]), " ".join(part))
        for word, part in parts.items()
    }


_PATH = re.compile(r"(?<![\w.<>/])/[^\s,;:='\"]+")


def _words(values: Mapping[str, object]) -> list[str]:
    return [f"{k}={getattr(v, 'value', v)}" for k, v in values.items() if v is not None]


MESSAGE_TARGETS = tuple(
    name for name, target in TARGETS.items() if not FORMATS[target.suffix].one_sided
)
"""The runtimes that execute plans with messages, which the simulator needs."""


Sizes = tuple[int, int | None]
"""The least and the largest size of a call, in bytes; None for no limit."""


def plan_of_target(selection: Selection, target: str, phases: Phases) -> tuple[Plan, Sizes]:
    """The plan of a selection as a runtime executes its file, and for which sizes: WHAT itself if
    it is such a file, otherwise the file that `sley compile --target` would write. target: one of
    `MESSAGE_TARGETS`.
    """
    form = FORMATS[TARGETS[target].suffix]
    topology = topology_of(selection.topology)
    if is_of_runtime(selection) and selection.options.schedule is None:
        source: str | Path = Path(selection.what)
        settings = file_settings(selection)
    else:
        plan = plan_of(selection, phases, verify=True, form=form)
        own, topology = plan.collective, plan.topology
        settings = {"collective": own, "in_place": own.in_place, "file": plan.name + form.suffix}
        with phases("writing"):
            source = form.write(plan, target=target)
    with phases("reading"):
        found = form.executions(source, target, **settings)
    report_notes(found.notes)
    way = found.executions[0]  # in place, if the file allows both places and the user chose none
    sizes = way.least_bytes, way.most_bytes
    return _on(topology, way.message_plan), sizes


def check_links(plan: Plan, selection: Selection) -> None:
    """Refuses a plan with transfers between ranks that the selection's topology does not link."""
    _on(topology_of(selection.topology), plan)


def _on(topology: Topology | None, plan: Plan) -> Plan:
    """The plan on a topology, if one is named, which must link all ranks that exchange messages."""
    if topology is None:  # a plan file may have one
        return plan
    Routes.of(plan, topology)
    return replace(plan, topology=topology)


def _options(selection: Selection, needs: Mapping[str, object]) -> Options:
    """The options of the compiler: without --channels if the algorithm takes it as a parameter, and
    with the format's needs for options that are not given."""
    options = selection.options
    if options.channels is not None and takes(selection, "channels"):
        options = Options.of(options, {"channels": 1})
    return options.filled(needs)


NCCL = "nccl-"
"""How a WHAT begins that stands for what NCCL chooses at each size."""

_READABLE = (*recognition.PLANS, *recognition.PROGRAMS, *recognition.SCHEDULES)


def _kind(selection: Selection) -> Kind | None:
    """What kind of file WHAT is; None for an algorithm of the library. Errors: F404 for a path
    without a file, F550 for a file without a plan, a program or a schedule."""
    what = selection.what
    if what in CATALOG:
        return None
    file = python_files.file_and_name(what)[0]
    if file not in selection.recognised:
        selection.recognised[file] = recognition.kind_of(file)
    kind = selection.recognised[file]
    if kind is recognition.MISSING and not is_path(file):
        if what.startswith(NCCL):
            raise click.UsageError(f"{what} is NCCL's choice, for sley simulate and sley compare")
        if collectives.is_collective(what):
            raise collectives.refuse(selection)
        if did_you_mean(what, CATALOG):
            return None
        raise F404.error(
            expected="an algorithm that `sley list` prints, or a file",
            found=f"{what!r}: neither",
            remedy="Check the name and the path.",
        )
    kind = recognition.presumed_kind(file, kind)
    if kind is recognition.MISSING:
        raise F404.error(
            at=Place(file),
            expected="a file with a plan, a program or a schedule",
            found="no such file",
        )
    if kind not in _READABLE:
        raise recognition.refuse_kind(file, kind, "a plan, a program or a schedule")
    return kind


def is_path(text: str) -> bool:
    """Whether a text looks like the path of a file rather than like a name."""
    return text.startswith(("~", ".")) or bool(Path(text).suffix) or len(Path(text).parts) != 1


def is_plan(selection: Selection) -> bool:
    """Whether WHAT is a file with a plan. Errors: those of `_kind`."""
    return _kind(selection) in recognition.PLANS


def is_of_runtime(selection: Selection) -> bool:
    """Whether WHAT is a file with a plan that a runtime reads. Errors: those of `_kind`."""
    return _kind(selection) in recognition.RUNTIME_PLANS


def is_python(selection: Selection) -> bool:
    """Whether WHAT is a Python file. Errors: those of `_kind`."""
    return _kind(selection) is recognition.PYTHON


def is_execution_plan(selection: Selection) -> bool:
    """Whether WHAT is a file with an execution plan of MSCCL++. Errors: those of `_kind`."""
    return _kind(selection) is recognition.MSCCLPP


def takes_collective(selection: Selection) -> bool:
    """Whether WHAT is a file for which --collective may say the collective."""
    if collectives.is_collective(selection.what):
        return False
    return _kind(selection) in (*recognition.RUNTIME_PLANS, *recognition.SCHEDULES)


def prefer_in_place(selection: Selection) -> Selection:
    """The selection, in place if the user chose neither: out of place, the library's algorithms
    copy the input, which vendors' collectives don't."""
    if supports_both_places(selection) and selection.in_place is None:
        return replace(selection, in_place=True)
    return selection


def supports_both_places(selection: Selection) -> bool:
    """Whether WHAT compiles both in and out of place: most algorithms of the library, texts, and
    functions with the parameter in_place."""
    kind = _kind(selection)
    if kind is None:
        return find(selection.what).has_both_places
    if kind is recognition.PYTHON:
        return takes(selection, "in_place") and "in_place" not in selection.arguments
    return kind is recognition.RESCCLANG or (
        kind in recognition.SCHEDULES and schedules.read(selection.what).collective != "alltoall"
    )


def takes(selection: Selection, parameter: str) -> bool:
    """Whether WHAT is an algorithm of the library, or a function, with this parameter. Of any
    parameters (``**options``), a number of ranks is the one that every program can use."""
    if is_python(selection):
        found = python_files.find(selection)
        if not isinstance(found, ProgramFunction):
            return False
        return parameter in found.parameters or (found.takes_any and parameter == "ranks")
    return selection.what in CATALOG and parameter in CATALOG[selection.what].parameters


def has_sizes(selection: Selection) -> bool:
    """Whether the user gives a number of ranks, nodes or GPUs."""
    words = ("ranks", "nodes", "gpus")
    return any(getattr(selection, w) is not None or w in selection.arguments for w in words)


def topology_of(name: str | None) -> Topology | None:
    """A topology by name or from a file; prints the assumptions as remarks. Errors: those of
    `look_up`."""
    if name is None:
        return None
    found = look_up(name)
    report_notes(found.notes)
    return found.topology


def program_or_plan(
    selection: Selection, topology: Topology | None, phases: Phases
) -> Program | Plan:
    """The program of WHAT, or the plan in its file."""
    if is_plan(selection):
        return _read_plan(selection, phases, verify=True).message_plan
    return program_of(selection, topology, phases)


def program_on(
    selection: Selection, topology: Topology, phases: Phases, *, switches: bool
) -> Program | Plan:
    """`program_or_plan`, of which a program is checked against the links of the topology, and
    against its `switches` if they are used. Errors: C301, C305 and C315 too."""
    found = program_or_plan(selection, topology, phases)
    if isinstance(found, Program):
        links.check_links(found, topology)
        if switches and (found.transfers.group != NONE).any():
            links.check_switches(found, topology)
    return found


def program_or_lifted(selection: Selection, topology: Topology | None, phases: Phases) -> Program:
    """The program of WHAT; that of a plan is lifted from it."""
    found = program_or_plan(selection, topology, phases)
    if isinstance(found, Program):
        return found
    with phases("lifting"):
        return lift(found)


def program_of(selection: Selection, topology: Topology | None, phases: Phases) -> Program:
    """The program of WHAT, which is not a plan; an algorithm of the library without sizes gets the
    topology's."""
    with phases("tracing"):
        return _trace(_fit_to(topology, selection))


def _fit_to(topology: Topology | None, selection: Selection) -> Selection:
    """The selection; an algorithm of the library or a function without sizes gets the topology's,
    and if it has several rings, those along the topology's links."""
    if topology is None or has_sizes(selection):
        return selection
    if takes(selection, "ranks"):
        return replace(selection, ranks=topology.ranks)
    if not (takes(selection, "nodes") and takes(selection, "gpus")):
        return selection
    fitting = replace(selection, nodes=topology.nodes, gpus=topology.ranks // topology.nodes)
    if not takes(selection, "orders") or (selection.rings or selection.orders) is not None:
        return fitting
    along = link_rings(topology).orders.tolist()
    return replace(fitting, orders=tuple(map(tuple, along)) or None)


def _trace(selection: Selection) -> Program:
    what, channels = selection.what, selection.options.channels
    kind = _kind(selection)
    if kind in recognition.SCHEDULES:
        return _schedule_program(selection)
    if selection.collective is not None:
        raise click.UsageError(f"--collective is for XML files; {what} has its own")
    if kind is recognition.PYTHON:
        return python_files.program(selection)
    python_files.refuse_arguments(selection)
    if kind is recognition.RESCCLANG:
        _refuse_sizes(selection, ("root", "stage_channels", "rings", "orders", "node_instances"))
        return rescclang.load(what, in_place=bool(selection.in_place), **_header(selection))
    _check_parameters(selection)
    return build(
        what,
        ranks=selection.ranks,
        nodes=selection.nodes,
        gpus=selection.gpus,
        nics=selection.nics,
        root=selection.root,
        in_place=bool(selection.in_place),
        channels=channels if takes(selection, "channels") and (channels or 1) > 1 else None,
        node_instances=selection.node_instances,
        stage_channels=selection.stage_channels,
        rings=selection.rings,
        orders=selection.orders,
    )


def _schedule_program(selection: Selection) -> Program:
    """The program of a synthesiser's schedule; trees serve several collectives, by name."""
    python_files.refuse_arguments(selection)
    _refuse_sizes(selection, (*PARAMETERS, "root"))
    given, known = selection.collective, schedules.COLLECTIVES
    if given is not None and given not in known:
        names = ", ".join(known)
        raise click.UsageError(f"--collective of a schedule is one of {names}, not {given}")
    return schedules.load(selection.what, given, in_place=bool(selection.in_place))


def _check_parameters(selection: Selection) -> None:
    """Refuses options that an algorithm of the library doesn't take, and missing ones. Errors:
    L120, click's usage error."""
    algorithm = find(selection.what)
    given = {w for w in (*PARAMETERS, "root") if getattr(selection, w) is not None}
    parameters, grid = set(algorithm.parameters), {"nodes", "gpus"}
    if "ranks" in parameters and given & {"ranks", *grid} == grid:
        given = given - grid | {"ranks"}
    if extra := sorted(given - parameters):
        raise click.UsageError(
            f"{algorithm.name} takes no {' and no '.join(map(flag, extra))}. It takes "
            + ", ".join(map(flag, algorithm.parameters))
        )
    if missing := [word for word in algorithm.required if word not in given]:
        end = ", or --topology"
        if selection.topology is not None:
            stem = selection.topology.partition(":")[0]
            end = f". --topology has sizes of its own: --topology {stem}:NODES needs no other ones"
        raise click.UsageError(f"{algorithm.name} needs {' and '.join(map(flag, missing))}{end}")


def _header(selection: Selection) -> dict[str, int]:
    """The values of the command line that replace those of a text's header."""
    ranks = selection.ranks
    if selection.nodes is not None:
        if selection.gpus is None or ranks is not None:
            raise click.UsageError("--nodes needs --gpus, and excludes --ranks")
        ranks = selection.nodes * selection.gpus
    values = {"nRanks": ranks, "GPUPerNode": selection.gpus, "NICPerNode": selection.nics}
    return {word: value for word, value in values.items() if value is not None}


def _refuse_sizes(selection: Selection, words: tuple[str, ...]) -> None:
    """Refuses options whose values are fixed in a file. Errors: click's usage error."""
    for word in words:
        if getattr(selection, word) is not None:
            raise click.UsageError(f"{flag(word)}: its value is fixed in {selection.what}")


def refuse_foreign(form: Format, known: Collection[str], given: Mapping[str, object]) -> None:
    """Refuses options that a format does not have. given: their values, None if not given. Errors:
    click's usage error."""
    for word, value in given.items():
        if value is not None and word not in known:
            raise click.UsageError(f"{flag(word)} is not for this format: {form.name}")


def file_settings(selection: Selection) -> dict[str, Any]:
    """What the user says about the plan in a file, for the reader; refuses options that have no
    meaning for it."""
    _refuse_sizes(selection, PARAMETERS)
    if selection.options.schedule is None:
        given = [word for word in selection.options.given() if word != "slots"]
        if selection.size is not None:
            given.append("size")
        for word in given:
            raise click.UsageError(
                f"{flag(word)} is for the compiler; {selection.what} is already compiled. "
                "With --schedule it is lifted and compiled again."
            )
    collective = None
    if selection.collective is not None:
        kind = recognition.kind_of(selection.collective)
        if kind is recognition.MSCCL_TOOLS:
            raise recognition.refuse_kind(selection.collective, kind, "a program of sley")
        of_file = Selection(
            selection.collective,
            arguments=selection.arguments,
            script=selection.script,
            loaded=selection.loaded,
        )
        collective = python_files.program(of_file).collective
    else:
        python_files.refuse_arguments(selection)
    return {
        "collective": collective,
        "in_place": selection.in_place,
        "root": selection.root,
        "slots": selection.options.slots,
    }


def _read_plan(selection: Selection, phases: Phases, *, verify: bool) -> Imported:
    """The plan in a file, which has messages; prints the reader's remarks."""
    settings = file_settings(selection)
    with phases("reading"):
        imported = read(selection.what, **settings)
    plan = imported.message_plan
    report_notes(imported.notes)
    if verify:
        with phases("verification"):
            prove(plan)
    return imported


def program_facts(program: Program) -> dict[str, object]:
    """The JSON of a program's properties."""
    t, c = program.transfers, program.collective
    return {
        "name": program.name,
        "collective": c.name,
        "ranks": c.ranks,
        "chunks": c.chunks,
        "in_place": c.in_place,
        "transfers": len(t),
        "local_transfers": int(np.count_nonzero(~t.remote)),
        "scratch_chunks": int(program.scratch_chunks.max(initial=0)),
    }
