"""sley compile: from a program to a proven plan, and to a file."""

from __future__ import annotations

from pathlib import Path

import click

from sley import files, formats
from sley.cli.options import (
    BlockThreads,
    DType,
    Selection,
    SizeType,
    common_options,
    plan_options,
)
from sley.cli.output import Command, Phases, print_json
from sley.cli.sources import plan_of
from sley.compiler.pipeline import PASSES
from sley.devices import THREADS
from sley.engine.measure import REDUCE_OPS
from sley.errors import counted
from sley.report.tables import estimate_lines, pipeline_table, plan_summary, plan_table


@click.command("compile", cls=Command)
@plan_options
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan here: .xml is MSCCL XML, .cu are kernels for GPUs, .cpp for CPUs.",
)
@click.option(
    "--target",
    type=click.Choice(list(formats.TARGETS)),
    help="The runtime that the plan is for, and that its limits are checked for. [executor]",
)
@click.option("--min-bytes", type=SizeType(), default=0, help="Least size of a call.")
@click.option("--max-bytes", type=SizeType(), help="Greatest size of a call.")
@click.option("-d", "--dtype", type=DType(), help="Of kernels: the elements' type. [float32]")
@click.option(
    "--op",
    "reduce_op",
    type=click.Choice(list(REDUCE_OPS)),
    help="Of kernels: the reduction. [sum]",
)
@click.option(
    "--threads", type=BlockThreads(), help=f"Threads of a thread block. [of kernels {THREADS}]"
)
@click.option("--show-pipelines", is_flag=True, help="Print the sub-pipelines.")
@click.option("--show-rank", type=click.IntRange(min=0), help="Print the blocks of this rank.")
@click.option(
    "--print-after",
    metavar="PASS",
    type=click.Choice(PASSES),
    multiple=True,
    help=f"Print what this pass makes: {', '.join(PASSES)}. Several times for several.",
)
@common_options
def compile_command(
    selection: Selection,
    output: Path | None,
    target: str | None,
    min_bytes: int,
    max_bytes: int | None,
    dtype: str | None,
    reduce_op: str | None,
    threads: int | None,
    show_pipelines: bool,
    show_rank: int | None,
    print_after: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> None:
    """Compile WHAT, prove it right, and write it with -o."""
    if as_json and print_after:
        raise click.UsageError("--print-after prints tables for people; leave --json out")
    phases = Phases(quiet=as_json, print_after=print_after)
    is_kernels = output is not None and output.suffix.lower() in files.KERNEL_SUFFIXES
    of_output = {"dtype": dtype, "op": reduce_op, "threads": threads}
    for word, given in of_output.items():
        if given is not None and output is None:
            raise click.UsageError(f"--{word} goes with -o")
    per_chunk = bool(target or (output is not None and not is_kernels))
    plan = plan_of(selection, phases, verify=True, per_chunk=per_chunk)
    _check_printed(phases)
    if show_rank is not None and show_rank >= plan.collective.ranks:
        raise click.UsageError(f"--show-rank: ranks are 0 to {plan.collective.ranks - 1}")
    if output is None and target is not None:
        with phases("limits"):
            formats.msccl_xml.write(plan, target, min_bytes=min_bytes, max_bytes=max_bytes)
    if output is not None:
        with phases("writing"):
            files.save(
                plan,
                output,
                target=target,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                threads=threads,
                dtype=dtype,
                reduce_op=REDUCE_OPS[reduce_op] if reduce_op else None,
            )
    summary = plan_summary(plan)
    if as_json:
        seconds = phases.seconds
        print_json(
            {"ok": True, "plan": summary, "output": output and str(output), "seconds": seconds}
        )
        return
    summary.pop("estimate", None)
    for word, value in summary.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        click.echo(f"{word.replace('_', ' '):<23}{text}")
    if plan.estimate is not None:
        for word, text in estimate_lines(plan.estimate):
            click.echo(f"{word:<23}{text}")
    click.echo(
        f"{'proven':<23}right values, no races, no hangs with {counted(plan.slots, 'slot')} or more"
        + (", one for each chunk" if plan.per_chunk else "")
    )
    if output is not None:
        kernels = f"{dtype or 'float32'} and {reduce_op or 'sum'}"
        click.echo(f"{'written':<23}{output} for {kernels if is_kernels else target or 'executor'}")
    elif target is not None:
        click.echo(f"{'limits':<23}within those of {target}")
    if show_pipelines:
        click.echo("\n".join(pipeline_table(plan)))
    if show_rank is not None:
        click.echo("\n".join(plan_table(plan, show_rank)))
    if verbose:
        phases.report()


def _check_printed(phases: Phases) -> None:
    """click's usage error for a pass that is to be printed and did not run."""
    ran = [name for name in PASSES if name in phases.seconds]
    for name in phases.print_after:
        if name not in ran:
            found = (
                f"those that ran are {', '.join(ran)}" if ran else "none did: nothing is compiled"
            )
            raise click.UsageError(f"--print-after {name}: this pass did not run; {found}")
