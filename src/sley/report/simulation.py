"""Simulations as text: one in full, a table of sizes, and a table that compares plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sley.errors import counted
from sley.errors.compiler import C313
from sley.errors.report import P810
from sley.ir.fabric import LinkKind
from sley.ir.plan import Plan
from sley.ir.sizes import size_text
from sley.ir.tables import FloatArray
from sley.model.simulation.result import Simulation, error_text, errors_text
from sley.report.analysis import (
    CAUSE_WORDS,
    CriticalStep,
    alike_text,
    block_name,
    critical_steps,
    link_classes,
    longest_steps,
    times_by_line,
)
from sley.report.limit import blocks_text, limit_of, threads_of

STEPS = 12
"""The most steps of the critical path in the text."""

_WIDTH = 22

PART_WORDS = {
    "moving_us": "moving data",
    "waiting_us": "waiting for blocks",
    "message_us": "waiting for messages",
    "slot_us": "waiting for slots",
    "overhead_us": "overhead",
}
"""The parts of a thread block's time in words, by column."""


def simulation_lines(simulation: Simulation) -> list[str]:
    """A simulation in full: time, bandwidth and bound, what limits it, links, thread blocks, and
    the critical path with source lines."""
    parts = (_head, _limit_lines, _link_lines, _block_lines, _critical_lines)
    return [line for part in parts for line in part(simulation)]


def _pair(name: str, value: object) -> str:
    return f"{name:<{_WIDTH}} {value}".rstrip()


def _head(s: Simulation) -> list[str]:
    c, plan = s.plan.collective, s.plan
    code = "an interpreter" if s.interpreter else "generated code"
    tile = f"{counted(s.tiles, 'tile')} of at most {bytes_text(s.tile_bytes)} of a chunk"
    slots = counted(plan.slots, "slot")
    return [
        _pair("plan", f"{plan.name}: {c}"),
        _pair("topology", f"{s.topology.name}, {counted(s.topology.ranks, 'GPU')}"),
        _pair("size", f"{size_text(s.size_bytes)} ({s.size_bytes} bytes)"),
        _pair("time", f"{s.time_us:.1f} us, including {launch_text(s)}"),
        _pair("algbw", f"{s.algbw_GBps:.2f} GB/s"),
        _pair("busbw", f"{s.busbw_GBps:.2f} GB/s"),
        _pair("bound", f"{s.bound.time_us:.1f} us, {s.bound.algbw_GBps:.2f} GB/s algbw"),
        _pair("", f"by {s.bound.reason}"),
        _pair("reached", f"{s.of_bound:.1%} of the bound"),
        *([] if s.measured else [_pair("model's error", error_text(s.topology, s.size_bytes))]),
        _pair("tiles", tile),
        _pair("run as", f"{plan.protocol.value}, {plan.loop_order.value} order, {slots}, {code}"),
    ]


def _limit_lines(s: Simulation) -> list[str]:
    limit = limit_of(s)
    share = limit.time_us / s.time_us if s.time_us else 1.0
    return [
        _pair("limited by", f"{limit.detail}: {share:.0%} of the time"),
        _pair("remedy", limit.remedy),
    ]


def launch_text(simulation: Simulation) -> str:
    """The time of the launch in words, and the part of it for starting one GPU after another."""
    startup_us = simulation.startup_us
    part = f" ({startup_us:g} of them to start one GPU after another)" if startup_us else ""
    return f"{simulation.launch_us:g} us for the launch{part}"


