"""Trace: a simulation as events for chrome://tracing and Perfetto."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np

from sley.errors.report import P810
from sley.ir.connections import Messages
from sley.ir.tables import BoolArray, by_key
from sley.model.simulation.result import Cause, Simulation, TileExecutions
from sley.report.analysis import alike_ranks, block_name, on_path, op_name
from sley.report.simulation import busiest_links

Event = dict[str, Any]

MOST_EXECUTIONS = 100_000
"""The most executions in a trace, apart from the critical path: about 60 MB."""

MOST_LINKS = 400
"""The most links with a counter in a trace that leaves executions out."""

_ORDER = {"M": 0, "C": 1, "X": 2, "s": 3, "f": 4}


def trace(simulation: Simulation, most: int = MOST_EXECUTIONS) -> dict[str, Any]:
    """A simulation in Chrome's trace format, as plain values for `json.dump`.

    most: the most executions in the trace, apart from the critical path. Of more, it has those of
        as many ranks as fit: first one of each group of ranks that are alike. `otherData` has the
        number of executions (`executions`), of those that are left out (`left_out`), and of the
        ranks that are complete (`complete_ranks`).

    A process is a rank, a thread is a thread block; times are in us. Each execution has a slice of
    category `move` while it moves data, and one of category `wait` from its turn until then; the
    slices of the critical path also have the category `critical`. A flow of category `message`
    leads from each slice that sends to the one that receives. The process after the last rank
    has a counter in GB/s for each link that carries data.
    Errors: P810 for a simulation without executions.
    """
    if simulation.executions is None:
        raise P810.error(
            expected="a simulation with executions", found=f"{simulation.plan.name} without"
        )
    e = simulation.executions
    has, ranks = _part(simulation, e, most)
    shown = np.flatnonzero(has)
    left_out = len(e) - len(shown)
    links = busiest_links(simulation)
    part = TileExecutions(*(getattr(e, n)[shown] for n in e.column_names()))
    events = [
        *_names(simulation, np.unique(simulation.plan.block[part.instruction]).tolist()),
        *_slices(simulation, part),
        *_flows(simulation, part),
        *_counters(simulation, sorted(links[:MOST_LINKS] if left_out else links)),
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
            "executions": len(e),
            "left_out": left_out,
            "complete_ranks": ranks,
        },
    }


def trace_bytes(made: dict[str, Any], *, packed: bool) -> bytes:
    """A trace as the bytes of its file. packed: whether by gzip, which Perfetto reads too."""
    text = json.dumps(made, separators=(",", ":")).encode()
    return gzip.compress(text, mtime=0) if packed else text


def _part(s: Simulation, e: TileExecutions, most: int) -> tuple[BoolArray, int]:
    """The part of the executions that a trace has, bool (executions,), and the number of ranks of
    which it has all."""
    plan = s.plan
    if len(e) <= most:
        return np.ones(len(e), bool), plan.ranks
    rank = plan.rank[e.instruction]
    count = np.bincount(rank, minlength=plan.ranks)
    groups = sorted(alike_ranks(s), key=len, reverse=True)
    heads = [int(group[0]) for group in groups]
    order = heads + sorted(set(range(plan.ranks)) - set(heads))
    total = np.cumsum(count[order])
    fit = int(np.searchsorted(total, most, side="right"))
    shown = np.isin(rank, order[:fit])
    if not fit:  # not even one rank: the first executions of one
        shown[np.flatnonzero(rank == order[0])[:most]] = True
    return shown | on_path(s, e), fit


def _names(s: Simulation, blocks: list[int]) -> list[Event]:
    plan, ranks = s.plan, s.plan.collective.ranks
    events = []
    for pid in range(ranks + 1):
        name = f"rank {pid}" if pid < ranks else "links"
        events.append(_metadata("process_name", pid, 0, {"name": name}))
        events.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
    for block in blocks:
        rank, number = int(plan.block_rank[block]), int(plan.block_number[block])
        name = f"block {number}: {block_name(plan, block)}"
        events.append(_metadata("thread_name", rank, number, {"name": name}))
        events.append(_metadata("thread_sort_index", rank, number, {"sort_index": number}))
    return events


def _metadata(name: str, pid: int, tid: int, args: dict[str, object]) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "ts": 0.0, "args": args}


def _slices(s: Simulation, e: TileExecutions) -> list[Event]:
    plan = s.plan
    lines = {row: plan.place(row).short for row in np.unique(e.instruction).tolist()}
    columns = (e.instruction, e.tile, e.turn_us, e.start_us, e.end_us, e.cause, on_path(s, e))
    events: list[Event] = []
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for row, tile, turn, start, end, number, is_critical in rows:
        block, cause = int(plan.block[row]), Cause(number).name.lower()
        rank, tid = int(plan.rank[row]), int(plan.block_number[block])
        also = ",critical" if is_critical else ""
        args = {"tile": tile, "step": int(plan.step[row]), "waited_for": cause, "line": lines[row]}
        place: Event = {"ph": "X", "pid": rank, "tid": tid}
        if start > turn:
            wait: Event = {"name": "wait", "cat": f"wait{also}", **place}
            events.append({**wait, "ts": turn, "dur": start - turn, "args": args})
        name = op_name(int(plan.instructions.op[row]))
        move: Event = {"name": name, "cat": f"move{also}", **place}
        events.append({**move, "ts": start, "dur": max(end - start, 0.0), "args": args})
    return events


def _flows(s: Simulation, e: TileExecutions) -> list[Event]:
    """An arrow for each message between two of these executions."""
    plan, messages = s.plan, Messages.of(s.plan)
    at = {
        pair: row
        for row, pair in enumerate(zip(e.instruction.tolist(), e.tile.tolist(), strict=True))
    }
    sends = by_key(zip(messages.receive.tolist(), messages.send.tolist(), strict=True))
    events: list[Event] = []
    for (receive, tile), row in at.items():
        for send in sends.get(receive, []):
            if (send, tile) not in at:
                continue
            number = len(events) // 2
            for phase, one in (("s", at[send, tile]), ("f", row)):
                block = plan.block[e.instruction[one]]
                place = {"pid": int(plan.block_rank[block]), "tid": int(plan.block_number[block])}
                flow: Event = {"name": "message", "cat": "message", "ph": phase, "id": number}
                # An arrow's end belongs to the slice around it: without "bp", to the next one.
                end = {"bp": "e"} if phase == "f" else {}
                events.append({**flow, **end, **place, "ts": float(e.start_us[one]), "args": {}})
    return events


def _counters(s: Simulation, links: list[int]) -> list[Event]:
    load, pid = s.links.load_GBps, s.plan.collective.ranks
    # A counter keeps its value until the next event, so only changes are events; the last is 0.
    closed = np.vstack((load, np.zeros((1, load.shape[1]))))
    changed = np.ones(closed.shape, bool)
    changed[1:] = closed[1:] != closed[:-1]
    events: list[Event] = []
    for link in links:
        name = f"{s.topology.link_label(link)} (link {link})"
        for b in np.flatnonzero(changed[:, link]).tolist():
            args = {"GB/s": float(closed[b, link])}
            place: Event = {"name": name, "cat": "load", "ph": "C", "pid": pid, "tid": 0}
            events.append({**place, "ts": b * s.links.bin_us, "args": args})
    return events
