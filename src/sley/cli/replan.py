"""sley replan: makes a plan anew for a cluster in which links have failed or are slow."""

from __future__ import annotations

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
from sley.cli.simulating import note_blocks, note_left
from sley.cli.sources import is_compiled, plan_of, prefer_in_place
from sley.compiler import choose
from sley.compiler.passes.lift import lift
from sley.compiler.synthesis import compared, fastest
from sley.errors import SleyError
from sley.formats import by_suffix, check_folder, files
from sley.formats.format import RuntimeFormat
from sley.ir.plan import Plan
from sley.ir.sizes import size_text
from sley.ir.topology import Topology
from sley.model.bounds import Bounds
from sley.model.simulation import simulate


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
    target = None
    if output is not None:
        check_folder(output)
        # A file for a runtime has a plan that the runtime can run.
        form = by_suffix(output, files.FORMATS)
        target = form.targets[0] if isinstance(form, RuntimeFormat) else None
    plan = plan_of(prefer_in_place(selection), phases, verify=True)
    if plan.topology is None:
        raise click.UsageError("a topology is needed: give --topology")
    whole, size = plan.topology, call_bytes
    left = whole.without(*without) if without else whole
    for part, share in degraded:
        left = left.degraded(part, share)
    with phases("packing, compiling and simulating"):
        if not is_compiled(selection):  # with the options of the new plan, which are compared
            options = compared(plan.collective.name, switched=len(plan.grouped) > 0)
            plan = choose(lift(plan), size, whole, **options).at(size).plan
        name, in_place = plan.collective.name, plan.collective.in_place
        more: dict[str, Any] = {"target": target, "interpreter": False, "limit_s": limit_s}
        made = fastest(name, left, size, in_place=in_place, **more)
    note_left(made.left)
    found = made.choice
    new = found.plan
    note_blocks(new.name, new.blocks_per_rank, left.model)
    if output is not None:
        files.save(new, output)
    bounds = [Bounds.of(plan.collective, one).at(size).time_us for one in (whole, left)]
    before, after = (_time_us(plan, one, size) for one in (whole, left))
    times = {
        "bound_before_us": bounds[0],
        "bound_after_us": bounds[1],
        "plan_before_us": before,
        "plan_after_us": after,
        "new_plan_us": found.end.time_us,
    }
    if phases.quiet:
        where = None if output is None else str(output)
        phases.print_json(topology=left.name, size_bytes=size, **times, output=where)
        return
    if after is None:
        now = f"{plan.name} can't run: a path of its transfers is gone"
    else:
        faster = ", faster than the new plan: keep it" if after < found.end.time_us else ""
        now = f"{after:.1f} us, {plan.name}{faster}"
    print_rows(
        [
            ("topology", left.name),
            (f"bound, {size_text(size)}", f"{bounds[1]:.1f} us; {bounds[0]:.1f} us before"),
            ("before", f"{before:.1f} us, {plan.name}"),
            ("after", now),
            (
                "new plan",
                f"{found.end.time_us:.1f} us, {found.end.of_bound:.1%} of the bound, {new.name}, "
                f"{found.options}",
            ),
            ("proven", "right values, no races, no hangs"),
        ]
    )
    print_written(output)
    phases.report()


def _time_us(plan: Plan, topology: Topology, size: int) -> float | None:
    """The simulated time of a plan; None if the topology doesn't link its ranks."""
    try:
        return simulate(replace(plan, topology=topology), size, interpreter=False).time_us
    except SleyError as error:
        if error.code != "C301":
            raise
        return None
