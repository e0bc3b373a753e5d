"""Analysis: what a simulation's time goes into: the critical path as steps, each with its source
line; groups of ranks that do the same work in the same time; the links by the kinds of their ends
and their rates; and sums of executions over intervals of time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place
from sley.ir.fabric import VertexKind
from sley.ir.plan import Plan
from sley.ir.tables import BoolArray, FloatArray, LongArray, by_key
from sley.ir.words import Op
from sley.model.simulation.result import Cause, Simulation, TileExecutions
from sley.report.pictures.plans import block_peers

CAUSE_WORDS = {
    Cause.LAUNCH: "launch",
    Cause.TURN: "the instruction before it",
    Cause.WAIT: "another block",
    Cause.MESSAGE: "a message",
    Cause.SLOT: "a free slot",
}
"""The causes of waiting in words."""


@dataclass(frozen=True)
class CriticalStep:
    """Consecutive executions of the critical path with the same source line and callers.

    times: number of executions.
    start_us, end_us: from the end of the step before to the end of the step's last execution.
    moving_us: the part of this time in which data moves; the rest are hops, waits and overhead.
    causes: the last cause of waiting of each execution, each once.
    ops: names of the operations.
    ranks: the ranks of the executions, each once, in the order of the path.
    line: "ring.py:7", or "ring.py:7 from :3" if a function has the line and is called there;
        empty if the plan has no source lines.
    first: the first execution's instruction; `Plan.label` names it.
    """

    times: int
    start_us: float
    end_us: float
    moving_us: float
    causes: tuple[Cause, ...]
    ops: tuple[str, ...]
    ranks: tuple[int, ...]
    line: str
    first: int

    @property
    def duration_us(self) -> float:
        return self.end_us - self.start_us


def critical_steps(simulation: Simulation) -> list[CriticalStep]:
    """The critical path from the launch to the end, consecutive executions of a line merged."""
    plan, path = simulation.plan, simulation.critical
    if not len(path):
        return []
    line = _line_numbers(plan, path)
    first = np.flatnonzero(np.append(True, line[1:] != line[:-1]))
    end = np.maximum.accumulate(np.maximum(path.end_us, simulation.launch_us))
    begin = np.append(simulation.launch_us, end[:-1])
    moving = np.minimum(path.moving_us, end - begin)
    steps = []
    for a, b in zip(first.tolist(), [*first[1:].tolist(), len(path)], strict=True):
        rows = path.instruction[a:b]
        steps.append(
            CriticalStep(
                times=b - a,
                start_us=float(begin[a]),
                end_us=float(end[b - 1]),
                moving_us=float(moving[a:b].sum()),
                causes=tuple(Cause(int(c)) for c in np.unique(path.cause[a:b])),
                ops=tuple(op_name(op) for op in np.unique(plan.instructions.op[rows]).tolist()),
                ranks=tuple(dict.fromkeys(plan.rank[rows].tolist())),
                line=_line(plan.place(int(rows[0]))),
                first=int(rows[0]),
            )
        )
    return steps


def on_path(simulation: Simulation, executions: TileExecutions) -> BoolArray:
    """bool (executions,): whether each is on the critical path."""
    s = simulation
    keys = [e.instruction.astype(np.int64) * s.tiles + e.tile for e in (executions, s.critical)]
    return np.isin(keys[0], keys[1])


def longest_steps(steps: list[CriticalStep], most: int) -> list[int]:
    """The positions of the longest steps, ascending."""
    order = sorted(range(len(steps)), key=lambda n: (-steps[n].duration_us, n))
    return sorted(order[:most])


def _line(place: Place) -> str:
    """The place and its callers; a file that several have in turn is named once."""
    words, file = "", None
    for one in (place, *place.callers):
        own = one.short if one.file != file else f":{one.line}"
        words, file = f"{words} from {own}" if words else own, one.file
    return words


def _line_numbers(plan: Plan, path: TileExecutions) -> np.ndarray:
    """A number for the source line of each execution and its callers, or a negative one for its
    operation if it has no line."""
    source = plan.instructions.source[path.instruction].astype(np.int64)
    s = plan.sources
    _, number = np.unique(np.column_stack((s.file, s.line, s.caller)), axis=0, return_inverse=True)
    place = np.append(number, -1)[source]
    return np.where(source < 0, -2 - plan.instructions.op[path.instruction], place)


def op_name(op: int) -> str:
    """An operation's name in words: "recv reduce copy"."""
    return Op(op).name.lower().replace("_", " ")


