"""Data: a simulation as plain values for the page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.sizes import size_text
from sley.report.bins import MOST_EXECUTIONS, block_bins
from sley.report.critical import CAUSE_WORDS, critical_steps, longest_steps, op_name, times_by_line
from sley.report.limit import limit_of
from sley.report.simulation import busiest_links, bytes_text, idle_parts, launch_text, parameters
from sley.simulate.result import Executions, Simulation

Values = dict[str, Any]

MOST_BLOCKS = 2_000
"""The most thread blocks with a row each; of more blocks, each rank has a row."""

MOST_LINKS = 400
"""The most links with a strip each; of more links, only the busiest are shown."""

MOST_CELLS = 160_000
"""The most cells of a table of bins."""

PAGE = 6
"""The most simulations on a page with these limits; of more, each gets a smaller share."""

MOST_STEPS = 200
"""The most steps of the critical path on the page."""

MOST_VERTICES = 160
"""The most vertices with a row each in the heat map."""


def simulation_data(s: Simulation, name: str, together: int = 1) -> Values:
    """A simulation as plain values for JSON.

    name: the user's name for the plan.
    together: number of simulations on the page.
    """
    part = min(1.0, PAGE / together)
    return {
        "name": name,
        "size": size_text(s.size_bytes),
        "size_bytes": s.size_bytes,
        "time": s.time_us,
        "launch": s.launch_us,
        "launch_text": launch_text(s),
        "algbw": s.algbw_GBps,
        "busbw": s.busbw_GBps,
        "reached": s.of_bound,
        "limit": _limit(s),
        "bound": _bound(s),
        "plan": _plan(s),
        "blocks": _blocks(s),
        "timeline": _timeline(s, part),
        "links": _links(s, part),
        "heat": _heat(s),
        "critical": _critical(s),
        "parameters": parameters(s),
    }


def round_values(values: ArrayLike, digits: int) -> list[Any]:
    """Numbers rounded to `digits` digits after the point; whole numbers as integers."""
    array = np.round(np.asarray(values, np.float64), digits)
    whole: list[Any] = [int(v) if v == int(v) else v for v in array.ravel().tolist()]
    return whole


def _limit(s: Simulation) -> Values:
    limit = limit_of(s)
    share = limit.time_us / s.time_us if s.time_us else 1.0
    return {"share": share, "detail": limit.detail, "remedy": limit.remedy}


def _bound(s: Simulation) -> Values:
    b = s.bound
    return {
        "time": b.time_us,
        "algbw": b.algbw_GBps,
        "reason": b.reason,
        "parts": [
            ["bandwidth", b.bandwidth_us, b.bandwidth_reason],
            ["latency", b.latency_us, b.latency_reason],
        ],
    }


def _plan(s: Simulation) -> Values:
    plan = s.plan
    return {
        "collective": str(plan.collective),
        "topology": s.topology.name,
        "ranks": plan.collective.ranks,
        "blocks": len(s.blocks),
        "blocks_per_rank": plan.blocks_per_rank,
        "instructions": len(plan.instructions),
        "protocol": plan.protocol.value,
        "order": plan.loop_order.value,
        "slots": plan.slots,
        "tiles": s.tiles,
        "tile": bytes_text(s.tile_bytes),
        "code": "interpreter" if s.interpreter else "generated code",
    }


def _blocks(s: Simulation) -> Values:
    """The parts of each thread block's time, or of an average block's of each rank."""
    rank = s.plan.block_rank
    columns = {n: getattr(s.blocks, n) for n in s.blocks.column_names()}
    idle = idle_parts(s)
    columns |= dict(zip(("to_exit", "to_end"), (part[: len(rank)] for part in idle), strict=True))
    summed = len(rank) > MOST_BLOCKS
    if summed:
        count = np.maximum(np.bincount(rank), 1)
        columns = {n: np.bincount(rank, c) / count for n, c in columns.items()}
        labels = [f"rank {r}" for r in range(len(count))]
        of_rank = list(range(len(count)))
    else:
        labels = [f"{r} . {b}" for r, b in zip(rank, s.plan.block_number, strict=True)]
        of_rank = rank.tolist()
    digits = {"to_exit": 4, "to_end": 4}
    return {
        "summed": summed,
        "label": labels,
        "rank": of_rank,
        "average": [float(part.mean()) for part in idle],
        "worst": [float(part.max()) for part in idle],
        **{n: round_values(c, digits.get(n, 3)) for n, c in columns.items()},
    }


def _timeline(s: Simulation, part: float) -> Values | None:
    e = s.executions
    if e is None:
        return None
    if len(e) <= MOST_EXECUTIONS * part and len(s.blocks) <= MOST_BLOCKS:
        return _executions(s, e)
    row = s.plan.block_rank if len(s.blocks) > MOST_BLOCKS else np.arange(len(s.blocks))
    rows = int(row.max(initial=-1)) + 1
    bins = int(np.clip(MOST_CELLS * part / max(rows, 1), 16, 400))
    moving, waiting, cause = block_bins(s, e, row, bins)
    percent = [round_values(part * 100, 0) for part in (moving, waiting)]
    return {
        "kind": "bins",
        "executions": len(e),
        "bins": bins,
        "moving": percent[0],
        "waiting": percent[1],
        "cause": cause.ravel().tolist(),
        "causes": list(CAUSE_WORDS.values()),
    }


def _executions(s: Simulation, e: Executions) -> Values:
    plan = s.plan
    rows, instruction = np.unique(e.instruction, return_inverse=True)
    path = set(zip(s.critical.instruction.tolist(), s.critical.tile.tolist(), strict=True))
    pairs = zip(e.instruction.tolist(), e.tile.tolist(), strict=True)
    ops = np.unique(plan.instructions.op[rows])
    return {
        "kind": "executions",
        "executions": len(e),
        "row": plan.block[e.instruction].tolist(),
        "instruction": instruction.tolist(),
        "tile": e.tile.tolist(),
        "turn": round_values(e.turn_us, 3),
        "start": round_values(e.start_us, 3),
        "end": round_values(e.end_us, 3),
        "cause": e.cause.tolist(),
        "after": e.after.tolist(),
        "critical": [int(pair in path) for pair in pairs],
        "ops": [op_name(op) for op in ops.tolist()],
        "op": np.searchsorted(ops, plan.instructions.op[rows]).tolist(),
        "labels": [plan.label(row) for row in rows.tolist()],
        "causes": list(CAUSE_WORDS.values()),
    }


def _links(s: Simulation, part: float) -> Values:
    """The load of the busiest links over time, as a share of their capacity."""
    used, t = busiest_links(s), s.topology.links
    shown = np.array(used[:MOST_LINKS], np.int64)
    load = s.links.load_GBps[:, shown] / t.GBps[shown]
    # Bins are merged until the table is small enough; the last bin may be shorter.
    together = max(1, math.ceil(load.size / (MOST_CELLS * part)))
    starts = np.arange(0, len(load), together)
    size = np.diff(np.append(starts, len(load)))
    merged = np.add.reduceat(load, starts, axis=0) / size[:, None] if len(load) else load
    utilisation = s.utilisation
    return {
        "links": len(t),
        "used": len(used),
        "average": float(utilisation[used].mean()) if used else 0.0,
        "most": float(utilisation.max(initial=0.0)),
        "label": [s.topology.link_label(link) for link in shown.tolist()],
        "kind": [LinkKind(int(k)).name for k in t.kind[shown]],
        "rate": round_values(t.GBps[shown], 3),
        "moved": [bytes_text(v) for v in s.links.moved_bytes[shown].tolist()],
        "utilisation": round_values(utilisation[shown], 4),
        "bin": s.links.bin_us * together,
        "bins": len(merged),
        "load": round_values(merged.T * 100, 0),
    }


def _heat(s: Simulation) -> Values:
    """Utilisation from vertex to vertex, each a row and a column. Too many vertices are grouped by
    node and kind, or by kind."""
    kind, node = s.topology.vertices.kind, s.topology.vertices.node
    t, utilisation = s.topology.links, s.utilisation
    if len(kind) <= MOST_VERTICES:
        level, group = "vertex", np.arange(len(kind))
        labels = [s.topology.vertex_label(v) for v in range(len(kind))]
    else:
        level, keys = "node", np.column_stack((node.astype(np.int64), kind))
        keys[node < 0, 0] = np.iinfo(np.int64).max  # sorts vertices outside of nodes last
        names, group = np.unique(keys, axis=0, return_inverse=True)
        labels = [_group_label(n, k) for n, k in names.tolist()]
        if len(names) > MOST_VERTICES:
            level = "kind"
            names, group = np.unique(kind, return_inverse=True)
            labels = [_group_label(-1, k) for k in names.tolist()]
    group = np.asarray(group).ravel()
    key = group[t.src] * len(labels) + group[t.dst]
    cells, cell, count = np.unique(key, return_inverse=True, return_counts=True)
    most = np.zeros(len(cells))
    np.maximum.at(most, cell, utilisation)
    return {
        "level": level,
        "labels": labels,
        "src": (cells // len(labels)).tolist(),
        "dst": (cells % len(labels)).tolist(),
        "count": count.tolist(),
        "average": round_values(np.bincount(cell, utilisation) / count, 4) if len(cells) else [],
        "most": round_values(most, 4),
    }


def _group_label(node: int, kind: int) -> str:
    where = f"node {node} " if 0 <= node < np.iinfo(np.int64).max else ""
    word = VertexKind(kind).word
    return f"{where}{word}{'' if word == 'PCIe' else 'es' if word == 'switch' else 's'}"


def _critical(s: Simulation) -> Values:
    steps = critical_steps(s)
    return {
        "executions": len(s.critical),
        "steps": len(steps),
        "rows": [
            {
                "number": n + 1,
                "start": steps[n].start_us,
                "takes": steps[n].duration_us,
                "moving": steps[n].moving_us,
                "times": steps[n].times,
                "ops": ", ".join(steps[n].ops),
                "ranks": list(steps[n].ranks[:16]),
                "more_ranks": max(len(steps[n].ranks) - 16, 0),
                "causes": ", ".join(CAUSE_WORDS[c] for c in steps[n].causes),
                "line": steps[n].line,
                "place": s.plan.label(steps[n].first),
            }
            for n in longest_steps(steps, MOST_STEPS)
        ],
        "lines": [[line, times, us] for line, (times, us) in times_by_line(steps).items()][:50],
    }
