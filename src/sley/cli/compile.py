"""sley compile: compiles a program to a proven plan, and writes the plan to a file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sley.cli.options import (
    POSITIVE,
    BlockThreads,
    DType,
    PlanCommand,
    RuntimeName,
    Selection,
    SizeType,
    Whole,
    common_options,
    flag,
    output_option,
    plan_options,
)
from sley.cli.output import Phases, echo, print_rows
from sley.cli.simulating import note_blocks
from sley.cli.sources import (
    MESSAGE_TARGETS,
    generic,
    plan_and_file,
    recipe_of,
    refuse_foreign,
    source_of,
)
from sley.compiler.pipeline import PASSES
from sley.engine.devices import THREADS
from sley.engine.measure import REDUCE_OPS
from sley.errors import counted, recognition
from sley.formats import TARGETS, Format, Imported, RuntimeFormat, by_suffix, files, write_files
from sley.ir.collectives import standard
from sley.ir.plan import Plan
from sley.ir.sizes import SizeRange
from sley.ir.words import Schedule
from sley.report.tables import estimate_lines, pipeline_table, plan_summary, plan_table

_SUFFIXES = ", ".join(f"{suffix} for {form.name}" for suffix, form in files.FORMATS.items())


_OF_SCRIPTS = {".xml": "msccl"}
"""The runtime for which scripts for msccl-tools are written, which runs their own collectives."""


@click.command("compile", cls=PlanCommand)
@plan_options
@click.option("--size", type=SizeType(), help="Size of a call, for --schedule auto and traces.")
@output_option(f"Write the plan here: {_SUFFIXES}.")
@click.option(
    "--target",
    type=RuntimeName(TARGETS),
    help="The runtime to write the plan for; its limits are checked. [XML: executor]",
)
@click.option("--min-bytes", type=SizeType(), help="Smallest size of a call. [0, or the file's]")
@click.option("--max-bytes", type=SizeType(), help="Largest size of a call. [the file's]")
@click.option("-d", "--dtype", type=DType(), help="Element type of kernels. [float32]")
@click.option("--op", type=click.Choice(list(REDUCE_OPS)), help="Reduction of kernels. [sum]")
@click.option(
    "--threads", type=BlockThreads(), help=f"Threads of a thread block. [kernels: {THREADS}]"
)
@click.option(
    "--zero-copy",
    is_flag=True,
    default=None,
    help="MSCCL++: put data directly into the buffers of other ranks, at equal offsets.",
)
@click.option(
    "--ranks-per-node",
    type=POSITIVE,
    help="MSCCL++: ranks on a host; port channels connect hosts. [--gpus, or the topology's]",
)
@click.option(
    "--tile-bytes", type=SizeType(), help="ASTRA-sim: cut chunks into tiles of this size. [none]"
)
@click.option("--show-pipelines", is_flag=True, help="Print the sub-pipelines.")
@click.option("--show-rank", type=Whole(0), help="Print the blocks of this rank.")
@click.option(
    "--print-after",
    metavar="PASS",
    type=click.Choice(PASSES),
    multiple=True,
    help=f"Print the result of this pass: {', '.join(PASSES)}. Repeatable.",
)
@common_options
def compile_command(  # as many parameters as options; click passes each by name
    selection: Selection,
    output: Path | None,
    target: str | None,
    print_after: tuple[str, ...],
    phases: Phases,
    show_pipelines: bool,
    show_rank: int | None,
    **settings: Any,
) -> None:
    """Compile WHAT, prove the plan correct, and write it with -o."""
    if phases.quiet and print_after:
        raise click.UsageError("--print-after prints tables, not JSON; leave --json out")
    for word, value in settings.items():
        if value is not None and output is None:
            raise click.UsageError(f"{flag(word)} needs -o")
    op, own, holds = settings.pop("op"), dict[str, int | None](), list[str]()
    phases.print_after = print_after
    form = None
    if target is None and output is not None:
        is_script = source_of(selection).kind is recognition.MSCCL_TOOLS
        target = _OF_SCRIPTS.get(output.suffix.lower()) if is_script else None
    if target is not None:
        target = str(TARGETS[target])
        form = files.FORMATS[TARGETS[target].suffix]
    if output is not None:
        form = by_suffix(output, files.FORMATS)
        known = {"op" if word == "reduce_op" else word for word in form.settings}
        known |= {"target"} if form.targets else set()
        refuse_foreign(form, known, {**settings, "op": op, "target": target})
    if form is not None and "size" in form.settings:
        # A size for the compiler is one for which it chooses.
        settings["size"] = selection.size
        if selection.options.schedule is not Schedule.AUTO:
            selection = replace(selection, size=None)
    plan, imported = plan_and_file(selection, phases, verify=True, form=form)
    _check_print_after(phases)
    if plan.topology is not None:
        note_blocks(plan.name, plan.blocks_per_rank, plan.topology.model)
    if show_rank is not None and show_rank >= plan.collective.ranks:
        raise click.UsageError(f"--show-rank: ranks are 0 to {plan.collective.ranks - 1}")
    if output is not None:
        # The nodes for which an algorithm is built are hosts for the runtime too.
        by_hosts = form is not None and "ranks_per_node" in form.settings
        if by_hosts and settings["ranks_per_node"] is None and plan.topology is None:
            settings["ranks_per_node"] = selection.gpus
        own = _own_sizes(form, target, imported, settings)
        settings |= own
        if form is not None and form.is_own:
            settings["recipe"] = recipe_of(selection) if imported is None else imported.recipe
        with phases("writing"):
            settings |= {"target": target, "reduce_op": REDUCE_OPS.get(op)}
            content, proofs = files.render(plan, output, **settings)
            write_files(content)
        holds = list(dict.fromkeys(proof.holds for proof in proofs))
    elif target is not None:
        with phases("limits"):
            files.check(plan, target)
    if phases.quiet:
        phases.print_json(plan=plan_summary(plan), output=output and str(output))
        return
    kernels = f"{settings['dtype'] or 'float32'} and {op or 'sum'}"
    print_rows(_summary(plan))
    echo("".join(f"{one}\n" for one in holds), nl=False)
    rows = [*_sizes(own), *_written(form, output, target, kernels)]
    if isinstance(form, RuntimeFormat) and output is not None:
        rows.append(_time_of(selection, plan, output, target or str(form.targets[0])))
    print_rows(rows)
    if show_pipelines:
        echo("\n".join(pipeline_table(plan)))
    if show_rank is not None:
        echo("\n".join(plan_table(plan, show_rank)))
    phases.report()


def _own_sizes(
    form: Format | None, target: str | None, imported: Imported | None, given: Mapping[str, Any]
) -> dict[str, int | None]:
    """The range of sizes of an imported plan, as the new file's target would read it, where the
    user has given none."""
    if imported is None or not isinstance(form, RuntimeFormat):
        return {}
    own = imported.sizes(TARGETS[target or str(form.targets[0])])
    ends = {"min_bytes": own.begin_bytes, "max_bytes": own.end_bytes}
    return {word: size for word, size in ends.items() if given[word] is None}


def _sizes(own: Mapping[str, int | None]) -> list[tuple[str, str]]:
    """The row about the sizes that the new file has from the imported one, if it limits any."""
    least, most = own.get("min_bytes"), own.get("max_bytes")
    if least or most is not None:
        return [("sizes", f"{SizeRange(least or 0, most)}, as in the file")]
    return []


def _summary(plan: Plan) -> list[tuple[str, str]]:
    """The plan's resources, its estimated time, and its proof: pairs of a name and a value."""
    rows = []
    for word, value in plan_summary(plan).items():
        if word == "estimate":
            continue
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        rows.append((word.replace("_", " "), str(text)))
    if plan.estimate is not None:
        rows += estimate_lines(plan.estimate)
    proven = f"right values, no races, no hangs with {counted(plan.slots, 'slot')} or more"
    return [*rows, ("proven", proven + (", one for each chunk" if plan.per_chunk else ""))]


