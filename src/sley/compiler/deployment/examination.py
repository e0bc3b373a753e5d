"""Examination: what is wrong in a directory, and for which sizes its files are."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from sley.compiler.deployment.candidates import CandidateFile
from sley.compiler.deployment.folders import Reading, read_folder
from sley.compiler.deployment.runtimes import Grid, Runtime, environment, misplaced
from sley.errors import Diagnostic, Place
from sley.errors.deployment import F507, F509, F510, F511, F512, F513, F518, F527, F530, F531, F533
from sley.ir.conditions import Condition
from sley.ir.sizes import SizeRange, borders
from sley.ir.tables import by_key

_REMARKS = (F507, F513, F530, F531, F533)
"""Findings that need not be mistakes."""

SPLIT = "reducescatter"
"""The collective whose calls in place have buffers that begin at one address on rank 0 alone."""

PLACE_WORDS = ("out of place", "in place")


@dataclass(frozen=True)
class SizeSpan:
    """A range of sizes, and the files that match there, in the order in which the runtime tries
    them."""

    sizes: SizeRange
    files: tuple[CandidateFile, ...]


@dataclass(frozen=True)
class CallKind:
    """Calls that the same files match, but for their sizes: the collective, the communicators, and
    whether in place."""

    collective: str
    grid: Grid
    in_place: bool

    def __str__(self) -> str:
        return f"{self.collective}, {self.grid}, {PLACE_WORDS[self.in_place]}"


@dataclass(frozen=True)
class Examination:
    """A directory as a runtime reads it.

    reading: the files. refusal: why the runtime reads none, or None. spans: for each kind of calls
    the ranges of sizes, ascending, holes included. problems: what is wrong. remarks: what may be.
    of_folder: those problems and remarks of the whole directory, or of files that can't be read,
    which concern every call.
    """

    runtime: Runtime
    reading: Reading
    refusal: Diagnostic | None
    spans: dict[CallKind, tuple[SizeSpan, ...]]
    problems: tuple[Diagnostic, ...]
    remarks: tuple[Diagnostic, ...]
    of_folder: tuple[Diagnostic, ...] = ()

    @property
    def has_folder_problem(self) -> bool:
        """Whether something is wrong with the directory, whatever the call is."""
        return any(one in self.problems for one in self.of_folder)

    @property
    def conditions(self) -> dict[Condition, tuple[str, ...]]:
        """The conditions of the files' proofs that the runtime doesn't check, each with the names
        of its files."""
        found = by_key(
            (each, one.name) for one in self.reading.candidates for each in one.conditions
        )
        return {condition: tuple(names) for condition, names in found.items()}

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the runtime reads the files."""
        files = [one.name for one in self.reading.candidates]
        return environment(self.runtime, self.reading.folder, files)

    def to_json(self) -> dict[str, object]:
        """The examination as plain values, for ``--json``."""
        return {
            "runtime": self.runtime.name,
            "version": self.runtime.version,
            "no_start": self.reading.no_start or None,
            "indivisible": self.runtime.indivisible,
            "files": [one.to_json() for one in self.reading.candidates],
            "spans": [
                {
                    "collective": kind.collective,
                    "ranks": kind.grid.ranks,
                    "node": kind.grid.node or None,
                    "in_place": kind.in_place,
                    "begin_bytes": one.sizes.begin_bytes,
                    "end_bytes": one.sizes.end_bytes,
                    "files": [file.name for file in one.files],
                }
                for kind, spans in self.spans.items()
                for one in spans
            ],
            "conditions": [
                {**condition.to_json(), "files": list(files)}
                for condition, files in self.conditions.items()
            ],
            "problems": [one.to_json() for one in self.problems],
            "remarks": [one.to_json() for one in self.remarks],
            "environment": self.environment,
        }


def examine(where: str | os.PathLike[str], runtime: Runtime) -> Examination:
    """Examines a directory, or one file as if it were alone in a directory, as a runtime reads
    it."""
    refusal = runtime.why_none()
    if refusal is not None:
        reading = Reading(runtime, Path(where))
        return Examination(runtime, reading, refusal, {}, (refusal,), ())
    reading = read_folder(where, runtime)
    runtime = reading.runtime
    started = [one for one in reading.candidates if one.ranks not in reading.stopped_ranks]
    spans = _spans([one for one in started if one.stop is None])
    found = [*reading.stops, *reading.findings]
    found += [one for one in reading.left_out.values() if one not in found]
    of_folder = [*found]
    for one in reading.candidates:
        of_root = None if one.root is None else other_roots(one)
        own = (one.stop, *one.faults, one.unused, of_root)
        found += [each for each in own if each is not None]
    found += _about_names(reading)
    found += _about_spans(runtime, spans)
    if reading.candidates and (place := misplaced(runtime, reading.folder)) is not None:
        found.append(place)
        of_folder.append(place)
    remarks = tuple(one for one in found if one.rule in _REMARKS)
    problems = tuple(one for one in found if one.rule not in _REMARKS)
    return Examination(runtime, reading, None, spans, problems, remarks, tuple(of_folder))


