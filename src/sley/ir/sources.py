"""Sources: the source lines of the rows of other tables."""

from __future__ import annotations

from dataclasses import dataclass

from sley.errors import Place
from sley.ir.tables import IntArray, Table


@dataclass(frozen=True, eq=False, repr=False)
class Sources(Table):
    """One row a distinct line of text; the `source` columns of other tables contain its rows.

    file: index into `files`.
    line: number of the line, from 1.
    position: column in the line, from 1; 0 for the whole line.
    files: the distinct file names.
    whole: where the program or plan as a whole begins, for messages about no particular line.
    """

    file: IntArray
    line: IntArray
    position: IntArray
    files: tuple[str, ...] = ()
    whole: Place = Place()

    def place(self, source: int, detail: str = "") -> Place:
        """The place of row `source`; only the detail for NONE."""
        if source < 0:
            return Place(detail=detail)
        file, line = self.files[self.file[source]], int(self.line[source])
        return Place(file, line, int(self.position[source]), detail)
