"""TACCL's schedules (JSON, NAME.sccl.json): steps of sends of addresses between ranks.

A send is [address, source, destination, time, link, operation], of which the last three may be
missing. An address is a chunk of the collective, in an AllReduce of its buffer. The sends of a step
read what the steps before it have written. Source: TACCL's code, taccl/serialization.py,
algorithm.py, collectives.py and reduce_scheduler.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from sley.errors import Place, counted
from sley.errors.formats import F403, F424
from sley.errors.recognition import TACCL_SCHEDULE
from sley.errors.schedules import F551, F554, F556
from sley.errors.text_files import Section
from sley.ir.collectives import AllGather, AllReduce, AllToAll
from sley.ir.program import Program
from sley.ir.tables import IntArray, LongArray, Table, by_key
from sley.ir.words import Buffer, is_integer
from sley.lang.schedules.building import (
    Cells,
    ImportedSchedule,
    ProgramBuilder,
    check_size,
    json_object,
    positive,
    source_text,
)

MAX_RANKS = 4096
MAX_SENDS = 1 << 20

_NAME = re.compile(r"([A-Za-z]{1,20})\(n=[0-9]{1,9}[^)]{0,40}\)(?:,chunks=([0-9]{1,6}))?.{0,200}")
_COLLECTIVES = {"Allgather": "allgather", "Alltoall": "alltoall", "Allreduce": "allreduce"}


@dataclass(frozen=True, eq=False, repr=False)
class Sends(Table):
    """One row a send, in the order of their steps and times.

    address: what is sent. src, dst: the ranks. step: the number of the step.
    reduces: 1 if the destination reduces it into what it has, 0 if it replaces that.
    """

    address: IntArray
    src: IntArray
    dst: IntArray
    step: IntArray
    reduces: IntArray


@dataclass(frozen=True)
class TacclSchedule(ImportedSchedule):
    """A schedule of TACCL.

    title: its name. chunks: into how many each chunk of the collective is divided.
    """

    file: str
    title: str
    collective: str
    ranks: int
    chunks: int
    sends: Sends

    name = "TACCL"
    kind = TACCL_SCHEDULE

    def facts(self) -> list[tuple[str, str]]:
        """What the file is and claims, for people."""
        steps = int(self.sends.step.max(initial=-1)) + 1
        return [
            ("collective", self.collective),
            ("name", self.title),
            ("sends", f"{len(self.sends)} of {counted(self.ranks, 'rank')}"),
            ("steps", f"{steps}, as the file says"),
        ]

    def check(self) -> list[tuple[str, str]]:
        """What following the schedule shows, for people. Errors: those of `replay`."""
        self.replay()
        shown = "every rank sends only what it has"
        if self.collective == "allreduce":
            shown = "every rank gets every address with the data of all ranks"
        return [("replayed", shown)]

    @property
    def addresses(self) -> int:
        """The number of addresses."""
        pairs = self.ranks if self.collective == "alltoall" else 1
        return self.ranks * pairs * self.chunks

    def _starts(self) -> tuple[LongArray, LongArray]:
        """int64 (addresses,): the rank that has each address before, and the one that must get it;
        -1 for all ranks. Not of an AllReduce, where all ranks have data of each address."""
        each = np.arange(self.addresses, dtype=np.int64) // self.chunks
        if self.collective == "alltoall":
            return each % self.ranks, each // self.ranks
        return each, np.full(self.addresses, -1, np.int64)

    def replay(self) -> None:
        """Follows the schedule step by step. Errors: F554 for an address that doesn't get to a
        rank, in an AllReduce with the data of all ranks, F556 for a send of one that the rank
        doesn't have."""
        if self.collective == "allreduce":
            self._replay_sums()
        else:
            self._replay_copies()

    def _replay_sums(self) -> None:
        """Follows which ranks' data each rank has, address by address: the time and the memory
        that this takes grow with the sends, not with the addresses and ranks that a file names."""
        s = self.sends
        columns = (column.tolist() for column in (s.step, s.src, s.dst, s.reduces))
        rows = by_key(zip(s.address.tolist(), zip(*columns, strict=True), strict=True))
        everyone = (1 << self.ranks) - 1
        for address in range(self.addresses):
            for rank, has in enumerate(_sums(self.ranks, rows.get(address, []))):
                if has != everyone:
                    lost = everyone & ~has
                    # The lowest bit of `lost`: the first rank that is missing.
                    other = (lost & -lost).bit_length() - 1
                    raise F554.error(
                        at=Place(self.file),
                        expected="sends that bring every address, with the data of all ranks, to "
                        "every rank",
                        found=f"address {address} gets to rank {rank} without the data of rank "
                        f"{other}",
                    )

    def _replay_copies(self) -> None:
        s = self.sends
        source, target = self._starts()
        never = np.iinfo(np.int64).max
        since = np.full((self.ranks, self.addresses), never, np.int64)
        since[source, np.arange(self.addresses)] = 0
        np.minimum.at(since, (s.dst, s.address), s.step + 1)
        early = np.flatnonzero(s.step < since[s.src, s.address])
        if len(early):
            row = int(early[0])
            raise F556.error(
                at=Place(self.file, detail=f"step {s.step[row]}, send {row}"),
                expected="sends of what a rank has",
                found=f"rank {s.src[row]} sends address {s.address[row]} before it has it",
            )
        wanted = np.ones_like(since, np.bool_)
        if self.collective == "alltoall":
            wanted = np.arange(self.ranks)[:, None] == target[None, :]
        missing = wanted & (since == never)
        if missing.any():
            rank, address = divmod(int(np.argmax(missing)), self.addresses)
            raise F554.error(
                at=Place(self.file),
                expected="sends that bring every address to the ranks that must get it",
                found=f"address {address} never gets to rank {rank}",
            )

    def _program(self, collective: str, in_place: bool, allow: tuple[str, ...]) -> Program:
        """The sends in the order of the steps."""
        self.replay()
        return self._all_to_all() if collective == "alltoall" else self._gathered(in_place)

    def _gathered(self, in_place: bool) -> Program:
        """An AllGather or an AllReduce: an address is a chunk of the output."""
        reduced = self.collective == "allreduce"
        build = AllReduce if reduced else AllGather
        chunks = self.addresses if reduced else self.chunks
        builder = ProgramBuilder(self.file, build(self.ranks, chunks, in_place))
        if not in_place:
            builder.copy_own(chunks, target=0 if reduced else chunks)
        for _, step in groupby(self._useful(), key=lambda row: row.step):
            rows = list(step)
            for row, source in zip(rows, _sources(builder, rows), strict=True):
                target = Cells(row.dst, Buffer.OUTPUT, row.address)
                (builder.reduce if row.reduces else builder.copy)(source, target, 1)
        return builder.program()

    def _useful(self) -> Iterator[Any]:
        """The sends that change something: of an AllGather only the first that brings a rank an
        address."""
        has = set(zip(self._starts()[0].tolist(), range(self.addresses), strict=True))
        for row in self.sends:
            key = (row.dst, row.address)
            if self.collective == "allreduce" or key not in has:
                yield row
            has.add(key)

    def _all_to_all(self) -> Program:
        """An address goes from the source's input, through scratch, to the target's output."""
        builder = ProgramBuilder(self.file, AllToAll(self.ranks, self.chunks))
        builder.copy_own(self.chunks, self.chunks, self.chunks)
        sources, targets = self._starts()
        place: dict[tuple[int, int], Cells] = {}
        for address, (source, target) in enumerate(np.stack([sources, targets], 1).tolist()):
            index = target * self.chunks + address % self.chunks
            place[source, address] = Cells(source, Buffer.INPUT, index)
        for row in self.sends:
            key = (row.dst, row.address)
            if key in place:
                continue
            source, target = int(sources[row.address]), int(targets[row.address])
            end = Cells(row.dst, Buffer.OUTPUT, source * self.chunks + row.address % self.chunks)
            place[key] = end if row.dst == target else builder.new_scratch(row.dst, 1)
            builder.copy(place[row.src, row.address], place[key], 1)
        return builder.program()


