"""sley tune show, sley tune export: policies of tuners, for people and for other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from sley.cli.options import FILE, RuntimeName, json_option, output_option
from sley.cli.output import Command, attributes, echo, print_json, print_note, print_written
from sley.errors import counted
from sley.formats import TARGETS, check_folder, write_file
from sley.ir.sizes import size_text
from sley.report.tables import table_lines
from sley.tuning import policy as policies
from sley.tuning.pictures import draw_map
from sley.tuning.policy import Policy, exports
from sley.tuning.policy.exports import Export

_Written = tuple[list[Path], Sequence[str]]
"""The files that were written, and remarks."""

_TABLES: Mapping[str, Callable[[Policy], Export]] = {
    "nccl": exports.nccl_csv,
    "ncclx": exports.ncclx_csv,
    "rccl": exports.rccl_csv,
}
"""The runtimes with a tuner that reads tables, by name."""

_PLUGINS = (".c", ".so")
"""The suffixes of a tuner plug-in, in C and compiled."""


@click.command("show", cls=Command)
@click.argument("files", nargs=-1, required=True, type=FILE)
@output_option("Draw the decision map of all FILES, size against ranks, as .svg, .png or .pdf.")
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
    print_written(output)


def _check_output(file: Path, output: Path | None) -> None:
    """Refuses to overwrite a policy that is read. Raises click.UsageError."""
    if output is not None and output.resolve() == file.resolve():
        raise click.UsageError(f"-o {output} is the policy itself")


def _policy_lines(file: Path, policy: Policy) -> list[str]:
    """The table of a policy."""
    notes = ", ".join(f"{name} {text}" for name, text in policy.facts.get("notes", {}).items())
    rows: list[tuple[str, ...]] = [
        ("collective", "sizes", "choice", "us at", "default us", "faster", "mean")
    ]
    for one in policy.rows:
        last = one.measured[-1] if one.measured else None
        average, count = one.speedup, len(one.measured)
        rows.append(
            (
                one.collective,
                str(one.sizes),
                str(one.recipe),
                f"{last.time_us:.1f} at {size_text(last.size_bytes)}" if last else "-",
                f"{last.default_us:.1f}" if last else "-",
                f"{last.default_us / last.time_us:.2f}x" if last else "-",
                f"{average:.2f}x of {counted(count, 'size')}" if average else "-",
            )
        )
    head = f"# {file}: {policy.machine}, agent {policy.agent}, {notes}"
    lines = [head, *table_lines(rows, range(3))]
    if not policy.rows:
        lines = [head, "# the default everywhere"]
    return [*lines, *_change_lines(policy), ""]


def _change_lines(policy: Policy) -> list[str]:
    """What the agent changed its mind about in training, and when."""
    changes = policy.facts.get("changes", [])
    lines = [f"# {counted(len(changes), 'change')} in training"] if changes else []
    for one in changes:
        place = f"{one['collective']} {size_text(one['size_bytes'])}"
        lines.append(f"call {one['call']:>6}  {place:<22} {one['before']} -> {one['after']}")
    return lines


def _policy_json(policy: Policy) -> dict[str, object]:
    return {
        "machine": dict(vars(policy.machine)),
        "agent": policy.agent,
        "notes": policy.facts.get("notes", {}),
        "ranges": {
            collective: [
                {
                    **attributes(one.sizes, "begin_bytes", "end_bytes"),
                    "decision": str(one.recipe),
                    "faster": one.speedup,
                }
                for one in policy.of(collective)
            ]
            for collective in policy.collectives
        },
        "changes": policy.facts.get("changes", []),
    }


@click.command("export", cls=Command)
@click.argument("file", type=FILE)
@click.option(
    "--target",
    type=RuntimeName(dict.fromkeys((*_TABLES, *TARGETS))),
    help="The runtime. [sley's communicators, SLEY_PLAN_DIR]",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="A folder of plans; for nccl and ncclx, and for rccl as NAME.csv, a table for their "
    "tuners; for nccl as NAME.c, or NAME.so (compiled with $CC or cc), a tuner plug-in.",
)
@json_option
def export_command(file: Path, target: str | None, output: Path, as_json: bool) -> None:
    """Write the policy FILE for sley's communicators, or for another runtime."""
    _check_output(file, output)
    paths, remarks = _write(policies.read(file), target, output)
    if as_json:
        print_json({"ok": True, "files": [str(path) for path in paths], "remarks": list(remarks)})
        return
    for remark in remarks:
        print_note(remark)
    print_written(*paths)


def _write(policy: Policy, target: str | None, output: Path) -> _Written:
    """Writes a policy for a target; the suffix of the output says what. A folder has none."""
    if target is None:
        return exports.write_plan_folder(policy, output)
    is_plugin = target == "nccl" and output.suffix in _PLUGINS
    if not is_plugin and (target not in _TABLES or (target in TARGETS and not output.suffix)):
        return exports.write_package(policy, output, target)
    check_folder(output)
    export = (exports.nccl_plugin if is_plugin else _TABLES[target])(policy)
    if is_plugin and output.suffix == ".so":
        exports.build_plugin(export.text, output)
    else:
        write_file(output, export.text)
    return [output], export.remarks
