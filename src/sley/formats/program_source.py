"""Program source: a Program as Python text in the chunk language (`sley.lang.chunks`).

    import sley


    @sley.program(sley.AllGather(ranks=2), name="pair")
    def algorithm(p):
        p.chunk(0, "in", 0).copy(1, "out", 0)

There is one line for each transfer, in their order. The text depends on the program alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from types import SimpleNamespace

import numpy as np

from sley.errors import SleyError
from sley.ir.collective import Collective
from sley.ir.collectives import MAX_COUNT, Custom, standard
from sley.ir.program import Program
from sley.ir.tables import NONE, column_types
from sley.ir.words import Buffer, TransferKind

_INDENT = "    "

_NUMBERS = ("ranks", "chunks", "in_place", "root", "max_count")
"""Fields of a collective that are numbers."""

_PART = 500
"""Transfers of one function. Tracing looks up each line's number, which takes Python longer in a
longer function."""


def write(program: Program) -> str:
    """The program as Python text, for `sley compile FILE.py` and for people.

    It has the same transfers with their channels, blocks, instances and lanes, the same collective,
    protocol and name. It has no steps, but their order; no topology and no source lines.
    """
    table, collective = _collective(program.collective)
    decoration = [collective, f"name={_quote(program.name)}"]
    if program.protocol is not None:
        decoration.append(f"protocol=sley.Protocol.{program.protocol.name}")
    rows = list(program.transfers)
    parts = [list(_lines(rows[k : k + _PART])) for k in range(0, len(rows), _PART)]
    body = parts[0] if parts else [f"{_INDENT}pass"]
    blocks = [["import sley"], *([table] if table else [])]
    if len(parts) > 1:
        blocks += [[f"def part_{k}(p):", *part] for k, part in enumerate(parts)]
        body = [f"{_INDENT}part_{k}(p)" for k in range(len(parts))]
    blocks.append([f"@sley.program({', '.join(decoration)})", "def algorithm(p):", *body])
    return "\n\n\n".join("\n".join(block) for block in blocks) + "\n"


def _lines(transfers: list[SimpleNamespace]) -> Iterator[str]:
    """The lines of transfers; consecutive ones with equal instances and lanes share one `with`."""
    # Only neighbours share a `with`: the order of transfers is the program's meaning.
    for (instances, lane), rows in groupby(
        transfers, key=lambda r: (int(r.instances), int(r.lane))
    ):
        parts = [f"p.parallelize({instances})"] if instances > 1 else []
        parts += [f"p.lane({lane})"] if lane else []
        indent = _INDENT
        if parts:
            yield f"{_INDENT}with {', '.join(parts)}:"
            indent = 2 * _INDENT
        for row in rows:
            yield indent + _transfer(row)


def _transfer(row: SimpleNamespace) -> str:
    """One transfer as an expression of the chunk language."""
    count = [row.count] if row.count != 1 else []
    source = _arguments(row.src, _quote(Buffer(row.src_buffer).word), row.src_index, *count)
    target = [row.dst, _quote(Buffer(row.dst_buffer).word), row.dst_index]
    directives = [
        f"{word}={getattr(row, word)}"
        for word in ("channel", "send_block", "recv_block")
        if getattr(row, word) != NONE
    ]
    if row.kind == TransferKind.COPY:
        return f"p.chunk({source}).copy({_arguments(*target, *directives)})"
    other = _arguments(f"p.chunk({source})", *directives)
    return f"p.chunk({_arguments(*target, *count)}).reduce({other})"


def _arguments(*values: object) -> str:
    return ", ".join(map(str, values))


def _quote(text: str) -> str:
    """A string literal, in double quotes if possible."""
    plain = repr(text)
    return f'"{plain[1:-1]}"' if plain.startswith("'") and '"' not in plain else plain


def _collective(c: Collective) -> tuple[list[str], str]:
    """The lines of the tables that a collective needs, and its expression."""
    if (row := standard(c)) is not None:
        return [], f"sley.{row.title}({_keywords(c, row.roles_in(c))})"
    if _is_custom(c):
        return _custom_table(c), (
            f"sley.Custom({_quote(c.name)}, {c.ranks}, {_sizes(c.input_chunks)}, "
            f"{_sizes(c.output_chunks)}, expected, chunks={c.chunks}, in_place={c.in_place})"
        )
    return _literal(c), "COLLECTIVE"


def _is_custom(c: Collective) -> bool:
    """Whether `Custom` can express `c`."""
    try:
        return _custom(c) == c
    except SleyError:
        return False


def _keywords(c: Collective, extra: dict[str, int]) -> str:
    words: dict[str, object] = {"ranks": c.ranks}
    if c.varies and c.max_count != MAX_COUNT:
        words["max_count"] = c.max_count
    words |= {"chunks": c.chunks, **extra}
    if c.in_place:
        words["in_place"] = True
    return ", ".join(f"{word}={value}" for word, value in words.items())


def _inputs(c: Collective) -> list[list[tuple[int, int]]]:
    """Each value as the (rank, index) of its input chunks."""
    rank = np.searchsorted(c.input_offset, c.values.target, side="right") - 1
    index = c.values.target - c.input_offset[rank]
    pairs = list(zip(rank.tolist(), index.tolist(), strict=True))
    offset = c.values.offset.tolist()
    return [pairs[a:b] for a, b in pairwise(offset)]


def _wanted(c: Collective) -> list[list[int | None]]:
    """For each rank, the value that each output chunk must hold, or None for any."""
    values = [None if value == NONE else value for value in c.expected.tolist()]
    offset = c.output_offset.tolist()
    return [values[a:b] for a, b in pairwise(offset)]


def _custom(c: Collective) -> Collective:
    """The `Custom` collective with the inputs and results of `c`."""
    values, wanted = _inputs(c), _wanted(c)

    def expected(rank: int, index: int) -> list[tuple[int, int]] | None:
        value = wanted[rank][index]
        return None if value is None else values[value]

    sizes = c.input_chunks.tolist(), c.output_chunks.tolist()
    return Custom(c.name, c.ranks, *sizes, expected, chunks=c.chunks, in_place=c.in_place)


def _custom_table(c: Collective) -> list[str]:
    return [
        "# Each value: the (rank, index) of the input chunks that it is the reduction of.",
        "VALUES = [",
        *(f"{_INDENT}{value}," for value in _inputs(c)),
        "]",
        "",
        "# For each rank, the value that each output chunk must hold; None: anything.",
        "EXPECTED = [",
        *(f"{_INDENT}{row}," for row in _wanted(c)),
        "]",
        "",
        "",
        "def expected(rank, index):",
        f"{_INDENT}value = EXPECTED[rank][index]",
        f"{_INDENT}return None if value is None else VALUES[value]",
    ]


def _sizes(sizes: np.ndarray) -> str:
    """Sizes of a buffer: one number for all ranks, or a list."""
    return str(sizes[0]) if len(set(sizes.tolist())) == 1 else str(sizes.tolist())


def _literal(c: Collective) -> list[str]:
    """A collective that no constructor can express, as columns."""
    columns = {name: getattr(c, name).tolist() for name in column_types(Collective)}
    offset, target = c.values.offset.tolist(), c.values.target.tolist()
    return [
        "from sley.ir.tables import Edges",
        "",
        "COLLECTIVE = sley.Collective(",
        f"{_INDENT}name={_quote(c.name)},",
        *(f"{_INDENT}{n}={getattr(c, n)}," for n in _NUMBERS),
        *(f"{_INDENT}{name}={values}," for name, values in columns.items()),
        f"{_INDENT}values=Edges({offset}, {target}),",
        ")",
    ]
