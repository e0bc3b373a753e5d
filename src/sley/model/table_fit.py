"""Fit: the parameters of a topology that tables of nccl-tests can tell.

The plans are those of NCCL's choice by its tuner's rows on the unfitted topology. A table can tell
three parameters, each from one end of its sizes: the time before any data moves, which is nearly
all of the smallest sizes' time; the rates of all links and blocks together, which determine the
largest sizes'; and the latencies of all hops together, which matter between. `UNTOLD` says what it
can't tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from statistics import median
from time import monotonic
from types import MappingProxyType

import numpy as np

from sley.errors import Place, counted
from sley.errors.runtime import missing_extra
from sley.errors.simulation import S712, S713
from sley.ir.cost_model import ByProtocol
from sley.ir.sizes import size_text
from sley.ir.tables import FloatArray
from sley.ir.topology import Topology
from sley.model.nccl.choice import BLOCK_RATES
from sley.model.nccl.runs import NcclRuns, PlanOf
from sley.model.nccl.tables import PrintedRow, PrintedTable

UNTOLD: Mapping[str, str] = MappingProxyType(
    {
        "launch_us by protocol, host_launch_us": "each adds the same time to all sizes; their sum "
        "is fitted as launch_us, and holds for calls that are launched like those of the table",
        "rates of links, memory and blocks, one by one": "only the slowest of them shows, and "
        "another one may be the slowest in other plans; all get the same factor",
        "latencies by link and protocol, fence_share, wait_us": "a call's time has only their sum; "
        "all latencies get the same factor",
        "slices, tiles, contention": "they change few sizes, by less than NCCL's choices do",
    }
)
"""Parameters that are not fitted, and why."""

MOST_MISSED = 0.5
"""Half of the sizes may be off by this share after a fit. The published tables that
docs/measurements.md compares stay below 0.17."""

_MOST_NAMED = 4

SMALL_BYTES, LARGE_BYTES = 2**18, 2**24
"""The largest size that tells the start-up, and the smallest one that tells rates."""

_LATENCIES = (
    "nvlink_latency_us",
    "pcie_latency_us",
    "network_latency_us",
    "switch_latency_us",
)


@dataclass(frozen=True)
class MeasuredTime:
    """A measured time of a collective: the median of so many rows."""

    collective: str
    size_bytes: int
    time_us: float
    rows: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Changes:
    """What a fit changes: the time added to every call, and the factors of all rates and of all
    latencies."""

    startup_us: float = 0.0
    rates: float = 1.0
    latencies: float = 1.0

    def topology(self, base: Topology) -> Topology:
        """The machine with these changes."""
        model, links = base.model, base.links
        changed: dict[str, object] = {n: getattr(model, n) * self.rates for n in BLOCK_RATES}
        changed |= {n: getattr(model, n) * self.latencies for n in _LATENCIES}
        launch = model.launch_us
        changed["launch_us"] = ByProtocol(
            *(max(us + self.startup_us, 0.0) for us in (launch.ll, launch.ll128, launch.simple))
        )
        changed["memory_GBps"] = model.memory_GBps * max(self.rates, 1.0)
        own = np.where(links.latency_us >= 0, links.latency_us * self.latencies, links.latency_us)
        rate = links.GBps * self.rates
        fitted = replace(
            links, GBps=rate, nominal_GBps=np.maximum(rate, links.nominal_GBps), latency_us=own
        )
        name = f"{base.name}, fitted"
        return replace(base, name=name, links=fitted, model=replace(model, **changed))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Fit:
    """The result.

    base: the topology before. changes: what was fitted. told: the names of the parameters that the
    sizes can tell. kept: the names of the fitted ones: all of these, the start-up alone, or none.
    fitted, held_out: the points that were used, and all others.
    before_us, after_us: the simulated times of these, first the fitted ones.
    """

    base: Topology
    changes: Changes
    told: tuple[str, ...]
    kept: tuple[str, ...]
    fitted: tuple[MeasuredTime, ...]
    held_out: tuple[MeasuredTime, ...]
    before_us: FloatArray
    after_us: FloatArray

    @cached_property
    def topology(self) -> Topology:
        """The machine as fitted, by changes of four digits: the fit knows no more."""
        digits = {name: float(f"{value:.4g}") for name, value in asdict(self.changes).items()}
        return replace(Changes(**digits).topology(self.base), accuracy=self.accuracy)

    @property
    def accuracy(self) -> str:
        """How well the fit meets the table, in words."""
        calls: dict[str, list[str]] = {}
        for point in self.fitted:
            calls.setdefault(point.collective, []).append(size_text(point.size_bytes))
        fitted = ", ".join(f"{name} of {', '.join(sizes)}" for name, sizes in calls.items())
        most = float(np.abs(self.errors()[: len(self.fitted)]).max())
        text = f"{'fitted to' if self.kept else 'compared with'} {fitted}, up to {most:.1%} off"
        if (held := self.stated()) is None:
            return f"{text}; compared with no other size"
        others = counted(len(self.held_out), "other size")
        return f"{text}; {others}, median {held[0]:.1%}, 90th percentile {held[1]:.1%}"

    @property
    def at_limits(self) -> tuple[str, ...]:
        """The names of the parameters that the fit would move farther: factors at _MOST or its
        inverse, and a start-up that leaves a protocol no launch."""
        limits = {"startup_us": self.changes.startup_us <= 0.99 * _least_us(self.base) < 0} | {
            name: abs(math.log(getattr(self.changes, name))) > 0.99 * math.log(_MOST)
            for name in _FACTORS
        }
        return tuple(name for name in self.kept if limits[name])

    @property
    def limits_text(self) -> str:
        """What `at_limits` names, with the values, in words; "" without any."""
        values = asdict(self.changes)
        return ", ".join(f"{name} at their limit {values[name]:.3g}" for name in self.at_limits)

    @property
    def beyond_nominal(self) -> str:
        """A link that is faster than its nominal rate, in words; "" if none is. Then NCCL sends
        less than the plans, or the machine is another one."""
        links = self.base.links
        rate = links.GBps * self.changes.rates
        above = rate / links.nominal_GBps
        link = int(above.argmax())
        if above[link] <= 1.001:
            return ""
        label = self.base.link_label(link)
        return f"{label} at {rate[link]:.4g} GB/s of {links.nominal_GBps[link]:.4g}"

    def errors(self, *, before: bool = False) -> FloatArray:
        """float64: relative errors of the points' times, in their order."""
        measured = np.array([point.time_us for point in (*self.fitted, *self.held_out)])
        return np.asarray((self.before_us if before else self.after_us) / measured - 1)

    @property
    def helps(self) -> bool:
        """Whether the fit makes no held-out error larger, by median and 90th percentile."""
        was, now = self.stated(before=True), self.stated()
        return was is None or now is None or (now[0] <= was[0] and now[1] <= was[1])

    def check(self, file: str) -> None:
        """Refuses a fit that misses half of the table's times by more than MOST_MISSED: its numbers
        describe another machine. Errors: S713."""
        errors = self.errors()
        factors = np.exp(np.abs(np.log1p(errors)))
        missed = float(np.median(factors)) - 1
        if missed <= MOST_MISSED:
            return
        points = (*self.fitted, *self.held_out)
        worst = sorted(range(len(points)), key=lambda k: -factors[k])[:_MOST_NAMED]
        named = "; ".join(
            f"{points[k].collective} of {size_text(points[k].size_bytes)}: "
            f"{points[k].time_us:.4g} us measured, {self.after_us[k]:.4g} simulated"
            for k in sorted(worst, key=lambda k: points[k].size_bytes)
        )
        limits = f", {self.limits_text}" if self.limits_text else ""
        ran = "NCCL ran otherwise there, for example without the fast network: measure again."
        if "rates" in self.at_limits:
            ran = "its rates differ more than a fit changes: write them into its TOML."
        raise S713.error(
            at=Place(file),
            expected=f"times of {self.base.name}, which a fit meets within a factor of "
            f"{1 + MOST_MISSED:g} at half of the sizes",
            found=f"a factor of {1 + missed:.3g} after the fit{limits}; {named}",
            remedy="Nothing is written. Is this the machine? Name the one that was measured with "
            f"--topology. If it is, then {ran}",
        )

    def stated(self, *, before: bool = False) -> tuple[float, float] | None:
        """Median and 90th percentile of the held-out points' errors without signs; None without
        any."""
        held = np.abs(self.errors(before=before)[len(self.fitted) :])
        return (float(np.median(held)), float(np.quantile(held, 0.9))) if len(held) else None


