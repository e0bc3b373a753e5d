"""Candidates: the files of a directory as a runtime reads them, before any call."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sley import files
from sley.deployment.consequences import PLAN_CONSEQUENCES, XML_CONSEQUENCES, worst
from sley.deployment.runtimes import DEFAULT_PLANS, JSON, Runtime
from sley.deployment.xml_head import XmlHead, read_head, refuse
from sley.errors import Diagnostic, Place, Rule, SleyError, shortened
from sley.errors.deployment import (
    F503,
    F504,
    F505,
    F506,
    F507,
    F508,
    F514,
    F515,
    F516,
)
from sley.formats.msccl_xml.targets import TARGETS as XML_TARGETS
from sley.formats.msccl_xml.targets import XmlTarget
from sley.formats.msccl_xml.words import COLLECTIVE_NAMES, CUSTOM
from sley.formats.mscclpp.header import MAX_SIZE, PlanHeader, read_header
from sley.ir.sizes import sizes_text
from sley.ir.tables import NONE

_MOST_OPERATIONS = 64
_INT_MAX = (1 << 31) - 1

_ONLY_KNOWN = ("alltoallv", "send", "recv")
"""Names that msccl-executor-nccl and RCCL know, of collectives that sley doesn't have."""

_ASKED = ("allreduce", "allgather", "reducescatter", "broadcast")
"""The collectives for which MSCCL++'s NCCL interface looks for a plan."""


