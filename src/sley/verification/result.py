"""Result: the contents of every chunk at the end, from a run on symbolic values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from sley.errors import Diagnostic, shortened
from sley.errors.verifier import V205, V206, V219
from sley.ir.collective import Collective
from sley.ir.connections import Messages
from sley.ir.faults import LIMIT
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges, offsets_of, ordered_by, spans
from sley.ir.words import READS_SOURCE, RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, Op
from sley.verification.reach import spell_ranks, unheard
from sley.verification.values import Values


@dataclass(frozen=True)
class Result:
    """Findings on a plan's result; and the first reads of cells without data, as (instruction,
    cell). Without findings, these reads reach no promised chunk."""

    diagnostics: list[Diagnostic]
    empty_reads: list[tuple[int, int]]


def check_result(plan: Plan, messages: Messages, level: np.ndarray) -> Result:
    """V206 for output chunks that differ from the promise, V205 if a read of a cell without data is
    the cause. If the counts vary, V219 for chunks at places of other ones, and V205 for every read
    of a cell without data, since nothing says how long it is.

    For chunks whose fingerprints (`Values`) differ, the exact multisets are then computed.

    level: of an abstract run; instructions of one level don't depend on one another.
    """
    replay = SymbolicRun.start(plan, messages)
    order = replay.run(level)
    found = _compare(plan, messages, replay, order)
    if plan.collective.varies:
        found = (
            found
            or _misplaced(plan, replay)
            or _refuse_empty_reads(plan, order, replay.empty_reads)
        )
    return Result(found, replay.empty_reads)


@dataclass
class SymbolicRun:
    """The memory, and the messages in flight.

    incoming, outgoing: CSR, instruction -> messages that it receives, and that it sends; several
    only with groups. messages: the values of all messages, those of one from message_at on.
    writes: what was written where, if the counts vary: instructions, cells and values.
    scaling: None, or the factors of the ranks, by which some instructions multiply what they read
        at their source, and some at their destination (`sley.verification.scales`).
    """

    plan: Plan
    incoming: Edges
    outgoing: Edges
    memory: Values
    inputs: Values
    messages: Values
    message_at: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    empty_reads: list[tuple[int, int]]
    writes: list[tuple[np.ndarray, np.ndarray, Values]]
    scaling: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @classmethod
    def start(cls, plan: Plan, messages: Messages) -> Self:
        t, layout, c = plan.instructions, plan.layout, plan.collective
        inputs = Values.inputs(c)
        present = np.flatnonzero(c.initial)
        memory = Values.nothing(layout.cells)
        memory[c.input_cells(layout)[present]] = inputs[present]
        size = t.count[messages.receive]
        named = np.where(READS_SOURCE[t.op], t.src_buffer, 0)
        stored = np.where(WRITES_DESTINATION[t.op], t.dst_buffer, 0)
        return cls(
            plan,
            _by_instruction(messages.receive, len(t)),
            _by_instruction(messages.send, len(t)),
            memory,
            inputs,
            Values.nothing(int(size.sum())),
            offsets_of(size),
            layout.cell(plan.rank, named, t.src_index),
            layout.cell(plan.rank, stored, t.dst_index),
            [],
            [],
        )

    def run(self, level: np.ndarray) -> np.ndarray:
        """Runs all instructions, and returns them in an order in which they ran."""
        order = ordered_by(level)
        bounds = offsets_of(np.bincount(level))
        # A level at a time: a plan has far fewer levels than instructions, and NumPy runs a level.
        for k in range(len(bounds) - 1):
            self.step(order[bounds[k] : bounds[k + 1]])
        return order

    def step(self, rows: np.ndarray) -> None:
        """Runs the instructions `rows`, none of which depends on another."""
        rows = rows[self.plan.instructions.op[rows] != Op.NOP]
        op = self.plan.instructions.op[rows]
        owner, part = spans(np.zeros(len(rows), np.int64), self.plan.instructions.count[rows])
        row, op = rows[owner], op[owner]
        value = Values.nothing(len(row))
        takes = RECEIVES[op]
        value[takes] = self._receive(row[takes], part[takes])
        combines = op == Op.REDUCE
        value[combines] = self._read(self.destination, row[combines], part[combines])
        reduces = REDUCES[op]
        local = self._read(self.source, row[reduces], part[reduces])
        value[reduces] = self.combined(row[reduces], value[reduces], local)
        moves = READS_SOURCE[op] & ~reduces
        value[moves] = self._read(self.source, row[moves], part[moves])
        stores, sends = WRITES_DESTINATION[op], SENDS[op]
        # Nothing of one level conflicts (the races were checked before), so its writes are right in
        # any order, after all its reads.
        cells = self.destination[row[stores]] + part[stores]
        self.memory[cells] = value[stores]
        if self.plan.collective.varies:
            self.writes.append((row[stores], cells, value[stores]))
        sent, place = value[sends], part[sends]
        for at, messages in _each(self.outgoing, row[sends]):
            self.messages[self.message_at[messages] + place[at]] = sent[at]

    def _receive(self, row: np.ndarray, part: np.ndarray) -> Values:
        """The message of each row, of several their sum."""
        value = Values.nothing(len(row))
        for k, (at, messages) in enumerate(_each(self.incoming, row)):
            found = self.messages[self.message_at[messages] + part[at]]
            value[at] = self.combined(row[at], value[at], found, k) if k else found
        return value

    def combined(self, row: np.ndarray, one: Values, other: Values, member: int = 0) -> Values:
        """The results of the instructions `row`; with `member`, of the messages before it that a
        switch combines and the next one."""
        return one + other

    def _read(self, start: np.ndarray, row: np.ndarray, part: np.ndarray) -> Values:
        cells = start[row] + part
        value = self.memory[cells]
        if self.scaling is not None:
            factors, source, destination = self.scaling
            at = (source if start is self.source else destination)[row]
            value.weight[at] *= factors[self.plan.rank[row[at]]]
        for k in np.flatnonzero(value.number < 0)[: LIMIT - len(self.empty_reads)].tolist():
            self.empty_reads.append((int(row[k]), int(cells[k])))
        return value


def _by_instruction(row: np.ndarray, instructions: int) -> Edges:
    """CSR, instruction -> messages, by the instruction of each message at one of its ends."""
    order = np.argsort(row, kind="stable").astype(np.int32)
    return Edges(offsets_of(np.bincount(row, minlength=instructions)), order)


def _each(messages: Edges, row: np.ndarray) -> Iterator[tuple[np.ndarray | slice, np.ndarray]]:
    """Groups messages by their position within a row: all firsts, then all seconds, ...: the places
    among `row`, and the messages."""
    first, number = messages.offset[row], messages.offset[row + 1] - messages.offset[row]
    for k in range(int(number.max(initial=0))):
        # Every row has a first message, and a slice copies nothing.
        at = np.flatnonzero(number > k) if k else slice(None)
        yield at, messages.target[first[at] + k]


def _compare(
    plan: Plan, messages: Messages, replay: SymbolicRun, order: np.ndarray
) -> list[Diagnostic]:
    c = plan.collective
    wanted = replay.inputs.promised(c)
    places = np.flatnonzero(c.expected != NONE)
    cells = c.output_cells(plan.layout)[places]
    got, promised = replay.memory[cells], wanted[c.expected[places]]
    wrong = got.differ(promised)
    if not wrong.any():
        return []
    some = np.flatnonzero(wrong)[:LIMIT]
    exact, empty_reads = _trace_back(plan, replay, order, cells[some])
    if empty_reads:
        return _refuse_empty_reads(plan, order, [(row, c) for c, row in empty_reads.items()])
    writers = _last_writers(plan, order, cells[wrong])
    unwritten = np.array([cell not in writers for cell in cells[wrong].tolist()])
    shape = _shape(c, places[wrong][unwritten])
    differences: list[tuple[str, str]] = []
    for k, cell in zip(some.tolist(), cells[some].tolist(), strict=True):
        value = Counter(c.values[int(c.expected[places[k]])].tolist())
        promise = f"{plan.layout.name(cell)} = {spell(c, value)}"
        found = exact.get(cell)
        told = difference(c, value, found)
        if cell not in writers and found is not None:
            told = "nothing arrived: it holds the rank's own input alone"
        if not differences or cell in writers or not shape:
            differences.append((promise, told))
    row = writers.get(int(cells[some[0]]), NONE)
    whole = plan.sources.whole
    program = replace(whole, detail="the program") if whole.file else whole
    at = [whole]
    if row != NONE:
        made = _made_by(plan, messages, order, row, int(cells[some[0]]))
        origin = plan.place(made).labelled("makes the value that arrives")
        is_other = plan.instructions.source[made] != plan.instructions.source[row]
        at = [plan.place(row), *[origin] * bool(is_other), program]
    return [
        V206.diagnostic(
            at=at,
            expected=differences[0][0],
            found=differences[0][1],
            remedy=_IN_PLACE if unwritten.all() and plan.input_writes.size else "",
            notes=[
                f"{int(wrong.sum())} of {len(places)} promised chunks are wrong",
                *([f"nothing arrived at {shape}"] if shape else []),
                *unheard(plan, messages, order, int(wrong.sum())),
                *(f"{promise}: {difference}" for promise, difference in differences[1:]),
            ],
        )
    ]


_IN_PLACE = (
    "Only inputs are written: if they are the outputs, build the collective with in_place=True."
)

_MOST_INDICES = 4
"""The most chunks of a rank that a shape names."""


def _shape(c: Collective, places: np.ndarray) -> str:
    """Places of the output that form one shape, in words: equal chunks of all their ranks, or ones
    as far behind each rank's number; empty for others, and for fewer than three.

    places: positions in `c.expected`, ascending.
    """
    rank = np.searchsorted(c.output_offset, places, side="right") - 1
    chunks = c.output_offset[rank + 1] - c.output_offset[rank]
    index = places - c.output_offset[rank]
    ranks = np.unique(rank)
    if len(places) < 3 or len(ranks) < 2 or (chunks != chunks[0]).any():
        return ""
    each = f"each of {spell_ranks(ranks.tolist())}" if len(ranks) < c.ranks else "each rank"
    for shift, text, who in ((0 * rank, "out[{}]", each), (rank, _BEHIND, f"{each}, r")):
        found = {tuple(sorted(((index - shift) % chunks)[rank == one].tolist())) for one in ranks}
        if len(found) == 1:
            (same,) = found
            names = [text.format(k, chunks[0]) for k in same[:_MOST_INDICES]]
            more = f" and {len(same) - len(names)} more" if len(same) > len(names) else ""
            return f"{', '.join(names)}{more} of {who}"
    return ""


_BEHIND = "out[(r + {}) % {}]"


def _refuse_empty_reads(
    plan: Plan, order: np.ndarray, reads: list[tuple[int, int]]
) -> list[Diagnostic]:
    """V205 for reads of cells without data, as (instruction, cell), one for each source line, in
    the order in which they run. A write of the cell that comes too late is the likely cause, so
    that it is named."""
    by_line: dict[int, list[tuple[int, int]]] = {}
    position = np.argsort(order)
    for row, cell in sorted(reads, key=lambda read: position[read[0]]):
        source = int(plan.instructions.source[row])
        by_line.setdefault(~row if source == NONE else source, []).append((row, cell))
    # In the reversed order, the last writer of a cell is the first one.
    writers = _last_writers(plan, order[::-1], np.array([cell for _, cell in reads]))
    found = []
    for same in by_line.values():
        row, cell = same[0]
        writer = writers.get(cell)
        found.append(
            V205.diagnostic(
                at=[plan.place(row)]
                + ([] if writer is None else [plan.place(writer).labelled("written only here")]),
                expected="a chunk that holds data",
                found=f"{plan.layout.name(cell)} holds none when it is read",
                remedy="" if writer is None else "Let the write come before the read.",
                notes=shortened([f"so does {plan.layout.name(other)}" for _, other in same[1:]]),
            )
        )
    return found


def _misplaced(plan: Plan, replay: SymbolicRun) -> list[Diagnostic]:
    """V219 for writes to the input and the output of other chunks than those that belong there."""
    c, layout, inputs = plan.collective, plan.layout, replay.inputs
    owner = np.full(layout.cells, NONE)  # the input chunk that belongs into a cell
    owner[c.input_cells(layout)] = np.arange(len(c.initial))
    owner[c.output_cells(layout)] = c.values.target[c.values.offset[c.expected]]
    found: list[Diagnostic] = []
    for rows, cells, values in replay.writes:
        data = np.flatnonzero(owner[cells] != NONE)
        wrong = data[values[data].differ(inputs[owner[cells[data]]])]
        for k in wrong[: LIMIT - len(found)].tolist():
            cell = int(cells[k])
            # Without reductions, a value is a single input chunk.
            held = np.flatnonzero((inputs.weight == values.weight[k]).all(axis=1))
            found.append(
                V219.diagnostic(
                    at=plan.place(int(rows[k])),
                    expected=f"only {spell(c, Counter([int(owner[cell])]))} in "
                    f"{layout.name(cell)}: the counts vary",
                    found=spell(c, Counter(held[:1].tolist())) or "no data",
                )
            )
    return found


def _last_writers(plan: Plan, order: np.ndarray, cells: np.ndarray) -> dict[int, int]:
    """The last instruction that writes each of `cells`."""
    t = plan.instructions
    rows = order[WRITES_DESTINATION[t.op[order]]]
    owner, cell = spans(plan.destination_cells(rows), t.count[rows])
    hit = np.isin(cell, cells)
    return dict(zip(cell[hit].tolist(), rows[owner[hit]].tolist(), strict=True))


_MOST_MOVES = 100
"""The most moves that are followed to where a value was made."""


def _made_by(plan: Plan, messages: Messages, order: np.ndarray, row: int, cell: int) -> int:
    """The instruction that made what an instruction writes to a cell: the last one on its way that
    reduced, or the first that sent or copied it."""
    t = plan.instructions
    sender = dict(zip(messages.receive.tolist(), messages.send.tolist(), strict=True))
    position = np.argsort(order)
    part = cell - int(plan.destination_cells(np.array([row]))[0])
    # Each move scans all writes of the plan, for no more than a place in the diagnostic.
    for _ in range(_MOST_MOVES):
        op = int(t.op[row])
        if REDUCES[op] or op == Op.REDUCE:
            break
        if RECEIVES[op]:
            row = sender[row]
            continue
        source = plan.layout.cell(plan.rank[row], t.src_buffer[row], t.src_index[row]) + part
        earlier = order[: position[row]]
        writer = _last_writers(plan, earlier, np.array([source])).get(int(source))
        if writer is None:
            break
        row, part = writer, int(source - plan.destination_cells(np.array([writer]))[0])
    return row


def _trace_back(
    plan: Plan, replay: SymbolicRun, order: np.ndarray, cells: np.ndarray
) -> tuple[dict[int, Counter[int] | None], dict[int, int]]:
    """The exact multisets of input chunks in `cells` at the end, None for no data; and the cells
    without data that these depend on, with the instructions that read them.

    Works backwards from the end: a needed cell is the sum of the operands of its last write, so the
    needed cells are rewritten instruction by instruction until only inputs remain.
    """
    t, layout = plan.instructions, plan.layout
    # For every needed cell: the final cells to which it contributes, and how often.
    cell_wanted: dict[int, Counter[int]] = {int(cell): Counter({int(cell): 1}) for cell in cells}
    message_wanted: dict[tuple[int, int], Counter[int]] = {}
    reader: dict[int, int] = {}
    # Backwards each write is met before what it replaced: the first that pops a cell is its last
    # write.
    for row in order[::-1].tolist():
        op, rank = int(t.op[row]), int(plan.rank[row])
        for part in range(int(t.count[row])):
            wanted: Counter[int] = Counter()
            if WRITES_DESTINATION[op]:
                cell = int(layout.cell(rank, t.dst_buffer[row], t.dst_index[row])) + part
                wanted += cell_wanted.pop(cell, Counter())
                if op == Op.REDUCE and wanted:
                    cell_wanted[cell] = Counter(wanted)
                    reader[cell] = row
            if SENDS[op]:
                for message in replay.outgoing[row].tolist():
                    wanted += message_wanted.pop((message, part), Counter())
            if not wanted:
                continue
            if RECEIVES[op]:
                for message in replay.incoming[row].tolist():
                    message_wanted[message, part] = Counter(wanted)
            if READS_SOURCE[op]:
                cell = int(layout.cell(rank, t.src_buffer[row], t.src_index[row])) + part
                cell_wanted[cell] = cell_wanted.get(cell, Counter()) + wanted
                reader[cell] = row
    empty_reads: dict[int, int] = {}
    result: dict[int, Counter[int] | None] = {int(cell): Counter() for cell in cells}
    input_of = {cell: i for i, cell in enumerate(plan.collective.input_cells(layout).tolist())}
    # What is still wanted was written by no instruction: inputs, or nothing.
    for cell, wanted in cell_wanted.items():
        source = input_of.get(cell, NONE)
        is_empty = source == NONE or not plan.collective.initial[source]
        if is_empty and cell in reader:
            empty_reads[cell] = reader[cell]
        for final, times in wanted.items():
            if is_empty:
                result[final] = None
            elif (value := result[final]) is not None:
                value[source] += times
    return result, empty_reads


def spell(c: Collective, value: Counter[int]) -> str:
    """A value for messages: "in[0] of ranks 0-2 and rank 3 (x2)"."""
    by_index: dict[int, dict[int, list[int]]] = {}  # index -> multiplicity -> ranks
    for chunk in sorted(value):
        rank = int(np.searchsorted(c.input_offset, chunk, side="right")) - 1
        of_index = by_index.setdefault(chunk - int(c.input_offset[rank]), {})
        of_index.setdefault(value[chunk], []).append(rank)
    parts = []
    for index, of_index in by_index.items():
        texts = [
            spell_ranks(ranks) + (f" (x{times})" if times > 1 else "")
            for times, ranks in of_index.items()
        ]
        parts.append(f"in[{index}] of {' and '.join(texts)}")
    return " + ".join(parts[:4]) + (f" + {len(parts) - 4} more" if len(parts) > 4 else "")


def difference(c: Collective, promised: Counter[int], got: Counter[int] | None) -> str:
    if got is None:
        return "nothing was written there"
    if promised.total() == got.total() == 1 and promised != got:
        return f"{spell(c, got)} instead"
    parts = []
    if missing := promised - got:
        parts.append(f"missing {spell(c, missing)}")
    if extra := got - promised:
        parts.append(f"too much: {spell(c, extra)}")
    return "; ".join(parts)
