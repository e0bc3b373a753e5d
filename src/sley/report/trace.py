"""Trace: a simulation as events for chrome://tracing and Perfetto."""

from __future__ import annotations

from typing import Any

import numpy as np

from sley.errors.report import P812
from sley.report.critical import op_name
from sley.simulate.result import Cause, Executions, Simulation

Event = dict[str, Any]

_ORDER = {"M": 0, "C": 1, "X": 2}


def trace(simulation: Simulation) -> dict[str, Any]:
    """A simulation in Chrome's trace format, as plain values for `json.dump`.

    A process is a rank, a thread is a thread block; times are in us. Each execution has a slice of
    category `move` while it moves data, and one of category `wait` from its turn until then; the
    slices of the critical path also have the category `critical`. The process after the last rank
    has a counter in GB/s for each link that carries data.
    Errors: P812 for a simulation without executions.
    """
    if simulation.executions is None:
        raise P812.error(
            expected="a simulation with executions", found=f"{simulation.plan.name} without"
        )
    events = [
        *_names(simulation),
        *_slices(simulation, simulation.executions),
        *_counters(simulation),
    ]
    # The format requires that a slice comes before those that it encloses.
    events.sort(key=lambda e: (e["ts"], _ORDER[e["ph"]], e["pid"], e["tid"], -e.get("dur", 0.0)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "plan": simulation.plan.name,
            "topology": simulation.topology.name,
            "size_bytes": simulation.size_bytes,
            "time_us": simulation.time_us,
        },
    }


def _names(s: Simulation) -> list[Event]:
    plan, ranks = s.plan, s.plan.collective.ranks
    events = []
    for pid in range(ranks + 1):
        name = f"rank {pid}" if pid < ranks else "links"
        events.append(_metadata("process_name", pid, 0, {"name": name}))
        events.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
    for rank, number in zip(plan.block_rank.tolist(), plan.block_number.tolist(), strict=True):
        events.append(_metadata("thread_name", rank, number, {"name": f"block {number}"}))
        events.append(_metadata("thread_sort_index", rank, number, {"sort_index": number}))
    return events


def _metadata(name: str, pid: int, tid: int, args: dict[str, object]) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "ts": 0.0, "args": args}


def _slices(s: Simulation, e: Executions) -> list[Event]:
    plan = s.plan
    critical = set(zip(s.critical.instruction.tolist(), s.critical.tile.tolist(), strict=True))
    rows = np.unique(e.instruction).tolist()
    lines = {row: plan.place(row).short for row in rows}
    columns = (e.instruction, e.tile, e.turn_us, e.start_us, e.end_us, e.cause)
    events: list[Event] = []
    for row, tile, turn, start, end, number in zip(*(c.tolist() for c in columns), strict=True):
        block, cause = int(plan.block[row]), Cause(number).name.lower()
        rank, tid = int(plan.rank[row]), int(plan.block_number[block])
        also = ",critical" if (row, tile) in critical else ""
        args = {"tile": tile, "step": int(plan.step[row]), "waited_for": cause, "line": lines[row]}
        place: Event = {"ph": "X", "pid": rank, "tid": tid}
        if start > turn:
            wait: Event = {"name": "wait", "cat": f"wait{also}", **place}
            events.append({**wait, "ts": turn, "dur": start - turn, "args": args})
        name = op_name(int(plan.instructions.op[row]))
        move: Event = {"name": name, "cat": f"move{also}", **place}
        events.append({**move, "ts": start, "dur": max(end - start, 0.0), "args": args})
    return events


def _counters(s: Simulation) -> list[Event]:
    load, pid = s.links.load_GBps, s.plan.collective.ranks
    # A counter keeps its value until the next event, so only changes are events; the last is 0.
    closed = np.vstack((load, np.zeros((1, load.shape[1]))))
    changed = np.ones(closed.shape, bool)
    changed[1:] = closed[1:] != closed[:-1]
    events: list[Event] = []
    for link in np.flatnonzero(load.any(axis=0)).tolist():
        name = f"{s.topology.link_label(link)} (link {link})"
        for b in np.flatnonzero(changed[:, link]).tolist():
            args = {"GB/s": float(closed[b, link])}
            place: Event = {"name": name, "cat": "load", "ph": "C", "pid": pid, "tid": 0}
            events.append({**place, "ts": b * s.links.bin_us, "args": args})
    return events
