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
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from time import monotonic
from types import MappingProxyType

import numpy as np

from sley.errors import Place
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

_LATENCIES = ("nvlink_latency_us", "pcie_latency_us", "network_latency_us")


@dataclass(frozen=True)
class MeasuredTime:
    """A measured time of a collective."""

    collective: str
    size_bytes: int
    time_us: float


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

    base: the topology before. changes: what was fitted. told: the names of the fitted parameters.
    fitted, held_out: the points that were used, and all others.
    before_us, after_us: the simulated times of these, first the fitted ones.
    """

    base: Topology
    changes: Changes
    told: tuple[str, ...]
    fitted: tuple[MeasuredTime, ...]
    held_out: tuple[MeasuredTime, ...]
    before_us: FloatArray
    after_us: FloatArray

    @cached_property
    def topology(self) -> Topology:
        """The machine as fitted, by changes of four digits: the fit knows no more."""
        digits = {name: float(f"{value:.4g}") for name, value in asdict(self.changes).items()}
        return Changes(**digits).topology(self.base)

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
        raise S713.error(
            at=Place(file),
            expected=f"times of {self.base.name}, which a fit meets within a factor of "
            f"{1 + MOST_MISSED:g} at half of the sizes",
            found=f"a factor of {1 + missed:.3g} after the fit; {named}",
            remedy="Nothing is written. Is this the machine? Name the one that was measured with "
            "--topology. If it is, then NCCL ran otherwise there, for example without the fast "
            "network: measure again.",
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
    """The points of tables. collective: of tables that don't name their test. Errors: S712,
    S713."""
    points: dict[tuple[str, int], MeasuredTime] = {}
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
            points[name, row.size_bytes] = MeasuredTime(name, row.size_bytes, time)
    return list(points.values())


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

    A factor that would leave the range of _MOST is not fitted. The points that are not used decide
    whether the fit helps: if their errors grow, only the start-up is fitted, or nothing.

    plan_of: makes the plans of NCCL's choices, on `base`.
    searched: the machines as NCCL searches them, if `base` counts several network cards as one.
    report_round: called with the seconds of a round, which simulates each of `used`; about ROUNDS
        follow. Errors: S713, R512, D931.
    """
    try:
        from scipy.optimize import least_squares, minimize
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
    measured = np.log([point.time_us for point in used])
    launch = base.model.launch_us
    least_us = -min(launch.ll, launch.ll128, launch.simple)

    def times_us(points: Sequence[MeasuredTime], changes: Changes) -> list[float]:
        world = changes.topology(base)
        return [runs(p.collective, p.size_bytes, world).time_us for p in points]

    @cache
    def simulated(rates: float, latencies: float) -> FloatArray:
        """The times of `used` without a start-up, which adds the same to all."""
        return np.array(times_us(used, Changes(0.0, rates, latencies)))

    def found_of(told: tuple[str, ...]) -> Changes:
        # Times span orders of magnitude; their logarithms weigh relative errors alike at all sizes.
        def missed(startup_us: FloatArray | float, times: FloatArray) -> FloatArray:
            return (np.log(times + startup_us) - measured) / _MODEL_ERROR

        # What the start-up explains, no factor has to; and it needs no simulation.
        def with_startup(rates: float, latencies: float) -> Changes:
            if "startup_us" not in told:
                return Changes(0.0, rates, latencies)
            times = simulated(rates, latencies)
            first = max(float((np.exp(measured) - times)[0]), 0.0)
            limits = (least_us - 1e-9, np.inf)
            found = least_squares(missed, first, args=(times,), bounds=limits, x_scale=_UNIT_US)
            return Changes(float(found.x[0]), rates, latencies)

        # Factors are searched as logarithms: halves and doubles are equally far, and none is
        # negative.
        factors = [name for name in told if name in _SPREAD]

        def changes_of(logs: FloatArray) -> Changes:
            found = dict(zip(factors, np.exp(logs).tolist(), strict=True))
            return with_startup(found.get("rates", 1.0), found.get("latencies", 1.0))

        def cost(logs: FloatArray) -> float:
            c = changes_of(logs)
            known = [log / _SPREAD[name] for name, log in zip(factors, logs, strict=True)]
            left = [*missed(c.startup_us, simulated(c.rates, c.latencies)), *known]
            return float(np.square(left).sum())

        if not factors:
            return with_startup(1.0, 1.0)
        # A simplex, for simulated times have jumps, where NCCL changes its tiles, that gradients
        # would take for slopes.
        begin = np.vstack((np.zeros(len(factors)), np.diag([_SPREAD[n] for n in factors])))
        limit = math.log(_MOST)
        found = minimize(
            cost,
            begin[0],
            method="Nelder-Mead",
            bounds=[(-limit, limit)] * len(factors),
            options={"initial_simplex": begin, "maxfev": ROUNDS, "xatol": 2e-3, "fatol": 0.01},
        )
        changes = changes_of(found.x)
        beyond = [n for n in factors if abs(math.log(getattr(changes, n))) > 0.99 * limit]
        return found_of(tuple(n for n in told if n not in beyond)) if beyond else changes

    simulated(1.0, 1.0)  # compiles the plans
    start = monotonic()
    times_us(used, Changes())
    report_round(monotonic() - start)
    before = np.array([*simulated(1.0, 1.0), *times_us(held, Changes())])
    # From all parameters to none: the first that makes no held-out error larger than it was.
    for some in (told, told[: told[0] == "startup_us"], ()):
        changes = found_of(some) if some else Changes()
        after = np.array([*times_us(used, changes), *times_us(held, changes)])
        found = Fit(base, changes, told, tuple(used), held, before, after)
        if found.helps:
            break
    return found


ROUNDS = 30
"""The most rounds of a fit."""

_UNIT_US = 30.0
"""The unit of the start-up in the search, so that all its variables are of one size."""

_MOST = 2.0
"""The largest factor, and the inverse of the smallest: a machine that differs by more is another
one."""

_MODEL_ERROR = 0.05
"""The error of a simulated time that a fit expects of the plans themselves."""

_SPREAD: Mapping[str, float] = MappingProxyType({"rates": 0.3, "latencies": 0.6})
"""By how much the logarithms of factors differ between machines."""
