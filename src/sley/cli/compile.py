"""sley compile: from a program to a proven plan, and to a file."""

from __future__ import annotations

from pathlib import Path

import click

from sley import files, formats
from sley.cli.options import Selection, SizeType, common_options, plan_options
from sley.cli.output import Command, Phases, print_json
from sley.cli.sources import plan_of
from sley.errors import counted
from sley.report.tables import estimate_lines, pipeline_table, plan_summary, plan_table


@click.command("compile", cls=Command)
@plan_options
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the plan here."
)
@click.option(
    "--target",
    type=click.Choice(list(formats.TARGETS)),
    help="The runtime that the plan is for, and that its limits are checked for. [executor]",
)
@click.option("--min-bytes", type=SizeType(), default=0, help="Least size of a call.")
@click.option("--max-bytes", type=SizeType(), help="Greatest size of a call.")
@click.option("--show-pipelines", is_flag=True, help="Print the sub-pipelines.")
@click.option("--show-rank", type=click.IntRange(min=0), help="Print the blocks of this rank.")
@common_options
def compile_command(
    selection: Selection,
    output: Path | None,
    target: str | None,
    min_bytes: int,
    max_bytes: int | None,
    show_pipelines: bool,
    show_rank: int | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Compile WHAT, prove it right, and write it with -o."""
    phases = Phases(quiet=as_json)
    plan = plan_of(selection, phases, verify=True, per_chunk=bool(output or target))
    if show_rank is not None and show_rank >= plan.collective.ranks:
        raise click.UsageError(f"--show-rank: ranks are 0 to {plan.collective.ranks - 1}")
    if output is None and target is not None:
        with phases("limits"):
            formats.msccl_xml.write(plan, target, min_bytes=min_bytes, max_bytes=max_bytes)
    if output is not None:
        target = target or "executor"
        with phases("writing"):
            files.save(plan, output, target=target, min_bytes=min_bytes, max_bytes=max_bytes)
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
        click.echo(f"{'written':<23}{output} for {target}")
    elif target is not None:
        click.echo(f"{'limits':<23}within those of {target}")
    if show_pipelines:
        click.echo("\n".join(pipeline_table(plan)))
    if show_rank is not None:
        click.echo("\n".join(plan_table(plan, show_rank)))
    if verbose:
        phases.report()
