"""SearchRecord: a file with the results of a search, from which a later one goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from sley.compiler.candidates import CandidateCompiler, Series
from sley.errors import Place, reason_of
from sley.errors.compiler import C317
from sley.errors.formats import F461
from sley.formats import program_source
from sley.ir.plan_digest import digest
from sley.topologies.graph import graph_text


class RecordedPlan(NamedTuple):
    """A plan of a series: the number of its options, its digest, its blocks on a rank, and its
    simulated times in microseconds, by size."""

    number: int
    key: bytes
    blocks: int
    times_us: dict[int, float]


class SearchRecord:
    """The series of a search that were compared whole, in a file of JSON, a line for each.

    known: the plans of each series that the file had, by its contender and number. The first line
    has the digest of the search: of all that its results depend on. Errors: C317 for a file of
    something else, F461.
    """

    def __init__(
        self, path: str | os.PathLike[str], compiler: CandidateCompiler, sizes: Sequence[int]
    ) -> None:
        self._path = Path(path)
        head = json.dumps({"sley choose": _digest(compiler, sizes)})
        with self._errors():
            text = self._path.read_text(errors="replace") if self._path.exists() else ""
        # A line without its end is one that a process was writing when it was killed.
        lines = text[: text.rfind("\n") + 1].splitlines()
        found = "another search" if text.startswith('{"sley choose"') else "another file"
        try:
            self.known = dict(map(_series, lines[1:]))
        except (ValueError, TypeError, KeyError):
            lines, found = ["no record"], "a line that is none"
        if text and lines[:1] != [head]:
            raise C317.error(
                at=Place(str(self._path)),
                expected="the record of a search for the same answer, by the same sley",
                found=found,
                remedy="Name another file, or delete this one.",
            )
        with self._errors():
            self._path.write_text("".join(f"{line}\n" for line in lines or [head]))

    def add(self, series: Series, plans: Sequence[RecordedPlan]) -> None:
        """Adds a series that was compared whole. Errors: F461."""
        rows = [[one.number, one.key.hex(), one.blocks, one.times_us] for one in plans]
        line = {"series": [series.contender, series.number], "plans": rows}
        with self._errors(), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place, expected = Place(str(self._path)), "a file that can be read and written"
            raise F461.error(at=place, expected=expected, found=reason_of(error)) from None


def _series(line: str) -> tuple[tuple[int, int], list[RecordedPlan]]:
    """The plans of a line, and their series. ValueError, TypeError or KeyError for another one."""
    found: dict[str, Any] = json.loads(line)
    contender, number = found["series"]
    return (contender, number), [
        RecordedPlan(at, bytes.fromhex(key), blocks, {int(k): us for k, us in times.items()})
        for at, key, blocks, times in found["plans"]
    ]


def _digest(compiler: CandidateCompiler, sizes: Sequence[int]) -> str:
    """Equal for searches with equal results."""
    parts = [version("sley"), repr(compiler.space), str(compiler.interpreter), str(list(sizes))]
    parts.append(graph_text(compiler.topology))
    for program, plan in compiler.contenders:
        parts += [program_source.write(program), "" if plan is None else digest(plan).hex()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
