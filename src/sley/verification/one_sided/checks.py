"""Checks: what must hold of the tables of a one-sided plan, and of its run."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic, counted
from sley.errors.verifier import V201, V208, V212, V213, V216
from sley.ir.faults import LIMIT
from sley.ir.one_sided import THREAD_ACTIONS, Action, OneSidedPlan
from sley.ir.tables import NONE, spans
from sley.ir.words import Buffer
from sley.verification.one_sided.machine import perform_calls


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


def _table_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V201 for rows that name what doesn't exist."""
    t, r, c, ranks = plan.operations, plan.ranges, plan.counters, plan.collective.ranks
    rows = np.arange(len(t))
    counts = np.isin(t.action, [Action.POST, Action.WAIT, Action.PUSH_POST])
    known = counts & (t.target >= 0) & (t.target < len(c))
    target = np.where(known, t.target, 0)
    counter = np.where(t.action == Action.WAIT, _at(c.rank, target), _at(c.peer, target))
    ports = np.isin(t.action, [Action.PUSH, Action.PUSH_POST, Action.FLUSH])
    has_port = ports & (t.port >= 0) & (t.port < len(plan.ports))
    port = _at(plan.ports, np.where(has_port, t.port, 0))
    alone = np.isin(t.action, list(THREAD_ACTIONS))
    moves = np.isin(t.action, [Action.MOVE, Action.PUSH])
    named = (r.rank >= 0) & (r.rank < ranks) & (r.buffer >= 0) & (r.buffer < len(Buffer))
    size = plan.collective.layout(plan.scratch_chunks).size
    limit = size[np.where(named, r.buffer, 0), np.where(named, r.rank, 0)]
    end = (r.index + r.count) * (1 + r.packet.astype(np.int64))
    inside = named & (r.index >= 0) & (r.count >= 1) & (end <= limit)
    elsewhere = r.packet & (r.buffer != Buffer.SCRATCH)
    own = [
        (f"one of {len(c)} counters", counts & ~known, t.target),
        ("a counter of its rank", known & (counter != plan.rank), counter),
        (f"one of {len(plan.ports)} ports", ports & ~has_port, t.port),
        ("a port of its rank", has_port & (port != plan.rank), port),
        ("a thread", alone & (t.thread < 0), t.thread),
    ]
    of_ranges = [
        ("chunks inside their buffer", ~inside, end),
        ("ranges of moves", ~moves[r.operation], t.action[r.operation]),
        ("packets in scratch", elsewhere, r.buffer),
        *_move_checks(plan),
    ]
    return [
        V201.diagnostic(
            at=plan.places([int(of[k])]), expected=expected, found=str(values[k].item())
        )
        for of, checks in ((rows, own), (r.operation, of_ranges))
        for expected, wrong, values in checks
        for k in np.flatnonzero(wrong)[:LIMIT].tolist()
    ]


def _move_checks(plan: OneSidedPlan) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """What must hold of moves: an expectation, whether each range breaks it, and what is found."""
    r = plan.ranges
    _, first, move = np.unique(r.move, return_index=True, return_inverse=True)
    sources = np.bincount(move, ~r.writes, len(first)).astype(np.int64)[move]
    mixed = r.packet != r.packet[first][move]
    pushes = plan.operations.action[r.operation] == Action.PUSH
    return [
        ("a move with sources", sources == 0, sources),
        ("ranges of one length in a move", r.count != r.count[first][move], r.count),
        ("one source of what a port copies", pushes & (sources > 1), sources),
        ("packets that a port makes of packets", pushes & mixed, r.packet),
    ]


def _at(column: np.ndarray, index: np.ndarray) -> np.ndarray:
    """column[index]; NONE if the column is empty."""
    return column[index] if len(column) else np.full(len(index), NONE)


def _overlaps(plan: OneSidedPlan) -> list[Diagnostic]:
    """V208 for ranges of an operation that share cells and one of which is written, except a source
    and a destination of one move that are the same."""
    r, found = plan.ranges, []
    first = plan.first_cells
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
    r, first = plan.ranges, plan.first_cells
    reads = np.flatnonzero(r.packet & ~r.writes)
    is_read = np.zeros(plan.layout.cells, bool)
    is_read[spans(first[reads], 2 * r.count[reads])[1]] = True
    writes = np.flatnonzero(~r.packet & r.writes & (r.buffer == Buffer.SCRATCH))
    owner, cells = spans(first[writes], r.count[writes])
    rows, examples = np.unique(owner[is_read[cells]], return_index=True)
    names = map(plan.layout.name, cells[is_read[cells]][examples].tolist())
    return [
        V216.diagnostic(
            at=plan.places([int(r.operation[writes[row]])]),
            expected="plain data in chunks from which no packets are read",
            found=f"plain data in {name}",
        )
        for row, name in zip(rows.tolist(), names, strict=True)
    ][:LIMIT]


def _counter_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V212 for counters with different numbers of posts and waits."""
    posts, waits, found = plan.posts, plan.waits, []
    for counter in sorted(posts.keys() | waits.keys()):
        given, taken = posts.get(counter, _NO_ROWS), waits.get(counter, _NO_ROWS)
        if len(given) != len(taken):
            found.append(
                V212.diagnostic(
                    at=plan.places([int(row[-1]) for row in (given, taken) if len(row)]),
                    expected=f"as many signals (releases) as waits on {_counter(plan, counter)}",
                    found=f"{counted(len(given), 'signal')}, {counted(len(taken), 'wait')}",
                )
            )
    return found[:LIMIT]


_NO_ROWS = np.zeros(0, np.int64)


def _counter(plan: OneSidedPlan, counter: int) -> str:
    """A counter for messages; semaphores of a rank are numbered."""
    c = plan.counters
    rank, peer = int(c.rank[counter]), int(c.peer[counter])
    if rank != peer:
        return f"a channel from {peer} to {rank}"
    before = (c.rank[:counter] == rank) & (c.peer[:counter] == rank)
    return f"semaphore {int(before.sum())} of rank {rank}"


def _sharing_faults(plan: OneSidedPlan) -> list[Diagnostic]:
    """V213 for a counter for which several blocks wait, or several threads without a join in
    between, and for a port that is used so."""
    ports = plan.users((Action.PUSH, Action.PUSH_POST, Action.FLUSH), plan.operations.port)
    found = []
    for word, users in (("waits", plan.waits), ("uses of a port", ports)):
        for rows in users.values():
            if not plan.is_sequence(rows):
                blocks = len(np.unique(plan.block[rows]))
                found.append(
                    V213.diagnostic(
                        at=plan.places([int(rows[0]), int(rows[-1])]),
                        expected=f"{word} of one block: of one thread, or with a join in between",
                        found=f"{blocks} blocks" if blocks > 1 else "two threads without a join",
                    )
                )
    return found[:LIMIT]
