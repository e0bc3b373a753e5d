"""Examination: which file of a directory runs for which calls, and what is wrong."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from enum import Enum
from pathlib import Path

from sley.deployment.calls import TYPES, Call
from sley.deployment.candidates import Candidate
from sley.deployment.folders import Reading, read_folder
from sley.deployment.runtimes import Grid, Runtime, environment, misplaced
from sley.errors import Diagnostic, Place, Rule
from sley.errors.deployment import (
    F507,
    F508,
    F509,
    F510,
    F511,
    F512,
    F513,
    F515,
    F516,
    F518,
    F519,
    F520,
    F521,
    F522,
    F523,
    F524,
    F526,
    F527,
    F529,
    F530,
    F531,
    F532,
    F533,
)
from sley.ir.conditions import Condition
from sley.ir.sizes import size_text, sizes_text

_REMARKS = (F507, F513, F530, F531, F532, F533)
"""Findings that need not be mistakes."""

_SPLIT = "reducescatter"
"""The collective whose calls in place have buffers that begin at one address on rank 0 alone."""

_ENDING = (F508, F515, F519)
"""Faults of a plan of MSCCL++ that end the process of a call which chooses it."""

_PLACE_WORDS = ("out of place", "in place")


class Outcome(Enum):
    """What a call does."""

    RUNS = "runs"
    ANY = "runs any of several"
    OWN = "runs the runtime's own algorithm"
    OTHER = "runs NCCL's algorithm, if MSCCLPP_NCCL_LIB_PATH names NCCL; otherwise fails"
    FAILS = "fails"
    WRONG = "runs, wrongly"
    ENDS = "ends the process"
    UNPROVEN = "runs a file that sley can't prove"
    UNKNOWN = "runs a file or not, differently in each build or rank"
    NO_START = "is never made: no communicator starts"


_BY_SEVERITY = (Outcome.RUNS, Outcome.UNPROVEN, Outcome.WRONG, Outcome.FAILS, Outcome.ENDS)
"""What a call that runs a file does, the gravest last."""

_RIGHT = (Outcome.RUNS, Outcome.OWN, Outcome.OTHER)


@dataclass(frozen=True)
class Decision:
    """What happens for a call.

    chosen: the names of the files of which one runs; several if the order is unknown. effects: what
        the call does with each of them, by name, if this isn't the same for all.
    why_not: for each other file, by name, why it doesn't run. faults: what is wrong with the files
        that are chosen, or why no communicator starts. remarks: what may be wrong with them.
    """

    call: Call
    outcome: Outcome
    chosen: tuple[str, ...]
    why_not: dict[str, Diagnostic]
    faults: tuple[Diagnostic, ...] = ()
    remarks: tuple[Diagnostic, ...] = ()
    effects: Mapping[str, Outcome] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether the call runs, and rightly as far as sley knows."""
        return self.outcome in _RIGHT and not self.faults

    def to_json(self) -> dict[str, object]:
        """The decision as plain values, for ``--json``."""
        return {
            "call": asdict(self.call),
            "outcome": self.outcome.name.lower(),
            "files": list(self.chosen),
            "effects": {name: effect.name.lower() for name, effect in self.effects.items()},
            "faults": [fault.to_json() for fault in self.faults],
            "remarks": [remark.to_json() for remark in self.remarks],
            "why_not": {name: reason.to_json() for name, reason in self.why_not.items()},
        }


@dataclass(frozen=True)
class Span:
    """A range of sizes, both included (None: no end), and the files that match there, in the order
    in which the runtime tries them."""

    begin_bytes: int
    end_bytes: int | None
    files: tuple[Candidate, ...]

    @property
    def sizes(self) -> str:
        """The range in words."""
        return sizes_text(self.begin_bytes, self.end_bytes)


@dataclass(frozen=True)
class Kind:
    """Calls that the same files match, but for their sizes: the collective, the communicators, and
    whether in place."""

    collective: str
    grid: Grid
    in_place: bool

    def __str__(self) -> str:
        return f"{self.collective}, {self.grid}, {_PLACE_WORDS[self.in_place]}"


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
    spans: dict[Kind, tuple[Span, ...]]
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
        found: dict[Condition, list[str]] = defaultdict(list)
        for one in self.reading.candidates:
            for condition in one.conditions:
                found[condition].append(one.name)
        return {condition: tuple(files) for condition, files in found.items()}

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
                    "begin_bytes": one.begin_bytes,
                    "end_bytes": one.end_bytes,
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
        found += [] if one.stop is None else [one.stop]
        found += one.faults
        found += [] if one.unused is None else [one.unused]
        found += [] if one.root is None else [_other_roots(one)]
    found += _about_names(reading)
    found += _about_spans(runtime, spans)
    place = misplaced(runtime, reading.folder) if reading.candidates else None
    found += [] if place is None else [place]
    of_folder += [] if place is None else [place]
    remarks = tuple(one for one in found if one.rule in _REMARKS)
    problems = tuple(one for one in found if one.rule not in _REMARKS)
    return Examination(runtime, reading, None, spans, problems, remarks, tuple(of_folder))


