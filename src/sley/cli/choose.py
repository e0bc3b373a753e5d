"""sley choose: finds the fastest algorithm and options for each range of sizes."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click

from sley import formats
from sley.cli.nccl import Beside, beside_lines, check_nccl, nccl_beside, note_better_switches
from sley.cli.options import (
    ARG,
    COMPILER_OPTIONS,
    PlanCommand,
    RuntimeName,
    Selection,
    argument_option,
    collective_option,
    common_options,
    compiler_options,
    executor_of,
    flag,
    jobs_option,
    limit_option,
    place_option,
    same_bits_option,
    script_arguments,
    size_options,
)
from sley.cli.output import (
    INTERRUPTED,
    Phases,
    attributes,
    echo,
    first_interrupt,
    print_json,
    report_notes,
)
from sley.cli.simulating import Simulating, simulation_options
from sley.cli.sources import (
    MESSAGE_TARGETS,
    check_same_bits,
    fitting,
    in_order,
    is_collective,
    maker_of,
    prefer_in_place,
    program_on,
    refuse_arguments,
    source_of,
    topology_of,
)
from sley.compiler import Choice, Choices, Options, choose, compile
from sley.compiler.deployment.runtimes import runtime_of
from sley.errors import SleyError
from sley.formats import check_folder
from sley.ir.orders import SameBits
from sley.ir.plan import Plan
from sley.ir.plan_table import TABLE
from sley.ir.program import Program
from sley.ir.sizes import size_in_bytes, size_text
from sley.ir.topology import Topology
from sley.report.limit import threads_of


@click.command("choose", cls=PlanCommand)
@click.argument("what", nargs=-1, required=True)
@click.option("--topology", required=True, help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@size_options("1K", "1G")
@place_option()
@compiler_options(several=True)
@simulation_options
@argument_option
@collective_option
@jobs_option
@limit_option
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep what is compared in this file, and go on from what it has.",
)
@same_bits_option
@click.option(
    "--target",
    type=RuntimeName(formats.TARGETS),
    help="Only plans that this runtime supports. [executor with -o]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the plan of each range into this folder.",
)
@click.option("--nccl", is_flag=True, help="Add NCCL's times, for its tuner's choices.")
@common_options
def choose_command(  # as many parameters as options; click passes each by name
    what: tuple[str, ...],
    topology: str,
    sizes: list[int],
    in_place: bool | None,
    simulating: Simulating,
    arguments: dict[str, object],
    collective: str | None,
    jobs: int,
    limit_s: float | None,
    resume: Path | None,
    same_bits: SameBits,
    target: str | None,
    output: Path | None,
    nccl: bool,
    phases: Phases,
    **options: Any,
) -> None:
    """Find the fastest WHAT and options for each range of sizes on a cluster, by simulation.

    Each WHAT must be for the same collective. A collective (allreduce, ...) stands for all of its
    algorithms that fit the topology. The plan in a file is a candidate as it is, and compiled again
    from its lifted program. Options of the compiler accept several values, separated by commas; the
    search tries each. By default, it tries suitable values of protocol, schedule, allocation,
    channels and instances. --arg applies to each Python file, and to each algorithm and text with
    this parameter, and the words after -- to each Python file. Ctrl-C ends the search as --limit
    does.
    """
    runtime = target or "executor"
    if output is not None:
        check_folder(output)
    # The ranges include the last size, even if the factor steps over it.
    last = click.get_current_context().params["end"]
    cluster = topology_of(topology)
    selections = _selections(what, in_place, arguments, collective)
    assert cluster is not None  # --topology is required
    needs = {} if target is None and output is None else _form(runtime).needs
    switches = needs.get("switches", options["switches"]) is not False
    make = partial(_contender, cluster, same_bits, switches, phases)
    made = [pair for one in selections for pair in fitting(one, cluster, make)]
    programs = [program for program, _ in made]
    if nccl:
        check_nccl(programs[0].collective, cluster)
        note_better_switches(topology)
    with (
        executor_of(jobs) as executor,
        first_interrupt() as is_interrupted,
        phases.progress("choosing", is_interrupted) as progress,
    ):
        choices = choose(
            programs,
            [*sizes, last],
            cluster,
            interpreter=simulating.interpreter,
            model=simulating.model(cluster),
            target=target if output is None else runtime,
            limit_s=limit_s,
            progress=progress,
            executor=executor,
            resume=resume,
            **options,
        )
    for one in choices.ranges if same_bits else ():
        check_same_bits(one.plan, cluster.node, same_bits)
    paths: list[Path] = []
    if output is not None:
        with phases("writing"):
            paths = choices.save(output, target=runtime)
    theirs = _nccl_beside(choices, phases) if nccl else []
    commands = [_command(one, made, topology, choices, simulating) for one in choices.ranges]
    if phases.quiet:
        more = {"nccl": [asdict(one) for one in theirs]} if nccl else {}
        print_json(_json(choices, commands, paths) | more | {"seconds": phases.seconds})
    else:
        _print(choices, commands, theirs, paths, runtime, phases)
    if is_interrupted():
        sys.exit(INTERRUPTED)


_Contender: TypeAlias = tuple[Program | Plan, Selection]
"""A program or a plan, with its selection."""


def _contender(
    cluster: Topology, same_bits: SameBits, switches: bool, phases: Phases, one: Selection
) -> _Contender:
    """What a selection stands for, if it fits. switches: whether those of the cluster are used.
    Errors: those of `program_on` and `check_same_bits`."""
    one = in_order(one, same_bits)
    found = program_on(prefer_in_place(one), cluster, phases, switches=switches)
    if same_bits:
        plan = found if isinstance(found, Plan) else compile(found)
        check_same_bits(plan, cluster.node, same_bits)
    return found, one


def _nccl_beside(choices: Choices, phases: Phases) -> list[Beside]:
    """NCCL's times. The search took long, and its result holds without them: errors are notes."""
    try:
        with phases("simulating NCCL"):
            return nccl_beside(choices)
    except SleyError as error:
        report_notes(error.diagnostics)
        return []


