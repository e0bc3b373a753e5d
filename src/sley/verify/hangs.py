"""Hangs: one abstract run, as a graph of what waits for what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V203
from sley.ir.graph import find_cycle, levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges, IntArray
from sley.ir.words import RECEIVES, SENDS, LoopOrder


@dataclass(frozen=True)
class Run:
    """What an abstract run with enough tiles found.

    level: int32 (instructions,), for the first tile: the earliest step at which each instruction
    can run. Ordered instructions have different levels.
    """

    level: IntArray
    diagnostics: list[Diagnostic]


def run_abstractly(plan: Plan, match: np.ndarray, slots: int) -> Run:
    """The abstract run with `slots` slots on every connection; V203 where it cannot end.

    match: the receive of each send. The network of blocks and FIFOs is determinate, so the run
    ends if and only if the graph of waiting has no cycle: node (instruction, tile) waits for the
    one before it in its block's loop order, for its waits at that tile, for the message it takes,
    and to put message m on a connection, for message m - slots having been taken.
    """
    tiles = tiles_needed(plan, match, slots)
    events = len(plan.instructions) * tiles
    before, after = _waiting(plan, match, slots, tiles)
    graph = Edges.from_pairs(events, before, after)
    level = levels(graph)
    found = []
    if (level == NONE).any():
        found.append(_describe(plan, graph, level, match, slots, tiles))
    return Run(level[::tiles], found)


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
    plan: Plan, match: np.ndarray, slots: int, tiles: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of events (instruction * tiles + tile): the first must come before the second."""
    rows = np.arange(len(plan.instructions), dtype=np.int64)
    tile = np.arange(tiles, dtype=np.int64)
    same_block = rows[1:][plan.block[1:] == plan.block[:-1]]
    pairs = []
    if plan.loop_order is LoopOrder.TILE:
        pairs.append((same_block - 1, same_block))
    else:
        # All tiles of an instruction, then the next instruction.
        each = (rows[:, None] * tiles + tile[1:]).ravel()
        pairs += [(each - 1, each), (same_block * tiles - 1, same_block * tiles)]
    sends = plan.sends.astype(np.int64)
    takes = match[sends].astype(np.int64)
    waits = plan.waits
    for first, second in ((waits.target, waits.source), (sends, takes)):
        pairs.append(
            (
                (first.astype(np.int64)[:, None] * tiles + tile).ravel(),
                (second.astype(np.int64)[:, None] * tiles + tile).ravel(),
            )
        )
    pairs.append(_credit(plan, sends, takes, slots, tiles))
    before, after = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return before, after


def _credit(
    plan: Plan, sends: np.ndarray, takes: np.ndarray, slots: int, tiles: int
) -> tuple[np.ndarray, np.ndarray]:
    """Message m of a connection needs the slot of message m - slots.

    Messages in the order of one connection: in instruction order all tiles of a send, then those
    of the next. In tile order the run has one tile.
    """
    key = np.repeat(plan.connection_keys()[0], tiles)
    tile = np.arange(tiles)
    order = np.argsort(key, kind="stable")
    key = key[order]
    send = (sends[:, None] * tiles + tile).ravel()[order]
    take = (takes[:, None] * tiles + tile).ravel()[order]
    if slots >= len(key):
        return take[:0], send[:0]
    same = key[slots:] == key[:-slots]
    return take[:-slots][same], send[slots:][same]


def _describe(
    plan: Plan, graph: Edges, level: IntArray, match: np.ndarray, slots: int, tiles: int
) -> Diagnostic:
    """V203 for one circle of waiting."""
    cycle = find_cycle(graph.reversed(), level == NONE)
    rows = [event // tiles for event in cycle]
    notes = []
    for here, there in zip(rows, rows[1:] + rows[:1], strict=True):
        notes.append(f"{plan.place(here)} {_reason(plan, match, here, there)} {plan.place(there)}")
    shown = notes if len(notes) <= 12 else [*notes[:10], f"... {len(notes) - 10} more"]
    return V203.diagnostic(
        at=[plan.place(rows[0])],
        expected=f"no circle of waiting with {slots} slots a connection",
        found=f"{len(rows)} instructions that wait for one another",
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
