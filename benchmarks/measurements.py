"""Measurements: compares the simulator's predictions with published times: docs/measurements.md.

    python benchmarks/measurements.py [DATA] [--output FILE] [--points]

DATA is the folder with other projects' files (SLEY_DATA, or ../shared/data); the page names missing
files. FILE is docs/measurements.md by default; - prints the page. --points prints what the page
only sums up: each point of nccl-tests' tables, and NCCL's rings with each protocol. The script
measures no times, so the same code and files give the same page.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from common import tables
from measured_files import (
    AMD_TIMES,
    AMD_XML,
    CHOSEN,
    FITTED_FROM,
    INSTANCES,
    MSCCLPP,
    NEAREST,
    AmdRow,
    Fit,
    Kernel,
    Rate,
    bound_of,
    fit,
    nearest_us,
    read_kernels,
    read_nccl_tests,
    simulated,
)
from measured_rings import CHANNELS, CLOSE, LARGE, POINTS, ROUGH, h100_four_cards, predicted
from measured_tables import (
    CLASSES,
    KNOWN,
    TABLES,
    Point,
    Prediction,
    fitted,
    predict,
    read_points,
    spread,
    unseen_errors,
)
from numpy.typing import ArrayLike

import sley
from sley import CostModel, Topology, topologies
from sley.cli.nccl import APART
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.sizes import size_text
from sley.ir.words import FIFO_PROTOCOLS
from sley.model.simulation.result import ERRORS, family_of

ROOT = Path(__file__).resolve().parents[1]
MOST_FITTED = 16
"""The most GPUs of a machine that is fitted to three points of its table."""

AMD_LIMIT = 0.25
SHOWN_FROM = 64 * 2**10
"""The smallest size of AllGather on MI250X on the page."""

Row = Sequence[object]


def table(head: Row, rows: Iterable[Row]) -> str:
    """The lines of a table in Markdown, with numbers aligned at the right."""
    return tables.table(head, rows, align_numbers=True) + "\n"


def us(time_us: float) -> str:
    """A time in us, with at least three digits."""
    return f"{time_us:,.0f}" if time_us >= 100 else f"{time_us:.1f}"


def percent(error: float) -> str:
    """A relative error in percent."""
    return f"{100 * error:+.1f} %"


def error_cell(error: float, limit: float) -> str:
    """A relative error in percent, in bold if it exceeds the limit."""
    return f"**{percent(error)}**" if abs(error) > limit else percent(error)


class Errors:
    """The errors of one comparison, for the summary.

    what: the name of the comparison. limit: the largest error that the comparison aims at.
    """

    def __init__(self, what: str, limit: float) -> None:
        self.what, self.limit = what, limit
        self.values: list[float] = []

    def row(self) -> Row:
        """The row of the summary: the errors within the limit, their median and the largest."""
        error = np.abs(self.values)
        within = int((error <= self.limit).sum())
        return (
            self.what,
            f"{100 * self.limit:.0f} %",
            f"{within} of {len(error)}",
            f"{100 * float(np.median(error)):.1f} %",
            f"{100 * float(error.max()):.1f} %",
        )


def rings() -> tuple[str, list[Errors]]:
    """The section on NCCL's rings, and its errors."""
    large = Errors(f"NCCL's rings, from {size_text(LARGE)} up, no parameter fitted", CLOSE)
    curve = Errors(f"NCCL's rings, 1x8 A100 below {size_text(LARGE)}, no parameter fitted", ROUGH)
    rows = []
    reasons: dict[str, list[str]] = {}
    for point in POINTS:
        found = predicted(point)[point.protocol]
        error = found.time_us / point.time_us - 1
        (large if point.size_bytes >= LARGE else curve).values.append(error)
        rows.append(
            (
                point.where,
                f"{point.size} (peak)" if point.peak else point.size,
                point.protocol.value,
                f"{point.busbw_GBps:g}",
                f"{found.busbw_GBps:.1f}",
                error_cell(error, point.limit),
            )
        )
        if abs(error) > point.limit:
            reason = point.reason or "the reason is unknown"
            reasons.setdefault(f"{point.where}: {reason}.", []).append(point.size)
    head = ("machines", "size", "protocol", "measured GB/s", "predicted GB/s", "error on time")
    text = [
        table(head, rows),
        "The points above their aim, and the probable reasons:\n",
        "".join(f"- {', '.join(sizes)}, {reason}\n" for reason, sizes in reasons.items()),
    ]
    return "\n".join(text), [large, curve]


