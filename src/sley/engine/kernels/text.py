"""Text: straight-line code for the thread blocks of a plan (ResCCL 4.5).

It has the paper's three dimensions: the rank and the thread block select a function, whose calls of
the primitives (`primitives/`, for CUDA or for CPUs) are in the order of the sub-pipelines.
"""

from __future__ import annotations

import textwrap
from pathlib import PurePath

import numpy as np

from sley.engine.kernels.formulas import Formulas
from sley.engine.kernels.kinds import Kinds
from sley.engine.kernels.operands import NOWHERE, Operands, Places
from sley.errors import counted
from sley.ir.tables import NONE, IntArray, LongArray
from sley.ir.words import RECEIVES, SENDS, Buffer, LoopOrder, Op

_NAMES = 8
"""The most ranks that a comment names."""

_LEGEND = """\
//
// wait(n, block, step): wait n of the next call is for a step of another block of this rank
// hold(n, connection, message): wait n of the next call is for the read of a message of this rank
// step(s).waits(n).posts(): the call is step s; it has n waits; other blocks wait for it
// step(s).averages(k): its results are final; for AVG it divides them by k
// to(connection, message), from(connection, message): the block's connection, the tile's message
// slices(): a call runs so many tiles, from `tile` on; instruction by instruction, all of them
"""

_LEGEND_OF_RUNS = """\
// row::send(k, flags, ...) and others, then run(tile, s, n): n calls as one, word by word; flags:
//   an operand is the result before it (kFirst, kSecond), its own result isn't stored (kKept)
"""

_LEGEND_OF_GROUPS = """\
// to(c, m).of(n), from(c, m).of(n): the same of n connections, from c on, at once
"""

_PARAMETERS = "const i32& rank, const i32& block, const i32& member"
"""The variables of the formulas. They are references to the block's state, so that the compiler
keeps no numbers derived from them in registers between calls."""

_CONSTANT_BYTES = 48 << 10
"""The most bytes of tables in constant memory; GPUs have 64 KiB of it for a program."""

_LINES = 3
"""The most source lines that a comment names; each block of a kind may have another line."""


def text_of(operands: Operands, kinds: Kinds) -> str:
    """The functions of all kinds, and the kernel that calls them."""
    functions = [_Function(operands, kinds, number) for number in range(len(kinds.members))]
    table_bytes = sum(function.table_bytes for function in functions)
    table = "SLEY_TABLE" if table_bytes <= _CONSTANT_BYTES else "SLEY_LARGE_TABLE"
    parts = [function.text(table) for function in functions]
    return "\n".join([_head(operands, kinds), *parts, _kernel(kinds)])


def _head(operands: Operands, kinds: Kinds) -> str:
    plan = operands.plan
    blocks = int((kinds.kind != NONE).sum())
    order = "tile by tile" if plan.loop_order is LoopOrder.TILE else "instruction by instruction"
    return (
        f"// {one_line(f'{plan.name}: {plan.collective}')}\n"
        f"// {plan.protocol.value}, {counted(plan.slots, 'slot')}, {order}; "
        f"{counted(blocks, 'thread block')} of {counted(len(kinds.members), 'kind')}\n"
        f"{_LEGEND}{_LEGEND_OF_RUNS if (operands.runs.length > 1).any() else ''}"
        f"{_LEGEND_OF_GROUPS if len(plan.groups) else ''}"
        f"namespace sley {{\n"
    )


def _kernel(kinds: Kinds) -> str:
    cases = "\n".join(
        f"        case {k}: kind_{k}(b.rank, b.number, b.member); break;"
        for k in range(len(kinds.members))
    )
    return f"""\
}}  // namespace sley

SLEY_KERNEL(sley_run) {{
    using namespace sley;
    begin(call);
    const Block& b = state.block;
    switch (b.kind) {{
{cases}
    }}
    end();
}}
"""