def measured_of(
    tables: Sequence[PrintedTable],
    base: Topology,
    collective: str | None,
    *,
    in_place: bool,
    file: str,
) -> list[MeasuredTime]:
    """The points of tables: the median of the rows of a size. collective: of tables that don't
    name their test. Errors: S712, S713."""
    times: dict[tuple[str, int], list[float]] = {}
    for table in tables:
        name = _collective_of(table, base, collective, file)
        if table.ranks is not None and table.ranks != base.ranks:
            raise S713.error(
                at=Place(file, table.line),
                expected=f"{table.ranks} ranks, those of the table",
                found=f"{base.name} with {base.ranks}",
            )
        _check_bandwidths(table, name, base, file)
        for row in table.rows:
            if row.wrong_in_place and name != "alltoall":
                expected, found = "no wrong results", "wrong ones in place"
                raise S712.error(at=Place(file, row.line), expected=expected, found=found)
            time = row.time_us(in_place=in_place)
            assert time is not None  # a row has a time
            times.setdefault((name, row.size_bytes), []).append(time)
    return [MeasuredTime(*call, median(of), rows=len(of)) for call, of in times.items()]


def _collective_of(table: PrintedTable, base: Topology, collective: str | None, file: str) -> str:
    """The collective of a table. Errors: S713."""
    known = ", ".join(NcclRuns.COLLECTIVES)
    told = table.test or (None if table.rooted else _inferred(table.rows, base.ranks))
    if told in NcclRuns.COLLECTIVES and (not collective or collective == told):
        return told
    if told in NcclRuns.COLLECTIVES:
        expected, found = (
            f"--collective {told}, which the table shows",
            f"--collective {collective}",
        )
        remedy = "Leave --collective out."
    elif told or table.rooted:
        expected = f"a table of {known}"
        found = f"one of {told or 'a collective with a root, such as broadcast'}"
        remedy = (
            "A topology is fitted to the times of these collectives only: give a table of one of "
            "them from the same machine."
        )
    elif collective:
        return collective
    else:
        expected, found = f"a table of {known}", "one that doesn't name its test"
        remedy = "Name its collective with --collective."
    raise S713.error(at=Place(file, table.line), expected=expected, found=found, remedy=remedy)