def protocols() -> str:
    """The times of NCCL's rings with each protocol, simulated and by its tuner's formula."""
    rows = [
        (
            *(point.where, point.size, us(point.time_us)),
            *(us(predicted(point)[p].time_us) for p in FIFO_PROTOCOLS),
            *(us(point.tuner_us(p)) for p in FIFO_PROTOCOLS),
        )
        for point in POINTS
    ]
    columns = [f"{p.value}, {by}" for by in ("simulated", "tuner") for p in FIFO_PROTOCOLS]
    return table(("machines", "size", "measured", *columns), rows)


def published(data: Path) -> str:
    """The section on published tables of nccl-tests."""
    missing = [name for name in TABLES if not (data / name).is_file()]
    if missing:
        return f"Not compared: no file {' and no file '.join(missing)}.\n"
    found = [p for name in TABLES for p in predictions(data / name)]
    names = dict.fromkeys(p.point.table for p in found)
    parts = [(KNOWN[n].machines, [p for p in found if p.point.table == n]) for n in names]
    alike = [p for p in found if not KNOWN[p.point.table].theirs]
    parts += [("tables without a remark below", alike), ("all", found)]
    rows = [_errors_by_class(label, some) for label, some in parts]
    aims = [f"{100 * c.median:.0f} / {100 * c.most:.0f} %" for c in CLASSES]
    head = ("table", "collective", *(c.name for c in CLASSES), "all sizes")
    remarks = [f"- {KNOWN[n].machines}: {KNOWN[n].theirs}.\n" for n in names if KNOWN[n].theirs]
    by_table = [[p.point for p in some] for _, some in parts[: len(names)]]
    return TABLES_TEXT.format(
        spread=table(head, [*rows, ("aim", "", *aims, "")]),
        remarks="".join(remarks),
        apart=APART,
        nearer=_nearer(found),
        nearer_unfitted=_nearer([p for p in found if not KNOWN[p.point.table].fitted]),
        unseen=_unseen([p.point for p in found]),
        fitted=_fitted([points for points in by_table if _ranks(points[0]) <= MOST_FITTED]),
        number=len(found),
        tables=len(names),
    )


def _nearer(found: Iterable[Prediction]) -> str:
    """How many points are nearer the simulation than NCCL's own estimate, where both are told."""
    nearer = list[bool]()
    for p in found:
        estimate_us = p.choice.predicted_us
        if p.simulation is None or p.error is None or not estimate_us:
            continue
        ratio = estimate_us / p.simulation.time_us
        if max(ratio, 1 / ratio) > APART:
            nearer.append(abs(p.error) < abs(estimate_us / p.point.time_us - 1))
    return f"{sum(nearer)} of {len(nearer)}"


def _ranks(point: Point) -> int:
    return KNOWN[point.table].machine().ranks


def _unseen(points: Sequence[Point]) -> str:
    """The table of errors by family of machines, as commands predict, without their own tables; and
    what is fitted to each."""
    errors = unseen_errors(points)
    family = {name: family_of(KNOWN[name].machine().model) for name in {p.table for p in points}}
    rows: list[Row] = []
    for one in ERRORS:
        mine = {p: e for p, e in errors.items() if family[p.table] == one}
        names = dict.fromkeys(p.table for p in mine)
        sights = dict.fromkeys(f"`{KNOWN[n].fitted}`" for n in names if KNOWN[n].fitted)
        cells = [
            _median_and_most(np.abs([e for p, e in mine.items() if p.size_class is c]))
            for c in CLASSES
        ]
        rows.append((one, len(names), *cells, ", ".join(sights)))
    head = ("GPUs", "tables", *(c.name for c in CLASSES), "fitted to some of them")
    return table(head, rows)


def predictions(path: Path) -> list[Prediction]:
    """Each point of the file with its prediction."""
    return [predict(point) for point in read_points(path.read_text("utf-8"))]


def points(path: Path) -> str:
    """Each point of the file, in bold where it is above the aim for its class."""
    rows = [
        (
            KNOWN[p.point.table].machines,
            p.point.collective,
            size_text(p.point.size_bytes),
            p.compared_with,
            us(p.point.time_us),
            us(p.simulation.time_us) if p.simulation else "",
            error_cell(p.error, p.point.size_class.most) if p.error is not None else "",
        )
        for p in predictions(path)
    ]
    columns = ("machines", "collective", "size", "compared with", "measured us", "predicted us")
    return table((*columns, "error"), rows)


