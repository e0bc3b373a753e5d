"""sley run: a plan on real processes of this machine, checked and timed as nccl-tests does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from sley import runtime
from sley.cli.options import Selection, SizeType, common_options, plan_options
from sley.cli.output import Command, Phases, print_json, progress_bar
from sley.cli.sizes import size_options
from sley.cli.sources import goes_both_ways, plan_of
from sley.errors import counted
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.report.tables import RUN_HEADER, Row, Timing, run_footer, run_row
from sley.runtime import Measurement

_REDUCE_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVERAGE"}
_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}


class _DType(click.Choice[str]):
    """A data type by NumPy's name or by that of nccl-tests."""

    def __init__(self) -> None:
        super().__init__([*sorted(runtime.DATA_TYPES), *_ALIASES])

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = super().convert(value, param, ctx)
        return _ALIASES.get(name, name)


@click.command("run", cls=Command)
@plan_options
@size_options("1K")
@click.option(
    "-n",
    "--iterations",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Runs that are timed.",
)
@click.option(
    "-w",
    "--warmup",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Runs before the timed ones.",
)
@click.option(
    "-c", "--check", type=click.IntRange(0, 1), default=1, show_default=True, help="Check results."
)
@click.option("-d", "--dtype", type=_DType(), default="float32", show_default=True, help="Type.")
@click.option(
    "-o",
    "--op",
    "reduce_op",
    type=click.Choice(list(_REDUCE_OPS)),
    default="sum",
    show_default=True,
)
@click.option(
    "--slot-bytes",
    type=SizeType(),
    default=runtime.SLOT_BYTES,
    show_default=True,
    help="Room of a slot, which bounds a tile.",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=runtime.TIMEOUT_S, help="Seconds."
)
@common_options
def run_command(
    selection: Selection,
    sizes: list[int],
    iterations: int,
    warmup: int,
    check: int,
    dtype: str,
    reduce_op: str,
    slot_bytes: int,
    timeout: float,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run WHAT on processes of this machine, check every element, print nccl-tests' table.

    Algorithms of the library run out of place and in place, unless one is asked for.
    """
    phases = Phases(quiet=as_json)
    plans = _plans(selection, phases)
    settings = {
        "dtype": dtype,
        "reduce_op": ReduceOp[_REDUCE_OPS[reduce_op]],
        "iterations": iterations,
        "warmup": warmup,
        "check": bool(check),
        "slot_bytes": slot_bytes,
        "timeout_s": timeout,
    }
    with phases("running"):
        rows = _measure(plans, sizes, settings, reduce_op, quiet=as_json)
    wrong = sum(t.wrong or 0 for r in rows for t in (r.out_of_place, r.in_place) if t)
    if as_json:
        print_json({"ok": not wrong, "rows": [_json(r) for r in rows], "seconds": phases.seconds})
    else:
        click.echo(run_footer(rows))
    if verbose:
        phases.report()
    if wrong:
        sys.exit(1)


def _measure(
    plans: list[Plan], sizes: list[int], settings: dict[str, Any], reduce_op: str, *, quiet: bool
) -> list[Row]:
    """Runs each plan over all sizes; the rows are printed as the last plan completes them."""
    if not quiet:
        _print_head(plans[-1])
    sides: list[list[Measurement]] = [[] for _ in plans]
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("running", total=len(plans) * len(sizes))

        def record(measurement: Measurement) -> None:
            bar.advance(task)
            number = next(k for k, side in enumerate(sides) if len(side) < len(sizes))
            sides[number].append(measurement)
            if number == len(plans) - 1 and not quiet:
                click.echo(run_row(_row(plans, sides, len(sides[-1]) - 1, reduce_op)))

        for plan in plans:
            runtime.run(plan, sizes, progress=record, **settings)
    return [_row(plans, sides, k, reduce_op) for k in range(len(sizes))]


def _plans(selection: Selection, phases: Phases) -> list[Plan]:
    """The plans of a table, out of place first."""
    if goes_both_ways(selection) and selection.in_place is None:
        places = [selection.with_place(False), selection.with_place(True)]
        return [plan_of(s, phases, verify=True) for s in places]
    return [plan_of(selection, phases, verify=True)]


def _print_head(plan: Plan) -> None:
    c = plan.collective
    click.echo(
        f"# {plan.name}: {c.name} on {c.ranks} ranks, {plan.protocol.value}, "
        f"{counted(plan.channels, 'channel')}, {counted(plan.slots, 'slot')}; "
        f"proven right before it runs\n"
        f"# {c.ranks} processes on this machine; time is the average of the iterations\n#"
    )
    click.echo(RUN_HEADER)


def _row(plans: list[Plan], sides: Sequence[Sequence[Measurement]], k: int, reduce_op: str) -> Row:
    in_place: Timing | None = None
    out_of_place: Timing | None = None
    for plan, side in zip(plans, sides, strict=False):
        m = side[k]
        timing = Timing(m.time_us, m.algbw_GBps, m.busbw_GBps, None if m.wrong < 0 else m.wrong)
        if plan.collective.in_place:
            in_place = timing
        else:
            out_of_place = timing
    m = sides[0][k]
    return Row(m.size_bytes, m.count, m.dtype, reduce_op, m.root, out_of_place, in_place)


def _json(row: Row) -> dict[str, object]:
    sides = {"out_of_place": row.out_of_place, "in_place": row.in_place}
    return {
        "size_bytes": row.size_bytes,
        "count": row.count,
        "dtype": row.dtype,
        "reduce_op": row.reduce_op,
        "root": row.root,
        **{side: vars(t) if t else None for side, t in sides.items()},
    }
