"""sley calibrate: measures a topology of this machine, or fits one to measured times."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sley import topologies
from sley.cli.options import FILE, Whole, common_options, gather_options, option, output_option
from sley.cli.output import Command, Phases, echo, print_json, print_note
from sley.communicator.calibrating import MAX_PROCESSES, calibrate
from sley.errors import Place, counted
from sley.errors.simulation import S713
from sley.formats import check_folder
from sley.ir.sizes import checked_size, size_text
from sley.report.tables import table_lines

if TYPE_CHECKING:
    from sley.model.table_fit import Fit


@dataclass(frozen=True)
class Given:
    """What the times are, to which a topology is fitted.

    file: the output of nccl-tests; None to measure this machine.
    topology: the machine of the measurement. collective: of tables that don't name their test.
    sizes: those to fit; empty for three of each collective. out_of_place: which times.
    """

    file: Path | None = option(
        "--from", type=FILE, help="Fit to this output of nccl-tests or rccl-tests."
    )
    topology: str | None = option(
        "--topology", help="With --from: the machine, NAME[:NODES] or a file."
    )
    collective: str | None = option(
        "--collective",
        type=click.Choice(["allreduce", "allgather", "reducescatter", "alltoall"]),
        help="With --from: the collective of tables that don't name their test.",
    )
    sizes: tuple[str, ...] = option(
        "--fit",
        multiple=True,
        metavar="SIZES",
        help="With --from: the sizes to fit, such as 4K,4M,1G.  [three]",
    )
    out_of_place: bool = option(
        "--out-of-place", is_flag=True, help="With --from: fit the times out of place.  [in place]"
    )

    def __post_init__(self) -> None:
        if (self.file is None) != (self.topology is None):
            raise click.UsageError("--from and --topology belong together")

    def fit(self) -> Fit:
        """The fit. Errors: S702, S710 to S713, R512, those of topologies."""
        from sley.compiler import nccl_plan
        from sley.model import table_fit
        from sley.model.nccl import tables as nccl_tests

        assert self.file is not None
        assert self.topology is not None
        base, file = topologies.find(self.topology), str(self.file)
        wanted = {checked_size(word) for text in self.sizes for word in text.split(",")}
        tables = nccl_tests.read(self.file)
        points = table_fit.measured_of(
            tables, base, self.collective, in_place=not self.out_of_place, file=file
        )
        missing = wanted - {point.size_bytes for point in points}
        if missing:
            raise S713.error(
                at=Place(file),
                expected="sizes of the table: "
                + ", ".join(size_text(p.size_bytes) for p in points[:40]),
                found=", ".join(map(size_text, sorted(missing))),
            )
        used = [p for p in points if p.size_bytes in wanted] or table_fit.chosen_sizes(points)

        def announce(seconds: float) -> None:
            expected = seconds * table_fit.ROUNDS
            if expected > _LONG_S:
                print_note(f"the fit takes about {expected:.0f} s; smaller sizes, by --fit, less")

        found = table_fit.fit(base, points, used, nccl_plan, report_round=announce)
        found.check(file)
        return found


_LONG_S = 20
"""A fit that takes longer is announced."""


@click.command("calibrate", cls=Command)
@click.option(
    "--ranks",
    type=Whole(2, MAX_PROCESSES),
    default=lambda: min(max(2, os.cpu_count() or 2), MAX_PROCESSES),
    show_default="one for each core",
    help="Number of processes.",
)
@click.option("-n", "--repeats", type=Whole(1, 1000), default=5, help="Number of measurements.")
@gather_options(Given, "given")
@output_option("Write the topology here (.toml).", required=True)
@common_options
def calibrate_command(ranks: int, repeats: int, given: Given, output: Path, phases: Phases) -> None:
    """Measure this machine's CPUs, or fit GPUs to nccl-tests' output, and write a topology.

    With --from, fit a GPU machine's topology to the output of nccl-tests; otherwise measure this
    machine. Simulate plans on its topology with the same number of ranks, because ranks share the
    machine's cores.
    """
    check_folder(output)
    if given.file is not None:
        with phases("fitting"):
            found = given.fit()
        topologies.save(found.topology, output)
        _note_fit(found)
        _print_fit(found, output, as_json=phases.quiet)
    else:
        with phases("measuring"):
            measured = calibrate(ranks, repeats=repeats)
        topologies.save(measured.topology, output)
        figures = {
            f.name: getattr(measured, f.name) for f in fields(measured) if f.name.endswith("_us")
        }
        if phases.quiet:
            print_json({"ok": True, "ranks": ranks, **figures, "output": str(output)})
            return
        for name, value in figures.items():
            echo(f"{name:<12}{value:>12.3f}")
        echo(f"{'written':<12}{output}")
    phases.report()


_MEANINGS = {
    "startup_us": ("start-up", "us added to each call"),
    "rates": ("rates", "times those of links, memory and blocks"),
    "latencies": ("latencies", "times those of hops"),
}


def _note_fit(found: Fit) -> None:
    """Says what the table or the fit lacks."""
    if not found.kept:
        print_note("no fit makes the other sizes' errors smaller: the machine is written as it was")
    elif found.kept != found.told:
        print_note("with factors the other sizes' errors grow: the start-up alone is fitted")
    if limits := found.limits_text:
        print_note(f"{limits}: a machine that differs by more needs a TOML file of its own")
    if repeated := [p for p in (*found.fitted, *found.held_out) if p.rows > 1]:
        print_note(f"{counted(len(repeated), 'size')} in several rows, of which the median counts")
    if beyond := found.beyond_nominal:
        stem, colon, nodes = found.base.name.partition(":")
        has_other = f"{stem}-nvls" in topologies.machine_names()
        hint = f" With NVLS it is {stem}-nvls{colon}{nodes}." * has_other
        print_note(
            f"links are fitted beyond what they can carry: {beyond}. NCCL sent less than its plans "
            f"for {found.base.name} do. Is this the machine?{hint}"
        )


def _print_fit(found: Fit, output: Path, *, as_json: bool) -> None:
    from sley.model.table_fit import UNTOLD

    changes = asdict(found.changes)
    points = [*found.fitted, *found.held_out]
    before, after = found.errors(before=True), found.errors()
    if as_json:
        rows = [
            {**asdict(p), "fitted": k < len(found.fitted), "before": float(a), "after": float(b)}
            for k, (p, a, b) in enumerate(zip(points, before, after, strict=True))
        ]
        stated = {"before": found.stated(before=True), "after": found.stated()}
        values = {name: changes[name] for name in found.told}
        kept = {"kept": found.kept, "at_limits": found.at_limits}
        result = {"ok": True, **values, **kept, "points": rows}
        print_json({**result, "held_out": stated, "output": str(output)})
        return
    for name, (word, meaning) in _MEANINGS.items():
        value = f"{changes[name]:.3f} {meaning}" if name in found.told else "not told by the sizes"
        echo(f"{word:<12}{value}")
    for name, reason in UNTOLD.items():
        echo(f"not fitted  {name}: {reason}")
    head = ("collective", "size", "measured us", "before", "after", "")
    lines = [
        (
            p.collective,
            size_text(p.size_bytes),
            f"{p.time_us:.1f}",
            f"{a:+.1%}",
            f"{b:+.1%}",
            "fitted" if k < len(found.fitted) else "",
        )
        for k, (p, a, b) in enumerate(zip(points, before, after, strict=True))
    ]
    echo("\n".join(["", *table_lines([head, *lines], (0, 5)), ""]))
    if (was := found.stated(before=True)) and (now := found.stated()):
        echo(
            f"error of the {len(found.held_out)} sizes that were not fitted, median / 90th "
            f"percentile: {now[0]:.1%} / {now[1]:.1%}, {was[0]:.1%} / {was[1]:.1%} before"
        )
    echo(f"{'written':<12}{output}")
