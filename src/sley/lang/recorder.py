"""Recorder: collects the transfers of a program and their source lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from sley.errors import Place, without_inner_frames
from sley.ir.sources import Sources
from sley.ir.tables import Table

_HERE = (str(Path(__file__).parent), str(Path(without_inner_frames.__code__.co_filename).parent))
"""The folders of the languages, and of the decorator that runs their functions."""


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside the languages: the user's line."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def caller_place() -> Place:
    """The user's line as a place for a diagnostic."""
    return Place(*caller())


@dataclass
class Recorder:
    """Rows of a table, in the order of their calls.

    table: the type of the table, whose last column is `source`. rows: (number of rows, values in
    the order of the columns); a value is a scalar or an array. lines: (file, line) -> row of the
    program's `sources`. length: the number of all rows.
    """

    table: type[Table]
    rows: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    lines: dict[tuple[str, int], int] = field(default_factory=dict)
    length: int = 0

    def source(self) -> int:
        """The source row of the user's current line."""
        return self.lines.setdefault(caller(), len(self.lines))

    def __post_init__(self) -> None:
        self._in_order = itemgetter(*self.table.column_names())

    def add(self, size: int, **values: Any) -> int:
        """Appends `size` rows, with a value for each column; returns the first row."""
        first = self.length
        row = self._in_order(values)
        if size == 1:
            row = tuple([v.item() if isinstance(v, ndarray) else v for v in row])
        self.rows.append((size, row))
        self.length += size
        return first

    def columns(self) -> dict[str, NDArray[Any]]:
        """All rows as columns of the table."""
        names = self.table.column_names()
        if not self.rows:
            return {name: np.zeros(0, np.int32) for name in names}
        if all(size == 1 for size, _ in self.rows):
            scalars = np.array([[int(v) for v in values] for _, values in self.rows], np.int32)
            return dict(zip(names, scalars.T, strict=True))
        return {
            name: np.concatenate([np.broadcast_to(values[k], size) for size, values in self.rows])
            for k, name in enumerate(names)
        }

    def sources(self, whole: Place) -> Sources:
        """The source lines of the rows, of a program that begins at `whole`."""
        files = list(dict.fromkeys(file for file, _ in self.lines))
        number = {file: i for i, file in enumerate(files)}
        return Sources(
            file=np.array([number[file] for file, _ in self.lines], np.int32),
            line=np.array([line for _, line in self.lines], np.int32),
            position=np.zeros(len(self.lines), np.int32),
            files=tuple(files),
            whole=whole,
        )

    def place(self, row: int) -> Place:
        """The line of transfer `row`."""
        for size, values in self.rows:
            if row < size:
                source = int(np.broadcast_to(values[-1], size)[row])
                file, line = list(self.lines)[source]
                return Place(file, line)
            row -= size
        return Place()
