"""Sources: the source lines of the rows of other tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from sley.errors import Place
from sley.ir.tables import NONE, IntArray, Table

_ALGORITHMS = str(Path(__file__).resolve().parents[1] / "algorithms")
"""The folder of the library's algorithms."""


def place_to_mend(place: Place, name: str) -> Place:
    """The place in a program that its user can mend: of an algorithm of the library, its name."""
    return Place(detail=name) if place.file.startswith(_ALGORITHMS) else place


@dataclass(frozen=True, eq=False, repr=False)
class Sources(Table):
    """One row a line of text, and for a line of a function one row a caller of it; the `source`
    columns of other tables contain its rows.

    file: index into `files`.
    line: number of the line, from 1.
    position: column in the line, from 1; 0 for the whole line.
    caller: row of the line that called the function of this one; NONE for a line of the program
        itself, or of a file without functions.
    files: the distinct file names.
    whole: where the program or plan as a whole begins, for messages about no particular line.
    """

    file: IntArray
    line: IntArray
    position: IntArray
    caller: IntArray
    files: tuple[str, ...] = ()
    whole: Place = Place()

    @classmethod
    def of_file(
        cls,
        file: str,
        lines: ArrayLike,
        positions: ArrayLike | None = None,
        whole: Place | None = None,
    ) -> Sources:
        """Lines of a file that no function called. whole: by default the file."""
        line = np.array(lines, np.int32)
        none = np.zeros(len(line), np.int32)
        position = none if positions is None else np.array(positions, np.int32)
        return cls(none, line, position, none + NONE, (file,), whole or Place(file))

    def place(self, source: int, detail: str = "") -> Place:
        """The place of row `source`, with the places that called it; only the detail for NONE."""
        if source < 0:
            return Place(detail=detail)
        file, line = self.files[self.file[source]], int(self.line[source])
        caller = int(self.caller[source])
        return Place(
            file,
            line,
            int(self.position[source]),
            detail,
            None if caller == NONE else self.place(caller),
        )