def _print(
    choices: Choices,
    commands: list[str],
    theirs: list[Beside],
    paths: list[Path],
    runtime: str,
    phases: Phases,
) -> None:
    """Prints a table. paths: its files, for `runtime`."""
    echo(choices.show())
    if phases.verbose:
        for one, command in zip(choices.ranges, commands, strict=True):
            echo(f"# {size_text(one.begin.size_bytes)}: {command}")
    if theirs:
        echo("\n".join(beside_lines(theirs)))
    for path in paths:
        echo(f"{'written':<23}{path} for {runtime}")
    if paths:
        wanted, table = formats.target_named(runtime), paths[0].parent / TABLE
        command = f"sley package DIR --table {table} --target {runtime_of(wanted).name}"
        command += f"@{wanted.version}" if wanted.version else ""
        echo(f"{'for a runtime':<23}{command}")
    phases.report()


def _form(runtime: str) -> formats.Format:
    return formats.FORMATS[formats.TARGETS[runtime].suffix]


def _selections(
    what: tuple[str, ...],
    in_place: bool | None,
    arguments: dict[str, object],
    collective: str | None,
) -> list[Selection]:
    """The selections, each with the arguments and the collective that it takes. Errors: click's
    usage error for arguments that none takes."""
    plain = [Selection(one, in_place=in_place, script=script_arguments()) for one in what]
    found = [_with_own(one, arguments, collective) for one in plain]
    if collective is not None and not any(one.collective for one in found):
        raise click.UsageError("--collective is for XML files and schedules")
    given = {word for one in found for word in one.arguments}
    if left := [word for word in arguments if word not in given]:
        raise click.UsageError(f"no WHAT takes {ARG} {' and '.join(left)}")
    if not any(one.script for one in found):
        refuse_arguments(plain[0])
    return found


