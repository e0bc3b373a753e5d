"""TE-CCL's schedules: flows of chunks over links, each in an epoch.

A flow of an AllGather is a whole chunk; an AllToAll has paths, each for a part of a chunk. A
schedule is followed epoch by epoch, and made a program. In its files (JSON) a flow is a line of
text. The flow texts of an AllToAll are no list of its flows, as equal ones are written once; its
paths are.

First a schedule, then the reader of its files. Source: TE-CCL's code, teccl/solvers (allgather.py,
alltoall.py, and the arrival of flows).
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sley.errors import Diagnostic, Place, Rule, SleyError, counted, shortened
from sley.errors.formats import F403
from sley.errors.recognition import TECCL
from sley.errors.schedules import F551, F554, F555, F556, F557
from sley.ir.collectives import AllGather, AllToAll
from sley.ir.program import Program
from sley.ir.tables import IntArray, LongArray, Table
from sley.ir.topology import Topology
from sley.ir.words import Buffer
from sley.lang.schedules.building import (
    Cells,
    ImportedSchedule,
    Lines,
    ProgramBuilder,
    check_size,
    json_object,
    positive,
    source_text,
)
from sley.lang.schedules.teccl_machines import TecclMachine, nearest_machine

MAX_EPOCH = 10**6
MAX_PARTS = 1000
"""Limit of the denominator of a path's volume: a chunk is cut into this many parts."""

EPOCHS, TIME, MET = "3-Epochs_Required", "4-Collective_Finish_Time", "6-Demand_Met"
BANDWIDTH = "5-Algo_Bandwidth"
"""The keys of a file's claims that following the schedule may refute."""

ALLOWED = ("multicast", "incomplete")
"""What the caller may allow: copies by switches, and GPUs without data."""


@dataclass(frozen=True, eq=False, repr=False)
class Flows(Table):
    """One row a flow: a chunk, or a part of one, travels from a GPU to another.

    chunk, source: the chunk, by its number among those of the GPU that it comes from.
    src, dst: the GPUs at the two ends.
    epoch: the epoch in which it leaves `src`.
    route: index into the schedule's `routes`: the switches between the ends.
    path: row of `Paths`; -1 for a whole chunk.
    line: the line of the file.
    """

    chunk: IntArray
    source: IntArray
    src: IntArray
    dst: IntArray
    epoch: IntArray
    route: IntArray
    path: IntArray
    line: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Paths(Table):
    """One row a path of an AllToAll: a part of a chunk from its source to its target.

    source, target, chunk: the demand that it meets a part of.
    parts, of: the part as a fraction of the chunk.
    line: the line of the demand.
    """

    source: IntArray
    target: IntArray
    chunk: IntArray
    parts: IntArray
    of: IntArray
    line: IntArray


@dataclass(frozen=True)
class Claims:
    """What a file says about its schedule.

    epoch_s: the duration of an epoch. epochs: how many the collective takes. time_s: their time.
    bandwidth_GBps: of all ranks' chunks in this time. met: the epoch by whose beginning each (GPU,
    source, chunk) arrives, empty if the file doesn't say.
    """

    epoch_s: float
    epochs: int
    time_s: float
    bandwidth_GBps: float  # noqa: N815 - a unit
    met: dict[tuple[int, int, int], int]


@dataclass(frozen=True)
class Replay:
    """What following a schedule epoch by epoch shows.

    arrival: for each flow, the epoch at whose beginning its destination has it. epochs: the epoch
    by which the last needed flow has arrived. rates: where the duration of flows is from.
    """

    arrival: LongArray
    epochs: int
    rates: str


