"""Stages: the result of each compiler pass as a table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.dag import Allocated, Blocks, ChunkDag, Forwarded, InstructionDag, Links, Order
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.tables import NONE, Table
from sley.ir.words import Buffer, TransferKind
from sley.report.tables import plan_table, table_lines

_WORDS: Mapping[str, type[IntEnum]] = {
    "kind": TransferKind,
    "src_buffer": Buffer,
    "dst_buffer": Buffer,
    "own_buffer": Buffer,
}
"""Columns that hold members of an enumeration."""


def stage_table(value: object) -> list[str]:
    """The result of a pass, a line for each transfer, dependency, instruction or block. Columns
    without any value are omitted; "-" means no value."""
    match value:
        case Program():
            return _table("transfer", _transfers(value))
        case Forwarded():
            own = {f"own_{name}": column for name, column in _columns(value.operands).items()}
            return _table("transfer", _transfers(value.program) | own)
        case ChunkDag():
            of_transfers = _table("transfer", _fields(value, "origin", "readers", "kept"))
            return [*_table("dependency", _columns(value.dependencies)), "", *of_transfers]
        case Links():
            return _table("transfer", _fields(value, "first", "second", "crosses"))
        case np.ndarray():
            return _table("transfer", {"forward": value})
        case InstructionDag():
            return _table("transfer", _fields(value, "forward", "channel", "copied"))
        case Order():
            return _table("row", _columns(value))
        case Blocks():
            return _blocks(value)
        case Allocated():
            order = _columns(value.order) | {"block": value.blocks.instruction_block}
            return [*_blocks(value.blocks), "", *_table("row", order)]
        case Plan():
            ranks = range(value.collective.ranks)
            return [line for rank in ranks for line in plan_table(value, rank)]
        case _:
            raise TypeError(f"no pass makes a {type(value).__name__}")


def _transfers(program: Program) -> dict[str, NDArray[Any]]:
    """The columns of a program's transfers, with the places of their sources."""
    columns = _columns(program.transfers)
    places = [program.sources.place(int(row)).short for row in columns["source"]]
    return columns | {"source": np.array(places, str)}


def _columns(table: Table) -> dict[str, NDArray[Any]]:
    return _fields(table, *table.column_names())


def _fields(value: object, *names: str) -> dict[str, NDArray[Any]]:
    return {name: getattr(value, name) for name in names}


def _blocks(blocks: Blocks) -> list[str]:
    """A line for each block: its rank, and the rows of the order that it executes."""
    place = np.argsort(blocks.instruction_block, kind="stable")
    counts = np.bincount(blocks.instruction_block, minlength=len(blocks.rank))
    rows = np.split(place, np.cumsum(counts)[:-1])
    texts = [" ".join(map(str, own.tolist())) for own in rows[: len(blocks.rank)]]
    return _table("block", {"rank": blocks.rank, "rows": np.array(texts, str)})


def _table(row: str, columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """Columns side by side under a head; `row` is the name of a row. The column "rows" is aligned
    at the left."""
    used = {
        name: values
        for name, values in columns.items()
        if values.dtype.kind != "i" or bool((values != NONE).any())
    }
    cells = [[row, *map(str, range(len(next(iter(columns.values())))))]]
    cells += [[name, *_texts(name, values)] for name, values in used.items()]
    left = [k for k, (name, *_) in enumerate(cells) if name == "rows"]
    return table_lines(list(zip(*cells, strict=True)), left)


def _texts(name: str, values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "b":
        return ["yes" if value else "no" for value in values.tolist()]
    kind = _WORDS.get(name)
    if kind is not None:
        return [kind(value).name.lower() for value in values.tolist()]
    return ["-" if value == NONE else str(value) for value in values.tolist()]
