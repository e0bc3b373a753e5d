"""sley bound: the lower bounds of collectives on a cluster."""

from __future__ import annotations

from math import isfinite

import click

from sley.cli.options import Whole, json_option, size_options
from sley.cli.output import Command, attributes, echo, print_json, print_rows
from sley.cli.sources import topology_of
from sley.errors import did_you_mean
from sley.ir.collectives import SIZED, Standard, bus_factor, plain_name
from sley.ir.sizes import size_text
from sley.ir.topology import Topology
from sley.model.bounds import Bounds


@click.command("bound", cls=Command)
@click.argument("collective", required=False)
@click.option("--topology", required=True, help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@click.option("--root", type=Whole(0), help="Root of a rooted collective. [0]")
@size_options("1K", "1G")
@click.option("--nominal", is_flag=True, help="At the links' nominal rates.")
@json_option
def bound_command(
    collective: str | None,
    topology: str,
    root: int | None,
    sizes: list[int],
    nominal: bool,
    as_json: bool,
) -> None:
    """Print the time that no algorithm for a COLLECTIVE can beat on a cluster, and why.

    Without a COLLECTIVE, print the bandwidth and the latency of all that have one size.
    """
    cluster = topology_of(topology)
    assert cluster is not None  # --topology is required
    if collective is None:
        # One rank alone can't be both roles of a SendRecv.
        served = [row for row in SIZED.values() if len(row.roles) <= cluster.ranks]
        rows = [_bounds(row, cluster, root, nominal=nominal) for row in served]
        if as_json:
            print_json(
                {"ok": True, "topology": cluster.name, "bounds": [_json(b, []) for b in rows]}
            )
            return
        echo(f"# bounds on {cluster.name}, algbw; `sley bound COLLECTIVE` has sizes and reasons")
        echo(f"{'collective':<15}{'GB/s':>10}{'least us':>12}")
        for bounds in rows:
            rate, least_us = _finite(bounds.algbw_GBps), bounds.at(1).time_us
            text = "-" if rate is None else f"{rate:.2f}"
            echo(f"{bounds.collective.name:<15}{text:>10}{least_us:>12.1f}")
        return
    known = {row.name: row for row in SIZED.values()}
    row = known.get(plain_name(collective))
    if row is None:
        hint = did_you_mean(collective, known) or f"one of {', '.join(known)}"
        raise click.UsageError(f"there is no collective {collective!r} with one size: {hint}")
    row.check_root(root)
    bounds = _bounds(row, cluster, root, nominal=nominal)
    if as_json:
        print_json({"ok": True, "topology": cluster.name, **_json(bounds, sizes)})
        return
    factor, least = bus_factor(bounds.collective), bounds.at(1)
    rate, exact = bounds.algbw_GBps, "" if bounds.exact else ", the tightest that was found"
    text = f"{rate:.2f} GB/s algbw, {rate * factor:.2f} GB/s busbw{exact}"
    print_rows(
        [
            ("collective", f"{bounds.collective} on {cluster.name}"),
            ("bandwidth", "without a limit" if _finite(rate) is None else text),
            ("", f"by {bounds.reason}"),
            ("latency", f"{least.latency_us:.1f} us"),
            ("", f"by {least.latency_reason}"),
        ]
    )
    echo(f"\n{'size':>8}{'us':>12}{'GB/s':>10}  by")
    for size in sizes:
        at = bounds.at(size)
        by = "latency" if at.latency_us > at.bandwidth_us else "bandwidth"
        echo(f"{size_text(size):>8}{at.time_us:>12.1f}{at.algbw_GBps:>10.2f}  {by}")


def _bounds(row: Standard, cluster: Topology, root: int | None, *, nominal: bool) -> Bounds:
    """The bounds of a collective on all ranks, at a root if it has one."""
    root = root or 0
    roles = dict(zip(row.roles, (root, (root + 1) % cluster.ranks), strict=False))
    return Bounds.of(row.build(cluster.ranks, 1, False, **roles), cluster, nominal=nominal)


def _finite(algbw: float) -> float | None:
    """A bandwidth; None for one without a limit, since nothing has to move on one rank."""
    return algbw if isfinite(algbw) else None


def _json(bounds: Bounds, sizes: list[int]) -> dict[str, object]:
    least = bounds.at(1)
    return {
        "collective": bounds.collective.name,
        "algbw_GBps": _finite(bounds.algbw_GBps),
        **attributes(bounds, "exact", "reason"),
        **attributes(least, "latency_us", "latency_reason"),
        "sizes": [attributes(bounds.at(n), "size_bytes", "time_us", "algbw_GBps") for n in sizes],
    }
