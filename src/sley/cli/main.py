"""The group of commands, and sley completion.

Exit codes: 0 right, 1 a wrong program, file or run, 2 wrong usage (click's own).
"""

from __future__ import annotations

from importlib.metadata import version

import click
from click.shell_completion import get_completion_class

from sley.cli.bench import bench_command
from sley.cli.calibrate import calibrate_command
from sley.cli.catalogs import explain_command, list_command
from sley.cli.choose import choose_command
from sley.cli.compare import compare_command
from sley.cli.compile import compile_command
from sley.cli.doctor import doctor_command
from sley.cli.draw import draw_command
from sley.cli.import_schedule import import_command
from sley.cli.lift import lift_command
from sley.cli.msccl import msccl_command
from sley.cli.package import package_command
from sley.cli.policy import policy_command
from sley.cli.run import run_command
from sley.cli.simulate import simulate_command
from sley.cli.sweep import sweep_command
from sley.cli.topology import topology_command
from sley.cli.tune import tune_command
from sley.cli.verify import verify_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("sley"), prog_name="sley")
def main() -> None:
    """Compile, prove and run collective communication.

    WHAT is an algorithm's name (sley list), a Python file with a program (FILE.py or
    FILE.py:NAME), a text in ResCCLang (FILE.resccl), a plan in MSCCL XML (FILE.xml), a
    synthesiser's schedule (sley import) or, for sley verify, an execution plan of MSCCL++
    (FILE.json).
    """


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, for example: eval "$(sley completion bash)"."""
    complete = get_completion_class(shell)
    if complete is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(complete(ctx.find_root().command, {}, "sley", "_SLEY_COMPLETE").source())


for _command in (
    run_command,
    bench_command,
    compile_command,
    import_command,
    verify_command,
    simulate_command,
    compare_command,
    calibrate_command,
    choose_command,
    sweep_command,
    tune_command,
    policy_command,
    package_command,
    doctor_command,
    lift_command,
    msccl_command,
    draw_command,
    explain_command,
    list_command,
    topology_command,
    completion_command,
):
    main.add_command(_command)
