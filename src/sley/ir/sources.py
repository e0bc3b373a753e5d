"""Sources: the lines of text that rows came from."""

from __future__ import annotations

from dataclasses import dataclass

from sley.errors import Place
from sley.ir.tables import IntArray, Table


@dataclass(frozen=True, eq=False, repr=False)
class Sources(Table):
    """One row a distinct line of text; other tables point here with a `source` column.

    The function is not kept, since file and line suffice to open the place.

    file: index into `files`.
    line: number of the line, 1-based.
    position: where in the line, 1-based; 0 for the whole line.
    files: the distinct file names.
    whole: where the program or plan as a whole begins, for what stands in no line of its own.
    """

    file: IntArray
    line: IntArray
    position: IntArray
    files: tuple[str, ...] = ()
    whole: Place = Place()

    def place(self, source: int, detail: str = "") -> Place:
        """The place of row `source`, or just the detail where there is none (NONE)."""
        if source < 0:
            return Place(detail=detail)
        file, line = self.files[self.file[source]], int(self.line[source])
        return Place(file, line, int(self.position[source]), detail)