def _spans(candidates: Sequence[Candidate]) -> dict[Kind, tuple[Span, ...]]:
    """The ranges of sizes of each kind of calls, with the files that match."""
    kinds: dict[Kind, list[Candidate]] = defaultdict(list)
    for one in candidates:
        for in_place in (False, True):
            if one.places.has(in_place) and one.unused is None:
                kinds[Kind(one.collective, one.grid, in_place)].append(one)
    return {kind: _spans_of(kinds[kind]) for kind in sorted(kinds, key=astuple)}


def _spans_of(found: Sequence[Candidate]) -> tuple[Span, ...]:
    """The ranges between the ends of files, merged where the same files match."""
    starts = {one.min_bytes for one in found}
    starts |= {one.max_bytes + 1 for one in found if one.max_bytes is not None}
    begins = sorted(starts)
    spans: list[Span] = []
    for begin, following in zip(begins, [*begins[1:], None], strict=True):
        matching = tuple(one for one in found if one.covers(begin))
        end = None if following is None else following - 1
        if spans and spans[-1].files == matching:
            begin = spans.pop().begin_bytes
        spans.append(Span(begin, end, matching))
    return tuple(spans[:-1] if not spans[-1].files else spans)


def _about_names(reading: Reading) -> Iterable[Diagnostic]:
    """Problems of all candidates together."""
    folder, runtime = Place(str(reading.folder)), reading.runtime
    if runtime.knows_names:
        by_name: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
        for one in reading.candidates:
            by_name[one.collective, one.plan_name].append(one)
        for (_, name), files in by_name.items():
            if len(files) > 1:
                at = [Place(str(one.path)) for one in files]
                yield F509.diagnostic(at=at, expected="a name for each plan", found=repr(name))
    mixed = _mixed_places(reading)
    if mixed is not None:
        yield mixed
    for one in reading.candidates if runtime.place_by_begin else ():
        if one.collective == _SPLIT and one.places.inside:
            yield _disagreement(one.path)
    ranks: dict[int, int] = defaultdict(int)
    for one in reading.candidates:
        ranks[one.ranks if runtime.stops else 0] += 1
    for number, count in ranks.items():
        if runtime.most_files is not None and count > runtime.most_files:
            words = f" for {number} ranks" if runtime.stops else ""
            yield F518.diagnostic(
                at=folder, expected=f"at most {runtime.most_files} files{words}", found=str(count)
            )


def _about_spans(runtime: Runtime, spans: dict[Kind, tuple[Span, ...]]) -> Iterable[Diagnostic]:
    """Overlaps and holes."""
    for kind, ranges in spans.items():
        hidden: dict[str, list[Span]] = defaultdict(list)
        for one in ranges:
            if not one.files:
                yield F513.diagnostic(
                    at=Place(detail=str(kind)), expected="ranges without holes", found=one.sizes
                )
            elif len(one.files) > 1 and not runtime.in_order:
                names = " and ".join(file.name for file in one.files)
                at = [Place(str(file.path)) for file in one.files]
                found = f"{kind}, {one.sizes}: {names}"
                yield F511.diagnostic(at=at, expected="one file for each size", found=found)
            for k, file in enumerate(one.files if runtime.in_order else ()):
                if any(file.multiple % earlier.multiple == 0 for earlier in one.files[:k]):
                    hidden[file.name].append(one)
        for name, places in hidden.items():
            yield _hidden(kind, name, places)


def _hidden(kind: Kind, name: str, places: Sequence[Span]) -> Diagnostic:
    """A file that doesn't run in some ranges, as an earlier one matches every call there."""
    files = [one for span in places for one in span.files]
    path = next(one.path for one in files if one.name == name)
    earlier = dict.fromkeys(one.name for span in places for one in _before(span.files, name))
    return F512.diagnostic(
        at=Place(str(path)),
        expected="sizes that no earlier file has",
        found=f"{kind}, {', '.join(one.sizes for one in places)}: {' or '.join(earlier)} runs",
    )