def _written(
    form: Format | None, output: Path | None, target: str | None, kernels: str
) -> list[tuple[str, str]]:
    """The row about the file, or about the checked limits. kernels: what kernels are for."""
    if form is None:
        return []
    if form.is_own:
        return [("written", str(output))]
    if output is None:
        return [("limits", f"within those of {target}")]
    if form.per_rank:
        return [("written", f"{output.with_suffix('')}.RANK{output.suffix} for {form.name}")]
    default = str(form.targets[0]) if form.targets else kernels
    return [("written", f"{output} for {target or default}")]


def _time_of(selection: Selection, plan: Plan, output: Path, target: str) -> tuple[str, str]:
    """The row about the command that predicts the time of the written file."""
    if target not in MESSAGE_TARGETS:
        return ("time", f"none: sley doesn't simulate the executor of {target}")
    words = ["sley", "simulate", str(output), "--target", target]
    if standard(plan.collective) is None and source_of(selection).is_python:
        words += ["--collective", selection.what]
    topology = selection.topology or (plan.topology and plan.topology.name)
    # The ranks of a file's plan don't say how many share a node.
    if topology is None and source_of(selection).is_plan:
        topology = "NAME"
    words += ["--topology", topology or generic(selection, plan.collective.ranks)]
    return ("its time", f"{shlex.join(words)}: as {target} executes the file")


def _check_print_after(phases: Phases) -> None:
    """Refuses --print-after for a pass that did not run. Errors: click's usage error."""
    ran = [name for name in PASSES if name in phases.seconds]
    for name in phases.print_after:
        if name not in ran:
            found = f"only {', '.join(ran)} did" if ran else "nothing is compiled"
            raise click.UsageError(f"--print-after {name}: this pass did not run; {found}")