def times_by_line(steps: list[CriticalStep]) -> dict[str, tuple[int, float]]:
    """The number of executions of each source line (or operation without a line) on the path, and
    their time; the longest first."""
    lines: dict[str, tuple[int, float]] = {}
    for step in steps:
        name = step.line or " and ".join(step.ops)
        times, time_us = lines.get(name, (0, 0.0))
        lines[name] = (times + step.times, time_us + step.duration_us)
    return dict(sorted(lines.items(), key=lambda item: (-item[1][1], item[0])))


TOLERANCE = 0.01
"""The largest difference of times between ranks that are alike, as a share of the whole time."""

_LISTED = 4
"""The most peers of a block that its name lists."""


def alike_ranks(simulation: Simulation) -> list[LongArray]:
    """Groups of ranks that are alike, by their least rank; a rank without blocks is in none.

    Two ranks are alike if their blocks execute the same operations on as many chunks, with any
    peers, and spend their time in the same way: each time of `BlockTimes`, and the mean start of
    the executions, differs by at most TOLERANCE of the whole time. A group begins with its
    representative, the rank with the most executions on the critical path, and is then ascending.
    """
    s, plan = simulation, simulation.plan
    work = _work(plan)
    columns = [getattr(s.blocks, name) for name in s.blocks.column_names()]
    if s.executions is not None:
        block = plan.block[s.executions.instruction]
        count = np.maximum(np.bincount(block, minlength=len(work)), 1)
        columns.append(np.bincount(block, s.executions.start_us, len(work)) / count)
    # Blocks with the same work are compared in the order of each of their times, since the order of
    # their numbers depends on their peers.
    rank = plan.block_rank
    times = np.column_stack([c[np.lexsort((c, work, rank))] for c in columns])
    works = work[np.lexsort((work, rank))]
    critical = np.bincount(plan.rank[s.critical.instruction], minlength=plan.ranks)
    span = {r: slice(plan.rank_block[r], plan.rank_block[r + 1]) for r in np.unique(rank).tolist()}
    groups = []
    for ranks in by_key((works[own].tobytes(), one) for one, own in span.items()).values():
        rows = np.stack([times[span[one]].ravel() for one in ranks])
        groups += [np.array(ranks)[own] for own in _near(rows, TOLERANCE * s.time_us)]
    groups.sort(key=lambda group: int(group[0]))
    return [_led_by(group, int(critical[group].argmax())) for group in groups]