def _spans(candidates: Sequence[CandidateFile]) -> dict[CallKind, tuple[SizeSpan, ...]]:
    """The ranges of sizes of each kind of calls, with the files that match."""
    kinds = by_key(
        (CallKind(one.collective, one.grid, in_place), one)
        for one in candidates
        for in_place in (False, True)
        if one.places.has(in_place) and one.unused is None
    )
    return {kind: _spans_of(kinds[kind]) for kind in sorted(kinds, key=astuple)}


def _spans_of(found: Sequence[CandidateFile]) -> tuple[SizeSpan, ...]:
    """The ranges between the ends of files, merged where the same files match."""
    begins = borders(one.sizes for one in found)
    spans: list[SizeSpan] = []
    for begin, following in zip(begins, [*begins[1:], None], strict=True):
        matching = tuple(one for one in found if one.sizes.covers(begin))
        # Files match from a border to the next alike, so one size of the range tells for all.
        end = None if following is None else following - 1
        if spans and spans[-1].files == matching:
            begin = spans.pop().sizes.begin_bytes
        spans.append(SizeSpan(SizeRange(begin, end), matching))
    return tuple(spans[:-1] if not spans[-1].files else spans)


def _about_names(reading: Reading) -> Iterable[Diagnostic]:
    """Problems of all candidates together."""
    folder, runtime = Place(str(reading.folder)), reading.runtime
    if runtime.knows_names:
        by_name = by_key(((one.collective, one.plan_name), one) for one in reading.candidates)
        for (_, name), files in by_name.items():
            if len(files) > 1:
                at = [Place(str(one.path)) for one in files]
                yield F509.diagnostic(at=at, expected="a name for each plan", found=repr(name))
    mixed = mixed_places(reading)
    if mixed is not None:
        yield mixed
    for one in reading.candidates if runtime.place_by_begin else ():
        if one.collective == SPLIT and one.places.inside:
            yield split_disagreement(one.path)
    ranks = Counter(one.ranks if runtime.stops else 0 for one in reading.candidates)
    for number, count in ranks.items():
        if runtime.most_files is not None and count > runtime.most_files:
            words = f" for {number} ranks" if runtime.stops else ""
            yield F518.diagnostic(
                at=folder, expected=f"at most {runtime.most_files} files{words}", found=str(count)
            )


def _about_spans(
    runtime: Runtime, spans: dict[CallKind, tuple[SizeSpan, ...]]
) -> Iterable[Diagnostic]:
    """Overlaps and holes."""
    for kind, ranges in spans.items():
        hidden: dict[Path, list[tuple[SizeRange, list[str]]]] = defaultdict(list)
        for one in ranges:
            if not one.files:
                yield F513.diagnostic(
                    at=Place(detail=str(kind)),
                    expected="ranges without holes",
                    found=str(one.sizes),
                )
            elif len(one.files) > 1 and not runtime.in_order:
                names = " and ".join(file.name for file in one.files)
                both = [Place(str(file.path)) for file in one.files]
                found = f"{kind}, {one.sizes}: {names}"
                yield F511.diagnostic(at=both, expected="one file for each size", found=found)
            for k, file in enumerate(one.files if runtime.in_order else ()):
                # Those that match every call which the file matches.
                earlier = [own.name for own in one.files[:k] if file.multiple % own.multiple == 0]
                if earlier:
                    hidden[file.path].append((one.sizes, earlier))
        for path, places in hidden.items():
            first = dict.fromkeys(name for _, earlier in places for name in earlier)
            where = ", ".join(str(sizes) for sizes, _ in places)
            yield F512.diagnostic(
                at=Place(str(path)),
                expected="sizes that no earlier file has",
                found=f"{kind}, {where}: {' or '.join(first)} runs",
            )


def other_roots(one: CandidateFile) -> Diagnostic:
    """The remark that a file also runs for calls with other roots than its own."""
    expected, found = f"calls with root {one.root}", "it also runs for other roots, wrongly"
    return F530.diagnostic(at=Place(str(one.path)), expected=expected, found=found)


def split_disagreement(where: Path) -> Diagnostic:
    return F527.diagnostic(
        at=Place(str(where)),
        expected="a ReduceScatter out of place",
        found="one in place, which MSCCL++ recognises on rank 0 only",
    )


def mixed_places(reading: Reading) -> Diagnostic | None:
    """The problem of plans in place beside plans out of place; None without."""
    if not reading.runtime.one_place or len({one.places for one in reading.candidates}) < 2:
        return None
    inside = ", ".join(one.name for one in reading.candidates if one.places.inside)
    found = f"in place only {inside}"
    return F510.diagnostic(
        at=Place(str(reading.folder)), expected="plans of one place", found=found
    )
