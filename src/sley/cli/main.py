"""The group of commands, and sley completion.

Exit codes: 0 right, 1 a wrong program, file or run, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

import click
from click.shell_completion import get_completion_class

from sley.cli.bound import bound_command
from sley.cli.calibrate import calibrate_command
from sley.cli.catalogs import explain_command, list_command
from sley.cli.choose import choose_command
from sley.cli.compare import compare_command
from sley.cli.compile import compile_command
from sley.cli.doctor import doctor_command
from sley.cli.draw import draw_command
from sley.cli.exec import exec_command
from sley.cli.groups import groups_command
from sley.cli.import_schedule import import_command
from sley.cli.lift import lift_command
from sley.cli.output import Command, CommandGroup, echo
from sley.cli.package import package_command
from sley.cli.replan import replan_command
from sley.cli.run import run_command
from sley.cli.simulate import simulate_command
from sley.cli.synthesize import synthesize_command
from sley.cli.topology import topology_command
from sley.cli.tune import tune_command
from sley.cli.verify import verify_command


class _Commands(CommandGroup):
    """The commands, in sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(c.name), c.get_short_help_str(200)) for c in commands])


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(version("sley"), prog_name="sley")
def main() -> None:
    """Compile, prove and run collective communication.

    WHAT is an algorithm's name (sley list), a Python file with a program (FILE.py or
    FILE.py:NAME) or with a function that returns one (FILE.py:NAME --arg NAME=VALUE), a text in
    ResCCLang (FILE.resccl), a script for msccl-tools, a plan (FILE.plan, or FILE.xml in MSCCL XML),
    a synthesiser's schedule or, for sley verify, an execution plan of MSCCL++ (FILE.json).
    """


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, for example: eval "$(sley completion bash)"."""
    complete = get_completion_class(shell)
    if complete is None:
        raise click.UsageError(f"no completion for {shell}")
    echo(complete(ctx.find_root().command, {}, "sley", "_SLEY_COMPLETE").source())


SECTIONS: Mapping[str, Sequence[click.Command]] = {
    "Programs and plans": (
        *(compile_command, verify_command, import_command),
        *(synthesize_command, groups_command, replan_command),
        *(lift_command, draw_command, list_command),
    ),
    "Run": (run_command, exec_command, package_command, doctor_command),
    "Times": (
        *(simulate_command, bound_command, compare_command, choose_command),
        *(tune_command, calibrate_command, topology_command),
    ),
    "Help": (explain_command, completion_command),
}
"""The sections of the help, each with its commands."""

for _commands in SECTIONS.values():
    for _command in _commands:
        main.add_command(_command)