@dataclass(frozen=True)
class TecclSchedule(ImportedSchedule):
    """A schedule of TE-CCL.

    collective: "allgather" or "alltoall". routes: the distinct sequences of switches.
    """

    file: str
    collective: str
    claims: Claims
    flows: Flows
    paths: Paths
    routes: tuple[tuple[int, ...], ...]

    name = "TE-CCL"
    kind = TECCL
    allowed = ALLOWED

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """The nodes at the ends of flows, in order: node gpus[r] becomes rank r."""
        f = self.flows
        return tuple(np.unique(np.concatenate([f.source, f.src, f.dst])).tolist())

    @cached_property
    def switches(self) -> tuple[int, ...]:
        """The switches that flows pass."""
        return tuple(sorted({switch for route in self.routes for switch in route}))

    @cached_property
    def _lines_of_links(self) -> dict[tuple[int, int], int]:
        """The links that the flows use, each with the line of the first flow."""
        lines: dict[tuple[int, int], int] = {}
        for row, line in enumerate(self.flows.line.tolist()):
            for link in pairwise(self._route(row)):
                lines.setdefault(link, line)
        return lines

    @cached_property
    def machine(self) -> TecclMachine | None:
        """The machine of TE-CCL's whose links the flows use; None for another one."""
        machine, lacking = self._nearest_machine
        return None if lacking else machine

    @cached_property
    def _nearest_machine(self) -> tuple[TecclMachine | None, list[tuple[int, int]]]:
        return nearest_machine(frozenset(self.gpus), frozenset(self._lines_of_links))

    @property
    def topology(self) -> Topology | None:
        """The machine with TE-CCL's rates and latencies and no other costs; None for an unknown
        one. Its ranks are those of the program."""
        return None if self.machine is None else self.machine.topology(self.gpus)

    @property
    def size_bytes(self) -> int | None:
        """The size of the call that the file's bandwidth and time are for, without the GPUs that
        the program lacks."""
        ranks = len(self.gpus if self.machine is None else self.machine.gpus)
        return max(round(self._data_bytes / ranks * len(self.gpus)), 1)

    @property
    def _data_bytes(self) -> float:
        return self.claims.bandwidth_GBps * self.claims.time_s * 1e9

    @property
    def lost(self) -> tuple[int, ...]:
        """The GPUs of the machine that neither send nor receive."""
        return () if self.machine is None else tuple(sorted(self.machine.gpus - {*self.gpus}))

    def _route(self, row: int) -> tuple[int, ...]:
        f = self.flows
        return (int(f.src[row]), *self.routes[f.route[row]], int(f.dst[row]))

    def facts(self) -> list[tuple[str, str]]:
        """What the file is and claims, for people."""
        c = self.claims
        shown = f"{counted(len(self.gpus), 'GPU')}, {len(self.flows)} flows"
        if self.switches:
            shown += f", through switches {', '.join(map(str, self.switches))}"
        ranks = len(self.gpus if self.machine is None else self.machine.gpus)
        moved = [f"GPU {g} is rank {r}" for r, g in enumerate(self.gpus) if g != r]
        ranks_shown = [("ranks", ", ".join(shortened(moved)))] if moved else []
        data = self._data_bytes
        return [
            ("collective", self.collective),
            ("machine", self._machine_shown()),
            ("sends", shown),
            *ranks_shown,
            (
                "data",
                f"{data:.0f} bytes, {data / ranks:.0f} of each of {counted(ranks, 'rank')}: "
                f"{BANDWIDTH} times {TIME}",
            ),
            ("epochs", f"{c.epochs} of {c.epoch_s * 1e6:g} us, as the file says"),
            ("time", f"{c.time_s * 1e6:g} us, {c.bandwidth_GBps:g} GB/s, as the file says"),
        ]

    def _machine_shown(self) -> str:
        machine, links = self._nearest_machine
        if machine is None:
            return "unknown"
        shown = [f"{a}->{b} (line {self._lines_of_links[a, b]})" for a, b in links]
        lacking = f"unknown: {machine.name} has all links but {', '.join(shown)}"
        return lacking if links else machine.name

    def _doubts(self) -> list[str]:
        """What may be wrong instead, if following the schedule contradicts it."""
        if self.machine is None:
            return [f"machine {self._machine_shown()}"]
        return [
            f"arrivals are computed with chunks of {BANDWIDTH} times {TIME}; if one is wrong, so "
            "are they"
        ]

    def check(self) -> list[tuple[str, str]]:
        """What `replay` shows, for people. Errors: those of `replay`."""
        found = self.replay()
        return [
            ("replayed", f"every GPU sends only what it has; {found.epochs} epochs"),
            ("durations", f"from {found.rates}"),
        ]

    def replay(self) -> Replay:
        """Follows the schedule epoch by epoch. Errors: F554 for a chunk that never arrives, F556
        for one that is sent before, F557 for epochs that differ from the claims."""
        duration, rates = self._durations()
        f = self.flows
        arrival = f.epoch + duration
        if self.collective == "allgather":
            last = self._follow_chunks(arrival)
        else:
            last = self._follow_paths(arrival)
        self._check_claims(last, rates)
        return Replay(arrival, last, rates)

    def _durations(self) -> tuple[LongArray, str]:
        """int64 (flows,): the epochs that each flow takes, and where they are from."""
        f, c = self.flows, self.claims
        if self.machine is not None:
            chunk = c.bandwidth_GBps * c.time_s / len(self.machine.gpus)
            fluid = self.collective == "alltoall"
            routes = [self._route(row) for row in range(len(f))]
            epochs = {
                route: self.machine.epochs(route, c.epoch_s, chunk, fluid=fluid)
                for route in set(routes)
            }
            column = [epochs[route] for route in routes]
            return np.array(column, np.int64), f"the links of {self.machine.name}"
        if c.met:
            keys = zip(f.dst.tolist(), f.source.tolist(), f.chunk.tolist(), strict=True)
            met = np.array([c.met.get(key, -1) for key in keys], np.int64)
            return np.maximum(met - f.epoch, 1), "the file's own times of arrival"
        return np.ones(len(f), np.int64), "unknown links, one epoch each"

    def _follow_chunks(self, arrival: LongArray) -> int:
        """Follows whole chunks; returns the epoch by which every GPU has all of them."""
        f, ranks = self.flows, len(self.gpus)
        chunks = self._chunks_of_a_rank()
        check_size(self.file, ranks * ranks * chunks)
        which = self._ranks(f.source) * chunks + f.chunk
        total = ranks * chunks
        never = np.iinfo(np.int64).max
        present = np.full((ranks, total), never, np.int64)
        own = np.arange(total)
        present[own // chunks, own] = 0
        # Without an order: the earliest arrival counts, and one early flow refuses the schedule.
        np.minimum.at(present, (self._ranks(f.dst), which), arrival)
        self._refuse_early(present[self._ranks(f.src), which])
        missing = np.flatnonzero(present == never)
        if len(missing):
            gpu, chunk = divmod(int(missing[0]), total)
            source, chunk = divmod(chunk, chunks)
            self._refuse_missing(
                "flows that bring every chunk to every GPU",
                f"chunk {chunk} of GPU {self.gpus[source]} never gets to GPU {self.gpus[gpu]}"
                + _more(len(missing)),
                self._doubts() if self.machine is None else (),
            )
        rank_of = self._rank_of
        for (gpu, source, chunk), epoch in self.claims.met.items():
            if gpu in rank_of and source in rank_of and chunk < chunks:
                found = int(present[rank_of[gpu], rank_of[source] * chunks + chunk])
                if found != epoch:
                    self._refuse_claim(
                        f"{MET}: chunk {chunk} of GPU {source} at GPU {gpu} after {epoch} epochs",
                        f"it arrives after {found}",
                    )
        return int(present.max(initial=0))

    def _refuse_early(self, arrived: LongArray) -> None:
        """Refuses flows that leave a GPU before it has what they carry. arrived: int64 (flows,),
        when each has it. Errors: F556."""
        f = self.flows
        early = np.flatnonzero(f.epoch < arrived)
        if not len(early):
            return
        row = int(early[0])
        epoch, part = int(arrived[row]), "a part of " if self.collective == "alltoall" else ""
        when = f"arrives there for epoch {epoch}"
        raise F556.error(
            at=Place(self.file, int(f.line[row])),
            expected="flows of what a GPU has",
            found=f"GPU {f.src[row]} sends {part}chunk {f.chunk[row]} of GPU {f.source[row]} in "
            f"epoch {f.epoch[row]}; it "
            f"{when if epoch <= MAX_EPOCH * 4 else 'never arrives there'}" + _more(len(early)),
            notes=self._doubts(),
        )

    def _refuse_missing(self, expected: str, found: str, notes: Sequence[str] = ()) -> None:
        remedy = "Write the file again with its synthesiser."
        at = Place(self.file)
        raise F554.error(at=at, expected=expected, found=found, remedy=remedy, notes=notes)

    def _follow_paths(self, arrival: LongArray) -> int:
        """Follows the paths; returns the epoch by which the last one has arrived."""
        f, p = self.flows, self.paths
        # The hops of a path are rows one after another: each has what the row before brings.
        follows = np.flatnonzero(f.path[1:] == f.path[:-1]) + 1
        arrived = np.zeros(len(f), np.int64)
        arrived[follows] = arrival[follows - 1]
        self._refuse_early(arrived)
        shares: dict[tuple[int, int, int], Fraction] = defaultdict(Fraction)
        for path in p:
            shares[path.source, path.target, path.chunk] += Fraction(path.parts, path.of)
        pairs = Counter((source, target) for source, target, _ in shares)
        number = max(pairs.values(), default=0)
        for source in self.gpus:
            for target in self.gpus:
                if source != target and pairs[source, target] != number:
                    self._refuse_missing(
                        f"{counted(number, 'chunk')} from every GPU to every other",
                        f"{pairs[source, target]} from GPU {source} to GPU {target}",
                    )
        for (source, target, chunk), share in shares.items():
            if share != 1:
                self._refuse_missing(
                    "paths that together bring all of a chunk",
                    f"{float(share):g} of chunk {chunk} of GPU {source} to GPU {target}",
                )
        return int(arrival.max(initial=0))

    def _check_claims(self, last: int, rates: str) -> None:
        c = self.claims
        if not math.isclose(c.epochs * c.epoch_s, c.time_s, rel_tol=1e-6):
            self._refuse_claim(
                f"{TIME}: {c.epochs} epochs of {c.epoch_s:g} s, {c.epochs * c.epoch_s:g} s",
                f"{c.time_s:g} s",
            )
        if last != c.epochs and (self.machine is not None or c.met):
            self._refuse_claim(
                f"{EPOCHS}: {c.epochs}", f"the last chunk arrives after {last} ({rates})"
            )

    def _refuse_claim(self, expected: str, found: str) -> None:
        raise F557.error(at=Place(self.file), expected=expected, found=found)

    @cached_property
    def _rank_of(self) -> dict[int, int]:
        return {node: rank for rank, node in enumerate(self.gpus)}

    def _ranks(self, nodes: IntArray) -> LongArray:
        return np.searchsorted(np.array(self.gpus), nodes)

    def _chunks_of_a_rank(self) -> int:
        return int(self.flows.chunk.max(initial=0)) + 1

    def _program(self, collective: str, in_place: bool, allow: tuple[str, ...]) -> Program:
        """The flows in the order of their epochs; switches are on the way of a message, and GPUs
        numbered again. allow: "multicast" makes each copy of a switch a message of its own,
        "incomplete" leaves out GPUs without data."""
        found = self.replay()
        self._refuse_faults(allow)
        if collective == "alltoall":
            return self._all_to_all()
        return self._all_gather(found, in_place)

    def changes(self, allow: Iterable[str]) -> list[tuple[str, str]]:
        rows = []
        if "incomplete" in allow and self.lost:
            left = ", ".join(shortened([f"GPU {gpu}" for gpu in self.lost]))
            ranks = f"a collective of {len(self.gpus)} ranks, which --machine FILE.toml places"
            rows.append(("left out", f"{left}: {ranks}"))
        copies = sum(len(rows) - 1 for rows in self._copied.values())
        if "multicast" in allow and copies:
            made = f"copies by switches that are messages of their own: {copies}"
            rows.append(("changed", f"{made}; the file's time does not hold"))
        return rows

    def _refuse_faults(self, allow: tuple[str, ...]) -> None:
        """Refuses what isn't allowed, all of it at once. Errors: F554, F555."""
        faults = {"incomplete": bool(self.lost), "multicast": bool(self._copied)}
        refused = [word for word, has in faults.items() if has and word not in allow]
        options = " ".join(f"--allow {word}" for word in (*allow, *refused))
        remedy = f"import it with {options}"
        make = {"incomplete": self._incomplete, "multicast": self._copying}
        if refused:
            raise SleyError([make[word](remedy) for word in refused])

    def _incomplete(self, remedy: str) -> Diagnostic:
        machine = self.machine
        assert machine is not None  # an unknown one has lost none
        return F554.diagnostic(
            at=Place(self.file),
            expected=f"all {len(machine.gpus)} GPUs of {machine.name}, which the bandwidth counts",
            found=f"no flow from or to {', '.join(shortened([f'GPU {g}' for g in self.lost]))}; "
            f"{len(self.gpus)} GPUs send and receive",
            remedy=f"Solve again with all GPUs, or {remedy}: then it is a collective of "
            f"{len(self.gpus)} ranks.",
        )

    @cached_property
    def _copied(self) -> dict[tuple[int, ...], list[int]]:
        """The rows of flows of which a switch makes several, by (chunk, source, src, epoch, first
        switch)."""
        f = self.flows
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        whole = np.flatnonzero((f.path < 0) & np.array([bool(r) for r in self.routes])[f.route])
        for row in whole.tolist():
            first = self.routes[f.route[row]][0]
            key = (f.chunk[row], f.source[row], f.src[row], f.epoch[row], first)
            groups[tuple(map(int, key))].append(row)
        return {key: rows for key, rows in groups.items() if len(rows) > 1}

    def _copying(self, remedy: str) -> Diagnostic:
        f, copied = self.flows, self._copied
        (chunk, source, src, epoch, switch), rows = next(iter(copied.items()))
        ends = ", ".join(shortened([f"GPU {f.dst[row]}" for row in rows]))
        return F555.diagnostic(
            at=[
                Place(self.file, int(f.line[rows[0]])),
                Place(self.file, int(f.line[rows[1]])).labelled("the other copy"),
            ],
            expected="switches that pass a chunk to one GPU",
            found=f"switch {switch} copies chunk {chunk} of GPU {source}, sent by GPU {src} in "
            f"epoch {epoch}, to {ends}" + _more(len(copied)),
            remedy=f"Solve again with switch_copy off, or {remedy}: then each copy is a message of "
            "its own, and the file's time does not hold.",
        )

    def _all_gather(self, found: Replay, in_place: bool) -> Program:
        """A chunk arrives in its place of the output. Of several flows that bring a GPU the same
        chunk, only the first has an effect."""
        f, ranks, chunks = self.flows, len(self.gpus), self._chunks_of_a_rank()
        builder = ProgramBuilder(self.file, AllGather(ranks, chunks, in_place))
        if not in_place:
            builder.copy_own(chunks, target=chunks)
        which = self._ranks(f.source) * chunks + f.chunk
        src, dst = self._ranks(f.src), self._ranks(f.dst)
        seen = {(source, source * chunks + k) for source in range(ranks) for k in range(chunks)}
        first: set[int] = set()
        # Which flow is the first is a matter of arrivals; transfers are in the order of departures.
        for row in np.argsort(found.arrival, kind="stable").tolist():
            key = (int(dst[row]), int(which[row]))
            if key not in seen:
                seen.add(key)
                first.add(row)
        for row in np.argsort(f.epoch, kind="stable").tolist():
            if row in first:
                cell = int(which[row])
                relayed = in_place or int(src[row]) != cell // chunks
                buffer, index = (Buffer.OUTPUT, cell) if relayed else (Buffer.INPUT, cell % chunks)
                source = Cells(int(src[row]), buffer, index)
                builder.copy(source, Cells(int(dst[row]), Buffer.OUTPUT, cell), int(f.line[row]))
        return builder.program()

    def _all_to_all(self) -> Program:
        """Each path has a part of a chunk: from the input through scratch to the output."""
        f, p, ranks = self.flows, self.paths, len(self.gpus)
        cuts = math.lcm(*np.unique(p.of).tolist())
        if cuts > MAX_PARTS:
            raise F403.error(
                at=Place(self.file),
                expected=f"volumes in multiples of one part of at most {MAX_PARTS} of a chunk",
                found=f"parts of 1/{cuts}",
            )
        counts = (p.parts * (cuts // p.of)).tolist()
        # The parts of a chunk add up to all of it, so its place follows that of the chunk before.
        filled: Counter[tuple[int, int]] = Counter()
        starts = np.zeros(len(p), np.int64)
        for row in np.lexsort((p.chunk, p.target, p.source)).tolist():
            pair = int(p.source[row]), int(p.target[row])
            starts[row] = filled[pair]
            filled[pair] += counts[row]
        each = max(filled.values(), default=cuts)
        check_size(self.file, ranks * ranks * each)
        builder = ProgramBuilder(self.file, AllToAll(ranks, each))
        builder.copy_own(each, each, each)
        src, dst = self._ranks(p.source), self._ranks(p.target)
        sources = zip(src.tolist(), (dst * each + starts).tolist(), counts, strict=True)
        targets = zip(dst.tolist(), (src * each + starts).tolist(), counts, strict=True)
        place = [Cells(rank, Buffer.INPUT, at, count) for rank, at, count in sources]
        ends = [Cells(rank, Buffer.OUTPUT, at, count) for rank, at, count in targets]
        order = np.argsort(f.epoch, kind="stable")
        last = np.append(f.path[1:] != f.path[:-1], True)
        for row in order.tolist():
            path = int(f.path[row])
            source, rank = place[path], self._rank_of[int(f.dst[row])]
            target = ends[path] if last[row] else builder.new_scratch(rank, source.count)
            builder.copy(source, target, int(f.line[row]))
            place[path] = target
        return builder.program()


def _more(number: int) -> str:
    return f"; and {counted(number - 1, 'other')} like this" if number > 1 else ""


MAX_NODE = 4095

_NUMBER = r"([0-9]{1,9})"
_HOP = rf"{_NUMBER}->{_NUMBER}(?: with volume ([0-9.eE+-]{{1,30}}))? in epoch {_NUMBER}"
_VIA = r"(?: via switches ([0-9]{1,9}(?:(?:->|, ?)[0-9]{1,9}){0,9}))?"
_FLOW = re.compile(rf"Chunk {_NUMBER} from {_NUMBER} traveled over {_HOP}{_VIA}")
_STEP = re.compile(_HOP + _VIA)
_DEMAND = re.compile(rf"Demand at {_NUMBER} for chunk {_NUMBER} from {_NUMBER} met by epoch .*")
_GPU = re.compile(rf"GPU {_NUMBER}")
_CHUNK = re.compile(rf"Chunk {_NUMBER}")
_FLOWS, _PATHS = re.compile(r"\d-Flows"), re.compile(r"\d-[Cc]hunk paths")
_DURATION = "1-Epoch_Duration"


class _Hop(NamedTuple):
    """A hop of a chunk, or of a part of one.

    volume: the part as a fraction of the chunk; None for all of it. epoch: the one in which it
    leaves `src`. via: the switches between the ends.
    """

    src: int
    dst: int
    volume: Fraction | None
    epoch: int
    via: tuple[int, ...]


class _Flow(NamedTuple):
    """The text of a flow, read. chunk: its number among those of `source`."""

    chunk: int
    source: int
    hop: _Hop
    line: int


def read(source: str | os.PathLike[str], file: str | None = None) -> TecclSchedule:
    """The schedule in a file (a path), or of a text that begins with {.

    file: the file's name in messages. Errors: F404, F551, F403.
    """
    text, file = source_text(source, "{", file)
    return _TecclReader(file, text).schedule()


class _TecclReader:
    """Reads one file."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._top = json_object(file, text)
        self._lines = Lines(text, r"Chunk |Demand at ")
        self._routes: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []  # of `Flows`
        self._paths: list[tuple[int, ...]] = []  # of `Paths`

    def schedule(self) -> TecclSchedule:
        flows = self._top.typed(self._key(_FLOWS, "7-Flows"), list)
        parsed = [self._flow(text) for text in flows]
        fluid = any(flow.hop.volume is not None for flow in parsed)
        if fluid:
            self._read_paths(self._top.typed(self._key(_PATHS, "8-Chunk paths"), dict))
        else:
            self._rows = [self._row(f.chunk, f.source, f.hop, -1, f.line) for f in parsed]
        if not self._rows:
            raise self._top.refuse("7-Flows", "at least one flow", flows)
        return TecclSchedule(
            self._file,
            "alltoall" if fluid else "allgather",
            self._claims(),
            Flows(*np.array(self._rows, np.int32).T),
            Paths(*np.array(self._paths, np.int32).reshape(-1, 6).T),
            tuple(self._routes),
        )

    def _key(self, pattern: re.Pattern[str], usual: str) -> str:
        """The key whose number varies."""
        return next((key for key in self._top.values if pattern.fullmatch(key)), usual)

    def _refuse(self, rule: Rule, text: object, expected: str) -> SleyError:
        shown = repr(text[:100]) if isinstance(text, str) else type(text).__name__
        line = self._lines[text] if isinstance(text, str) else 0
        return rule.error(at=Place(self._file, line), expected=expected, found=shown)

    def _row(self, chunk: int, source: int, hop: _Hop, path: int, line: int) -> tuple[int, ...]:
        """The row of a hop; its route gets a number."""
        route = self._routes.setdefault(hop.via, len(self._routes))
        return (chunk, source, hop.src, hop.dst, hop.epoch, route, path, line)

    def _flow(self, text: object) -> _Flow:
        found = _FLOW.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            expected = "Chunk C from S traveled over A->B [with volume V] in epoch K"
            raise self._refuse(F551, text, expected)
        chunk, source = int(found[1]), self._node(found[2], text)
        if chunk > MAX_NODE:
            raise self._refuse(F403, text, f"chunks up to {MAX_NODE}")
        return _Flow(chunk, source, self._hop(found.groups()[2:], text), self._lines[str(text)])

    def _hop(self, groups: tuple[str | None, ...], text: object) -> _Hop:
        """A hop. groups: those of _HOP and _VIA. text: where they are from."""
        *ends, share, epoch, via = groups
        src, dst = (self._node(str(node), text) for node in ends)
        if int(epoch or 0) > MAX_EPOCH:
            raise self._refuse(F403, text, f"epochs up to {MAX_EPOCH}")
        switches = re.split(r"->|, ?", via) if via else []
        route = tuple(self._node(switch, text) for switch in switches)
        if src == dst:
            raise self._refuse(F551, text, "two different nodes")
        volume = None if share is None else self._share(share, text)
        return _Hop(src, dst, volume, int(epoch or 0), route)

    def _node(self, word: str, text: object) -> int:
        if int(word) > MAX_NODE:
            raise self._refuse(F403, text, f"nodes up to {MAX_NODE}")
        return int(word)

    def _share(self, word: str, text: object) -> Fraction:
        """A volume as a fraction of a chunk; TE-CCL rounds to six digits."""
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not 0 < value <= 1:
            raise self._refuse(F551, text, "a volume above 0 and up to 1")
        share = Fraction(value).limit_denominator(MAX_PARTS)
        if share == 0 or abs(float(share) - value) > 1e-5:
            expected = f"a volume that is a fraction with a denominator up to {MAX_PARTS}"
            raise self._refuse(F403, text, expected)
        return share

    def _read_paths(self, demands: dict[str, Any]) -> None:
        for text, paths in demands.items():
            found = _DEMAND.fullmatch(text)
            if found is None or not isinstance(paths, list):
                raise self._refuse(F551, text, "Demand at D for chunk C from S met by epoch K")
            target, chunk, source = int(found[1]), int(found[2]), int(found[3])
            for node in (target, source):
                self._node(str(node), text)
            if chunk > MAX_NODE * MAX_NODE:
                raise self._refuse(F403, text, f"chunks up to {MAX_NODE * MAX_NODE}")
            for path in paths:
                self._read_path(path, text, (source, target, chunk))

    def _read_path(self, path: object, demand: str, key: tuple[int, int, int]) -> None:
        """A path is a list of [epoch, text of a hop]."""
        source, target, chunk = key
        line, at, shares = self._lines[demand], source, set()
        if not isinstance(path, list) or not path:
            raise self._refuse(F551, demand, "paths, each a list of hops")
        for entry in path:
            text = entry[1] if isinstance(entry, list) and len(entry) == 2 else entry
            found = _STEP.fullmatch(text) if isinstance(text, str) else None
            if found is None:
                raise self._refuse(F551, demand, "hops A->B with volume V in epoch K")
            hop = self._hop(found.groups(), text)
            if hop.src != at or hop.volume is None:
                raise self._refuse(F551, demand, f"hops with volumes that lead on from GPU {at}")
            at = hop.dst
            shares.add(hop.volume)
            self._rows.append(self._row(chunk, source, hop, len(self._paths), line))
        if at != target or len(shares) != 1:
            expected = f"paths of one volume that lead from GPU {source} to GPU {target}"
            raise self._refuse(F551, demand, expected)
        share = shares.pop()
        self._paths.append((source, target, chunk, share.numerator, share.denominator, line))

    def _claims(self) -> Claims:
        top = self._top
        epoch = positive(top, _DURATION)
        epochs = positive(top, EPOCHS)
        if epochs != int(epochs) or epochs > 2 * MAX_EPOCH:
            raise top.refuse(EPOCHS, f"a whole number up to {2 * MAX_EPOCH}", epochs)
        met = self._met(epoch) if MET in top else {}
        return Claims(epoch, int(epochs), positive(top, TIME), positive(top, BANDWIDTH), met)

    def _met(self, epoch: float) -> dict[tuple[int, int, int], int]:
        """The epoch by which each (GPU, source, chunk) arrives: {"GPU 3": {"GPU 1": {"Chunk 0":
        seconds}}}."""
        met: dict[tuple[int, int, int], int] = {}
        every = self._top.section(MET)
        for word in every.values:
            gpu, sources = self._numbered(_GPU, word), every.section(word)
            for other in sources.values:
                source, times = self._numbered(_GPU, other), sources.section(other)
                for name in times.values:
                    key = gpu, source, self._numbered(_CHUNK, name)
                    met[key] = round(min(positive(times, name) / epoch, 1e12))
        return met

    def _numbered(self, pattern: re.Pattern[str], word: str) -> int:
        found = pattern.fullmatch(word)
        if found is None:
            expected = "GPU N, and in it Chunk N"
            raise F551.error(
                at=Place(self._file, detail=MET), expected=expected, found=repr(word[:40])
            )
        return int(found[1])