def _before(files: Sequence[Candidate], name: str) -> list[Candidate]:
    """The files before the one of this name that match every call which it matches."""
    own = next(k for k, one in enumerate(files) if one.name == name)
    return [one for one in files[:own] if files[own].multiple % one.multiple == 0]


def decide(examined: Examination, call: Call) -> Decision:
    """What happens for a call, and why no other file runs."""
    runtime, reading = examined.runtime, examined.reading
    if examined.refusal is not None:
        return Decision(call, Outcome.OWN, (), {}, (examined.refusal,))
    stops = [*reading.stops]
    if call.ranks in reading.stopped_ranks:
        stops += [one.stop for one in reading.candidates if one.stop and one.ranks == call.ranks]
    if stops:
        return Decision(call, Outcome.NO_START, (), dict(reading.left_out), tuple(stops))
    why_not = dict(reading.left_out)
    lethal = [one for one in reading.candidates if _ends_every_call(one, runtime)]
    if lethal:
        names = tuple(one.name for one in lethal)
        return Decision(call, Outcome.ENDS, names, why_not, lethal[0].faults)
    why_not |= _replacements(reading)
    unknown = _why_unknown(reading, call)
    chosen: list[Candidate] = []
    for one in reading.candidates:
        reason = (
            (None if runtime.stops else one.stop)  # else it is for other ranks
            or one.unused
            or why_not.get(one.name)
            or _why_not(one, call, runtime, undecided=unknown is not None)
        )
        if reason is None and chosen and runtime.in_order:
            reason = F526.diagnostic(
                at=Place(str(one.path)), expected="no earlier match", found=chosen[0].name
            )
        if reason is None:
            chosen.append(one)
        else:
            why_not[one.name] = reason
    names = tuple(one.name for one in chosen)
    if not chosen:
        return Decision(call, _without_file(call, runtime), (), why_not)
    if unknown is not None:
        return Decision(call, Outcome.UNKNOWN, names, why_not, (unknown,))
    return _decision_among(chosen, call, reading, why_not)


def _decision_among(
    chosen: Sequence[Candidate], call: Call, reading: Reading, why_not: dict[str, Diagnostic]
) -> Decision:
    """What happens for a call that runs any of these files."""
    found = {one.name: _faults(one, call, reading.runtime) for one in chosen}
    effects = {name: _effect(faults, call) for name, faults in found.items()}
    faults = [fault for each in found.values() for fault in each]
    outcome = max(effects.values(), key=_BY_SEVERITY.index)
    if len(chosen) > 1:
        outcome = Outcome.ANY if outcome is Outcome.RUNS else outcome
        at = [Place(str(one.path)) for one in chosen]
        both = " and ".join(effects)
        faults.insert(0, F511.diagnostic(at=at, expected="one file for each size", found=both))
    differ = effects if len(set(effects.values())) > 1 else {}
    rooted = [one for one in chosen if call.root is None and one.root is not None]
    remarks = [*map(_other_roots, rooted), *(one for one in reading.findings if one.rule is F533)]
    return Decision(call, outcome, tuple(effects), why_not, tuple(faults), tuple(remarks), differ)


def _other_roots(one: Candidate, call: Call | None = None) -> Diagnostic:
    """The remark that a file also runs for calls with other roots than its own, or the problem of
    such a call."""
    found = "it also runs for other roots, wrongly" if call is None else f"root {call.root}"
    expected = f"calls with root {one.root}"
    return F530.diagnostic(at=Place(str(one.path)), expected=expected, found=found)


def _replacements(reading: Reading) -> dict[str, Diagnostic]:
    """The later plan of the same name that replaces a plan, by the replaced file's name."""
    runtime = reading.runtime
    if not runtime.knows_names:
        return {}
    order = list(runtime.names or [one.name for one in reading.candidates])
    last: dict[tuple[str, str], Candidate] = {}
    found: dict[str, Diagnostic] = {}
    for one in sorted(reading.candidates, key=lambda one: order.index(one.name)):
        earlier = last.get((one.collective, one.plan_name))
        if earlier is not None:
            at, later = Place(str(earlier.path)), f"{one.name} has the same, {one.plan_name!r}"
            found[earlier.name] = F509.diagnostic(at=at, expected="a name of its own", found=later)
        last[one.collective, one.plan_name] = one
    return found


def _why_unknown(reading: Reading, call: Call) -> Diagnostic | None:
    """Why it isn't determined which plan runs for a call; None if it is."""
    is_split = reading.runtime.place_by_begin and call.collective == _SPLIT and call.in_place
    return _mixed_places(reading) or (_disagreement(reading.folder) if is_split else None)