def _work(plan: Plan) -> NDArray[np.uint64]:
    """uint64 (blocks,): a hash of the operations and counts that each block executes in order."""
    t = plan.instructions
    word = (t.op.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    word ^= t.count.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    word *= 2 * plan.step.astype(np.uint64) + np.uint64(1)
    total = np.append(np.uint64(0), np.cumsum(word, dtype=np.uint64))
    found: NDArray[np.uint64] = total[plan.block_offset[1:]] - total[plan.block_offset[:-1]]
    return found


def _near(rows: FloatArray, most: float) -> list[LongArray]:
    """Groups of rows, each at most this far from the first row of its group in every column."""
    groups, left = [], np.arange(len(rows))
    while len(left):  # the first row is in its own group, so each round takes one away at least
        far = np.abs(rows[left] - rows[left[0]]).max(axis=1, initial=0.0) > most
        groups.append(left[~far])
        left = left[far]
    return groups


def _led_by(group: LongArray, first: int) -> LongArray:
    return np.append(group[first], np.delete(group, first))


def alike_text(simulation: Simulation, most: int = 6) -> str:
    """The groups of `alike_ranks` in words: "ranks 0 (31 more alike), 3"; at most this many groups,
    the largest first."""
    groups = sorted(alike_ranks(simulation), key=lambda group: (-len(group), int(group[0])))
    if len(groups) == 1 and len(groups[0]) > 1:
        return f"all {len(groups[0])} ranks"
    words = [
        f"{group[0]}" + (f" ({len(group) - 1} more alike)" if len(group) > 1 else "")
        for group in groups[:most]
    ]
    left = groups[most:]
    if left:
        words.append(f"{sum(map(len, left))} more in {len(left)} groups")
    return f"ranks {', '.join(words)}"


def block_name(plan: Plan, block: int) -> str:
    """A thread block by its peers, and by its channel if the plan has several: "to 1 from 3,
    channel 0"; "local" for a block without peers."""
    sends, receives, channels = ("" if text == "-" else text for text in block_peers(plan, block))
    ends = [f"to {_short(sends, 'ranks')}"] if sends else []
    ends += [f"from {_short(receives, 'ranks')}"] if receives else []
    several = channels and plan.channels > 1
    channel = f", channel {_short(channels, 'channels')}" if several else ""
    return (" ".join(ends) or "local") + channel


def _short(numbers: str, word: str) -> str:
    """Numbers with commas as they are, or how many there are."""
    count = numbers.count(",") + 1
    return numbers if count <= _LISTED else f"{count} {word}"


@dataclass(frozen=True)
class LinkClass:
    """Links between vertices of equal kinds, with equal rates.

    ends: "GPU -> NIC".
    GBps: the rate of each.
    links: their rows in the topology.
    used: how many of them carry data.
    average, median, most: the share of their capacity that is used from launch to end.
    busiest: the row of the link with the largest share.
    """

    ends: str
    GBps: float
    links: LongArray
    used: int
    average: float
    median: float
    most: float
    busiest: int


def link_classes(simulation: Simulation) -> list[LinkClass]:
    """All links of the topology in classes, by the kinds of their ends and their rates."""
    links, kind = simulation.topology.links, simulation.topology.vertices.kind
    utilisation = simulation.utilisation
    keys = np.column_stack((kind[links.src], kind[links.dst], links.GBps))
    names, owner = np.unique(keys, axis=0, return_inverse=True)
    classes = []
    for number, (src, dst, rate) in enumerate(names.tolist()):
        rows = np.flatnonzero(owner.ravel() == number)
        share = utilisation[rows]
        classes.append(
            LinkClass(
                ends=f"{VertexKind(int(src)).word} -> {VertexKind(int(dst)).word}",
                GBps=rate,
                links=rows,
                used=int((simulation.links.moved_bytes[rows] > 0).sum()),
                average=float(share.mean()),
                median=float(np.median(share)),
                most=float(share.max()),
                busiest=int(rows[share.argmax()]),
            )
        )
    return classes


MOST_EXECUTIONS = 20_000
"""The most executions that a timeline draws one by one; more are summed in bins of time."""


def block_bins(
    s: Simulation, e: TileExecutions, row: NDArray[np.integer], bins: int
) -> tuple[FloatArray, FloatArray, LongArray]:
    """The share of each bin that thread blocks spend moving data, and waiting.

    row: integer (blocks,), the row of the picture for each thread block, negative for none; a row
        of several blocks shows their average.
    bins: number of bins from the call to the end.
    Returns moving and waiting, float64 (rows, bins), and the cause of the longest waits, int64
    (rows, bins).
    """
    rows = int(row.max(initial=-1)) + 1
    of = row[s.plan.block[e.instruction]].astype(np.int64)
    shown = of >= 0
    width = s.time_us / bins
    moving = _spread(of[shown], e.start_us[shown], e.end_us[shown], rows, bins, width)
    waits = np.stack(
        [
            _spread(of[m], e.turn_us[m], e.start_us[m], rows, bins, width)
            for m in (shown & (e.cause == c) for c in Cause)
        ]
    )
    blocks = np.bincount(row[row >= 0], minlength=rows)[:, None] * width
    part = np.maximum(blocks, 1e-12)
    return moving / part, waits.sum(axis=0) / part, waits.argmax(axis=0)


def _spread(
    row: LongArray, start_us: FloatArray, end_us: FloatArray, rows: int, bins: int, width: float
) -> FloatArray:
    """float64 (rows, bins): the total length of each row's intervals within each bin."""
    # The length before a time t is the sum of max(0, t - start) - max(0, t - end). Both terms are
    # ramps, which begin in one bin and have their full slope in all later bins.
    total = np.zeros((rows, bins))
    for time_us, sign in ((start_us, 1.0), (end_us, -1.0)):
        at = np.clip(np.floor(time_us / width).astype(np.int64), 0, bins - 1)
        begun = np.clip((at + 1) * width - time_us, 0, width)
        key = row * bins + at
        first = np.bincount(key, begun, rows * bins).reshape(rows, bins)
        slope = np.bincount(key, minlength=rows * bins).reshape(rows, bins) * width
        later = np.zeros((rows, bins))
        later[:, 1:] = np.cumsum(slope, axis=1)[:, :-1]
        total += sign * (first + later)
    return np.clip(total, 0, None)
