"""Thread blocks: which block of the executor performs which instructions of a plan, and their
channels, semaphores and barriers.

A block of the executor has few operations. So a long block of the plan is cut into several, which
follow one another at barriers. Waits between blocks are semaphores, one for each pair of blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sley.formats.mscclpp.analysis import Analysis
from sley.formats.mscclpp.words import MEMORY, PORT
from sley.ir.happens_before import hazards
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import Protocol


@dataclass(frozen=True, order=True)
class Channel:
    """A channel between two blocks of different ranks, which signal each other on it.

    low, high: the ranks, the lower one first. number: the plan's channel. low_block, high_block:
    the blocks at its ends. kind: MEMORY or PORT. forth, back: whether messages go from low to high,
    and from high to low. begins: whether receivers signal on it that they have begun the call.
    """

    low: int
    high: int
    number: int
    low_block: int
    high_block: int
    kind: str
    forth: bool
    back: bool
    begins: bool

    def sends(self, rank: int) -> bool:
        """Whether this rank sends messages on it."""
        return self.forth if rank == self.low else self.back

    def receives(self, rank: int) -> bool:
        """Whether this rank receives messages on it."""
        return self.back if rank == self.low else self.forth

    def peer(self, rank: int) -> int:
        """The rank at the other end."""
        return self.high if rank == self.low else self.low


@dataclass
class ThreadBlock:
    """A block of the executor.

    rows: its instructions, in order. after, before: the barriers at which it follows another part
    of the same block of the plan, and another part follows it, or NONE. channels: by type, its
    channels, ascending, with their numbers among its own.
    """

    rank: int
    rows: Sequence[int]
    after: int = NONE
    before: int = NONE
    channels: dict[str, dict[Channel, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ThreadBlocks:
    """The blocks of the executor, rank after rank, and what connects them.

    acquires: by instruction, the semaphores to acquire before it. releases: by instruction, the
    semaphores to release after it. semaphores, barriers: their numbers on each rank.
    numbers: by rank and type, its channels, ascending, with their numbers: so a channel has the
    same number at both ends among those between the two ranks, by which the executor connects them.
    channels_of: by (instruction, whether it sends), the channels of its messages; several if its
    peer is a group.
    """

    blocks: list[ThreadBlock]
    acquires: dict[int, list[int]]
    releases: dict[int, list[int]]
    semaphores: list[int]
    barriers: list[int]
    numbers: list[dict[str, dict[Channel, int]]]
    channels_of: dict[tuple[int, bool], list[Channel]]


def _needed_order(analysis: Analysis) -> list[tuple[int, int]]:
    """Pairs of instructions of a rank, in different blocks, the first of which must end before the
    second one begins.

    These are the plan's waits; with packets, which order nothing but their own data, also the
    conflicting accesses that messages order.
    """
    plan, order = analysis.plan, analysis.order
    waits = plan.waits
    pairs = set(zip(waits.target.tolist(), waits.source.tolist(), strict=True))
    if plan.protocol is Protocol.LL:
        unordered = hazards(plan, order.level, unordered=True)
        for before, after in zip(unordered.first.tolist(), unordered.second.tolist(), strict=True):
            if not order.reaches_within_rank(before, after):
                pairs.add((before, after))
    return sorted(pair for pair in pairs if plan.block[pair[0]] != plan.block[pair[1]])


def arrange(analysis: Analysis, cut: Iterable[Sequence[Sequence[int]]]) -> ThreadBlocks:
    """The blocks, and the semaphores, barriers and channels between them. cut: for each block of
    the plan, the instructions of its parts."""
    plan, blocks = analysis.plan, list[ThreadBlock]()
    block_of = np.full(len(plan.instructions), NONE, np.int64)
    position, whole = block_of.copy(), block_of.copy()
    barriers = [0] * plan.collective.ranks
    for number, parts in enumerate(cut):
        for part, rows in enumerate(parts):
            block_of[rows], position[rows] = len(blocks), np.arange(len(rows))
            whole[rows] = number
            block = ThreadBlock(int(plan.rank[rows[0]]), rows)
            if part:
                block.after = blocks[-1].before = barriers[block.rank]
                barriers[block.rank] += 1
            blocks.append(block)
    # Barriers order the parts of one block, so semaphores are for other blocks alone.
    pairs = [pair for pair in _needed_order(analysis) if whole[pair[0]] != whole[pair[1]]]
    acquires, releases, semaphores = _semaphores(plan, pairs, block_of, position)
    channels_of = _channels(analysis, block_of)
    channels: list[set[Channel]] = [set() for _ in blocks]
    of_ranks: list[set[Channel]] = [set() for _ in barriers]
    for (row, _), found in channels_of.items():
        channels[block_of[row]].update(found)
        of_ranks[plan.rank[row]].update(found)
    for block, own in zip(blocks, channels, strict=True):
        block.channels = _numbered(own)
    numbers = [_numbered(own) for own in of_ranks]
    return ThreadBlocks(blocks, acquires, releases, semaphores, barriers, numbers, channels_of)


def _numbered(channels: set[Channel]) -> dict[str, dict[Channel, int]]:
    """The channels of each type, ascending, with their numbers."""
    kinds: dict[str, dict[Channel, int]] = {MEMORY: {}, PORT: {}}
    for one in sorted(channels):
        kinds[one.kind][one] = len(kinds[one.kind])
    return kinds


def _semaphores(
    plan: Plan, pairs: Sequence[tuple[int, int]], block_of: np.ndarray, position: np.ndarray
) -> tuple[dict[int, list[int]], dict[int, list[int]], list[int]]:
    """The semaphores to acquire and to release by instruction, and their number by rank. Each pair
    of blocks has one. A wait is needed only if no earlier one of the pair is for as late an
    instruction."""
    of_blocks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for before, after in pairs:
        of_blocks[int(block_of[before]), int(block_of[after])].append((before, after))
    acquires: dict[int, list[int]] = defaultdict(list)
    releases: dict[int, list[int]] = defaultdict(list)
    number = [0] * plan.collective.ranks
    for key in sorted(of_blocks):
        # By waiting instructions, and of one's waits the one for the latest first: what follows is
        # in vain if it is for no later instruction than a wait before it.
        latest = NONE
        rank = int(plan.rank[of_blocks[key][0][0]])
        ordered = sorted(of_blocks[key], key=lambda p: (position[p[1]], -position[p[0]]))
        for before, after in ordered:
            if position[before] > latest:
                latest = int(position[before])
                releases[before].append(number[rank])
                acquires[after].append(number[rank])
        number[rank] += 1
    return dict(acquires), dict(releases), number


def _channels(analysis: Analysis, block_of: np.ndarray) -> dict[tuple[int, bool], list[Channel]]:
    """The channels of messages, at both ends. The two directions between two blocks share one.

    With LL, a rank that hears of another one in each call needs no signal that it has begun: its
    packets of a call come from that call (and scratch has two copies). Nor do reductions in a
    switch: a rank signals that the switch may read its data, and only then the result is written.
    """
    plan, messages, switching = analysis.plan, analysis.messages, analysis.switching
    sends, receives = messages.send.tolist(), messages.receive.tolist()
    t, rank = plan.instructions, plan.rank
    heard = {(int(rank[s]), int(rank[r])) for s, r in zip(sends, receives, strict=True)}
    keys, begins = [], set()
    for s, r in zip(sends, receives, strict=True):
        low, high = (s, r) if rank[s] < rank[r] else (r, s)
        ends = (int(rank[low]), int(rank[high]))
        blocks = (int(block_of[low]), int(block_of[high]))
        key = (*ends, int(t.channel[s]), *blocks, PORT if analysis.ports[s] else MEMORY)
        keys.append((key, low == s))
        mutual = plan.protocol is Protocol.LL and {ends, ends[::-1]} <= heard
        if not mutual and s not in switching.sum_of and s not in switching.offers:
            begins.add(key)
    used = set(keys)
    found: dict[tuple[int, bool], list[Channel]] = defaultdict(list)
    for (key, _), s, r in zip(keys, sends, receives, strict=True):
        channel = Channel(*key, (key, True) in used, (key, False) in used, key in begins)
        found[s, True].append(channel)
        found[r, False].append(channel)
    return dict(found)
