"""Sources: the programs and plans that WHAT stands for on the command line: the words that a user
gives, for a `compiler.opening.Source`.

The name of a collective stands for all of its algorithms: commands that take several plans try
those that fit the topology (`fitting`); commands that take one name them, with commands that are
ready to be copied.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from sley.algorithms import CATALOG, for_collective
from sley.cli.options import ARG, PARAMETERS, Selection, flag, given_words, parameter_flag
from sley.cli.output import Phases, attributes, print_note, report_notes
from sley.compiler import Options, compile_in_phases
from sley.compiler.opening import Maker, Source
from sley.compiler.passes import links
from sley.compiler.passes.lift import lift
from sley.compiler.synthesis import OF_TREES, Synthesis, arguments_on, low_trees
from sley.errors import SleyError, did_you_mean, recognition
from sley.errors.formats import F434
from sley.errors.language import L120
from sley.errors.selection import N658
from sley.formats import (
    FORMATS,
    TARGETS,
    Format,
    Imported,
    by_suffix,
    check_folder,
    files,
    read,
    refuse_varying_counts,
)
from sley.formats.format import RuntimeFormat, Target
from sley.formats.plan_file import portable_path
from sley.ir.one_sided import OneSidedPlan
from sley.ir.orders import SameBits, wanted_order
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.sizes import SizeRange
from sley.ir.tables import NONE, IntArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import Schedule
from sley.lang import schedules
from sley.model.simulation.routes import ConnectionRoutes
from sley.topologies import look_up
from sley.topologies.clusters import parts_of
from sley.verification import SumOrder
from sley.verification import verify as prove

T = TypeVar("T")

NCCL = "nccl-"
"""How a WHAT begins that stands for what NCCL chooses at each size."""

MESSAGE_TARGETS = tuple(
    name for name, target in TARGETS.items() if not FORMATS[target.suffix].one_sided
)
"""The runtimes that execute plans with messages, which the simulator needs."""


def source_of(selection: Selection) -> Source:
    """What WHAT is, recognised once. Errors: F404, F550, L120, click's for NCCL's choices."""
    what = selection.what
    if what not in selection.opened:
        if is_collective(what):
            raise _refuse_collective(selection)
        if what.startswith(NCCL) and not Path(what).exists() and not Path(what).suffix:
            raise click.UsageError(f"{what} is NCCL's choice, for sley simulate and sley compare")
        selection.opened[what] = Source.of(what, selection.script)
    return selection.opened[what]


def is_collective(what: str) -> bool:
    """Whether WHAT is the name of a collective with algorithms, and of no file."""
    return bool(for_collective(what)) and not Path(what).exists()


def fitting(
    selection: Selection, topology: Topology | None, make: Callable[[Selection], T]
) -> list[T]:
    """What `make` makes of the selection, or of each algorithm of the collective that it is, with
    trees of several heights; a note names the algorithms that it refuses. Errors: those of `make`,
    if none fits."""
    if not is_collective(selection.what):
        return [make(selection)]
    every = [replace(selection, what=one.name) for one in for_collective(selection.what)]
    if topology is not None:
        every += [low for one in every if takes(one, "trees") for low in _low(one, topology)]
    made: list[T] = []
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    refused: SleyError | click.UsageError | None = None
    for one in every:
        try:
            made.append(make(one))
        except SleyError as error:
            left_out[error.code].append(one.what)
            # What has links but not the order that is asked for says more than what lacks links.
            refused = error if refused is None or error.code == N658.code else refused
        except click.UsageError as error:
            left_out["options that they don't take"].append(one.what)
            refused = refused or error
    if not made and refused is not None:
        raise refused
    if left_out:
        of = "; ".join(f"{', '.join(names)} ({why})" for why, names in left_out.items())
        print_note(f"left out, since they don't fit: {of}")
    return made


def _low(selection: Selection, topology: Topology) -> list[Selection]:
    """An algorithm along trees, with the heights and chunks of low ones, if they aren't the trees
    that it has without."""
    collective = CATALOG[selection.what].collective
    if not (low := low_trees(collective, topology)):
        return []  # of many ranks, for which other trees take minutes
    own = Synthesis.of(collective, topology, switches=False)
    made = [
        one
        for one in low
        if (one.sends, one.chunks) != (own.sends, own.chunks) or one.algbw_GBps > own.algbw_GBps
    ]
    numbers = [(one.parts[0].height, one.chunks // topology.ranks) for one in made]
    words = [dict(zip(OF_TREES, one, strict=True)) for one in numbers]
    return [replace(selection, arguments={**selection.arguments, **one}) for one in words]


def _refuse_collective(selection: Selection) -> SleyError:
    """The error for a collective where one algorithm is needed: its algorithms, and commands."""
    own = for_collective(selection.what)
    given = {word for word in (*PARAMETERS, "root") if getattr(selection, word) is not None}
    fit = [one for one in own if given <= {*one.parameters, "nodes", "gpus"}] or own
    command = shlex.join(_renamed(selection.what, fit[0].name))
    on = selection.topology or generic(selection, selection.ranks)
    return L120.error(
        expected="an algorithm that `sley list` prints, or a file",
        found=f"{selection.what!r}, a collective",
        remedy=f"Name one of its algorithms: {command}. They are "
        f"{', '.join(one.name for one in own)}. "
        f"sley choose {selection.what} --topology {on} finds the fastest of all for each size, "
        f"and sley compare {selection.what} --topology {on} simulates each.",
    )


def _renamed(what: str, name: str) -> Sequence[str]:
    """The command line with `name` instead of WHAT."""
    command, words = given_words()
    at = words.index(what)
    return [*command, *words[:at], name, *words[at + 1 :]]


def generic(selection: Selection, ranks: int | None) -> str:
    """A topology by its size alone: the nodes and GPUs that are given, or one node with the ranks;
    ndv4 if neither is known."""
    if selection.nodes is not None and selection.gpus is not None:
        return f"{selection.nodes}x{selection.gpus}"
    return "ndv4" if ranks is None else f"1x{ranks}"


def maker_of(selection: Selection) -> Maker:
    """What makes the programs of WHAT, which is no plan; a Python file runs once. Errors: those of
    `Source.maker`."""
    # Standard output is for the command's own output, so the file's goes to standard error.
    with redirect_stdout(sys.stderr):
        return source_of(selection).maker


def takes(selection: Selection, parameter: str) -> bool:
    """Whether WHAT is a program with this parameter."""
    return not source_of(selection).is_plan and maker_of(selection).takes(parameter)


def supports_both_places(selection: Selection) -> bool:
    """Whether WHAT compiles both in and out of place: most algorithms of the library, texts, and
    functions with the parameter in_place."""
    if source_of(selection).is_plan or "in_place" in selection.arguments:
        return False
    return maker_of(selection).has_both_places


def prefer_in_place(selection: Selection) -> Selection:
    """The selection, in place if the user chose neither: out of place, the library's algorithms
    copy the input, which vendors' collectives don't."""
    if supports_both_places(selection) and selection.in_place is None:
        return replace(selection, in_place=True)
    return selection


def in_order(selection: Selection, same_bits: SameBits) -> Selection:
    """The selection for --same-bits: an algorithm that can sum in this order does."""
    word = "same_bits"
    if not same_bits or word in selection.arguments or not takes(selection, word):
        return selection
    return replace(selection, arguments={**selection.arguments, word: same_bits})


def check_same_bits(
    plan: Plan | OneSidedPlan, node: LongArray | IntArray, same_bits: SameBits
) -> None:
    """Refuses a plan whose sums have another order than --same-bits wants. node: of each rank, and
    maybe of further ones. Errors: N658."""
    own = node[: plan.collective.ranks]
    hosts = [np.flatnonzero(own == one).tolist() for one in np.unique(own)]
    if (order := wanted_order(same_bits, hosts)) is not None:
        SumOrder.of(plan).check(order, plan.name)


def choosing_for(selection: Selection, sizes: list[int]) -> Selection:
    """The selection, whose --schedule auto chooses for the only size of a command."""
    if selection.options.schedule is not Schedule.AUTO or len(sizes) > 1:
        return selection
    return replace(selection, size=sizes[0])


def is_compiled(selection: Selection) -> bool:
    """Whether WHAT is a file with a plan that is not to be compiled again."""
    return source_of(selection).is_plan and selection.options.schedule is None


def is_compiled_for_runtime(selection: Selection) -> bool:
    """Whether WHAT is such a file that a runtime reads."""
    return is_compiled(selection) and source_of(selection).is_of_runtime


def has_sizes(selection: Selection) -> bool:
    """Whether the user gives a number of ranks, nodes or GPUs."""
    words = ("ranks", "nodes", "gpus")
    return any(getattr(selection, w) is not None or w in selection.arguments for w in words)


def topology_of(name: str | None) -> Topology | None:
    """A topology by name or from a file; prints a remark about its assumptions. Errors: those of
    `look_up`."""
    if name is None:
        return None
    found = look_up(name)
    assumed = [note for note in found.notes if note.rule is F434]
    if len(assumed) > 1:
        path, like, _ = parts_of(name)
        more = "" if like else f"; {path},like=MACHINE takes most of them from a machine"
        text = f"{len(assumed)} values that the file leaves open, which sley topology show tells"
        print_note(f"{path}: {F434.title}: {text}{more}")
    report_notes(tuple(note for note in found.notes if len(assumed) == 1 or note not in assumed))
    return found.topology


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
    if is_compiled(selection):
        imported = _read_plan(selection, phases, verify=verify)
        return on_topology(topology, imported.message_plan), imported
    program = program_or_lifted(selection, topology, phases)
    options = _options(selection, {} if form is None else form.needs)
    if form is not None and not form.is_own:
        refuse_varying_counts(program.collective)
        without = options.switches is False and selection.options.switches is None
        if without and (program.transfers.group != NONE).any():
            print_note(f"{form.name} has no switches: groups get a message for each rank")
    plan = compile_in_phases(
        program, options, phases.run, topology=topology, size=selection.size, verify=verify
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


def plan_of_target(selection: Selection, target: str, phases: Phases) -> tuple[Plan, SizeRange]:
    """The plan of a selection as a runtime executes its file, and for which sizes: WHAT itself if
    it is such a file, otherwise the file that `sley compile --target` would write. target: one of
    `MESSAGE_TARGETS`.
    """
    form = FORMATS[TARGETS[target].suffix]
    topology = topology_of(selection.topology)
    if is_compiled_for_runtime(selection):
        source: str | Path = Path(selection.what)
        settings = file_settings(selection)
    else:
        plan = plan_of(selection, phases, verify=True, form=form)
        if is_compiled(selection):  # others are compiled for the format's connections
            files.check(plan, target)
        own, topology = plan.collective, plan.topology
        settings = {"collective": own, "in_place": own.in_place, "file": plan.name + form.suffix}
        with phases("writing"):
            source = form.write(plan, target=target)
    with phases("reading"):
        found = form.executions(source, target, **settings)
    report_notes(found.notes)
    way = found.executions[0]  # in place, if the file allows both places and the user chose none
    return on_topology(topology, way.message_plan), way.sizes


def on_topology(topology: Topology | None, plan: Plan) -> Plan:
    """The plan on a topology, if one is named, which must link all ranks that exchange messages."""
    if topology is None:  # a plan file may have one
        return plan
    ConnectionRoutes.of(plan, topology)
    return replace(plan, topology=topology)


def _options(selection: Selection, needs: Mapping[str, object]) -> Options:
    """The options of the compiler: without --channels if the algorithm takes it as a parameter,
    with the script's own, and with the format's needs for options that are not given."""
    options = selection.options
    if options.channels is not None and takes(selection, "channels"):
        options = Options.of(options, {"channels": 1})
    if not source_of(selection).is_plan and (fusion := maker_of(selection).fusion) is not None:
        needs = {"fusion": fusion, **needs}
    return options.filled(needs)


def program_or_plan(
    selection: Selection, topology: Topology | None, phases: Phases
) -> Program | Plan:
    """The program of WHAT, or the plan in its file."""
    if source_of(selection).is_plan:
        return _read_plan(selection, phases, verify=True).message_plan
    with phases("tracing"):
        return _program(_fit_to(topology, selection))


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


def _fit_to(topology: Topology | None, selection: Selection) -> Selection:
    """The selection; an algorithm of the library or a function gets the topology's sizes, unless it
    has others, and its arguments on the topology."""
    if topology is None or source_of(selection).is_plan:
        return selection
    parameters, arguments = maker_of(selection).parameters, selection.arguments
    options = {word: getattr(selection, word) for word in PARAMETERS}
    given = {word: arguments.get(word, value) for word, value in options.items()}
    given = {word: value for word, value in given.items() if value is not None}
    whole = {"ranks": topology.ranks}
    grid = {"nodes": topology.nodes, "gpus": topology.ranks // topology.nodes}
    own: dict[str, Any] = grid if grid.keys() <= set(parameters) else {}
    own = whole if maker_of(selection).takes("ranks") else own
    if not own or given not in ({}, whole, grid):
        return selection
    is_listed = source_of(selection).kind is None
    collective = CATALOG[selection.what].collective if is_listed else None
    fitting = arguments_on(topology, parameters, arguments, collective)
    if given:
        return replace(selection, arguments=fitting)
    if source_of(selection).is_python and not own.keys() <= set(maker_of(selection).required):
        sizes = ", ".join(f"{word}={value}" for word, value in own.items())
        print_note(f"{selection.what} gets {sizes} of {topology.name}, whatever its defaults are")
    return replace(selection, **own, arguments=fitting)


def _program(selection: Selection) -> Program:
    """The program of WHAT with the user's arguments. Errors: those of the program, click's usage
    error for arguments that it doesn't take, or lacks."""
    source, maker = source_of(selection), maker_of(selection)
    if not source.is_python and selection.script:
        raise click.UsageError(f"-- is for Python files, and {selection.what} is none")
    arguments = _arguments(selection, maker)
    if source.kind in recognition.SCHEDULES:
        arguments |= _schedule_arguments(selection)
    elif selection.collective is not None:
        raise click.UsageError(f"--collective is for XML files; {selection.what} has its own")
    with redirect_stdout(sys.stderr):
        program = maker.make(arguments)
    own = program.collective.in_place
    if "in_place" not in arguments and selection.in_place not in (None, own):
        place = "in place" if own else "out of place"
        raise click.UsageError(f"{selection.what} has a place of its own: it is {place}")
    return program


