"""sley groups: plans for groups that call collectives at the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from sley.cli.options import SizeType, common_options, place_option
from sley.cli.output import Command, Phases, print_rows, print_written
from sley.cli.simulating import note_blocks
from sley.cli.sources import topology_of
from sley.compiler.group_plans import GroupCall, GroupPlans, plan_groups
from sley.errors import counted
from sley.formats import files
from sley.ir.sizes import size_text
from sley.topologies import grid_groups

_SPAN = re.compile(r"(\d+)(?:-(\d+))?")

_Calls: TypeAlias = tuple[tuple[str, str, int], ...]
"""The names of groups, a collective and a size of each call."""


class _CallType(click.ParamType[tuple[str, str, int]]):
    """Groups, a collective and a size."""

    name = "GROUPS:COLLECTIVE:SIZE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, int]:
        parts = str(value).split(":")
        if len(parts) != 3:
            self.fail(f"{value!r} is not {self.name}, as in tp:allreduce:64M", param, ctx)
        return parts[0], parts[1], SizeType().convert(parts[2], param, ctx)


class _GridType(click.ParamType[dict[str, int]]):
    """The sizes of a grid."""

    name = "NAME=SIZE,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, int]:
        pairs = [one.partition("=") for one in str(value).split(",")]
        names = {name for name, *_ in pairs}
        if len(names) < len(pairs) or not all(n and size.isdecimal() for n, _, size in pairs):
            self.fail(f"{value!r} is not different names and sizes, as in tp=4,dp=8", param, ctx)
        return {name: int(size) for name, _, size in pairs}


@click.command("groups", cls=Command)
@click.argument("calls", nargs=-1, required=True, type=_CallType(), metavar="CALL...")
@click.option("--topology", required=True, help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@click.option(
    "--grid",
    type=_GridType(),
    help="Sizes of the grid of ranks, with neighbours along the first: tp=4,dp=8.",
)
@place_option(default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the plan of each group into this folder.",
)
@common_options
def groups_command(
    calls: _Calls,
    topology: str,
    grid: dict[str, int] | None,
    in_place: bool,
    output: Path | None,
    phases: Phases,
) -> None:
    """Plan collectives that groups of ranks call at the same time, and simulate them together.

    A CALL is GROUPS:COLLECTIVE:SIZE: tp:allreduce:64M for the groups along tp of --grid tp=4,dp=8,
    or 0-3/4-7:allgather:1G for groups of ranks; allgather, reducescatter, allreduce or alltoall.
    """
    cluster = topology_of(topology)
    assert cluster is not None
    dimensions = grid_groups(cluster.ranks, grid) if grid else {}
    made = [
        GroupCall(collective, size, dimensions.get(name) or _ranks(name, cluster.ranks, grid))
        for name, collective, size in calls
    ]
    with phases("packing, compiling and simulating"):
        found = plan_groups(made, cluster, in_place=in_place)
    blocks = np.zeros(cluster.ranks, np.int64)
    for group, plan in zip(found.groups, found.plans, strict=True):
        blocks[list(group.ranks)] += plan.blocks_per_rank
    note_blocks("all calls", int(blocks.max()), cluster.model)
    written = [] if output is None else _write(output, calls, found)
    if phases.quiet:
        phases.print_json(
            calls=list(_times(calls, found)),
            time_us=float(found.time_us.max()),
            bound_us=found.bound_us,
            output=[str(one) for one in written],
        )
        return
    print_rows(_rows(calls, found))
    print_written(*written)
    phases.report()


def _write(folder: Path, calls: _Calls, found: GroupPlans) -> list[Path]:
    """Writes the plan of each group; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = list[Path]()
    for call, group, plan in zip(found.call.tolist(), found.groups, found.plans, strict=True):
        name = calls[call][0].replace("/", "+")
        written.append(folder / f"{call}-{name}-{plan.collective.name}-{group.ranks[0]}.plan")
        files.save(plan, written[-1])
    return written


def _times(calls: _Calls, found: GroupPlans) -> Iterator[dict[str, Any]]:
    """For each call, the times of its slowest group."""
    words = ("alone_us", "apart_us", "time_us")
    for call, (name, collective, size) in enumerate(calls):
        times = {word: float(getattr(found, word)[found.call == call].max()) for word in words}
        yield {"groups": name, "collective": collective, "size_bytes": size, **times}


def _rows(calls: _Calls, found: GroupPlans) -> Iterator[tuple[str, object]]:
    """The lines about the calls, and about all of them."""
    for call, one in enumerate(_times(calls, found)):
        of = counted(found.call.tolist().count(call), "group")
        yield (
            f"{one['groups']} {one['collective']} {size_text(one['size_bytes'])}",
            f"{of}: {one['alone_us']:.1f} us alone, {one['apart_us']:.1f} us at once, "
            f"{one['time_us']:.1f} us planned together",
        )
    share = found.bound_us / found.time_us.max()
    yield "all", f"{found.time_us.max():.1f} us planned together"
    yield "trees at best", f"{found.bound_us:.1f} us for all, {share:.1%} of it"
    yield "proven", "right values, no races, no hangs"


def _ranks(text: str, ranks: int, grid: Mapping[str, int] | None) -> list[list[int]]:
    """Groups of ranks: 0-3/4,6. ranks: of the cluster."""
    if text.isidentifier():
        there = f"has {' and '.join(grid)}" if grid else f"is needed, such as --grid {text}={ranks}"
        raise click.UsageError(f"{text!r} is a dimension of a grid: --grid {there}")
    groups = list[list[int]]()
    for group in text.split("/"):
        members = list[int]()
        for one in group.split(","):
            span = _SPAN.fullmatch(one)
            first, last = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
            if first > last:
                message = f"{text!r} is no groups such as 0-3/4-7, nor a dimension of --grid"
                raise click.UsageError(message)
            if last >= ranks:
                message = f"{text!r}: the topology has the ranks 0-{ranks - 1}, and no {last}"
                raise click.UsageError(message)
            members += range(first, last + 1)
        groups.append(members)
    return groups
