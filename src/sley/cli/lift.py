"""sley lift: turns a plan back into a program with the same meaning."""

from __future__ import annotations

from pathlib import Path

import click

from sley.cli.options import PlanCommand, Selection, common_options, output_option, program_options
from sley.cli.output import Phases, echo, print_rows, print_written
from sley.cli.sources import plan_of, program_facts
from sley.compiler import compile
from sley.compiler.passes.lift import lift
from sley.formats import program_source, write_file


@click.command("lift", cls=PlanCommand)
@program_options
@output_option("Write the program here. [standard output]")
@common_options
def lift_command(selection: Selection, output: Path | None, phases: Phases) -> None:
    """Lift WHAT, a plan, to a program with the same meaning.

    sley writes the program as Python, and proves it by compiling it. You can read it, change it,
    and compile it for another schedule or protocol. A program has no channels, thread blocks or
    order of instructions.
    """
    plan = plan_of(selection, phases, verify=True)
    with phases("lifting"):
        program = lift(plan)
    with phases("proof of the program"):
        compile(program)
    with phases("writing"):
        text = program_source.write(program)
        if output is not None:
            write_file(output, text)
    summary = program_facts(program)
    if phases.quiet:
        where = {"output": str(output)} if output is not None else {"output": None, "text": text}
        phases.print_json(program=summary, **where)
        return
    if output is None:
        echo(text, nl=False)
    # Without a file, standard output contains only the program.
    rows = [(word.replace("_", " "), value) for word, value in summary.items()]
    rows += [("proven", "compiled again: right values, no races, no hangs")]
    print_rows(rows, err=output is None)
    print_written(output)
    phases.report()