def _arguments(selection: Selection, maker: Maker) -> dict[str, Any]:
    """The arguments of a program: those of --arg, and the options with its parameters' names."""
    what = selection.what
    given = {word: getattr(selection, word) for word in (*PARAMETERS, "root")}
    options = {word: value for word, value in given.items() if value is not None}
    if "channels" in maker.parameters and selection.options.channels is not None:
        options["channels"] = selection.options.channels
    for word in selection.arguments:
        if word in options:
            raise click.UsageError(f"{word} is given twice: by {flag(word)} and by {ARG}")
    arguments: dict[str, Any] = {**options, **selection.arguments}
    if not (maker.parameters or maker.takes_any) and arguments:
        if options:
            raise click.UsageError(f"{flag(next(iter(options)))}: its value is fixed in {what}")
        raise click.UsageError(
            f"{ARG}: {what} is a program; only a function that returns one takes arguments"
        )
    ranks = {"ranks", "nodes", "gpus"} & arguments.keys()
    is_grid = "ranks" in maker.parameters and ranks == {"nodes", "gpus"}
    known = (*maker.parameters, *["in_place"] * maker.takes_place, *["nodes", "gpus"] * is_grid)
    takes = (
        f"It takes {', '.join(map(parameter_flag, maker.parameters))}" if maker.parameters else ""
    )
    for word in arguments:
        if word not in known and not maker.takes_any:
            by = flag(word) if word in options else f"{ARG} {word}"
            hint = did_you_mean(word, maker.parameters)
            raise click.UsageError(" ".join(filter(None, (f"{what} takes no {by}.", hint, takes))))
    lacks = {word for word in maker.required if word not in arguments}
    if lacks - ({"ranks"} if is_grid else set()):
        missing = " and ".join(parameter_flag(word) for word in maker.required if word in lacks)
        raise click.UsageError(f"{what} needs {missing}{_sized(selection, lacks)}")
    if selection.in_place is not None and maker.takes_place:
        arguments["in_place"] = selection.in_place
    return arguments