def _disagreement(where: Path) -> Diagnostic:
    return F527.diagnostic(
        at=Place(str(where)),
        expected="a ReduceScatter out of place",
        found="one in place, which MSCCL++ recognises on rank 0 only",
    )


def _mixed_places(reading: Reading) -> Diagnostic | None:
    """The problem of plans in place beside plans out of place; None without."""
    if not reading.runtime.one_place or len({one.places for one in reading.candidates}) < 2:
        return None
    inside = ", ".join(one.name for one in reading.candidates if one.places.inside)
    found = f"in place only {inside}"
    return F510.diagnostic(
        at=Place(str(reading.folder)), expected="plans of one place", found=found
    )


def _ends_every_call(one: Candidate, runtime: Runtime) -> bool:
    """Whether a file ends the process at any call: the runtime computes with it before it compares
    it with the call."""
    return runtime.divides_first and any(fault.rule is F515 for fault in one.faults)


def _why_not(one: Candidate, call: Call, runtime: Runtime, *, undecided: bool) -> Diagnostic | None:
    """Why a file doesn't match a call; None if it does, or if it may. undecided: whether the place
    for which the runtime takes files is unknown."""
    size = _compared_size(call, runtime)
    rule: Rule
    if one.collective != call.collective:
        rule, expected, found = F520, call.collective, one.collective
    elif not one.grid.has(call.ranks, call.node):
        rule, expected, found = F521, str(Grid(call.ranks, call.node)), str(one.grid)
    elif not one.places.has(call.in_place) and not undecided:
        rule, expected, found = F522, _PLACE_WORDS[call.in_place], _PLACE_WORDS[not call.in_place]
    elif not one.covers(size):
        rule, expected, found = F523, f"a range with {size_text(size)}", one.sizes
    elif runtime.compares_op and call.op == "avg" and call.reduces:
        rule, expected, found = F524, "sum, prod, min or max", call.op
    elif runtime.divides_first and (elements := size // TYPES[call.dtype]) % one.multiple:
        rule = F519
        expected, found = f"a multiple of {one.multiple} elements", f"{elements}"
    else:
        return None
    return rule.diagnostic(at=Place(str(one.path)), expected=expected, found=found)


def _compared_size(call: Call, runtime: Runtime) -> int:
    """The size that the runtime compares with a range."""
    if call.collective in runtime.part_of:
        return call.size_bytes // call.parts
    return call.size_bytes


def _without_file(call: Call, runtime: Runtime) -> Outcome:
    """What happens to a call that no file matches."""
    if runtime.own is None or (call.collective in runtime.own and call.node == call.ranks):
        return Outcome.OWN
    return Outcome.OTHER


def _effect(faults: Sequence[Diagnostic], call: Call) -> Outcome:
    """What happens to a call that runs a file with these faults."""
    if any(fault.rule in _ENDING for fault in faults):
        return Outcome.ENDS
    if any(fault.rule is F516 for fault in faults):
        return Outcome.FAILS
    if any(fault.rule is F524 and call.op == "sum" for fault in faults):
        return Outcome.FAILS
    if any(fault.rule is not F529 for fault in faults):
        return Outcome.WRONG
    return Outcome.UNPROVEN if faults else Outcome.RUNS


def _faults(one: Candidate, call: Call, runtime: Runtime) -> list[Diagnostic]:
    """What is wrong when a call runs a file."""
    found = list(one.faults)
    if None not in (one.root, call.root) and one.root != call.root:
        found.append(_other_roots(one, call))
    at = Place(str(one.path))
    apart = [(low, high) for low, high in one.neighbours if low // call.node != high // call.node]
    if apart:
        expected = "memory channels within nodes"
        text = f"one between the ranks {apart[0][0]} and {apart[0][1]}"
        found.append(F516.diagnostic(at=at, expected=expected, found=text))
    if not runtime.divides_first and call.size_bytes % one.multiple:
        expected = f"a multiple of {one.multiple} bytes"
        found.append(F519.diagnostic(at=at, expected=expected, found=str(call.size_bytes)))
    if runtime.types is not None and call.dtype not in runtime.types:
        types = ", ".join(runtime.types)
        found.append(F524.diagnostic(at=at, expected=types, found=call.dtype))
    if not runtime.compares_op and call.reduces and call.op != "sum":
        found.append(F524.diagnostic(at=at, expected="a sum", found=call.op))
    return found
