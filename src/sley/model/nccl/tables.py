"""Output of nccl-tests and rccl-tests: reads the tables that they print.

A line of column names gives a table's columns, which differ between versions: "size count type
redop root time algbw busbw #wrong" and the last four again, out of place and then in place; older
versions have "error" instead of "#wrong", and leave out redop and root where a collective has
none, in the rows or also among the names. Without a line of names, a row's values show its columns.
Lines of logs are skipped, and a launcher's tags: "[1,0]<stdout>:", or "[0]" before each of the
three pieces in which a test prints a row.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from sley.errors import Place
from sley.errors.simulation import S710, S712
from sley.errors.text_files import text_of

COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "allreduce",
        "all_gather": "allgather",
        "reduce_scatter": "reducescatter",
        "alltoall": "alltoall",
        "broadcast": "broadcast",
        "reduce": "reduce",
        "gather": "gather",
        "scatter": "scatter",
        "sendrecv": "sendrecv",
        "hypercube": "hypercube",
        "alltoallv": "alltoallv",
    }
)
"""The tests, without "_perf", and their collectives in sley."""

_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std\w+>:|\[\d+\]\s|\d+:\s)")
_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<std\w+>:)?")
_TEST = re.compile(r"\b(" + "|".join(sorted(COLLECTIVES, key=len, reverse=True)) + r")_perf\b")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\d+")
_FAILURE = re.compile(r"Test (?:NCCL|CUDA|HIP|RCCL|MPI) failure|Out of bounds values : [1-9]")
_LOG = re.compile(r"\b(?:N|R)CCL (?:INFO|WARN|TRACE|VERSION)\b")

_MOST_RANKS = 1 << 20
_MOST_ROWS = 100_000
_FIRST = ("size", "count", "type")
_SIDE = ("time", "algbw", "busbw", "wrong")
_ALL = (*_FIRST, "redop", "root", *_SIDE, *_SIDE)
_COLUMNS = frozenset(_ALL)
_SAME = {"error": "wrong", "#wrong": "wrong"}
_ROUNDING_GBPS = 0.011
_ROUNDING = 0.02
"""Differences between a bandwidth and its size over its time that come from rounding."""


@dataclass(frozen=True)
class PrintedRow:
    """A measured size.

    line: the number of its line. size_bytes: of the call.
    out_of_place_us, in_place_us: the times; None where the test prints N/A or has no column.
    busbw_GBps: the bus bandwidth of the first time.
    wrong_in_place: whether the results in place are wrong, so that their time is left out: old
        versions also run AllToAll in place, which can't be right.
    """

    line: int
    size_bytes: int
    out_of_place_us: float | None
    in_place_us: float | None
    busbw_GBps: float  # noqa: N815 - a unit
    wrong_in_place: bool = False

    def time_us(self, *, in_place: bool) -> float | None:
        """The time of one column, or of the other one where it has none."""
        wanted, other = self.in_place_us, self.out_of_place_us
        if not in_place:
            wanted, other = other, wanted
        return other if wanted is None else wanted


@dataclass(frozen=True)
class PrintedTable:
    """A table of a run.

    test: the collective's name in sley; None if the output doesn't name the test.
    ranks, nodes: their numbers; None without lines of ranks.
    rooted: whether its rows name a root.
    rows: the sizes, without those of 0 bytes.
    line: the line of the column names, or of the first row.
    """

    test: str | None
    ranks: int | None
    nodes: int | None
    rooted: bool
    rows: tuple[PrintedRow, ...]
    line: int


@dataclass
class _TableHead:
    """What the lines before a table say."""

    test: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)


def read(path: str | os.PathLike[str]) -> list[PrintedTable]:
    """The tables of a file. Errors: S710 to S712."""
    return tables_of(text_of(Path(path), S710), str(path))


def tables_of(text: str, file: str = "") -> list[PrintedTable]:
    """The tables of a text. file: for messages. Errors: S710 to S712."""
    run, columns, begin, rooted = _TableHead(), list[str](), 0, False
    rows: list[PrintedRow] = []
    found: list[PrintedTable] = []

    def finish() -> None:
        if rows:
            ranks, nodes = len(run.hosts) or None, len(set(run.hosts.values())) or None
            found.append(PrintedTable(run.test, ranks, nodes, rooted, tuple(rows), begin))
            rows.clear()

    for number, raw in enumerate(text.split("\n"), 1):
        line, at = _PREFIX.sub("", raw).strip(), Place(file, number)
        if _FAILURE.search(line):
            raise S712.error(at=at, expected="a test without errors", found=repr(line[:80]))
        names = _names(line)
        if names is not None or line.startswith("# nThread") or _TEST.search(line):
            finish()
        if names is not None:
            columns, begin = _checked(names, at), number
        elif line.startswith("#") or not line[:1].isdigit():
            _heed(line, run)
        elif _LOG.search(line):
            continue
        elif len(words := _TAG.sub(" ", line).split()) > 3 and words[1].isdigit():
            if not columns and not rows:
                begin = number
            filled = _filled(columns, words, at)
            rooted = "root" in filled and words[filled.index("root")] != "-1"
            row = _row(filled, words, number, at, in_place=run.test in (None, "alltoall"))
            if row is not None:
                rows.append(row)
            if len(rows) > _MOST_ROWS:
                raise S710.error(at=at, expected=f"at most {_MOST_ROWS} rows", found="more")
    finish()
    if not found:
        raise S710.error(at=Place(file), expected="a table with rows", found="none")
    return found


def _names(line: str) -> list[str] | None:
    """The names of the columns, if a line has them."""
    words = line.lstrip("# ").split()
    words = [_SAME.get(word, word) for word in words]
    return words if tuple(words[:2]) == _FIRST[:2] and "time" in words else None


def _checked(names: list[str], at: Place) -> list[str]:
    """Column names that `_row` understands. Errors: S710."""
    unknown = [name for name in names if name not in _COLUMNS]
    number = names.count("time")
    if unknown or not 1 <= number <= 2 or names.count("algbw") != number:
        raise S710.error(
            at=at,
            expected="the columns size, count, type, redop, root, and time, algbw, busbw, #wrong "
            "once or twice",
            found=" ".join(names)[:80],
        )
    return names


def _heed(line: str, run: _TableHead) -> None:
    """Takes what a line says about the run."""
    if line.startswith("# nThread"):
        run.hosts.clear()
    if test := _TEST.search(line):
        run.test = COLLECTIVES[test[1]]
    if (rank := _RANK.search(line)) and len(rank[1]) < 9 and int(rank[1]) < _MOST_RANKS:
        run.hosts[int(rank[1])] = rank[2]


def _filled(columns: Sequence[str], words: Sequence[str], at: Place) -> list[str]:
    """The columns that a row fills: those that the file names, or all, perhaps without redop and
    root. Errors: S710."""
    for empty in ((), ("root",), ("redop",), ("redop", "root")):
        filled = [name for name in columns or _ALL if name not in empty]
        if len(words) == len(filled) and all(
            (re.fullmatch(r"-?[0-9]{1,9}", word) is not None) == (name == "root")
            for name, word in zip(filled, words, strict=True)
            if name in ("redop", "root")
        ):
            return filled
    found = f"{len(words)}: {' '.join(words)[:80]}"
    if not columns:
        raise S710.error(at=at, expected=f"a row of {' '.join(_ALL)}", found=found)
    raise S710.error(at=at, expected=f"{len(columns)} values: {' '.join(columns)}", found=found)


def _row(
    columns: Sequence[str], words: Sequence[str], number: int, at: Place, *, in_place: bool
) -> PrintedRow | None:
    """A row; None for one of 0 bytes. in_place: whether wrong results in place are left out if the
    row names no redop. Errors: S710, S712."""
    size = int(words[0]) if words[0].isdecimal() and len(words[0]) < 19 else -1
    if size < 0:
        raise S710.error(at=at, expected="a size in bytes", found=repr(words[0][:40]))
    times: list[float | None] = []
    busbw, wrong_in_place = 0.0, False
    place = columns.index("time")
    while place < len(columns):
        one = dict(zip(columns[place : place + 4], words[place : place + 4], strict=True))
        time = None if one["time"] == "N/A" else _checked_time(size, one, at)
        if time is not None:
            busbw = busbw or _number(one.get("busbw", ""), at)
            if _is_wrong(wrong := one.get("wrong", "0"), at):
                if not (any(times) and in_place and "redop" not in columns):
                    raise S712.error(at=at, expected="no wrong results", found=wrong[:40])
                time, wrong_in_place = None, True
        times.append(time)
        step = columns[place + 1 :]
        place += 1 + step.index("time") if "time" in step else len(columns)
    if not size:
        return None
    if not any(times):
        raise S710.error(at=at, expected="a time", found="none")
    other = times[1] if len(times) > 1 else None
    return PrintedRow(number, size, times[0], other, busbw, wrong_in_place)


def _checked_time(size: int, one: Mapping[str, str], at: Place) -> float:
    """A time that fits its bandwidth. Errors: S710."""
    time, algbw = _number(one["time"], at), _number(one["algbw"], at)
    if size and not time > 0:
        raise S710.error(at=at, expected="a time above 0", found=one["time"][:40])
    if size and abs(size / time / 1e3 - algbw) > _ROUNDING_GBPS + _ROUNDING * algbw:
        raise S710.error(
            at=at,
            expected=f"algbw {size / time / 1e3:.2f} GB/s, {size} bytes over {time:g} us",
            found=f"algbw {algbw:g}",
        )
    return time


def _number(word: str, at: Place) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1e15:
        raise S710.error(at=at, expected="a number", found=repr(word[:40]))
    return number


def _is_wrong(word: str, at: Place) -> bool:
    """Whether results are wrong. "error" of older versions is the largest deviation, which is small
    for right ones. Errors: S710."""
    return word != "N/A" and _number(word, at) >= 0.1