def _check_bandwidths(table: PrintedTable, name: str, base: Topology, file: str) -> None:
    """Refuses a table in which the ratio of the two bandwidths is that of another number of ranks:
    2 (n - 1) / n for an AllReduce, (n - 1) / n for the others. Errors: S713."""
    row = max(table.rows, key=lambda one: one.time_us(in_place=False) or 0.0)
    time, ratio = row.time_us(in_place=False) or 0.0, _ratio(row)
    share = (base.ranks - 1) / base.ranks
    factor = 2 if name == "allreduce" else 1
    # The table rounds bandwidths to 0.01 GB/s, and times to 0.1 us or more digits.
    rounding = ratio * (0.006 / max(row.busbw_GBps, 1e-9) + 0.06 / max(time, 1e-9)) + 0.002
    if not ratio or abs(ratio - factor * share) <= rounding:
        return
    missing = 1 - ratio / factor
    shown = f", as on {round(1 / missing)} ranks" if 0 < missing <= 0.5 else ""
    raise S713.error(
        at=Place(file, row.line),
        expected=f"a table of {base.ranks} ranks, those of {base.name}: busbw is "
        f"{factor * share:.3f} times algbw",
        found=f"{ratio:.3f} times{shown}",
        remedy="Name the machine that was measured with --topology, or the table's collective.",
    )


def _ratio(row: PrintedRow) -> float:
    """The ratio of a row's bus bandwidth to its size over time; 0 without a time."""
    time = row.time_us(in_place=False)
    return row.busbw_GBps * time * 1e3 / row.size_bytes if time else 0.0


def _inferred(rows: Sequence[PrintedRow], ranks: int) -> str | None:
    """AllReduce, if the ratio of bus bandwidth to size over time is its own. The others' ratios
    are alike."""
    ratio = _ratio(rows[-1])
    return "allreduce" if ranks > 2 and abs(ratio - 2 * (ranks - 1) / ranks) < 0.05 else None


def chosen_sizes(points: Sequence[MeasuredTime]) -> list[MeasuredTime]:
    """Three points of each collective: the smallest, the largest, and the nearest to their
    geometric mean."""
    chosen: list[MeasuredTime] = []
    for name in dict.fromkeys(point.collective for point in points):
        own = sorted((p for p in points if p.collective == name), key=lambda p: p.size_bytes)
        mean = math.sqrt(own[0].size_bytes * own[-1].size_bytes)
        middle = min(own, key=lambda p: abs(math.log(p.size_bytes / mean)))
        chosen += dict.fromkeys((own[0], middle, own[-1]))
    return chosen


