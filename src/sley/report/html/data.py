"""Data: a simulation as plain values for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from sley.ir.fabric import VertexKind
from sley.ir.sizes import size_text
from sley.ir.tables import LongArray
from sley.model.simulation.result import Simulation, TileExecutions
from sley.report.analysis import (
    CAUSE_WORDS,
    MOST_EXECUTIONS,
    LinkClass,
    alike_ranks,
    block_bins,
    block_name,
    critical_steps,
    link_classes,
    longest_steps,
    on_path,
    op_name,
    times_by_line,
)
from sley.report.limit import FACTORS, WhatIf, change_text, limit_of
from sley.report.pictures.topology import lattice_middles
from sley.report.simulation import busiest_links, bytes_text, idle_parts, launch_text, parameters
from sley.topologies.structure import sides_of, steps

Values = dict[str, Any]

_IDLE = ("to_exit", "to_end")

_GPU_INCHES = (0.3, 0.3)
"""The size of a GPU in the picture of a mesh or torus."""

MOST_BLOCKS = 2_000
"""The most thread blocks with a row each; of more blocks, each rank has a row."""

MOST_LINKS = 400
"""The most links with a strip each; of more links, only the busiest of each class are shown."""

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
    rows, b, plan = _TimelineRows.of(s, part), s.bound, s.plan
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
        "bound": {
            "time": b.time_us,
            "algbw": b.algbw_GBps,
            "reason": b.reason,
            "parts": [
                ["bandwidth", b.bandwidth_us, b.bandwidth_reason],
                ["latency", b.latency_us, b.latency_reason],
            ],
        },
        "plan": {
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
        },
        "blocks": _blocks(s, rows),
        "timeline": _timeline(s, rows, part),
        "classes": [
            {
                **vars(c),
                "links": len(c.links),
                "busiest": s.topology.link_label(c.busiest) if c.used else "",
            }
            for c in link_classes(s)
        ],
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
    return {
        "share": share,
        "detail": limit.detail,
        "remedy": limit.remedy,
        "parts": [[FACTORS[factor][0], us] for factor, us in limit.parts_us.items()],
    }


def change_data(changes: Sequence[WhatIf]) -> list[Values]:
    """The changes of `what_if` as plain values for JSON."""
    return [
        {"text": change.text, "time": change.time_us, "change": change_text(change).strip()}
        for change in changes
    ]


@dataclass(frozen=True)
class _TimelineRows:
    """The rows of the page's timeline of thread blocks.

    detail: "blocks" for a row for each block, "alike" for the blocks of one rank of each group of
        alike ranks, "ranks" for a row for each rank, the average of its blocks.
    groups: the groups of alike ranks, each with its representative first.
    row: int64 (blocks,), the row of each block, negative for none.
    """

    detail: str
    groups: list[LongArray]
    row: LongArray

    @classmethod
    def of(cls, s: Simulation, part: float) -> Self:
        """Single executions of all blocks if they are few enough, else of those that stand for the
        others; sums for more."""
        groups, rank = alike_ranks(s), s.plan.block_rank
        blocks, most = len(rank), MOST_EXECUTIONS * part
        heads = np.isin(rank, [group[0] for group in groups])
        total, own = (0, 0)
        if s.executions is not None:
            total = len(s.executions)
            own = int(heads[s.plan.block[s.executions.instruction]].sum())
        fits = blocks <= MOST_BLOCKS
        if fits and (total <= most or own > most):
            return cls("blocks", groups, np.arange(blocks))
        if heads.sum() <= MOST_BLOCKS:
            return cls("alike", groups, np.where(heads, np.cumsum(heads) - 1, -1))
        return cls("ranks", groups, rank.astype(np.int64))


def _blocks(s: Simulation, rows: _TimelineRows) -> Values:
    """The parts of each row's time: those of a block, or the average of a rank's blocks."""
    plan = s.plan
    columns = {n: getattr(s.blocks, n) for n in s.blocks.column_names()}
    idle = idle_parts(s)
    columns |= {n: part[: len(plan.block_rank)] for n, part in zip(_IDLE, idle, strict=True)}
    if rows.detail == "ranks":
        count = np.maximum(np.bincount(plan.block_rank), 1)
        columns = {n: np.bincount(plan.block_rank, c) / count for n, c in columns.items()}
        of_rank, names = list(range(len(count))), [""] * len(count)
    else:
        shown = np.flatnonzero(rows.row >= 0)
        columns = {n: c[shown] for n, c in columns.items()}
        of_rank = plan.block_rank[shown].tolist()
        numbers = plan.block_number[shown].tolist()
        names = [
            f"{n}: {block_name(plan, b)}" for n, b in zip(numbers, shown.tolist(), strict=True)
        ]
    return {
        "detail": rows.detail,
        "name": names,
        "rank": of_rank,
        "alike": [group.tolist() for group in rows.groups],
        "average": [float(part.mean()) for part in idle],
        "worst": [float(part.max()) for part in idle],
        **{n: round_values(c, 4 if n in _IDLE else 3) for n, c in columns.items()},
    }


def _timeline(s: Simulation, rows: _TimelineRows, part: float) -> Values | None:
    e = s.executions
    if e is None:
        return None
    shown = np.flatnonzero(rows.row[s.plan.block[e.instruction]] >= 0)
    if len(shown) <= MOST_EXECUTIONS * part and rows.detail != "ranks":
        return _executions(s, e, rows.row, shown)
    count = int(rows.row.max(initial=-1)) + 1
    bins = int(np.clip(MOST_CELLS * part / max(count, 1), 16, 400))
    moving, waiting, cause = block_bins(s, e, rows.row, bins)
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


def _executions(s: Simulation, e: TileExecutions, row: LongArray, shown: LongArray) -> Values:
    """The executions `shown`; each names the one that it waited for, shown or not."""
    plan, own, after = s.plan, e.instruction[shown], e.after[shown]
    waits = after >= 0
    before = e.instruction[after[waits]]
    used, number = np.unique(np.append(own, before), return_inverse=True)
    after_instruction = np.full(len(shown), -1)
    after_instruction[waits] = number[len(shown) :]
    after_tile = np.where(waits, e.tile[np.maximum(after, 0)], -1)
    ops = np.unique(plan.instructions.op[used])
    return {
        "kind": "executions",
        "executions": len(e),
        "row": row[plan.block[own]].tolist(),
        "instruction": number[: len(shown)].tolist(),
        "tile": e.tile[shown].tolist(),
        "turn": round_values(e.turn_us[shown], 3),
        "start": round_values(e.start_us[shown], 3),
        "end": round_values(e.end_us[shown], 3),
        "cause": e.cause[shown].tolist(),
        "after_instruction": after_instruction.tolist(),
        "after_tile": after_tile.tolist(),
        "critical": on_path(s, e)[shown].astype(int).tolist(),
        "ops": [op_name(op) for op in ops.tolist()],
        "op": np.searchsorted(ops, plan.instructions.op[used]).tolist(),
        "labels": [plan.label(row) for row in used.tolist()],
        "causes": list(CAUSE_WORDS.values()),
    }


def _links(s: Simulation, part: float) -> Values:
    """The load over time as a share of the capacity: the average of each class of several links,
    then the busiest links, of many those of each class."""
    used, t = busiest_links(s), s.topology.links
    classes = [c for c in link_classes(s) if c.used]
    several = [c for c in classes if len(c.links) > 1]
    shown = np.array(used if len(used) <= MOST_LINKS else _busiest(used, classes), np.int64)
    load = s.links.load_GBps[:, shown] / t.GBps[shown]
    means = [s.links.load_GBps[:, c.links].mean(axis=1) / c.GBps for c in several]
    load = np.column_stack([*means, load])
    # Bins are merged until the table is small enough; the last bin may be shorter.
    together = max(1, math.ceil(load.size / (MOST_CELLS * part)))
    starts = np.arange(0, len(load), together)
    size = np.diff(np.append(starts, len(load)))
    merged = np.add.reduceat(load, starts, axis=0) / size[:, None] if len(load) else load
    utilisation, moved = s.utilisation, s.links.moved_bytes
    labels = [f"{c.ends}: mean of {len(c.links)}" for c in several]
    moved_by = [float(moved[c.links].sum()) for c in several] + moved[shown].tolist()
    return {
        "links": len(t),
        "used": len(used),
        "classes": len(several),
        "average": float(utilisation[used].mean()) if used else 0.0,
        "most": float(utilisation.max(initial=0.0)),
        "label": labels + [s.topology.link_label(link) for link in shown.tolist()],
        "rate": round_values([*(c.GBps for c in several), *t.GBps[shown]], 3),
        "moved": [bytes_text(v) for v in moved_by],
        "utilisation": round_values([*(c.average for c in several), *utilisation[shown]], 4),
        "bin": s.links.bin_us * together,
        "bins": len(merged),
        "load": round_values(merged.T * 100, 0),
    }


def _busiest(used: list[int], classes: list[LinkClass]) -> LongArray:
    """The busiest links of each class, the same number of each, in the order of `used`."""
    order, each = np.array(used), max(MOST_LINKS // len(classes), 1)
    chosen = [order[np.isin(order, c.links)][:each] for c in classes]
    found: LongArray = order[np.isin(order, np.concatenate(chosen))]
    return found


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
    src, dst = (cells // len(labels)).tolist(), (cells % len(labels)).tolist()
    return {
        "level": level,
        "labels": labels,
        "lattice": _lattice(s, src, dst) if level == "vertex" else None,
        "src": src,
        "dst": dst,
        "count": count.tolist(),
        "average": round_values(np.bincount(cell, utilisation) / count, 4) if len(cells) else [],
        "most": round_values(most, 4),
    }


def _lattice(s: Simulation, src: list[int], dst: list[int]) -> Values | None:
    """Where the GPUs of a mesh or torus are, and which links go around its edge; None for other
    topologies."""
    sides = sides_of(s.topology)
    if sides is None:
        return None
    around = [int(abs(steps(sides, a, b)).sum() > 1) for a, b in zip(src, dst, strict=True)]
    places = [list(place) for place in lattice_middles(sides, _GPU_INCHES)]
    return {"places": places, "around": around}


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
