"""SearchRecord: a file with the results of a search, from which a later one goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from sley.compiler.candidates import CandidateCompiler, Series
from sley.errors import Place, reason_of
from sley.errors.compiler import C317
from sley.errors.formats import F461
from sley.formats import program_source, write_file
from sley.ir.plan_digest import digest
from sley.ir.words import is_integer, is_real
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
        first, *lines = text.split("\n")
        if text and first != head:
            is_record = first.startswith('{"sley choose"')
            raise C317.error(
                at=Place(str(self._path)),
                expected="the record of this search, by this version of sley",
                found="the record of another search" if is_record else "another file",
                remedy="Give the same programs, sizes and options, --target too, which -o sets; "
                "or another file.",
            )
        if not text:
            write_file(self._path, head + "\n")
        elif not text.endswith("\n"):  # what a process was writing when it was killed
            self._append("\n")
        count = {series[:2]: len(series.options) for series in compiler.series}
        self.known = dict(_whole_lines(lines, count, frozenset(sizes)))

    def add(self, series: Series, plans: Sequence[RecordedPlan]) -> None:
        """Adds a series that was compared whole. Errors: F461."""
        rows = [[one.number, one.key.hex(), one.blocks, one.times_us] for one in plans]
        self._append(json.dumps({"series": series[:2], "plans": rows}) + "\n")

    def _append(self, text: str) -> None:
        with self._errors(), self._path.open("a") as file:
            file.write(text)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            place, expected = Place(str(self._path)), "a file that can be read and written"
            raise F461.error(at=place, expected=expected, found=reason_of(error)) from None


def _whole_lines(
    lines: Sequence[str], count: Mapping[tuple[int, int], int], sizes: Set[int]
) -> Iterator[tuple[tuple[int, int], list[RecordedPlan]]]:
    """The series of lines, with their plans. A line that has none is left out: its series is
    compared again. count: the options of each series."""
    for line in lines:
        try:
            found = json.loads(line)
            contender, number = found["series"]
            plans = [
                RecordedPlan(
                    at, bytes.fromhex(key), blocks, {int(k): us for k, us in times.items()}
                )
                for at, key, blocks, times in found["plans"]
            ]
            fits = isinstance(found["plans"], list) and all(
                is_integer(one.number)
                and one.number in range(count[contender, number])
                and is_integer(one.blocks)
                and sizes >= one.times_us.keys()
                and all(is_real(us) and 0 <= us < float("inf") for us in one.times_us.values())
                for one in plans
            )
            if fits:
                yield (contender, number), plans
        except (ValueError, TypeError, KeyError, AttributeError):
            continue


def _digest(compiler: CandidateCompiler, sizes: Sequence[int]) -> str:
    """Equal for searches with equal results."""
    parts = [version("sley"), repr(compiler.space), str(compiler.interpreter), str(list(sizes))]
    parts += [graph_text(compiler.topology), str([len(one.options) for one in compiler.series])]
    for program, plan in compiler.contenders:
        parts += [program_source.write(program), "" if plan is None else digest(plan).hex()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