def fit(
    base: Topology,
    points: Sequence[MeasuredTime],
    used: Sequence[MeasuredTime],
    plan_of: PlanOf,
    searched: Topology | None = None,
    *,
    report_round: Callable[[float], None] = lambda seconds: None,
) -> Fit:
    """Fits the parameters that `used` can tell, by least squares of the logarithms of times.

    Factors stay within _MOST. The points that are not used decide whether the fit helps: if their
    errors grow, only the start-up is fitted, or nothing.

    plan_of: makes the plans of NCCL's choices, on `base`.
    searched: the machines as NCCL searches them, if `base` counts several network cards as one.
    report_round: called with the seconds of a round, which simulates each of `used`; up to ROUNDS
        follow. Errors: S713, R512, D931.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise missing_extra("SciPy", "fit", error) from error

    sizes = sorted(point.size_bytes for point in used)
    can_tell = {
        "startup_us": bool(sizes) and sizes[0] <= SMALL_BYTES,
        "rates": bool(sizes) and sizes[-1] >= LARGE_BYTES,
        "latencies": len(set(sizes)) > 2,
    }
    told = tuple(name for name, can in can_tell.items() if can)
    if not told:
        expected = f"a size up to {SMALL_BYTES} bytes or from {LARGE_BYTES} bytes to fit"
        raise S713.error(expected=expected, found=f"sizes {', '.join(map(str, sizes)) or 'none'}")
    runs = NcclRuns(base, plan_of, searched)
    held = tuple(point for point in points if point not in used)
    measured = np.array([point.time_us for point in used])

    def times_us(points: Sequence[MeasuredTime], changes: Changes) -> FloatArray:
        world = changes.topology(base)
        return np.array([runs(p.collective, p.size_bytes, world).time_us for p in points])

    @cache
    def simulated(rates: float, latencies: float) -> FloatArray:
        """The times of `used` without a start-up, which adds the same to all."""
        return times_us(used, Changes(0.0, rates, latencies))

    limit, first_us = math.log(_MOST), float((measured - simulated(1.0, 1.0))[0])
    ranges = {  # where the search starts, and its limits
        "startup_us": (max(first_us, 0.0), _least_us(base), math.inf),
        "rates": (0.0, -limit, limit),
        "latencies": (0.0, -limit, limit),
    }

    def found_of(told: tuple[str, ...]) -> Changes:
        units, is_factor = np.array([_UNITS[n] for n in told]), [n in _FACTORS for n in told]
        start, least, most = np.array([ranges[n] for n in told]).T / units

        def changes_of(x: FloatArray) -> Changes:
            moved = dict(zip(told, (x * units).tolist(), strict=True))
            factors = (math.exp(moved.get(name, 0.0)) for name in _FACTORS)
            return Changes(moved.get("startup_us", 0.0), *factors)

        # Times span orders of magnitude; their logarithms weigh relative errors alike at all sizes.
        def missed(x: FloatArray) -> FloatArray:
            c = changes_of(x)
            off = np.log((simulated(c.rates, c.latencies) + c.startup_us) / measured)
            return np.array([*off / _MODEL_ERROR, *x[is_factor]])

        # Wide steps: simulated times have jumps, where NCCL changes its tiles, and no small step
        # tells them from slopes.
        def slopes(x: FloatArray) -> FloatArray:
            steps = np.where(x + _STEP <= most, _STEP, -_STEP)
            rises = [missed(x + step) - missed(x) for step in np.diag(steps)]
            return np.column_stack(rises) / steps

        most_steps = ROUNDS // 3
        found = least_squares(
            missed, start, slopes, (least, most), xtol=1e-3, ftol=1e-3, max_nfev=most_steps
        )
        return changes_of(found.x)

    start = monotonic()
    times_us(used, Changes())
    report_round(monotonic() - start)
    before = np.array([*simulated(1.0, 1.0), *times_us(held, Changes())])
    # From all parameters to none: the first that makes no held-out error larger than it was.
    for kept in (told, told[: told[0] == "startup_us"], ()):
        changes = found_of(kept) if kept else Changes()
        after = np.array([*times_us(used, changes), *times_us(held, changes)])
        found = Fit(base, changes, told, kept, tuple(used), held, before, after)
        if found.helps:
            break
    return found


def _least_us(base: Topology) -> float:
    """The least start-up: no protocol's launch takes less than no time."""
    launch = base.model.launch_us
    return -min(launch.ll, launch.ll128, launch.simple)


ROUNDS = 36
"""The most rounds of a fit: three for each step."""

_STEP = 0.15
"""The step of slopes, in the units of the search."""

_MOST = 2.0
"""The largest factor, and the inverse of the smallest: a machine that differs by more is another
one."""

_MODEL_ERROR = 0.05
"""The error of a simulated time that a fit expects of the plans themselves."""

_UNITS = MappingProxyType({"startup_us": 30.0, "rates": 0.3, "latencies": 0.6})
"""The units of the search: us of a start-up, and logarithms of factors, by how much these differ
between machines. Halves and doubles are equally far, and none is negative."""

_FACTORS = ("rates", "latencies")
