"""Structure: whether a plan's rows make sense by themselves."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V201, V208
from sley.ir.plan import Plan
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, WRITES_DESTINATION, Op

LIMIT = 8
"""How many findings of one kind are reported; the rest would say the same."""

NOTES = 12
"""How many instructions of a circle are named."""


def check_rows(plan: Plan) -> list[Diagnostic]:
    """V201 for rows that refer to what does not exist."""
    t, ranks = plan.instructions, plan.collective.ranks
    size = plan.layout.size
    known = (t.op >= 0) & (t.op < len(Op))
    op = np.where(known, t.op, Op.NOP)
    checks: list[tuple[str, np.ndarray, np.ndarray]] = [
        ("a known operation", ~known, t.op),
        ("a count of at least 1", (op != Op.NOP) & (t.count < 1), t.count),
    ]
    for word, used, buffer, index in (
        ("source", READS_SOURCE[op], t.src_buffer, t.src_index),
        ("destination", WRITES_DESTINATION[op], t.dst_buffer, t.dst_index),
    ):
        named = (buffer >= 0) & (buffer < 3)
        end = index.astype(np.int64) + t.count
        inside = named & (index >= 0) & (end <= size[np.where(named, buffer, 0), plan.rank])
        checks.append((f"a {word} inside its buffer", used & ~inside, index))
    for word, used, peer in (
        ("send", SENDS[op], t.send_peer),
        ("receive", RECEIVES[op], t.recv_peer),
    ):
        right = (peer >= 0) & (peer < ranks) & (peer != plan.rank)
        checks.append((f"a {word} peer that is another rank", used & ~right, peer))
        checks.append((f"a channel for its {word}", used & (t.channel < 0), t.channel))
    found = []
    for expected, wrong, values in checks:
        for row in np.flatnonzero(wrong)[:LIMIT].tolist():
            found.append(
                V201.diagnostic(at=plan.place(row), expected=expected, found=str(values[row]))
            )
    found += _check_waits(plan)
    return found or _check_overlaps(plan)


def _check_overlaps(plan: Plan) -> list[Diagnostic]:
    """V208 for instructions whose source and destination overlap. A receive that reduces in place
    reads and writes one range, element by element; a local operation has no use for that."""
    t, layout = plan.instructions, plan.layout
    both = np.flatnonzero(READS_SOURCE[t.op] & WRITES_DESTINATION[t.op])
    source = layout.cell(plan.rank[both], t.src_buffer[both], t.src_index[both])
    target = layout.cell(plan.rank[both], t.dst_buffer[both], t.dst_index[both])
    same = (source == target) & RECEIVES[t.op[both]]
    overlap = (np.abs(source - target) < t.count[both]) & ~same
    return [
        V208.diagnostic(
            at=plan.place(row),
            expected="a source and a destination that share no chunk",
            found=f"{layout.name(int(a))} and {layout.name(int(b))}, {t.count[row]} chunks each",
        )
        for row, a, b in zip(
            both[overlap][:LIMIT].tolist(), source[overlap], target[overlap], strict=False
        )
    ]


def _check_waits(plan: Plan) -> list[Diagnostic]:
    source, target = plan.waits.source, plan.waits.target
    inside = (target >= 0) & (target < len(plan.instructions))
    same_rank = plan.rank[np.where(inside, target, 0)] == plan.rank[source]
    wrong = np.flatnonzero(~inside | ~same_rank)[:LIMIT]
    return [
        V201.diagnostic(
            at=plan.place(int(source[k])),
            expected="a wait for an instruction of the same rank",
            found=f"a wait for instruction {target[k]}",
        )
        for k in wrong.tolist()
    ]


def shortened(notes: list[str]) -> list[str]:
    """The first notes, and how many more there are."""
    if len(notes) <= NOTES:
        return notes
    return [*notes[: NOTES - 2], f"... {len(notes) - NOTES + 2} more"]
