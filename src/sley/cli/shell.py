"""sley completion: the script that makes a shell complete names and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, for example: eval "$(sley completion bash)"."""
    complete = get_completion_class(shell)
    if complete is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(complete(ctx.find_root().command, {}, "sley", "_SLEY_COMPLETE").source())