def _sources(builder: ProgramBuilder, rows: list[Any]) -> list[Cells]:
    """What each send of a step reads: copies in scratch of the addresses that an earlier send of
    the step replaces or reduces into."""
    written: set[tuple[int, int]] = set()
    copies: dict[tuple[int, int], Cells] = {}
    sources = []
    # The copies come before the sends of the step, so they hold what the steps before have left.
    for row in rows:
        own = (row.src, row.address)
        source = copies.get(own, Cells(row.src, Buffer.OUTPUT, row.address))
        if own in written and own not in copies:
            copies[own] = builder.new_scratch(row.src, 1)
            builder.copy(source, copies[own], 1)
            source = copies[own]
        sources.append(source)
        written.add((row.dst, row.address))
    return sources


def _sums(ranks: int, rows: list[tuple[int, int, int, int]]) -> list[int]:
    """The ranks whose data each rank has of an address at the end, as bits.

    rows: (step, source, destination, reduces) of the address's sends.
    """
    has = [1 << rank for rank in range(ranks)]
    for _, step in groupby(rows, key=lambda row: row[0]):
        # All sends of a step read before one of them writes.
        sent = [(has[src], dst, reduces) for _, src, dst, reduces in step]
        for data, dst, reduces in sent:
            has[dst] = data | has[dst] if reduces else data
    return has