def _fitted(by_table: Sequence[Sequence[Point]]) -> str:
    """The table of machines that are fitted to three points of each table: what changed, and the
    errors of all other points."""
    rows: list[Row] = []
    before, after = list[float](), list[float]()
    for points in by_table:
        found = fitted(points)
        if found is None:
            continue
        number, c = len(found.fitted), found.changes
        was, now = np.abs(found.errors(before=True)[number:]), np.abs(found.errors()[number:])
        before += was.tolist()
        after += now.tolist()
        rows.append(
            (
                KNOWN[points[0].table].machines,
                points[0].collective,
                ", ".join(size_text(p.size_bytes) for p in found.fitted),
                f"{c.startup_us:+.1f}",
                f"{c.rates:.2f}",
                f"{c.latencies:.2f}",
                *map(_median_and_most, (was, now)),
            )
        )
    rows.append(("all", "", "", "", "", "", *map(_median_and_most, (before, after))))
    head = ("table", "collective", "fitted sizes", "start-up us", "rates x", "latencies x")
    return table((*head, "others before", "others after"), rows)


def _median_and_most(errors: ArrayLike) -> str:
    """Median and 90th percentile of errors without signs."""
    if not np.size(errors):
        return ""
    return f"{100 * np.median(errors):.1f} / {100 * np.quantile(errors, 0.9):.1f} %"


def _errors_by_class(label: str, found: Sequence[Prediction]) -> Row:
    """Median and 90th percentile of the errors in each class of sizes, and over all sizes."""
    kinds = [[p for p in found if p.point.size_class is c] for c in CLASSES]
    collectives = sorted({p.point.collective for p in found})
    cells = []
    for some in (*kinds, found):
        one = spread(some)
        cells.append(f"{100 * one[1]:.1f} / {100 * one[2]:.1f} % ({one[0]})" if one else "")
    return (label, ", ".join(collectives), *cells)


def amd(data: Path) -> tuple[str, list[Errors], Fit | None]:
    """The section on AllGather on MI250X, its errors, and the fit."""
    missing = [name for name in (AMD_XML, AMD_TIMES) if not (data / name).is_file()]
    if missing:
        return f"Not compared: no file {' and no file '.join(missing)}.\n", [], None
    plan, base = sley.load(data / AMD_XML), topologies.mi250x(2)
    rows = read_nccl_tests((data / AMD_TIMES).read_text("utf-8"))
    rows = [row for row in rows if row.size_bytes >= SHOWN_FROM]
    fits = {pair: fit(plan, base, rows, pair) for pair in combinations(Rate, 2)}
    chosen = fits[CHOSEN]
    sizes = [row.size_bytes for row in rows]
    default = simulated(plan, base, sizes)
    fitted = simulated(plan, chosen.topology(base), sizes)
    lines = [
        (
            size_text(row.size_bytes),
            us(row.xml_us),
            us(first),
            error_cell(first / row.xml_us - 1, AMD_LIMIT),
            us(second),
            error_cell(second / row.xml_us - 1, AMD_LIMIT),
            us(row.rccl_us),
        )
        for row, first, second in zip(rows, default, fitted, strict=True)
    ]
    errors = []
    for words, times in (("default parameters", default), ("two rates fitted", fitted)):
        errors.append(Errors(f"AllGather on 2x16 MI250X from 1M up, {words}", AMD_LIMIT))
        errors[-1].values += off(rows, times)
    head = ("size", "measured us", "default us", "error", "fitted us", "error", "RCCL itself us")
    pairs = [
        (
            *(f"{rate.value} x {f:.3f}" for rate, f in zip(pair, found.factors, strict=True)),
            f"{100 * max(map(abs, off(rows, simulated(plan, found.topology(base), sizes)))):.1f} %",
        )
        for pair, found in fits.items()
    ]
    others = table(("rate", "rate", "largest error from 1M up"), pairs)
    return AMD_TEXT.format(curve=table(head, lines), pairs=others), errors, chosen


def off(rows: list[AmdRow], times: list[float]) -> list[float]:
    """The errors of the sizes to which the rates are fitted."""
    pairs = zip(rows, times, strict=True)
    return [time / r.xml_us - 1 for r, time in pairs if r.size_bytes >= FITTED_FROM]


