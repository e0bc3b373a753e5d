"""sley policy: shows policies of the tuner, and exports them to other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from sley.cli.options import FILE, json_option
from sley.cli.output import Command, Group, echo, print_json, print_note, print_written
from sley.errors import counted
from sley.formats import TARGETS, check_folder, write_file
from sley.ir.sizes import size_text
from sley.report.tables import table_lines
from sley.tuning import policy as policies
from sley.tuning.pictures import draw_map
from sley.tuning.policy import Policy, exports
from sley.tuning.policy.exports import Export

_PLUGIN = "nccl-plugin"

_TEXTS: Mapping[str, Callable[[Policy], Export]] = {
    "nccl-csv": exports.nccl_csv,
    "ncclx-csv": exports.ncclx_csv,
    "rccl-csv": exports.rccl_csv,
    _PLUGIN: exports.nccl_plugin,
}
"""The exports that are texts."""

_PLANS = "plans"


@click.group("policy", cls=Group)
def policy_command() -> None:
    """Show and export the policies of tuners."""


@policy_command.command("show", cls=Command)
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the decision map of all FILES, size against ranks, as .svg, .png or .pdf.",
)
@json_option
def show_command(files: tuple[Path, ...], output: Path | None, as_json: bool) -> None:
    """Print the decisions of the policies FILES, and draw their decision map."""
    for file in files:
        _check_output(file, output)
    found = [policies.read(file) for file in files]
    if output is not None:
        check_folder(output)
        draw_map(found, output)
    if as_json:
        print_json({"ok": True, "policies": [_policy_json(one) for one in found]})
        return
    for file, one in zip(files, found, strict=True):
        echo("\n".join(_policy_lines(file, one)))
    if output is not None:
        print_written(output)


def _check_output(file: Path, output: Path | None) -> None:
    """Refuses to overwrite a policy that is read. Raises click.UsageError."""
    if output is not None and output.resolve() == file.resolve():
        raise click.UsageError(f"-o {output} is the policy itself")


def _policy_lines(file: Path, policy: Policy) -> list[str]:
    """The table of a policy."""
    notes = ", ".join(f"{name} {text}" for name, text in policy.notes.items())
    rows: list[tuple[str, ...]] = [
        ("collective", "sizes", "choice", "us at", "default us", "faster", "mean")
    ]
    for collective, ranges in policy.ranges.items():
        for one in ranges:
            last = one.measured[-1] if one.measured else None
            average, count = one.speedup(), len(one.measured)
            rows.append(
                (
                    collective,
                    str(one.sizes),
                    str(one.decision),
                    f"{last.time_us:.1f} at {size_text(last.size_bytes)}" if last else "-",
                    f"{last.default_us:.1f}" if last else "-",
                    f"{last.default_us / last.time_us:.2f}x" if last else "-",
                    f"{average:.2f}x of {counted(count, 'size')}" if average else "-",
                )
            )
    head = f"# {file}: {policy.machine}, agent {policy.agent}, {notes}"
    lines = [head, *table_lines(rows, range(3))]
    if not any(policy.ranges.values()):
        lines = [head, "# the default everywhere"]
    return [*lines, *_change_lines(policy), ""]


def _change_lines(policy: Policy) -> list[str]:
    """What the agent changed its mind about in training, and when."""
    if not policy.changes:
        return []
    lines = [f"# {counted(len(policy.changes), 'change')} in training"]
    for one in policy.changes:
        place = f"{one.collective} {size_text(one.size_bytes)}"
        lines.append(f"call {one.call:>6}  {place:<22} {one.before} -> {one.after}")
    return lines


def _policy_json(policy: Policy) -> dict[str, object]:
    return {
        "machine": dict(vars(policy.machine)),
        "agent": policy.agent,
        "notes": dict(policy.notes),
        "ranges": {
            collective: [
                {
                    "begin_bytes": one.sizes.begin_bytes,
                    "end_bytes": one.sizes.end_bytes,
                    "decision": str(one.decision),
                    "faster": one.speedup(),
                }
                for one in ranges
            ]
            for collective, ranges in policy.ranges.items()
        },
        "changes": [dict(vars(one)) for one in policy.changes],
    }


@policy_command.command("export", cls=Command)
@click.argument("file", type=FILE)
@click.option(
    "--to",
    required=True,
    type=click.Choice([*_TEXTS, _PLANS, *TARGETS]),
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
@json_option
def export_command(file: Path, to: str, output: Path, build: bool, as_json: bool) -> None:
    """Write the policy FILE for another runtime."""
    if build and to != _PLUGIN:
        raise click.UsageError(f"--build is for --to {_PLUGIN}")
    _check_output(file, output)
    policy = policies.read(file)
    if to in (_PLANS, *TARGETS):
        write = exports.write_plan_folder if to == _PLANS else _package_for(to)
        paths, remarks = write(policy, output)
    else:
        check_folder(output)
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
        print_note(remark)
    for path in paths:
        print_written(path)


def _package_for(target: str) -> Callable[[Policy, Path], tuple[list[Path], tuple[str, ...]]]:
    return lambda policy, folder: exports.write_package(policy, folder, target)