def read(source: str | os.PathLike[str], file: str | None = None) -> TacclSchedule:
    """The schedule in a file (a path), or of a text that begins with {.

    file: the file's name in messages. Errors: F404, F551, F403, F424.
    """
    text, file = source_text(source, "{", file)
    top = json_object(file, text)
    collective = top.section("collective")
    name = collective.typed("name", str)
    named = _NAME.fullmatch(name)
    word = _COLLECTIVES.get(named[1]) if named else None
    if named is None or word is None:
        raise F424.error(
            at=Place(file, detail="collective"),
            expected=f"one of {', '.join(_COLLECTIVES)}",
            found=repr(name[:60]),
        )
    ranks, chunks = positive(collective, "nodes"), int(named[2] or 1)
    if ranks != int(ranks) or ranks < 2:
        raise collective.refuse("nodes", "a whole number from 2", ranks)
    if ranks > MAX_RANKS or chunks < 1:
        expected = f"at most {MAX_RANKS} ranks, and at least 1 chunk"
        raise F403.error(at=Place(file), expected=expected, found=f"{ranks:g} and {chunks}")
    check_size(file, int(ranks) ** (3 if word == "alltoall" else 2) * chunks)
    title = top.typed("name", str)[:200]
    if not title.isprintable():  # it is shown on terminals
        raise top.refuse("name", "a name of printable characters", title)
    empty = Sends(*np.zeros((5, 0), np.int32))
    schedule = TacclSchedule(file, title, word, int(ranks), chunks, empty)
    table = np.array(_rows(file, top, schedule), np.int32).reshape(-1, 5).T
    return replace(schedule, sends=Sends(*table))


def _rows(file: str, top: Section, schedule: TacclSchedule) -> list[tuple[int, ...]]:
    """(address, source, destination, step, reduces) of each send; those of a step by their
    times."""
    rows: list[tuple[int, ...]] = []
    for number, step in enumerate(top.sections("steps")):
        sends = step.typed("sends", list)
        if len(rows) + len(sends) > MAX_SENDS:
            expected = f"at most {MAX_SENDS} sends"
            raise F403.error(at=Place(file), expected=expected, found="more")
        found = [
            _send(file, f"step {number}, send {k}", send, schedule) for k, send in enumerate(sends)
        ]
        found.sort(key=lambda row: row[0])
        rows += [(*ends, number, reduces) for _, *ends, reduces in found]
    return rows


def _send(file: str, where: str, send: object, schedule: TacclSchedule) -> tuple[int, ...]:
    """(time, address, source, destination, reduces) of a send."""
    at = Place(file, detail=where)
    numbers = send[:5] if isinstance(send, list) else []
    if len(numbers) < 3 or not all(is_integer(n) and 0 <= n < 2**53 for n in numbers):
        expected = "[address, source, destination] with optional time, link and operation"
        raise F551.error(at=at, expected=expected, found=repr(send)[:100])
    address, src, dst = numbers[:3]
    most = schedule.ranks - 1
    if address >= schedule.addresses or max(src, dst) > most or src == dst:
        expected = f"an address up to {schedule.addresses - 1} and two ranks up to {most}"
        raise F551.error(at=at, expected=expected, found=repr(send)[:100])
    word = send[5] if isinstance(send, list) and len(send) > 5 else None
    if word not in (None, "rrc"):
        raise F551.error(at=at, expected="the operation rrc, or none", found=repr(word)[:60])
    if word == "rrc" and schedule.collective != "allreduce":
        raise F551.error(at=at, expected=f"no reduction in {schedule.collective}", found="rrc")
    return (numbers[3] if len(numbers) > 3 else 0, address, src, dst, int(word == "rrc"))
