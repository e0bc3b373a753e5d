"""Hangs: one abstract run, as a graph of what waits for what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V203
from sley.ir.graph import find_cycle, levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges, IntArray, LongArray, offsets_of, spans
from sley.ir.words import RECEIVES, SENDS, LoopOrder


@dataclass(frozen=True)
class Run:
    """What an abstract run with enough tiles found.

    level: int32 (instructions,), for the first tile: the earliest step at which each instruction
    can run. Ordered instructions have different levels.
    """

    level: IntArray
    diagnostics: list[Diagnostic]


def run_abstractly(plan: Plan, match: np.ndarray, slots: int, *, per_chunk: bool) -> Run:
    """The abstract run with `slots` slots on every connection; V203 where it cannot end.

    match: the receive of each send. per_chunk: whether a message of several chunks takes a slot
    for each of them. The network of blocks and FIFOs is determinate, so the run ends if and only
    if the graph of waiting has no cycle.
    """
    events = _Events.of(plan, match, slots, per_chunk)
    graph = Edges.from_pairs(events.total, *_waiting(plan, match, slots, events))
    level = levels(graph)
    found = []
    if (level == NONE).any():
        found.append(_describe(plan, graph, level, match, slots, events))
    return Run(level[events.offset[:-1]], found)


@dataclass(frozen=True)
class _Events:
    """The events of a run: instruction i does its tile t, part c as event
    offset[i] + t * parts[i] + c. An instruction has one part, or one for each chunk."""

    tiles: int
    parts: LongArray
    offset: LongArray

    @classmethod
    def of(cls, plan: Plan, match: np.ndarray, slots: int, per_chunk: bool) -> _Events:
        t = plan.instructions
        parts = np.ones(len(t), np.int64)
        if per_chunk:
            parts = np.maximum(t.count.astype(np.int64), 1)
        tiles = tiles_needed(plan, match, slots)
        return cls(tiles, parts, offsets_of(parts * tiles))

    @property
    def total(self) -> int:
        return int(self.offset[-1])

    def instruction(self, event: int) -> int:
        return int(np.searchsorted(self.offset, event, side="right")) - 1

    def all_of(self, rows: np.ndarray) -> LongArray:
        """Every event of the instructions `rows`, one instruction after the other."""
        return spans(self.offset[rows], self.parts[rows] * self.tiles)[1]

    def first(self, rows: np.ndarray) -> LongArray:
        """The first part of every tile of the instructions `rows`."""
        tile = np.arange(self.tiles)
        return np.asarray((self.offset[rows][:, None] + self.parts[rows][:, None] * tile).ravel())

    def last(self, rows: np.ndarray) -> LongArray:
        """The last part of every tile of the instructions `rows`."""
        return np.asarray(self.first(rows) + np.repeat(self.parts[rows] - 1, self.tiles))


def tiles_needed(plan: Plan, match: np.ndarray, slots: int) -> int:
    """How many tiles decide whether a plan hangs.

    In tile order one does: after it every FIFO is empty again. In instruction order a sender can
    be ahead of a receiver by the slots of every connection on the longest chain of fused
    instructions; one tile more is as good as any number.
    """
    if plan.loop_order is LoopOrder.TILE:
        return 1
    t = plan.instructions
    fused = SENDS[t.op] & RECEIVES[t.op]
    hops = plan.sends[fused[plan.sends] & fused[match[plan.sends]]]
    longest = int(levels(Edges.from_pairs(len(t), hops, match[hops])).max(initial=0)) + 1
    return slots * (longest + 1) + 1


def _waiting(
    plan: Plan, match: np.ndarray, slots: int, events: _Events
) -> tuple[LongArray, LongArray]:
    """Pairs of events, the first of which must come before the second.

    An event waits for the one before it in its block's loop order, for its waits at that tile, for
    the message it takes, and to put message m on a connection, for message m - slots having been
    taken.
    """
    rows = np.arange(len(plan.instructions), dtype=np.int64)
    follow = rows[1:][plan.block[1:] == plan.block[:-1]]
    everything = np.arange(events.total)
    inside = np.setdiff1d(everything, events.offset[:-1], assume_unique=True)
    # All events of an instruction, then the next one's: in tile order there is one tile.
    pairs = [(inside - 1, inside), (events.offset[follow] - 1, events.offset[follow])]
    waits = plan.waits
    pairs.append((events.last(waits.target), events.first(waits.source)))
    sends = plan.sends.astype(np.int64)
    takes = match[sends].astype(np.int64)
    pairs.append((events.all_of(sends), events.all_of(takes)))
    # The messages of each connection in order; message m needs the slot of message m - slots.
    order = np.argsort(plan.connection_keys()[0], kind="stable")
    key = np.repeat(plan.connection_keys()[0][order], (events.parts * events.tiles)[sends[order]])
    put, taken = events.all_of(sends[order]), events.all_of(takes[order])
    if slots < len(key):
        same = key[slots:] == key[:-slots]
        pairs.append((taken[:-slots][same], put[slots:][same]))
    before, after = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return before, after


def _describe(
    plan: Plan, graph: Edges, level: IntArray, match: np.ndarray, slots: int, events: _Events
) -> Diagnostic:
    """V203 for one circle of waiting."""
    cycle = find_cycle(graph.reversed(), level == NONE)
    rows = [events.instruction(event) for event in cycle]
    rows = [row for k, row in enumerate(rows) if row != rows[k - 1]] or rows[:1]
    notes = []
    for here, there in zip(rows, rows[1:] + rows[:1], strict=True):
        notes.append(f"{plan.place(here)} {_reason(plan, match, here, there)} {plan.place(there)}")
    shown = notes if len(notes) <= 12 else [*notes[:10], f"... {len(notes) - 10} more"]
    return V203.diagnostic(
        at=[plan.place(rows[0])],
        expected=f"no circle of waiting with {slots} slots a connection",
        found=f"{len(rows)} instructions that wait for one another"
        + (", where every chunk of a message takes a slot" if events.parts.max() > 1 else ""),
        notes=shown,
    )


def _reason(plan: Plan, match: np.ndarray, here: int, there: int) -> str:
    """Why instruction `here` waits for `there`."""
    if here == there:
        return "waits for an earlier tile of"
    if match[there] == here:
        return "waits for the message of"
    if plan.block[here] == plan.block[there]:
        return "comes after"
    if there in plan.waits[here].tolist():
        return "waits for"
    return "waits for a free slot, which needs"