def bytes_text(size_bytes: float) -> str:
    """A number of bytes in words, with three digits: "1.5 MiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes:.3g} bytes"


def busiest_links(simulation: Simulation) -> list[int]:
    """The links that carry data, the busiest first."""
    order = np.argsort(-simulation.utilisation, kind="stable")
    return [link for link in order.tolist() if simulation.links.moved_bytes[link] > 0]


def _link_lines(s: Simulation) -> list[str]:
    utilisation = s.utilisation
    head = f"{'links':<{_WIDTH}} {'number':>8} {'average':>8} {'median':>8} {'most':>8}"
    lines = ["", f"{head}  of capacity"]
    for c in link_classes(s):
        shares = f"{c.average:>8.1%} {c.median:>8.1%} {c.most:>8.1%}"
        busiest = f", {s.topology.link_label(c.busiest)}" if c.used else ""
        lines.append(f"{c.ends:<{_WIDTH}} {len(c.links):>8} {shares}  {c.GBps:g} GB/s{busiest}")
    busy = utilisation[busiest_links(s)]
    if len(busy):
        lines.append(f"{'all used links':<{_WIDTH}} {len(busy):>8} {busy.mean():>8.1%}")
    return lines


def idle_parts(simulation: Simulation) -> tuple[FloatArray, FloatArray]:
    """`Simulation.idle` to the blocks' own exits and to the end, with rounding errors below 0 set
    to 0; for a plan without blocks, one block that is never idle."""
    parts = [np.maximum(simulation.idle(to_exit=to_exit), 0.0) for to_exit in (True, False)]
    return (parts[0], parts[1]) if len(parts[0]) else (np.zeros(1), np.zeros(1))


def _block_lines(s: Simulation) -> list[str]:
    blocks = len(s.blocks)
    lines = ["", f"{'thread blocks':<{_WIDTH}} {'average':>8} {'worst':>8}"]
    if not blocks:
        return ["", _pair("thread blocks", "none")]
    to_exit, to_end = idle_parts(s)
    running_us = max(s.time_us - s.launch_us, 1e-12)
    parts = {"idle to own exit": to_exit, "idle to the end": to_end}
    parts |= {name: getattr(s.blocks, word) / running_us for word, name in PART_WORDS.items()}
    for name, part in parts.items():
        # The worst block moves data for the least time, and does anything else for the most.
        worst = int(part.argmin() if name == PART_WORDS["moving_us"] else part.argmax())
        shares = f"{part.mean():>8.1%} {part[worst]:>8.1%}"
        number = f"rank {s.plan.block_rank[worst]} block {s.plan.block_number[worst]}"
        label = f"{number}, {block_name(s.plan, worst)}"
        lines.append(f"{name:<{_WIDTH}} {shares}  {label}")
    most = s.plan.blocks_per_rank
    threads = threads_of(s.plan, s.topology, s.size_bytes)
    of = f", of {threads} threads" if threads else ""
    lines.append(_pair("blocks", f"{blocks}, at most {most} on a rank{of}"))
    if remark := blocks_text(most, s.model):
        lines.append(_pair("", remark))
    lines.append(_pair("alike", alike_text(s)))
    return lines


def _critical_lines(s: Simulation) -> list[str]:
    steps = critical_steps(s)
    executions = counted(len(s.critical), "execution")
    lines = ["", f"critical path: {executions} from {s.launch_us:.1f} us to {s.time_us:.1f} us"]
    if not steps:
        return lines
    lines.append(f"  {'from us':>10} {'takes us':>10} {'moving':>7} {'times':>6}  what")
    shown = longest_steps(steps, STEPS)
    for number, step in enumerate(steps):
        if number in shown:
            lines.append(_critical_line(step))
    left = [step for number, step in enumerate(steps) if number not in shown]
    if left:
        takes = sum(step.duration_us for step in left)
        times = sum(step.times for step in left)
        lines.append(f"  {'':>10} {takes:>10.1f} {'':>7} {times:>6}  all shorter steps")
        lines.append("  all steps by source line:")
        total = max(s.time_us - s.launch_us, 1e-12)
        for name, (times, time_us) in list(times_by_line(steps).items())[:STEPS]:
            lines.append(f"  {'':>10} {time_us:>10.1f} {time_us / total:>7.1%} {times:>6}  {name}")
    return lines


def _critical_line(step: CriticalStep) -> str:
    ranks = ", ".join(map(str, step.ranks[:4])) + (", ..." if len(step.ranks) > 4 else "")
    where = f"{'rank' if len(step.ranks) == 1 else 'ranks'} {ranks}"
    causes = ", ".join(CAUSE_WORDS[cause] for cause in step.causes)
    what = f"{step.line or 'no source line'}  {', '.join(step.ops)} on {where} after {causes}"
    moving = step.moving_us / step.duration_us if step.duration_us > 0 else 0.0
    return (
        f"  {step.start_us:>10.1f} {step.duration_us:>10.1f} {moving:>7.1%} {step.times:>6}  {what}"
    )


def parameters(simulation: Simulation) -> list[tuple[str, str, str]]:
    """Every parameter of a simulation: (group, name, value)."""
    s, t = simulation, simulation.topology.links
    rows = [
        ("run", "size_bytes", f"{s.size_bytes}"),
        ("run", "tiles", f"{s.tiles} of at most {bytes_text(s.tile_bytes)} of a chunk"),
        ("run", "protocol", s.plan.protocol.value),
        ("run", "slots", f"{s.plan.slots}"),
        ("run", "loop_order", s.plan.loop_order.value),
        ("run", "interpreter", "yes" if s.interpreter else "no"),
        ("run", "launch_us", f"{s.launch_us:g}"),
        ("run", "startup_us", f"{s.startup_us:g}"),
        ("topology", "name", s.topology.name),
        ("topology", "ranks", f"{s.topology.ranks} on {counted(s.topology.nodes, 'node')}"),
    ]
    kinds = np.column_stack((t.kind, t.GBps, t.nominal_GBps, t.latency_us))
    for row, count in zip(*np.unique(kinds, axis=0, return_counts=True), strict=True):
        kind, rate, nominal, latency = row.tolist()
        own = f", latency {latency:g} us" if latency >= 0 else ""
        value = f"{counted(int(count), 'link')}, {rate:g} GB/s each (nominal {nominal:g}){own}"
        rows.append(("topology", f"{LinkKind(int(kind)).name.lower()} links", value))
    return rows + [("model", name, value) for name, value in s.model.items().items()]


def parameter_lines(simulation: Simulation) -> list[str]:
    """Every parameter of the topology and the cost model."""
    lines, last = [], ""
    for group, name, value in parameters(simulation):
        if group == "run":  # the head of the text has these
            continue
        if group != last:
            lines += ["", f"parameters of the {group}"]
        lines.append("  " + _pair(name, value))
        last = group
    return lines


SIZE_HEADER = (
    f"# {'size':>12}  {'time':>11}  {'algbw':>8}  {'busbw':>8}  {'bound':>8}  {'reached':>8}"
    "  limit\n"
    f"# {'(B)':>12}  {'(us)':>11}  {'(GB/s)':>8}  {'(GB/s)':>8}  {'(GB/s)':>8}"
)
"""The head of a table of sizes; its bound is that on the algorithm bandwidth, its limit the
`Factor` with the longest time."""


def size_row(simulation: Simulation) -> str:
    """A line of a table of sizes."""
    s = simulation
    return (
        f"  {s.size_bytes:>12}  {s.time_us:>11.1f}  {s.algbw_GBps:>8.2f}  {s.busbw_GBps:>8.2f}  "
        f"{s.bound.algbw_GBps:>8.2f}  {s.of_bound:>8.1%}  {limit_of(s).factor}"
    )


def size_table(simulations: Sequence[Simulation]) -> list[str]:
    """Simulations of one plan, a line each, with nccl-tests' columns. Errors: P810."""
    require_simulations(simulations)
    return [*SIZE_HEADER.splitlines(), *map(size_row, simulations), *_error_lines(simulations)]