class _Function:
    """The code of one kind of blocks."""

    def __init__(self, operands: Operands, kinds: Kinds, number: int) -> None:
        self._o, self._number = operands, number
        plan = operands.plan
        self._members = kinds.members[number]
        self._first = plan.block_offset[self._members]
        self._steps = int(plan.block_offset[self._members[0] + 1] - self._first[0])
        self._formula = Formulas(
            plan.block_rank[self._members].astype(np.int64),
            plan.block_number[self._members].astype(np.int64),
            plan.collective.ranks,
            f"kind_{number}_numbers_",
        )

        self._lines = self._body()

    @property
    def table_bytes(self) -> int:
        """The bytes of the function's tables."""
        return sum(4 * len(values) for values in self._formula.tables)

    def text(self, table: str) -> str:
        """The tables, a comment that names the blocks, and the function."""
        tables = [
            _wrap(f"{table} i32 kind_{self._number}_numbers_{k}[]", values.tolist())
            for k, values in enumerate(self._formula.tables)
        ]
        lines = [f"        {line}" for line in self._lines]
        function = f"SLEY_INLINE void kind_{self._number}({_PARAMETERS}) {{"
        loop = "    for (i32 tile = 0; more(tile); tile += slices()) {"
        return "\n".join([*self._comment(), *tables, function, loop, *lines, "    }", "}\n"])

    def _comment(self) -> list[str]:
        plan, blocks = self._o.plan, self._members
        ranks, numbers = plan.block_rank[blocks], plan.block_number[blocks]
        every_rank, every_number = np.unique(ranks), np.unique(numbers)
        if len(blocks) == len(every_rank) * len(every_number):
            members = f"{_numbers('Block', every_number)} of {_numbers('rank', every_rank)}"
        else:
            pairs = [f"{r} block {b}" for r, b in zip(ranks, numbers, strict=True)]
            members = f"Rank {_shorten(pairs)}"
        lines = [f"// {members}."]
        c = self._o.connections
        for word, ends, rank in (("to", self._o.sends, c.dst), ("from", self._o.receives, c.src)):
            first = ends.offset[blocks]
            for peer in range(int(ends.offset[blocks[0] + 1] - first[0])):
                rows = ends.order[first + peer]
                lines.append(f"// {word}({peer}): {self._peers(rank[rows], c.channel[rows])}")
        return lines

    def _peers(self, ranks: IntArray, channels: IntArray) -> str:
        """The other ends of the members' connections, in words."""
        formula = self._formula.formula(ranks.astype(np.int64))
        rank = _numbers("rank", np.unique(ranks)) if formula is None else f"rank = {formula}"
        return f"{rank}, {_numbers('channel', np.unique(channels))}"

    def _body(self) -> list[str]:
        lines: list[str] = []
        last_source, pipeline = "", NONE
        for step in range(self._steps):
            rows = self._first + step
            at = int(self._o.plan.instructions.pipeline[rows[0]])
            if at != pipeline:
                lines.append(f"// sub-pipeline {at}")
                pipeline = at
            source = self._source(rows)
            if source and source != last_source:
                lines.append(f"// {one_line(source)}")
                last_source = source
            lines += self._conditions(rows)
            lines.append(self._call(step, rows))
            lines += self._end_of_run(step, rows)
        return lines

    def _source(self, rows: LongArray) -> str:
        """The source lines of an instruction of all members: "ring.py:7, 9"."""
        plan = self._o.plan
        sources = np.unique(plan.instructions.source[rows])
        places = [plan.sources.place(int(s)) for s in sources]
        named = list(dict.fromkeys((PurePath(p.file).name, p.line) for p in places if p.file))
        texts = [
            str(line) if k and file == named[k - 1][0] else f"{file}:{line}"
            for k, (file, line) in enumerate(named[:_LINES])
        ]
        if len(named) > _LINES:
            texts.append(f"{len(named) - _LINES} more")
        return ", ".join(texts)

    def _conditions(self, rows: LongArray) -> list[str]:
        c = self._o.conditions
        first = c.offset[rows]
        lines = []
        for number in range(int(c.offset[rows[0] + 1] - first[0])):
            at = first + number
            word = "hold" if c.held[at[0]] else "wait"
            target, step = (self._formula(v[at].astype(np.int64)) for v in (c.target, c.number))
            lines.append(f"{word}({number}, {target}, {step});")
        return lines

    def _end_of_run(self, step: int, rows: LongArray) -> list[str]:
        """The call of the run of which this is the last instruction."""
        row, first = int(rows[0]), self._first_of_run(int(rows[0]))
        length = int(self._o.runs.length[first])
        if length == 1 or row - first + 1 < length:
            return []
        return [f"run(tile, {self._step(step - length + 1, first, row)}, {length});"]

    def _first_of_run(self, row: int) -> int:
        length = self._o.runs.length
        while not length[row]:
            row -= 1
        return row

    def _step(self, step: int, row: int, last: int) -> str:
        """An instruction's number and waits, and whether others wait for the one `last`."""
        waits = int(self._o.conditions.offset[row + 1] - self._o.conditions.offset[row])
        number = f"step({step})" + (f".waits({waits})" if waits else "")
        return number + (".posts()" if self._o.posts[last] else "")

    def _in_run(self, row: int) -> list[str]:
        """The arguments of a row: its number in the run, and the flags."""
        runs = self._o.runs
        flags = [
            name
            for name, has in (("First", runs.first), ("Second", runs.second), ("Kept", runs.kept))
            if has[row]
        ]
        words = " | ".join(f"k{name}" for name in flags) or "0"
        return [str(row - self._first_of_run(row)), words]

    def _call(self, step: int, rows: LongArray) -> str:
        o, row = self._o, int(rows[0])
        op = Op(int(o.plan.instructions.op[row]))
        alone = o.runs.length[row] == 1
        number = self._step(step, row, row) if alone else f"step({step})"
        divisor = int(o.averages.by_instruction[row])
        number += f".averages({divisor})" if divisor > 1 else ""
        arguments = ["tile", number] if alone else [*self._in_run(row), number]
        of_group = max(o.receives.members[row], o.sends.members[row]) > 1
        if RECEIVES[op]:
            message = f"from({o.receives.peer[row]}, {o.receives.message[row]})"
            message += f".of({o.receives.members[row]})" if of_group else ""
            pulled = self._place(o.pulled, rows)
            arguments.append(f"{message}.at({pulled})" if pulled else message)
        arguments += filter(None, [self._place(o.src, rows), self._place(o.dst, rows)])
        if SENDS[op]:
            message = f"to({o.sends.peer[row]}, {o.sends.message[row]})"
            message += f".of({o.sends.members[row]})" if of_group else ""
            arguments.append(f"{message}.in_place()" if o.stays[row] else message)
        count = int(o.plan.instructions.count[row])
        if op is not Op.NOP and count > 1:
            arguments.append(str(count))
        return f"{'' if alone else 'row::'}{op.name.lower()}({', '.join(arguments)});"

    def _place(self, places: Places, rows: LongArray) -> str:
        memory = int(places.memory[rows[0]])
        if memory == NOWHERE:
            return ""
        word = Buffer(memory).name.lower()
        if self._o.plan.collective.in_place and memory == Buffer.INPUT:
            word = "data"
        return f"{word}({self._formula(places.chunk[rows].astype(np.int64))})"


def _wrap(declaration: str, values: list[int]) -> str:
    text = f"{declaration} = {{{', '.join(map(str, values))}}};"
    return textwrap.fill(text, width=100, subsequent_indent="    ")


def _numbers(word: str, numbers: IntArray) -> str:
    """Ascending numbers of something: "rank 3", "ranks 0 to 7", "ranks 0, 2, 4, 6"."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if len(numbers) > 2 and (np.diff(numbers) == 1).all():
        return f"{word}s {numbers[0]} to {numbers[-1]}"
    return f"{word}s {_shorten([str(number) for number in numbers])}"


def _shorten(words: list[str]) -> str:
    rest = len(words) - _NAMES
    return ", ".join(words if rest <= 0 else [*words[:_NAMES], f"{rest} more"])


def one_line(text: str) -> str:
    """Text for a comment: without line breaks, and without a continuation into the next line."""
    return "".join(c if c.isprintable() and c != "\\" else "?" for c in text)
