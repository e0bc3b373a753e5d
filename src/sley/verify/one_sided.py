"""One-sided plans: what must hold of their tables, and of their run (`calls`)."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic, Rule
from sley.errors.verifier import V201, V208, V212, V213, V216
from sley.ir.faults import LIMIT
from sley.ir.one_sided import THREAD_ACTIONS, Action, OneSidedPlan
from sley.ir.tables import NONE
from sley.ir.words import Buffer
from sley.verify.calls import (
    first_cells,
    is_sequence,
    perform_calls,
    posts_of,
    segments,
    users_of,
    waits_of,
)


def check_one_sided(plan: OneSidedPlan) -> tuple[list[Diagnostic], int]:
    """All findings on a one-sided plan, and the length of its longest chain of operations.

    Checks, each relying on those before: tables (V201), overlapping ranges (V208), packets over
    plain data (V216), counters (V212, V213), and by the run hangs (V203), packets (V214), races
    (V204, V211, V215), results (V205, V206).
    """
    found = _table_faults(plan)
    if not found:
        found = [
            *_overlaps(plan),
            *_packet_faults(plan),
            *_counter_faults(plan),
            *_sharing_faults(plan),
        ]
    if found:
        return found, 0
    calls = perform_calls(plan)
    return calls.findings, calls.steps


def _diagnose(
    plan: OneSidedPlan, rule: Rule, mask: np.ndarray, expected: str, rows: np.ndarray, found: str
) -> list[Diagnostic]:
    """A diagnostic for each of the first rows of `mask`, at the operations `rows`."""
    return [
        rule.diagnostic(at=plan.places([int(rows[k])]), expected=expected, found=found)
        for k in np.flatnonzero(mask)[:LIMIT].tolist()
    ]


def _table_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V201 for rows that name what doesn't exist."""
    t, r, c, ranks = plan.operations, plan.ranges, plan.counters, plan.collective.ranks
    rows = np.arange(len(t))
    counts = np.isin(t.action, [Action.POST, Action.WAIT, Action.PUSH_POST])
    known = counts & (t.target >= 0) & (t.target < len(c))
    target = np.where(known, t.target, 0)
    waits = t.action == Action.WAIT
    of = np.where(waits, _at(c.rank, target), _at(c.peer, target))
    ports = np.isin(t.action, [Action.PUSH, Action.PUSH_POST, Action.FLUSH])
    has_port = (t.port >= 0) & (t.port < len(plan.ports))
    port_rank = _at(plan.ports, np.where(has_port, t.port, 0))
    alone = np.isin(t.action, list(THREAD_ACTIONS))
    moves = np.isin(t.action, [Action.MOVE, Action.PUSH])
    named = (r.rank >= 0) & (r.rank < ranks) & (r.buffer >= 0) & (r.buffer < len(Buffer))
    size = plan.collective.layout(plan.scratch_chunks).size
    limit = size[np.where(named, r.buffer, 0), np.where(named, r.rank, 0)]
    width = 1 + r.packet.astype(np.int64)
    inside = named & (r.index >= 0) & (r.count >= 1) & ((r.index + r.count) * width <= limit)
    return [
        *_diagnose(plan, V201, counts & ~known, "a counter that exists", rows, "none"),
        *_diagnose(plan, V201, known & (of != plan.rank), "a counter of its rank", rows, "another"),
        *_diagnose(plan, V201, ports & ~has_port, "a port that exists", rows, "none"),
        *_diagnose(
            plan,
            V201,
            ports & has_port & (port_rank != plan.rank),
            "a port of its rank",
            rows,
            "another",
        ),
        *_diagnose(plan, V201, alone & (t.thread < 0), "a thread", rows, "none"),
        *_diagnose(plan, V201, ~inside, "chunks of a buffer", r.operation, "others"),
        *_diagnose(plan, V201, ~moves[r.operation], "ranges of moves", r.operation, "others"),
        *_diagnose(
            plan,
            V201,
            r.packet & (r.buffer != Buffer.SCRATCH),
            "packets in scratch",
            r.operation,
            "elsewhere",
        ),
        *_move_faults(plan),
    ]


