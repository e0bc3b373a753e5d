"""Building: what schedules of all synthesisers have in common: JSON texts, read within limits, with
the lines of their strings; a schedule; and the program of its sends."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import ClassVar

import numpy as np

from sley.errors import Place
from sley.errors.formats import F403, F404, F424
from sley.errors.recognition import Kind
from sley.errors.schedules import F551, F560
from sley.errors.text_files import Section, json_of, text_of
from sley.ir.collective import Collective
from sley.ir.program import Program, Transfers
from sley.ir.sources import Sources
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import Buffer, TransferKind

MAX_TEXT = 16 << 20
"""Limit of the characters of a text, so that reading takes bounded memory."""

MAX_CONTAINERS = 2_000_000
"""Limit of the lists and objects of a text: an empty one has 2 characters, but takes over 50 bytes,
so that the limit of characters does not bound the memory."""

_MAX_NUMBER = 1e18
"""Rounded, numbers up to this fit into int64."""


def file_text(path: str | os.PathLike[str]) -> str:
    """The text of a schedule's file. Errors: F404, F403."""
    text = text_of(Path(path), F404)
    if len(text) > MAX_TEXT:
        expected = f"at most {MAX_TEXT} characters"
        raise F403.error(at=Place(os.fspath(path)), expected=expected, found=str(len(text)))
    return text


def source_text(
    source: str | os.PathLike[str], beginning: str, file: str | None
) -> tuple[str, str]:
    """The text of a source, and its name in messages.

    source: a file (a path), or a text that begins with `beginning`. file: the name; by default the
    path. Errors: F404, F403.
    """
    if isinstance(source, str) and source.lstrip()[:1] == beginning:
        return source, file or "<text>"
    return file_text(source), file or os.fspath(source)


def json_object(file: str, text: str) -> Section:
    """The JSON object of a text, in bounded memory. Errors: F551, F403."""
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        expected = f"at most {MAX_CONTAINERS} objects and lists"
        raise F403.error(at=Place(file), expected=expected, found="more")
    found = json_of(file, text, F551)
    if not isinstance(found, dict):
        raise F551.error(at=Place(file), expected="an object in JSON", found=type(found).__name__)
    return Section(file, found, F551)


def positive(section: Section, key: str) -> float:
    """A finite number above 0. Errors: F551."""
    value = section.number(key)
    if not 0 < value <= _MAX_NUMBER:
        raise section.refuse(key, f"a number above 0, up to {_MAX_NUMBER:g}", value)
    return value


class Lines:
    """The lines of the strings of a text; of equal strings, that of the first.

    pattern: what the strings begin with.
    """

    def __init__(self, text: str, pattern: str) -> None:
        ends = np.array([found.start() for found in re.finditer("\n", text)], np.int64)
        found = [(m[1], m.start()) for m in re.finditer(rf'"((?:{pattern})[^"\n]*)"', text)]
        lines = np.searchsorted(ends, np.array([at for _, at in found], np.int64)) + 1
        self._line: dict[str, int] = {}
        for (string, _), line in zip(found, lines.tolist(), strict=True):
            self._line.setdefault(string, line)

    def __getitem__(self, string: str) -> int:
        return self._line.get(string, 1)


MAX_CELLS = 1 << 24
"""Limit of the output chunks of all ranks together, and of the scratch chunks of each rank."""


class ImportedSchedule(ABC):
    """A schedule of a synthesiser.

    name: the synthesiser. kind: that of its files. allowed: what `allow` may have. serves: the
    collectives of its programs in words, if they are several. file: where it is from. collective:
    the one that it implements, by default.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    allowed: ClassVar[tuple[str, ...]] = ()
    serves: ClassVar[str] = ""
    file: str
    collective: str

    @property
    def collectives(self) -> tuple[str, ...]:
        """The collectives that it can serve."""
        return (self.collective,)

    @property
    def topology(self) -> Topology | None:
        """The machine that it was solved for, with the synthesiser's rates and latencies, and the
        ranks of the program; None if the file does not tell."""
        return None

    @property
    def size_bytes(self) -> int | None:
        """The size of the call that the file's time is for; None if it has none."""
        return None

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """What the file is and claims, for people: pairs of a word and a text."""

    @abstractmethod
    def check(self) -> list[tuple[str, str]]:
        """What following the schedule shows, for people. Errors: F554, F556, F557."""

    def changes(self, allow: Iterable[str]) -> list[tuple[str, str]]:
        """What the program does otherwise than the schedule, if faults are allowed, for people:
        pairs of a word and a text."""
        return []

    def program(
        self, collective: str | None = None, *, in_place: bool = False, allow: Iterable[str] = ()
    ) -> Program:
        """The program of the schedule.

        collective: one of those that the schedule can serve, by default its own. allow: faults of
        the schedule, of `allowed`. Errors: F403, F554 to F560.
        """
        collective, allow, at = collective or self.collective, tuple(allow), Place(self.file)
        for word in allow:
            if word not in self.allowed:
                words = ", ".join(self.allowed)
                expected = f"one of {words}" if words else "nothing to allow"
                found = f"{word!r} for a schedule of {self.name}"
                raise F560.error(at=at, expected=expected, found=found)
        if collective not in self.collectives:
            remedy = "Give one of these, or omit the option." if self.serves else ""
            expected = self.serves or self.collective
            raise F424.error(at=at, expected=expected, found=collective, remedy=remedy)
        if in_place and collective == "alltoall":
            raise F424.error(at=at, expected="alltoall out of place", found="in place")
        return self._program(collective, in_place, allow)

    @abstractmethod
    def _program(self, collective: str, in_place: bool, allow: tuple[str, ...]) -> Program:
        """As `program`, of arguments that are right for themselves."""


