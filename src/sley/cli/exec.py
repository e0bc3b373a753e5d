"""sley exec: starts a program whose calls of NCCL come to sley."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click
from click.core import ParameterSource

from sley.cli.options import Several, Whole
from sley.cli.output import Command, print_note
from sley.communicator.settings import SAME_BITS, read_flag
from sley.compiler.deployment import nccl_programs
from sley.engine.kernels.prebuilt import prebuilt_folder
from sley.errors import SleyError
from sley.errors.disk_cache import folder


@click.command("exec", cls=Command, context_settings={"allow_interspersed_args": False})
@click.option(
    "--ranks",
    type=Several(Whole(1)),
    default=tuple(range(1, 9)),
    help="Numbers of ranks for which plans are made ahead. [1 to 8]",
)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND ...")
def exec_command(ranks: tuple[int, ...], command: tuple[str, ...]) -> None:
    """Start COMMAND with sley's library in the place of NCCL's.

    It and the programs that it starts load the library (LD_PRELOAD), which runs collectives with
    plans that are made here, once for a machine, and with the kernels of the package sley-kernels.
    It passes all other calls on to NVIDIA's NCCL, which it finds itself or by SLEY_NCCL_LIBRARY.
    Where sley can make no plans, NCCL runs all calls; with --ranks, that is an error.
    """
    same_bits = read_flag(SAME_BITS, os.environ.get(SAME_BITS) or "0")
    variables = nccl_programs.environment(os.environ)
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no program {command[0]!r}")
    if variables.get("SLEY_NCCL") != "off" and nccl_programs.TABLES not in variables:
        given = variables.get(nccl_programs.KERNELS)
        try:
            variables |= _made_ahead(ranks, given, same_bits=same_bits)
        except _NothingToRunError as error:
            source = click.get_current_context().get_parameter_source("ranks")
            if source is ParameterSource.COMMANDLINE:
                raise click.ClickException(f"no plans for --ranks: {error}") from None
            print_note(f"sley runs no calls: {error}")
    os.execvpe(command[0], command, variables)


class _NothingToRunError(Exception):
    """Why sley can run no calls."""


def _made_ahead(ranks: tuple[int, ...], given: str | None, *, same_bits: bool) -> dict[str, str]:
    """The variables with the folders of plans and of kernels, which may be given. Errors:
    _NothingToRunError, where sley can run no calls."""
    from sley.communicator import link_tables  # only here, since it loads much

    kernels = Path(given) if given else prebuilt_folder()
    if kernels is None:
        raise _NothingToRunError(
            "its extra `kernels` isn't installed; in a clone of its repository "
            "python .ci/prebuild.py FOLDER makes that"
        )
    try:
        keys = [
            key for number in ranks for key in link_tables.machine_keys(number, same_bits=same_bits)
        ]
        section = link_tables.section()
        tables = [link_tables.read(key, section) for key in keys]
        lacking = [str(key.ranks) for key, own in zip(keys, tables, strict=True) if own is None]
        if lacking:
            counts = ", ".join(dict.fromkeys(lacking))
            print_note(f"plans for {counts} ranks are made, once: 2 seconds or more for each")
        every = [
            own or link_tables.write(key, section) for key, own in zip(keys, tables, strict=True)
        ]
    except SleyError as error:
        found = error.diagnostics[0]
        text = f"expected {found.expected}, found {found.found}"
        raise _NothingToRunError(text) from None
    files = {name for own in every for name in own.files}
    if gone := [name for name in files if not (kernels / name).is_file()]:
        print_note(
            f"sley may run no calls: {kernels} lacks {len(gone)} of {len(files)} kernels, "
            "as those of another version of sley do"
        )
    return {nccl_programs.TABLES: str(folder(section)), nccl_programs.KERNELS: str(kernels)}
