"""Histories: the exact contents of cells, by a second pass over what a run has performed.

The run itself compares fingerprints. A history is made only for wrong results, to say how they are
wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sley.errors import Diagnostic
from sley.errors.verifier import V205, V206
from sley.ir.faults import LIMIT
from sley.ir.one_sided import OneSidedPlan
from sley.ir.tables import NONE
from sley.ir.words import Buffer
from sley.verification.one_sided.memory import Moves, Range, user_cells
from sley.verification.result import difference, spell


@dataclass(frozen=True)
class Mismatch:
    """A cell whose fingerprint at the end of a call isn't what the collective promises.

    row: its row of `Collective.expected`.
    """

    call: int
    row: int
    cell: int


def explain(
    plan: OneSidedPlan, moves: Moves, log: Sequence[tuple[int, int]], mismatches: Sequence[Mismatch]
) -> list[Diagnostic]:
    """V205 or V206 for the mismatches of the first wrong call.

    log: what was performed, in sequence: (operation, call), or (~rank, call) for the writes of the
    caller of a rank before a call. mismatches: at least one, those of the first wrong call first.
    """
    c, call = plan.collective, mismatches[0].call
    some = [one for one in mismatches if one.call == call][:LIMIT]
    ends = _History(plan, moves).ends(log, call, [one.cell for one in some])
    for end in ends:
        if end.value is None and end.empty is not None:
            row, read = end.empty
            return [
                V205.diagnostic(
                    at=plan.places([row]),
                    expected="a chunk that holds data",
                    found=f"{plan.layout.name(read)} holds none when it is read",
                )
            ]
    lines = []
    for one, end in zip(some, ends, strict=True):
        wanted = Counter(c.values[int(c.expected[one.row])].tolist())
        promise = f"{plan.layout.name(one.cell)} = {spell(c, wanted)}"
        lines.append((promise, difference(c, wanted, end.value)))
    last, notes = ends[0].writer, [f"{promise}: {found}" for promise, found in lines[1:]]
    if last == NONE and not c.in_place:
        last = _input_writer(plan, some[0].cell)
        if last != NONE:
            notes.append("out of place: this operation writes the input, which is other memory")
    if last == NONE:
        notes.insert(0, f"no operation writes {plan.layout.name(some[0].cell)}")
    return [
        V206.diagnostic(
            at=plan.places([] if last == NONE else [last]),
            expected=lines[0][0],
            found=lines[0][1],
            notes=notes,
        )
    ]


def _input_writer(plan: OneSidedPlan, cell: int) -> int:
    """The first operation that writes the input of the rank of a cell, perhaps for its output; NONE
    without one."""
    r = plan.ranges
    mine = plan.layout.rank(cell) == r.rank
    rows = r.operation[mine & r.writes & (r.buffer == Buffer.INPUT)]
    return int(rows[0]) if len(rows) else NONE


@dataclass(frozen=True)
class _End:
    """A cell at the end of a call. value: the multiset of inputs of this call, None for no data or
    data of an earlier call. writer: the last operation that wrote it, or NONE. empty: for no data,
    the first operation in its history that read a cell without data, and that cell."""

    value: Counter[int] | None
    writer: int
    empty: tuple[int, int] | None


class _History:
    """The multisets of inputs in all cells. A key is a cell, or ~cell for a packet, which plain
    reads don't find."""

    def __init__(self, plan: OneSidedPlan, moves: Moves) -> None:
        self._plan, self._moves = plan, moves
        self._user = [cells.tolist() for cells in user_cells(plan)]
        self._value: dict[int, Counter[tuple[int, int]]] = {}  # of (call, input chunk)
        self._writer: dict[int, int] = {}
        self._empty: dict[int, tuple[int, int]] = {}

    def ends(self, log: Sequence[tuple[int, int]], call: int, cells: list[int]) -> list[_End]:
        """What became of `cells` in a call."""
        ends: dict[int, _End] = {}
        for row, at in log:
            if row >= 0:
                self._perform(row, at % self._plan.scratch_copies)
                continue
            if at == call + 1:
                own = set(self._user[~row])
                ends.update({cell: self._end(cell, call) for cell in cells if cell in own})
            self._begin(~row, at)
        return [ends[cell] for cell in cells]

    def _end(self, cell: int, call: int) -> _End:
        value = self._value.get(cell)
        current = value is not None and all(at == call for at, _ in value)
        chunks = Counter({k: n for (_, k), n in value.items()}) if value and current else None
        return _End(chunks, self._writer.get(cell, NONE), self._empty.get(cell))

    def _begin(self, rank: int, call: int) -> None:
        """The caller's writes before a call."""
        c = self._plan.collective
        for cell in self._user[rank]:
            self._forget(cell)
        first = int(c.input_offset[rank])
        for k in range(first, int(c.input_offset[rank + 1])):
            if c.initial[k]:
                cell = int(self._plan.layout.cell(rank, Buffer.INPUT, k - first))
                self._value[cell] = Counter({(call, k): 1})

    def _forget(self, cell: int) -> None:
        for table in (self._value, self._writer, self._empty):
            table.pop(cell, None)
            table.pop(~cell, None)

    def _perform(self, row: int, copy: int) -> None:
        for sources, destinations in self._moves.get(row, []):
            columns = [_keys(item, copy) for item in sources]
            sums = [self._sum(row, keys) for keys in zip(*columns, strict=True)]
            for item in destinations:
                for key, (value, empty) in zip(_keys(item, copy), sums, strict=True):
                    self._forget(key)
                    self._writer[key] = row
                    if value is not None:
                        self._value[key] = value
                    elif empty is not None:
                        self._empty[key] = empty

    def _sum(
        self, row: int, keys: tuple[int, ...]
    ) -> tuple[Counter[tuple[int, int]] | None, tuple[int, int] | None]:
        """The sum of cells, or None with the first read of an empty cell."""
        total: Counter[tuple[int, int]] = Counter()
        for key in keys:
            if key not in self._value:
                return None, self._empty.get(key, (row, max(key, ~key)))
            total += self._value[key]
        return total, None


def _keys(item: Range, copy: int) -> list[int]:
    cells = item.cells(copy)
    return (~cells if item.packet else cells).tolist()  # type: ignore[no-any-return]