def _sized(selection: Selection, missing: Collection[str]) -> str:
    """How a topology gives the missing sizes; "" if none is missing."""
    if not {"ranks", "nodes", "gpus"} & set(missing):
        return ""
    if selection.topology is None:
        return ", or --topology, such as --topology ndv4:2, which simulations need"
    stem = selection.topology.partition(":")[0]
    return f". --topology has sizes of its own: --topology {stem}:NODES needs no other ones"


def _schedule_arguments(selection: Selection) -> dict[str, Any]:
    """The collective of a synthesiser's schedule; trees serve several, by name."""
    given, known = selection.collective, schedules.COLLECTIVES
    if given is not None and given not in known:
        names = ", ".join(known)
        raise click.UsageError(f"--collective of a schedule is one of {names}, not {given}")
    return {"collective": given}


def refuse_arguments(selection: Selection) -> None:
    """Refuses arguments of a program and of a Python file if WHAT is something else. Errors:
    click's usage error."""
    given = [ARG] * bool(selection.arguments) + ["--"] * bool(selection.script)
    if given:
        raise click.UsageError(f"{given[0]} is for programs, and {selection.what} is none")


def refuse_foreign(form: Format, known: Collection[str], given: Mapping[str, object]) -> None:
    """Refuses options that a format does not have. given: their values, None if not given. Errors:
    click's usage error."""
    for word, value in given.items():
        if value is not None and word not in known:
            raise click.UsageError(f"{flag(word)} is not for this format: {form.name}")