def _with_own(
    selection: Selection, arguments: dict[str, object], collective: str | None
) -> Selection:
    """The selection with those arguments that it takes: a Python file all, a name of a collective
    and a plan none."""
    source = None if is_collective(selection.what) else source_of(selection)
    if source is not None and source.is_python:
        return replace(selection, arguments=arguments)
    plain = replace(selection, script=())
    if source is None:
        return plain
    if source.takes_collective:
        return replace(plain, collective=collective)
    if source.is_plan:
        return plain
    maker = maker_of(selection)
    own = {word: value for word, value in arguments.items() if maker.takes(word)}
    return replace(plain, arguments=own)


def _command(
    choice: Choice,
    made: list[_Contender],
    topology: str,
    choices: Choices,
    simulating: Simulating,
) -> str:
    """The command that simulates a choice at both ends of its range."""
    named = [
        one
        for program, one in made
        if program is choice.program
        or (isinstance(program, Plan) and program.name == choice.program.name)
    ]
    selection = named[0]
    words = ["sley", "simulate", selection.what, "--topology", topology]
    if selection.in_place is not None:
        words.append("--in-place" if selection.in_place else "--out-of-place")
    if selection.collective is not None:
        words += ["--collective", selection.collective]
    for name, value in selection.arguments.items():
        words += [ARG, f"{name}={value!r}"]
    given = {} if choice.as_given else options_json(choice.options)
    for word, value in given.items():
        if isinstance(value, bool):
            words.append(flag(word) if value else flag(f"no_{word}"))
        elif value is not None:
            words += [flag(word), str(value)]
    if choices.target in MESSAGE_TARGETS and simulating.interpreter is None:
        words += ["--target", str(choices.target)]
    elif choices.interpreter:
        words.append("--interpreter")
    for value in simulating.values:
        words += ["--set", value]
    begin, end = choice.begin.size_bytes, choice.end.size_bytes
    words += ["-b", _exact(begin)]
    if end > begin:
        words += ["-e", _exact(end), "-i", str(end - begin)]
    script = ["--", *selection.script] if selection.script else []
    return shlex.join([*words, *script])


def _exact(size_bytes: int) -> str:
    text = size_text(size_bytes)
    return text if size_in_bytes(text) == size_bytes else str(size_bytes)


def _json(choices: Choices, commands: list[str], paths: list[Path]) -> dict[str, Any]:
    """The JSON of a table."""
    ranges = [
        _range_json(choice, choices.topology) | {"command": command}
        for choice, command in zip(choices.ranges, commands, strict=True)
    ]
    for row, path in zip(ranges, paths, strict=False):
        row["file"] = str(path)
    own = attributes(
        choices, "interpreter", "target", "candidates", "simulations", "left", "untried"
    )
    others = [attributes(one, "algorithm", "size_bytes", "slower") for one in choices.others]
    return {
        "ok": True,
        "topology": choices.topology.name,
        **own,
        "ranges": ranges,
        "others": others,
    }


def _range_json(choice: Choice, topology: Topology) -> dict[str, Any]:
    ends = {
        word: {
            **attributes(p, "size_bytes", "time_us", "algbw_GBps"),
            "bound_us": p.bound.time_us,
            "of_bound": p.of_bound,
            "threads": threads_of(choice.plan, topology, p.size_bytes),
        }
        for word, p in (("begin", choice.begin), ("end", choice.end))
    }
    other = choice.runner_up
    return {
        **ends,
        **attributes(choice, "algorithm", "as_given"),
        "options": options_json(choice.options),
        "blocks_per_rank": choice.plan.blocks_per_rank,
        "runner_up": other
        and {
            **attributes(other, "algorithm", "as_given"),
            "options": options_json(other.options),
            **attributes(other, "size_bytes", "slower"),
        },
    }


def options_json(options: Options) -> dict[str, Any]:
    """The options that `sley compile` accepts, in its spelling."""
    return {word: _word(getattr(options, word)) for word in COMPILER_OPTIONS}


def _word(value: object) -> object:
    """The command line's spelling of an option's value."""
    return value.value if isinstance(value, Enum) else value
