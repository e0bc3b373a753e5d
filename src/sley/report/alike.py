"""Alike: groups of ranks that do the same work in the same time, and thread blocks by name."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from sley.ir.plan import Plan
from sley.ir.tables import FloatArray, LongArray
from sley.model.simulation.result import Simulation
from sley.report.pictures.plans import block_peers

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
    same: dict[bytes, list[int]] = defaultdict(list)
    for one in np.unique(rank).tolist():
        same[works[plan.rank_block[one] : plan.rank_block[one + 1]].tobytes()].append(one)
    groups = []
    for ranks in same.values():
        spans = (slice(plan.rank_block[one], plan.rank_block[one + 1]) for one in ranks)
        rows = np.stack([times[span].ravel() for span in spans])
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