def mscclpp(data: Path) -> str:
    """The section on MSCCL++'s kernels."""
    kernels: list[Kernel] = []
    left = []
    for machine, name in MSCCLPP.items():
        if (data / name).is_file():
            kernels += read_kernels(machine, (data / name).read_text("utf-8"))
        else:
            left.append(f"Not compared: no file {name}.\n")
    if not kernels:
        return "".join(left)
    rows, faster = [], dict[str, list[str]]()
    for kernel in sorted(kernels, key=lambda k: (k.machine, k.nodes, k.collective, k.size_bytes)):
        bound, reached = (bound_of(kernel, nominal=nominal) for nominal in (True, False))
        protocol, time = nearest_us(kernel)
        label = f"{kernel.collective} {kernel.number}, {kernel.nodes}x8 {kernel.machine}"
        if kernel.time_us < bound.time_us:
            part = "latency" if bound.bandwidth_us < bound.latency_us else "bandwidth"
            times = f"{us(kernel.time_us)} us, not {us(bound.time_us)}"
            faster.setdefault(part, []).append(f"{size_text(kernel.size_bytes)} {label} ({times})")
        rows.append(
            (
                label,
                size_text(kernel.size_bytes),
                us(kernel.time_us),
                us(bound.time_us),
                f"{bound.time_us / kernel.time_us:.2f}",
                us(reached.time_us),
                f"{NEAREST[kernel.collective, kernel.nodes]}, {protocol.value}",
                us(time),
            )
        )
    head = (
        *("kernel", "size", "measured us", "bound us, nominal rates", "of that bound"),
        *("bound us, reached rates", "closest algorithm", "simulated us"),
    )
    exceptions = [
        f"Faster than the {part} bound: {'; '.join(found)}. {FASTER[part]}\n"
        for part, found in faster.items()
    ]
    exceptions = exceptions or ["No kernel is faster than the bound with nominal rates.\n"]
    return "\n".join([table(head, rows), *exceptions, *left])


FASTER = {
    "bandwidth": "This would be an error of the bound.",
    "latency": "This bound is the launch and the hops of the cost model's fastest protocol, with "
    "NCCL's values; the model has no value for the launch of MSCCL++'s kernels.",
}


def parameters(fitted: Fit | None) -> str:
    """The tables of the parameters that differ between machines, and of links."""
    base = topologies.mi250x()
    models: dict[str, CostModel] = {
        "A100 (default)": CostModel(),
        "H100": topologies.ndv5().model,
        "MI250X": base.model,
    }
    if fitted:
        models["MI250X, fitted"] = fitted.topology(base).model
    clusters = [
        topologies.ndv4(),
        topologies.cluster(2, 8, 4),
        topologies.dgx_a100(2),
        topologies.ndv5(2),
        h100_four_cards(5),
        topologies.mi250x(2),
    ]
    links = [row for topology in clusters for row in _rates(topology)]
    head = ("machines", "links", "GB/s, data sheet", "GB/s, reached")
    return "\n".join([tables.parameters(models) + "\n", table(head, links)])


def _rates(topology: Topology) -> list[Row]:
    """Each kind of link with its rates in one direction."""
    t, kind = topology.links, topology.vertices.kind
    card = (kind[t.src] == VertexKind.NIC) | (kind[t.dst] == VertexKind.NIC)
    words = {LinkKind.NVLINK: "NVLink, xGMI", LinkKind.PCIE: "PCIe", LinkKind.NETWORK: "network"}
    names = np.array([words[LinkKind(k)] for k in t.kind])
    names[card] = "cards"
    found = sorted(set(zip(names.tolist(), t.nominal_GBps.tolist(), t.GBps.tolist(), strict=True)))
    return [(topology.name, word, f"{sheet:g}", f"{GBps:g}") for word, sheet, GBps in found]


def page(data: Path) -> str:
    """The whole page."""
    rings_text, errors = rings()
    amd_text, amd_errors, fitted = amd(data)
    summary = table(
        ("comparison", "aim", "within it", "median error", "largest error"),
        [e.row() for e in (*errors, *amd_errors)],
    )
    return TEXT.format(
        summary=summary,
        rings=rings_text,
        tables=published(data),
        amd=amd_text,
        mscclpp=mscclpp(data),
        parameters=parameters(fitted),
        channels=CHANNELS,
        instances=INSTANCES,
    )


TEXT, AMD_TEXT, TABLES_TEXT = (
    (Path(__file__).parent / name).read_text("utf-8")
    for name in ("measurements.md.in", "measurements-amd.md.in", "measurements-tables.md.in")
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    usual = os.environ.get("SLEY_DATA") or ROOT.parent / "shared" / "data"
    parser.add_argument("data", nargs="?", type=Path, default=Path(usual))
    parser.add_argument("--output", default=str(ROOT / "docs" / "measurements.md"))
    parser.add_argument(
        "--points", action="store_true", help="print each point instead of the page"
    )
    options = parser.parse_args()
    if options.points:
        print(protocols(), *(points(options.data / name) for name in TABLES), sep="\n")
        return
    text = page(options.data)
    if options.output == "-":
        sys.stdout.write(text)
    else:
        Path(options.output).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