def _error_lines(simulations: Iterable[Simulation]) -> list[str]:
    """The model's errors, with the machines' names if they differ."""
    found = {s.topology.name: errors_text(s.topology) for s in simulations}
    several = len(set(found.values())) > 1
    names = found if several else list(found)[:1]
    return [
        f"# the model's error{f' on {name}' * several}, median / 90th percentile: {found[name]}"
        for name in names
    ]


def require_simulations(simulations: Sequence[Simulation]) -> None:
    """Raises P810 if there are no simulations."""
    if not len(simulations):
        raise P810.error(expected="one simulation or more", found="none")


def simulation_names(simulations: Sequence[Simulation], names: Sequence[str] | None) -> list[str]:
    """A name for each simulation, by default its plan's. Errors: P810."""
    if names is None:
        return [s.plan.name for s in simulations]
    if len(names) != len(simulations):
        raise P810.error(
            expected=f"{counted(len(simulations), 'name')}, one for each simulation",
            found=counted(len(names), "name"),
        )
    return list(names)


def check_comparable(plans: Iterable[tuple[str, Plan]]) -> None:
    """Refuses plans, each with its name, that can't be compared. Errors: C313 for different
    collectives or numbers of ranks."""
    of = [(name, plan.collective) for name, plan in plans]
    for what, kinds in (
        ("collective", {c.name: name for name, c in of}),
        ("number of ranks", {c.ranks: name for name, c in of}),
    ):
        if len(kinds) > 1:
            raise C313.error(
                expected=f"plans of one {what}",
                found=", ".join(f"{name}: {kind}" for kind, name in kinds.items()),
                remedy=f"Compare plans of the same {what}.",
            )


def comparison_table(columns: Sequence[tuple[str, Sequence[Simulation]]]) -> list[str]:
    """A comparison of plans: for each size, a line for each plan with a simulation of this size.

    ratio: the first plan's time over this plan's; above 1, this plan is faster. idle: the average
    thread block's idle time, to its own exit and to the end. used, most: the average and the
    largest share of the capacity of the links that carry data. topology: of several ones.
    Errors: P810 without simulations, C313 for different collectives or numbers of ranks.
    """
    for _, simulations in columns:
        require_simulations(simulations)
    require_simulations([s for _, simulations in columns for s in simulations])
    check_comparable((name, s.plan) for name, row in columns for s in row)
    several = len({s.topology.name for _, row in columns for s in row}) > 1
    width = max(len(name) for name, _ in columns)
    lines = [
        f"{'size':>8}  {'plan':<{width}}  {'time us':>11}  {'algbw':>8}  {'ratio':>6}  "
        f"{'reached':>7}  {'blocks':>6}  {'idle to':>7} {'exit/end':<8}  {'used':>6} {'most':>6}"
        + "  topology"
        * several
    ]
    for size in sorted({s.size_bytes for _, row in columns for s in row}):
        of_size = [(name, s) for name, row in columns for s in row if s.size_bytes == size]
        lines += [
            _comparison_row(s, of_size[0][1], f"{name:<{width}}") + f"  {s.topology.name}" * several
            for name, s in of_size
        ]
    return [*lines, *_error_lines(s for _, row in columns for s in row)]


def _comparison_row(s: Simulation, first: Simulation, name: str) -> str:
    idle = idle_parts(s)
    used = s.utilisation[busiest_links(s)]
    used = used if len(used) else np.zeros(1)
    return (
        f"{size_text(s.size_bytes):>8}  {name}  {s.time_us:>11.1f}  {s.algbw_GBps:>8.2f}  "
        f"{first.time_us / s.time_us:>6.3f}  {s.of_bound:>7.1%}  {s.plan.blocks_per_rank:>6}  "
        f"{idle[0].mean():>7.1%} {idle[1].mean():>8.1%}  {used.mean():>6.1%} {used.max():>6.1%}"
    )