@dataclass(frozen=True)
class Candidate:
    """A file that a runtime reads, with what it compares with a call.

    collective: sley's name, or the file's if sley has none. plan_name: the name in the file.
    ranks: of the plan. registered: the ranks and the ranks a node (0: any) for which the runtime
        takes it. places: whether it is for calls out of place, and for calls in place.
    min_bytes, max_bytes: the sizes of its calls, both included; None for no limit.
    multiple: a call's elements (XML) or bytes (JSON) must be a multiple of this number, counted in
        the largest buffer.
    stop: why communicators of its ranks don't start, or None.
    faults: what happens to calls that choose it, whatever their size is.
    root: the root of its plan, None without one or if the plan can't be proven.
    """

    path: Path
    collective: str
    plan_name: str
    ranks: int
    registered: tuple[int, int]
    places: tuple[bool, bool]
    min_bytes: int
    max_bytes: int | None
    multiple: int
    stop: Diagnostic | None = None
    faults: tuple[Diagnostic, ...] = ()
    root: int | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def sizes(self) -> str:
        """The sizes in words."""
        return sizes_text(self.min_bytes, self.max_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether no size is in the range."""
        return self.max_bytes is not None and self.max_bytes < max(self.min_bytes, 1)

    def to_json(self) -> dict[str, object]:
        """The file as plain values, for ``--json``."""
        return {
            "file": str(self.path),
            "collective": self.collective,
            "name": self.plan_name,
            "ranks": self.registered[0],
            "node": self.registered[1] or None,
            "out_of_place": self.places[0],
            "in_place": self.places[1],
            "min_bytes": self.min_bytes,
            "max_bytes": self.max_bytes,
            "multiple": self.multiple,
            "root": self.root,
        }

    def covers(self, size_bytes: int) -> bool:
        """Whether a size is in the range."""
        return self.min_bytes <= size_bytes and (
            self.max_bytes is None or size_bytes <= self.max_bytes
        )


@dataclass(frozen=True)
class Reading:
    """What a runtime reads in a directory.

    candidates: the files, in the order in which it tries them. left_out: the files that it doesn't
    load, with the reason. stops: why no communicator starts; empty if some do. findings: further
    problems, of the directory and of candidates.
    """

    runtime: Runtime
    folder: Path
    candidates: tuple[Candidate, ...] = ()
    left_out: dict[str, Diagnostic] = field(default_factory=dict)
    stops: tuple[Diagnostic, ...] = ()
    findings: tuple[Diagnostic, ...] = ()


def read_folder(where: str | os.PathLike[str], runtime: Runtime) -> Reading:
    """What a runtime reads in a directory, or in one file as if it were alone in a directory.

    Every file is also proven as the runtime executes it, if sley can read its format.
    """
    path = Path(where)
    folder, paths, missing = _files(path, links=runtime.whole_folder)
    if not runtime.whole_folder and runtime.names is None and path not in paths:
        paths = [one for one in paths if one.suffix.lower() == runtime.suffix]
    if missing is not None and runtime.stops:
        return Reading(runtime, folder, stops=(missing,))
    if missing is not None:
        return Reading(runtime, folder, findings=(missing,))
    readers: dict[str, Callable[[Path, Runtime], Candidate]] = {JSON: _json, ".xml": _xml}
    candidates: list[Candidate] = []
    left_out: dict[str, Diagnostic] = {}
    stops: list[Diagnostic] = []
    opened = 0
    for one in paths:
        wrong_name = _wrong_name(one, runtime)
        if wrong_name is not None:
            left_out[one.name] = wrong_name
            continue
        opened += 1
        try:
            candidates.append(readers[runtime.suffix](one, runtime))
        except SleyError as error:
            found = error.diagnostics[0]
            left_out[one.name] = found
            if runtime.stops:
                stops.append(found)
    findings = [_nothing(folder, paths, runtime)] if opened == 0 else []
    return Reading(runtime, folder, tuple(candidates), left_out, tuple(stops), tuple(findings))


def _files(path: Path, *, links: bool) -> tuple[Path, list[Path], Diagnostic | None]:
    """The folder, its files by name, and why there is none. links: whether every link is a file,
    also one to a folder or to nothing."""
    if path.is_file():
        return path.parent, [path], None
    try:
        entries = [one for one in path.iterdir() if one.is_file() or (links and one.is_symlink())]
        return path, sorted(entries), None
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or str(error)
        missing = F503.diagnostic(
            at=Place(str(path)), expected="a directory with plans", found=found
        )
        return path, [], missing


def _nothing(folder: Path, paths: list[Path], runtime: Runtime) -> Diagnostic:
    expected = f"files that {runtime} reads: {', '.join(runtime.names or ['*' + runtime.suffix])}"
    found = ", ".join(shortened([one.name for one in paths])) or "an empty directory"
    return F503.diagnostic(at=Place(str(folder)), expected=expected, found=found)


def _wrong_name(path: Path, runtime: Runtime) -> Diagnostic | None:
    """Why the runtime doesn't open a file of this name; None if it does."""
    if runtime.whole_folder:
        return None
    if runtime.names is not None and path.name not in runtime.names:
        expected = f"one of {', '.join(runtime.names)}"
        return F507.diagnostic(at=Place(str(path)), expected=expected, found=path.name)
    if path.suffix.lower() != runtime.suffix:
        expected = f"a name that ends in {runtime.suffix}"
        return F506.diagnostic(at=Place(str(path)), expected=expected, found=path.name)
    return None


def _xml(path: Path, runtime: Runtime) -> Candidate:
    """A file of MSCCL XML. Errors: F504 or F506 for one whose first tag can't be read, F506 for one
    that is left out."""
    rule = F504 if runtime.stops else F506
    head, target = read_head(path, rule), XML_TARGETS[runtime.target]
    msccl = not target.reads_both_places
    collective = _collective(head, runtime, rule)
    ranks, chunks = head.number("ngpus"), head.number("nchunksperloop")
    channels, limit = head.number("nchannels"), target.channels
    least = head.number("minBytes", 0 if msccl else None)
    most = head.number("maxBytes", target.default_max_bytes)
    if msccl:
        head.text("name")
    inside = head.number("inplace", 0 if msccl else None) != 0
    outside = not inside if msccl else head.number("outofplace") != 0
    if channels > limit and target.name != "executor":
        refuse(str(path), F506, f"at most {limit} channels", f"nchannels={channels}")
    found = Candidate(
        path=path,
        collective=collective,
        plan_name=head.attributes.get("name", path.stem),
        ranks=ranks,
        registered=(ranks, 0),
        places=(outside, inside),
        min_bytes=least,
        max_bytes=_last_size(most, target),
        multiple=max(abs(chunks), 1),
    )
    if chunks == 0:
        fault = F515.diagnostic(
            at=Place(str(path)), expected="nchunksperloop of at least 1", found="0"
        )
        return replace(found, faults=(fault,))
    # A file with another suffix is read by the runtime, but sley knows formats by their suffix.
    if never_chosen(found, runtime) is not None:
        return found
    is_known = collective in COLLECTIVE_NAMES.values() and path.suffix.lower() == runtime.suffix
    return _proven(found, runtime) if is_known else found


def _last_size(most: int, target: XmlTarget) -> int | None:
    """The last size of a range, None for no limit."""
    if most == target.no_limit_bytes:
        return None
    return most if target.max_is_inclusive else most - 1


def _collective(head: XmlHead, runtime: Runtime, rule: Rule) -> str:
    """The collective of a file. Errors: `rule` if the runtime has none of this name."""
    word = head.text("coll")
    known = {theirs: own for own, theirs in XML_TARGETS[runtime.target].collectives.items()}
    extra = (CUSTOM,) if runtime.target == "msccl" else _ONLY_KNOWN
    if word in extra:
        return word
    if word not in known:
        refuse(head.file, rule, f"coll to be one of {', '.join((*known, *extra))}", word)
    return known[word]


def _proven(found: Candidate, runtime: Runtime) -> Candidate:
    """A candidate with what is wrong when the runtime reads all of the file, and runs it, and with
    its root."""
    try:
        proofs = files.verify_file(found.path, runtime.target).proofs
    except SleyError as error:
        table = PLAN_CONSEQUENCES if runtime.target == "mscclpp" else XML_CONSEQUENCES
        cause, rule = worst(error.diagnostics, table)
        place = cause.places[0] if cause.places else Place()
        problem = rule.diagnostic(
            at=replace(place, file=str(found.path)),
            expected=cause.expected,
            found=f"{cause.found} ({cause.code} {cause.rule.name})",
            remedy=cause.remedy,
        )
        if rule is F505:
            return replace(found, stop=problem)
        return replace(found, faults=(*found.faults, problem))
    roots = [proof.plan.collective.root for proof in proofs]
    return replace(found, root=next((root for root in roots if root != NONE), None))


def _json(path: Path, runtime: Runtime) -> Candidate:
    """An execution plan of MSCCL++. Errors: F506."""
    head = read_header(path)
    registered = (head.ranks, 0) if runtime.names is None else DEFAULT_PLANS[path.name]
    collective = head.collective
    least = head.min_bytes
    found = Candidate(
        path,
        collective,
        head.name,
        head.ranks,
        registered,
        (not head.in_place, head.in_place),
        least if least <= _INT_MAX else MAX_SIZE,
        None if head.max_bytes == MAX_SIZE else head.max_bytes,
        _multiple(head),
        faults=tuple(_plan_faults(path, head, registered)),
    )
    is_hopeless = any(fault.rule is not F508 for fault in found.faults)
    if is_hopeless or never_chosen(found, runtime) is not None:
        return found
    return _proven(found, runtime)


def _multiple(head: PlanHeader) -> int:
    """The bytes of which the largest buffer of a call must be a multiple, for all ranks."""
    inner = head.ranks if head.collective == "allgather" else 1
    outer = head.ranks if head.collective == "reducescatter" else 1
    parts = (math.lcm(inner * max(one.input, 1), outer * max(one.output, 1)) for one in head.chunks)
    return head.alignment * math.lcm(*parts)


def _plan_faults(path: Path, head: PlanHeader, registered: tuple[int, int]) -> list[Diagnostic]:
    """What happens to calls that choose a plan, whatever their size is."""
    found: list[Diagnostic] = []

    def add(rule: Rule, expected: str, text: str) -> None:
        found.append(rule.diagnostic(at=Place(str(path)), expected=expected, found=text))

    if registered[0] != head.ranks:
        add(
            F508,
            f"a plan for {registered[0]} ranks, {registered[1]} a node, as the name is registered",
            f"one for {head.ranks} ranks",
        )
    for rank, chunks in enumerate(head.chunks):
        for word, number in (("input_chunks", chunks.input), ("output_chunks", chunks.output)):
            if number == 0 and not any(one.rule is F515 for one in found):
                add(F515, f"{word} of at least 1 on every rank", f"0 on rank {rank}")
    if head.operations > _MOST_OPERATIONS:
        add(
            F516,
            f"at most {_MOST_OPERATIONS} operations in a thread block",
            str(head.operations),
        )
    return found


def never_chosen(found: Candidate, runtime: Runtime) -> Diagnostic | None:
    """Why no call chooses a file; None if some may."""
    at, word = Place(str(found.path)), None
    if found.min_bytes == MAX_SIZE:
        word = (f"min_message_size up to {_INT_MAX}, which MSCCL++ reads as 32 bits", "more")
    elif found.is_empty:
        most = "no limit" if found.max_bytes is None else found.max_bytes
        word = ("a range of sizes", f"{found.min_bytes} to {most}")
    elif not any(found.places):
        word = ("inplace or outofplace to be 1", "both 0")
    elif runtime.target == "mscclpp" and found.collective not in _ASKED:
        word = (f"a collective of {', '.join(_ASKED)}", found.collective)
    elif found.collective in _ONLY_KNOWN:
        word = ("a collective that calls ask for", found.collective)
    if word is None:
        return None
    return F514.diagnostic(at=at, expected=word[0], found=word[1])