def check_size(file: str, cells: int) -> None:
    """Refuses a schedule whose collective has more chunks than `MAX_CELLS`. Errors: F403."""
    if cells > MAX_CELLS:
        expected = f"at most {MAX_CELLS} chunks on all ranks together"
        raise F403.error(at=Place(file), expected=expected, found=str(cells))


@dataclass(frozen=True)
class Cells:
    """`count` consecutive chunks of a rank's buffer, the first one at `index`."""

    rank: int
    buffer: Buffer
    index: int
    count: int = 1


@dataclass
class ProgramBuilder:
    """The transfers of a program, in their order.

    file: the schedule's file. rows: a row for each transfer. scratch: the scratch chunks of ranks
    so far.
    """

    file: str
    collective: Collective
    rows: list[tuple[int, ...]] = field(default_factory=list)
    scratch: dict[int, int] = field(default_factory=dict)

    def copy(self, source: Cells, target: Cells, line: int) -> None:
        """Copies `source` to `target`. line: the line of the schedule."""
        self._add(TransferKind.COPY, source, target, line)

    def reduce(self, source: Cells, target: Cells, line: int) -> None:
        """Reduces `source` into `target`. line: the line of the schedule."""
        self._add(TransferKind.REDUCE, source, target, line)

    def copy_own(self, count: int, source: int = 0, target: int = 0) -> None:
        """Copies `count` chunks of each rank's input to its output. source, target: the distance
        between the places of one rank and the next."""
        for rank in range(self.collective.ranks):
            own = Cells(rank, Buffer.INPUT, rank * source, count)
            self.copy(own, Cells(rank, Buffer.OUTPUT, rank * target, count), 1)

    def new_scratch(self, rank: int, count: int) -> Cells:
        """Scratch chunks of a rank that no other transfer uses. Errors: F403."""
        index = self.scratch.get(rank, 0)
        check_size(self.file, index + count)
        self.scratch[rank] = index + count
        return Cells(rank, Buffer.SCRATCH, index, count)

    def _add(self, kind: TransferKind, source: Cells, target: Cells, line: int) -> None:
        ends = (source.rank, source.buffer, source.index, target.rank, target.buffer, target.index)
        self.rows.append((kind, *ends, source.count, line))

    def program(self) -> Program:
        """The program, with the name of the file."""
        table = np.array(self.rows, np.int64).reshape(-1, 9).astype(np.int32)
        kind, src, src_buffer, src_index, dst, dst_buffer, dst_index, count, line = table.T
        lines, source = np.unique(line, return_inverse=True)
        none, zero = np.full(len(table), NONE, np.int32), np.zeros(len(table), np.int32)
        scratch = np.zeros(self.collective.ranks, np.int32)
        for rank, chunks in self.scratch.items():
            scratch[rank] = chunks
        return Program(
            name=PurePath(self.file).stem,
            collective=self.collective,
            transfers=Transfers(
                kind=kind.astype(np.int8),
                src=src,
                src_buffer=src_buffer.astype(np.int8),
                src_index=src_index,
                dst=dst,
                dst_buffer=dst_buffer.astype(np.int8),
                dst_index=dst_index,
                count=count,
                channel=none,
                instances=zero + 1,
                lane=zero,
                send_block=none,
                recv_block=none,
                step=none,
                group=none,
                source=source.astype(np.int32),
            ),
            scratch_chunks=scratch,
            protocol=None,
            sources=Sources.of_file(self.file, lines),
        )
