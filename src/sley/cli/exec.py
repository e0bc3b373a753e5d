"""sley exec: starts a program whose calls of NCCL come to sley."""

from __future__ import annotations

import os
import shutil

import click

from sley.cli.output import Command
from sley.compiler.deployment import nccl_programs


@click.command("exec", cls=Command, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND ...")
def exec_command(command: tuple[str, ...]) -> None:
    """Start COMMAND with sley's library in the place of NCCL's.

    It and the programs that it starts load the library (LD_PRELOAD). In this version the library
    passes all calls on to NVIDIA's NCCL, which it finds itself or by SLEY_NCCL_LIBRARY.
    """
    variables = nccl_programs.environment(os.environ)
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no program {command[0]!r}")
    os.execvpe(command[0], command, variables)
