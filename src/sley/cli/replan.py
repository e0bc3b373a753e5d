"""sley replan: makes a plan anew for a cluster in which links have failed or are slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sley.cli.options import (
    PlanCommand,
    Selection,
    SizeType,
    common_options,
    limit_option,
    output_option,
    program_options,
)
from sley.cli.output import Phases, print_rows, print_written
from sley.cli.simulating import note_blocks, note_left, tiles_rows
from sley.cli.sources import is_compiled, plan_of, prefer_in_place, target_of_file
from sley.compiler import Choice, choose
from sley.compiler.passes.lift import lift
from sley.compiler.tree_search import TILES, Fastest, compared, fastest
from sley.errors import SleyError, span_texts
from sley.errors.topology import T603
from sley.formats import files
from sley.ir.plan import Plan
from sley.ir.sizes import size_text
from sley.ir.topology import Topology
from sley.model.bounds import Bounds
from sley.model.simulation import simulate
from sley.model.simulation.routes import ConnectionRoutes


class _Degraded(click.ParamType[tuple[str, float]]):
    """A part and the share of its rates that is left."""

    name = "PART=SHARE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        part, _, share = str(value).partition("=")
        try:
            left = float(share)
        except ValueError:
            left = 0.0
        if not 0 < left < 1:
            expected = "a part and a share between 0 and 1, as in nic3@1=0.5"
            self.fail(f"{value!r} is not {expected}", param, ctx)
        return part, left


@click.command("replan", cls=PlanCommand)
@program_options
@click.option(
    "--without",
    multiple=True,
    metavar="PART",
    help="A part that has failed: nic3@1 (card 3 of node 1), gpu0-gpu1@0. Repeatable.",
)
@click.option(
    "--degraded",
    type=_Degraded(),
    multiple=True,
    help="A part at a share of its rates: nic3@1=0.5. Repeatable.",
)
@click.option(
    "--size", "call_bytes", type=SizeType(), default="1G", help="Size of the call to simulate."
)
@limit_option
@output_option("Write the new plan here, as sley compile does.")
@common_options
def replan_command(
    selection: Selection,
    without: tuple[str, ...],
    degraded: tuple[tuple[str, float], ...],
    call_bytes: int,
    limit_s: float | None,
    output: Path | None,
    phases: Phases,
) -> None:
    """Make a plan for WHAT's collective on a topology with failed or slow links.

    The new plan goes along trees or routes that are made for what is left (sley synthesize). It is
    proven, and simulated beside WHAT, before and after the failure.
    """
    if not without and not degraded:
        raise click.UsageError("nothing has failed: give --without PART or --degraded PART=SHARE")
    target = target_of_file(output)
    plan = plan_of(prefer_in_place(selection), phases, verify=True)
    if plan.topology is None:
        raise click.UsageError("a topology is needed: give --topology")
    if (ranks := plan.collective.ranks) != plan.topology.ranks:
        of = f"{plan.topology.name} has {plan.topology.ranks}"
        raise click.UsageError(f"{selection.what} is for {ranks} ranks, {of}: give a plan for all")
    ConnectionRoutes.of(plan, plan.topology)  # a file may have a topology without the plan's links
    left = plan.topology
    if without:
        left = _without(left, without, f"{plan.collective.name}:{size_text(call_bytes)}", selection)
    for part, share in degraded:
        left = left.degraded(part, share)
    with phases.progress("packing, compiling and simulating", several=True) as progress:
        if not is_compiled(selection):
            plan = _with_compared_options(plan, call_bytes)
        name, in_place = plan.collective.name, plan.collective.in_place
        more: dict[str, Any] = {"target": target, "interpreter": False, "limit_s": limit_s}
        more["tiles"] = TILES if target is None else TILES[:1]  # smaller ones need Direct
        made = fastest(name, left, call_bytes, in_place=in_place, progress=progress, **more)
    note_left(made.left)
    new = made.choice.plan
    note_blocks(new.name, new.blocks_per_rank, left.model)
    if output is not None:
        files.save(new, output)
    times = _times(plan, left, made.choice)
    if phases.quiet:
        where = None if output is None else str(output)
        phases.print_json(
            topology=left.name, size_bytes=call_bytes, **times, tile=made.tile, output=where
        )
        return
    print_rows(_rows(plan, left, made, times))
    print_written(output)
    phases.report()


def _without(topology: Topology, parts: Sequence[str], call: str, given: Selection) -> Topology:
    """The topology without the parts. call: the collective and its size. Errors: T608; T603 if
    ranks are cut off, with the command that plans for the others."""
    try:
        return topology.without(*parts)
    except SleyError as error:
        if error.code != T603.code:
            raise
        ranks = ",".join(span_texts(topology.ranks_without(*parts)))
        named = given.topology or topology.name
        remedy = (
            "A new plan has all ranks of the old one. For the ranks that are left, by all links of "
            f"{named}, failed ones too: sley groups {ranks}:{call} --topology {named} -o DIR"
        )
        raise SleyError([replace(one, remedy=remedy) for one in error.diagnostics]) from None


def _with_compared_options(plan: Plan, size: int) -> Plan:
    """The plan's program with the options that are compared for the new plan."""
    options = compared(plan.collective.name, switched=len(plan.grouped) > 0)
    return choose(lift(plan), size, plan.topology, **options).at(size).plan


def _times(plan: Plan, left: Topology, new: Choice) -> dict[str, float | None]:
    """The times before and after, by their names in JSON."""
    size, whole = new.end.size_bytes, plan.topology
    assert whole is not None
    return {
        "bound_before_us": Bounds.of(plan.collective, whole).at(size).time_us,
        "bound_after_us": Bounds.of(plan.collective, left).at(size).time_us,
        "plan_before_us": _time_us(plan, whole, size),
        "plan_after_us": _time_us(plan, left, size),
        "new_plan_us": new.end.time_us,
    }


def _rows(
    plan: Plan, left: Topology, made: Fastest, times: Mapping[str, float | None]
) -> Iterator[tuple[str, object]]:
    """The lines about the topology, and about both plans."""
    new = made.choice
    yield "topology", left.name
    bounds = "{bound_after_us:.1f} us; {bound_before_us:.1f} us before".format_map(times)
    yield f"bound, {size_text(new.end.size_bytes)}", bounds
    yield "before", f"{times['plan_before_us']:.1f} us, {plan.name}"
    if (after := times["plan_after_us"]) is None:
        yield "after", f"{plan.name} can't run: a path of its transfers is gone"
    else:
        faster = ", faster than the new plan: keep it" if after < new.end.time_us else ""
        yield "after", f"{after:.1f} us, {plan.name}{faster}"
    words = f"{new.end.of_bound:.1%} of the bound, {new.plan.name}, {new.options}"
    yield "new plan", f"{new.end.time_us:.1f} us, {words}"
    yield from tiles_rows(made)
    yield "proven", "right values, no races, no hangs"


def _time_us(plan: Plan, topology: Topology, size: int) -> float | None:
    """The simulated time of a plan; None if the topology doesn't link its ranks."""
    try:
        return simulate(replace(plan, topology=topology), size, interpreter=False).time_us
    except SleyError as error:
        if error.code != "C301":
            raise
        return None
