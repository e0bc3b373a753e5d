"""sley policy: exports policies of the tuner to other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from sley import policy as policies
from sley.cli.options import FILE, json_option
from sley.cli.output import Command, print_json
from sley.formats import TARGETS, check_folder, write_file
from sley.policy import Policy, exports
from sley.policy.exports import Export

_PLUGIN = "nccl-plugin"
_CSV = "nccl-csv"

_TEXTS: Mapping[str, Callable[[Policy], Export]] = {
    "ncclx-csv": exports.ncclx_csv,
    "rccl-csv": exports.rccl_csv,
    _PLUGIN: exports.nccl_plugin,
}
"""The exports that are texts and need nothing besides the policy."""

_PLANS = "plans"


@click.group("policy")
def policy_command() -> None:
    """Export what a tuner has learned."""


@policy_command.command("export", cls=Command)
@click.argument("file", type=FILE)
@click.option(
    "--to",
    required=True,
    type=click.Choice([_CSV, *_TEXTS, _PLANS, *TARGETS]),
    help="NCCL's example tuner (nccl-csv), NCCLX, RCCL, a tuner plug-in in C, or a folder of plans "
    "for sley's communicators (plans) or for another runtime.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Write this file or, for plans, this folder. A plug-in as C, or compiled if it ends in "
    ".so.",
)
@click.option("--build", is_flag=True, help="Compile the plug-in with $CC or cc.")
@click.option(
    "--default",
    type=FILE,
    metavar="FILE",
    help="For nccl-csv: a policy with NCCL's own choices, for the calls that FILE doesn't decide.",
)
@json_option
def export_command(
    file: Path, to: str, output: Path, build: bool, default: Path | None, as_json: bool
) -> None:
    """Write the policy FILE for another runtime."""
    if build and to != _PLUGIN:
        raise click.UsageError(f"--build is for --to {_PLUGIN}")
    if default is not None and to != _CSV:
        raise click.UsageError(f"--default is for --to {_CSV}")
    policy = policies.read(file)
    if to in (_PLANS, *TARGETS):
        write = exports.write_plan_folder if to == _PLANS else _package_for(to)
        paths, remarks = write(policy, output)
    else:
        check_folder(output)
        if to == _CSV:
            export = exports.nccl_csv(policy, None if default is None else policies.read(default))
        else:
            export = _TEXTS[to](policy)
        if build or (to == _PLUGIN and output.suffix == ".so"):
            exports.build_plugin(export.text, output)
        else:
            write_file(output, export.text)
        paths, remarks = [output], export.remarks
    if as_json:
        print_json({"ok": True, "files": [str(path) for path in paths], "remarks": list(remarks)})
        return
    for remark in remarks:
        click.echo(f"note: {remark}", err=True)
    for path in paths:
        click.echo(f"{'written':<23}{path}")


def _package_for(target: str) -> Callable[[Policy, Path], tuple[list[Path], tuple[str, ...]]]:
    return lambda policy, folder: exports.write_package(policy, folder, target)