def file_settings(selection: Selection) -> dict[str, Any]:
    """What the user says about the plan in a file, for the reader; refuses options that have no
    meaning for it."""
    for word in PARAMETERS:
        if getattr(selection, word) is not None:
            raise click.UsageError(f"{flag(word)}: its value is fixed in {selection.what}")
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
        source = Source.of(selection.collective, selection.script)
        if source.is_plan and source.kind is not None:
            raise recognition.refuse_kind(selection.collective, source.kind, "a program")
        opened = {selection.collective: source}
        program = Selection(
            selection.collective,
            root=selection.root,
            arguments=selection.arguments,
            script=selection.script,
            opened=opened,
        )
        collective = _program(program).collective
    else:
        refuse_arguments(selection)
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
        **attributes(c, "ranks", "chunks", "in_place"),
        "transfers": len(t),
        "local_transfers": int(np.count_nonzero(~t.remote)),
        "scratch_chunks": int(program.scratch_chunks.max(initial=0)),
    }


def target_of_file(output: Path | None, *others: str) -> Target | None:
    """The runtime that is to run the plan in a file, if any. others: the suffixes of files without
    a plan. Errors: F460, F461."""
    if output is None:
        return None
    check_folder(output)
    form = by_suffix(output, {**dict.fromkeys(others), **files.FORMATS})
    return form.targets[0] if isinstance(form, RuntimeFormat) else None