def _move_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V201 for moves without sources, of ranges of several lengths, or that a port can't copy."""
    r = plan.ranges
    _, first, move = np.unique(r.move, return_index=True, return_inverse=True)
    sources = np.bincount(move, ~r.writes, len(first))
    uneven = r.count != r.count[first][move]
    mixed = r.packet != r.packet[first][move]
    pushes = plan.operations.action[r.operation] == Action.PUSH
    copies = (sources[move] == 1) & ~mixed
    rows = r.operation
    return [
        *_diagnose(plan, V201, sources[move] == 0, "a move with sources", rows, "none"),
        *_diagnose(plan, V201, uneven, "ranges of one length", rows, "several lengths"),
        *_diagnose(
            plan,
            V201,
            pushes & ~copies,
            "copies through a port, of data or of packets",
            rows,
            "a sum, or packets made of data",
        ),
    ]


def _at(column: np.ndarray, index: np.ndarray) -> np.ndarray:
    """column[index]; NONE if the column is empty."""
    return column[index] if len(column) else np.full(len(index), NONE)


def _overlaps(plan: OneSidedPlan) -> list[Diagnostic]:
    """V208 for ranges of an operation that share cells and one of which is written, except a source
    and a destination of one move that are the same."""
    r, found = plan.ranges, []
    first = first_cells(plan)
    last = first + r.count * (1 + r.packet.astype(np.int64))
    order = np.lexsort((first, r.operation))
    # Sorted by their begin, ranges that reach into the k-th next one reach into those before it.
    for k in range(1, len(order)):
        one, other = order[:-k], order[k:]
        shared = (r.operation[one] == r.operation[other]) & (first[other] < last[one])
        if not shared.any():
            break
        same = (
            (r.move[one] == r.move[other])
            & (first[one] == first[other])
            & (r.packet[one] == r.packet[other])
            & ~(r.writes[one] & r.writes[other])
        )
        for at in np.flatnonzero(shared & (r.writes[one] | r.writes[other]) & ~same).tolist():
            name = plan.layout.name(int(first[other[at]]))
            found.append(
                V208.diagnostic(
                    at=plan.places([int(r.operation[one[at]])]),
                    expected="ranges that share no chunk, or a source that is the destination",
                    found=f"two ranges with {name}",
                )
            )
            if len(found) == LIMIT:
                return found
    return found


def _packet_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V216 for plain data in scratch from which packets are read."""
    r, first = plan.ranges, first_cells(plan)
    is_read = np.zeros(plan.layout.cells, bool)
    for k in np.flatnonzero(r.packet & ~r.writes).tolist():
        is_read[first[k] : first[k] + 2 * r.count[k]] = True
    found = []
    for k in np.flatnonzero(~r.packet & r.writes & (r.buffer == Buffer.SCRATCH)).tolist():
        cells = np.arange(first[k], first[k] + r.count[k])
        if is_read[cells].any():
            found.append(
                V216.diagnostic(
                    at=plan.places([int(r.operation[k])]),
                    expected="plain data in chunks from which no packets are read",
                    found=f"plain data in {plan.layout.name(int(cells[is_read[cells]][0]))}",
                )
            )
    return found[:LIMIT]


def _counter_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V212 for counters with different numbers of posts and waits."""
    posts, waits, found = posts_of(plan), waits_of(plan), []
    for counter in sorted(posts.keys() | waits.keys()):
        given, taken = posts.get(counter, _NO_ROWS), waits.get(counter, _NO_ROWS)
        if len(given) != len(taken):
            found.append(
                V212.diagnostic(
                    at=plan.places([int(row[-1]) for row in (given, taken) if len(row)]),
                    expected=f"as many signals as waits on {_counter(plan, counter)}",
                    found=f"{len(given)} and {len(taken)}",
                )
            )
    return found[:LIMIT]


_NO_ROWS = np.zeros(0, np.int64)


def _counter(plan: OneSidedPlan, counter: int) -> str:
    rank, peer = int(plan.counters.rank[counter]), int(plan.counters.peer[counter])
    return f"a semaphore of rank {rank}" if rank == peer else f"a channel from {peer} to {rank}"


def _sharing_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V213 for a counter for which several threads wait in no order, and for a port that several
    threads use in no order."""
    segment = segments(plan)
    ports = users_of(plan, [Action.PUSH, Action.PUSH_POST, Action.FLUSH], plan.operations.port)
    found = []
    for word, users in (("waits", waits_of(plan)), ("uses of a port", ports)):
        for rows in users.values():
            if not is_sequence(plan, rows, segment):
                found.append(
                    V213.diagnostic(
                        at=plan.places([int(rows[0]), int(rows[-1])]),
                        expected=f"{word} of one thread, or with a join in between",
                        found="threads that nothing orders",
                    )
                )
    return found[:LIMIT]
