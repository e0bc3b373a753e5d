"""Faults: contradictions between a plan's tables, and rows that name what does not exist.

The verifier, the engines, the writers and all others who take a plan look for faults first, and
report them under a rule of their own. In a plan without faults every number is a valid index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic, Rule, SleyError, counted
from sley.errors.verifier import V201
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges, LongArray, kept
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, WRITES_DESTINATION, Op, is_integer

LIMIT = 8
"""Limit of reported rows with the same fault."""


@dataclass(frozen=True)
class Fault:
    """One contradiction. rows: the instructions concerned, the main one first; none if it concerns
    the plan as a whole."""

    rows: tuple[int, ...]
    expected: str
    found: str


@kept
def faults(plan: Plan) -> list[Fault]:
    """Everything wrong with a plan's tables; empty for a plan that makes sense.

    First the tables as wholes; only if these fit together, the rows.
    """
    return _table_faults(plan) or [*_row_faults(plan), *_wait_faults(plan)]


def check_tables(plan: Plan) -> None:
    """Refuses a plan whose tables contradict one another. Errors: V201."""
    if found := faults(plan):
        raise SleyError(diagnostics(V201, plan, found))


def diagnostics(rule: Rule, plan: Plan, found: list[Fault]) -> list[Diagnostic]:
    """The faults found in a plan as diagnostics of `rule`."""
    return [
        rule.diagnostic(at=plan.places(fault.rows), expected=fault.expected, found=fault.found)
        for fault in found
    ]


def overlap_faults(plan: Plan) -> list[Fault]:
    """Instructions of a plan without faults whose source and destination share some of their chunks
    but are not the same: elements of one range are read and written one by one."""
    t, layout = plan.instructions, plan.layout
    both = np.flatnonzero(READS_SOURCE[t.op] & WRITES_DESTINATION[t.op])
    source, target = plan.source_cells(both), plan.destination_cells(both)
    overlaps = (np.abs(source - target) < t.count[both]) & (source != target)
    return [
        Fault(
            (int(both[k]),),
            "a source and a destination that share no chunk",
            f"{layout.name(int(source[k]))} and {layout.name(int(target[k]))}, "
            f"{counted(int(t.count[both[k]]), 'chunk')} each",
        )
        for k in np.flatnonzero(overlaps)[:LIMIT].tolist()
    ]


def own_operands(plan: Plan, op: Op) -> LongArray:
    """Rows of a plan without faults whose operation is `op`, a local one, with one range as source
    and destination. A copy of that kind changes nothing."""
    rows = np.flatnonzero(plan.instructions.op == op)
    same = plan.source_cells(rows) == plan.destination_cells(rows)
    return np.asarray(rows[same], np.int64)


def _table_faults(plan: Plan) -> list[Fault]:
    ranks, rows, blocks = plan.collective.ranks, len(plan.instructions), len(plan.block_rank)
    offset, waits = plan.block_offset, plan.waits.offset
    sources = plan.instructions.source
    checks = [
        ("slots of at least 1", is_integer(plan.slots) and plan.slots >= 1, plan.slots),
        ("scratch_chunks for every rank", len(plan.scratch_chunks) == ranks, plan.scratch_chunks),
        ("scratch_chunks from 0", bool((plan.scratch_chunks >= 0).all()), plan.scratch_chunks),
        (f"block_offset for {blocks} blocks", len(offset) == blocks + 1, f"{len(offset)} values"),
        (f"block_offset from 0 to {rows}, never decreasing", _is_partition(offset, rows), offset),
        (
            f"block_rank ascending, from 0 to {ranks - 1}",
            bool((np.diff(plan.block_rank) >= 0).all())
            and bool(((plan.block_rank >= 0) & (plan.block_rank < ranks)).all()),
            plan.block_rank,
        ),
        (f"waits for {rows} instructions", len(waits) == rows + 1, f"{len(waits)} offsets"),
        (
            f"wait offsets from 0 to {len(plan.waits.target)}, never decreasing",
            _is_partition(waits, len(plan.waits.target)),
            waits,
        ),
        (
            "group offsets from 0, never decreasing",
            _is_partition(plan.groups.offset, len(plan.groups.target)),
            plan.groups.offset,
        ),
        (
            f"groups of ranks from 0 to {ranks - 1}, ascending, at least one in each",
            _are_groups(plan.groups, ranks),
            plan.groups.target,
        ),
        (
            f"sources from {NONE} to {len(plan.sources) - 1}",
            bool(((sources >= NONE) & (sources < len(plan.sources))).all()),
            sources,
        ),
    ]
    return [Fault((), expected, str(found)) for expected, right, found in checks if not right]


def _is_partition(offset: np.ndarray, total: int) -> bool:
    """Whether offsets cut 0 ... total into consecutive pieces."""
    return bool(
        len(offset) and offset[0] == 0 and offset[-1] == total and (np.diff(offset) >= 0).all()
    )


def _are_groups(groups: Edges, ranks: int) -> bool:
    """Whether no group is empty, and each has ascending ranks; True if the offsets are wrong."""
    offset, rank = groups.offset, groups.target
    if not _is_partition(offset, len(rank)):
        return True
    ascends = np.append(True, np.diff(rank) > 0)[: len(rank)]
    ascends[offset[:-1][offset[:-1] < len(rank)]] = True
    inside = bool(((rank >= 0) & (rank < ranks)).all())
    return bool((np.diff(offset) > 0).all()) and inside and bool(ascends.all())


def _row_faults(plan: Plan) -> list[Fault]:
    t, ranks = plan.instructions, plan.collective.ranks
    size = plan.layout.size
    known = (t.op >= 0) & (t.op < len(Op))
    op = np.where(known, t.op, Op.NOP)
    checks: list[tuple[str, np.ndarray, np.ndarray]] = [
        ("a known operation", ~known, t.op),
        ("a count of at least 1", (op != Op.NOP) & (t.count < 1), t.count),
    ]
    found: list[Fault] = []
    for word, used, buffer, index in (
        ("source", READS_SOURCE[op], t.src_buffer, t.src_index),
        ("destination", WRITES_DESTINATION[op], t.dst_buffer, t.dst_index),
    ):
        named = (buffer >= 0) & (buffer < 3)
        end = index.astype(np.int64) + t.count
        inside = named & (index >= 0) & (end <= size[np.where(named, buffer, 0), plan.rank])
        rows = np.flatnonzero(used & ~inside)[:LIMIT]
        found += [
            Fault(
                (row,),
                f"a {word} inside its buffer",
                f"{counted(int(t.count[row]), 'chunk')} from {index[row]} of buffer {buffer[row]}",
            )
            for row in rows.tolist()
        ]
    for word, used, peer in (
        ("send", SENDS[op], t.send_peer),
        ("receive", RECEIVES[op], t.recv_peer),
    ):
        known = (peer >= 0) & (peer < ranks + len(plan.groups.offset) - 1)
        right = known & (peer != plan.rank)
        checks.append((f"a {word} peer that is another rank, or a group", used & ~right, peer))
        rows, member = plan.ends(np.flatnonzero(used & known & (peer >= ranks)), peer)
        own = np.zeros(len(peer), bool)
        own[rows[member == plan.rank[rows]]] = True
        checks.append((f"a {word} group without the rank itself", own, plan.rank))
        checks.append((f"a channel for its {word}", used & (t.channel < 0), t.channel))
    return found + [
        Fault((row,), expected, str(values[row]))
        for expected, wrong, values in checks
        for row in np.flatnonzero(wrong)[:LIMIT].tolist()
    ]


def _wait_faults(plan: Plan) -> list[Fault]:
    source, target = plan.waits.source, plan.waits.target
    inside = (target >= 0) & (target < len(plan.instructions))
    same_rank = np.zeros(len(target), bool)
    same_rank[inside] = plan.rank[target[inside]] == plan.rank[source[inside]]
    return [
        Fault(
            (int(source[k]),),
            "a wait for an instruction of the same rank",
            f"a wait for instruction {target[k]}",
        )
        for k in np.flatnonzero(~same_rank)[:LIMIT].tolist()
    ]
