"""Candidates: files that a runtime reads, before any call, with what it compares with a call.

`read_xml` reads the first tag of MSCCL XML as msccl-executor-nccl, RCCL and msccl do, with a small
parser of their own (src/misc/msccl/msccl_parser.cc of both), and `read_plan` execution plans as
MSCCL++ does. Each file is then proven as the runtime executes it; a table for each format names the
consequence of every rule that such a proof can break. F529 stands for problems whose consequence
isn't known, such as a limit of sley's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from sley.compiler.deployment.runtimes import Grid, Runtime
from sley.errors import Diagnostic, Place, Rule, SleyError
from sley.errors.deployment import F504, F505, F506, F508, F515, F516, F517, F529
from sley.errors.formats import F463
from sley.errors.text_files import text_of
from sley.formats import files, target_named
from sley.formats.format import root_conditions
from sley.formats.msccl_xml.lexical import attributes_of, limit_faults, tokens
from sley.formats.msccl_xml.targets import COLLECTIVE_NAMES, XmlTarget
from sley.formats.msccl_xml.targets import TARGETS as XML_TARGETS
from sley.formats.mscclpp.parse import PlanHeader, read_header
from sley.formats.mscclpp.raw import MAX_SIZE
from sley.formats.mscclpp.targets import MSCCLPP
from sley.ir.conditions import INPUT_KEPT, Condition
from sley.ir.one_sided import OneSidedPlan
from sley.ir.sizes import SizeRange
from sley.ir.tables import NONE
from sley.verification import Proof

_BY_SEVERITY = (F505, F515, F516, F517, F529)
"""The consequences of problems, the gravest first."""


def _table(rows: Mapping[Rule, str]) -> Mapping[str, Rule]:
    """The consequence of each code, from the codes of each consequence."""
    return MappingProxyType({code: rule for rule, codes in rows.items() for code in codes.split()})


_WRONG_PLAN = " V202 V203 V204 V205 V206 V208 V211 V212 V213 V214 V215 V216 V221"
"""Problems of plans that run, and give wrong results or hang."""

_OF_NO_RUNTIME = " C307 F438 L101 V201 R514 L118 L119 V219 C314"
"""Problems of calls of sley and of its own plans, which no runtime has with a file."""

XML_CONSEQUENCES = _table(
    {
        F505: "F401 F405 F406 F408 F412 F417 F422 F436 F441 F443 F444 F462 F464 F465",
        F516: "F468",
        F517: "F414 F415 F419 F420 F421 F454 F466 F467" + _WRONG_PLAN,
        F529: "F403 F404 F407 F409 F411 F424 F451 F463" + _OF_NO_RUNTIME,
    }
)
"""What the problem of a file of MSCCL XML means, by code. Most limits stop the start (F505)."""

PLAN_CONSEQUENCES = _table(
    {
        F515: "F475",
        F516: "F412 F444 F463 F470 F472 F478",
        F517: "F420 F476 F479 F482 F483 F486 F488 F493 F496" + _WRONG_PLAN,
        F529: "F403 F404 F409 F411 F422 F424" + _OF_NO_RUNTIME,
    }
)
"""What the problem of an execution plan means, by code. MSCCL++ reads a plan when a call has chosen
it, so no problem stops the start."""


class PlaceSupport(NamedTuple):
    """Whether a file is for calls out of place, and for calls in place."""

    outside: bool
    inside: bool

    def has(self, in_place: bool) -> bool:
        """Whether the file is for calls of this place."""
        return self.inside if in_place else self.outside

    def __str__(self) -> str:
        words = (("out", self.outside), ("in", self.inside))
        return " and ".join(word for word, yes in words if yes) or "none"


@dataclass(frozen=True)
class CandidateFile:
    """A file that a runtime reads, with what it compares with a call.

    collective: sley's name, or the file's if sley has none. plan_name: the name in the file.
    ranks: of the plan. grid: the communicators for which the runtime takes it. places: the places
        of its calls.
    sizes: of its calls; an empty range if none chooses it.
    multiple: a call's elements (XML) or bytes (JSON) must be a multiple of this number, counted in
        the largest buffer.
    unused: why no call chooses it, or None. stop: why communicators of its ranks don't start, or
        None.
    faults: what happens to calls that choose it, whatever their size is.
    root: the root of its plan, None without one or if the plan can't be proven.
    neighbours: pairs of ranks that must be on one node.
    conditions: the circumstances of its proof that the runtime doesn't check, and that aren't the
        sizes, places, roots or neighbours above.
    """

    path: Path
    collective: str
    plan_name: str
    ranks: int
    grid: Grid
    places: PlaceSupport
    sizes: SizeRange
    multiple: int
    unused: Diagnostic | None = None
    stop: Diagnostic | None = None
    faults: tuple[Diagnostic, ...] = ()
    root: int | None = None
    neighbours: tuple[tuple[int, int], ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def to_json(self) -> dict[str, object]:
        """The file as plain values, for ``--json``."""
        return {
            "file": str(self.path),
            "collective": self.collective,
            "name": self.plan_name,
            "ranks": self.grid.ranks,
            "node": self.grid.node or None,
            "out_of_place": self.places.outside,
            "in_place": self.places.inside,
            "min_bytes": self.sizes.begin_bytes,
            "max_bytes": self.sizes.end_bytes,
            "multiple": self.multiple,
            "root": self.root,
        }


def _why_unused(found: CandidateFile) -> Diagnostic | None:
    """Why no call of any runtime chooses a file; None if some may."""
    if found.sizes.is_empty or found.sizes.end_bytes == 0:
        # A runtime that reads the end as the first size too large has none before 0.
        begin, end = found.sizes.begin_bytes, found.sizes.end_bytes
        sizes = f"{begin} to {end}" if end is None or end >= 0 else "no size"
        return _unused(found, "a range of sizes", sizes)
    if not any(found.places):
        return _unused(found, "inplace or outofplace to be 1", "both 0")
    return None


def _unused(of: CandidateFile, expected: str, found: str) -> Diagnostic:
    """The diagnostic of a file that no call chooses."""
    return F463.diagnostic(
        at=Place(str(of.path)),
        expected=expected,
        found=found,
        remedy="Correct the attribute that the message names, or remove the file.",
    )


def _prove(
    found: CandidateFile, runtime: Runtime, consequences: Mapping[str, Rule]
) -> CandidateFile:
    """A candidate with what is wrong when the runtime reads all of the file, and runs it, and with
    its root. consequences: those of problems, by code."""
    try:
        proofs = files.verify_file(found.path, runtime.target).proofs
    except SleyError as error:
        problems = [(one, consequences.get(one.code, F529)) for one in error.diagnostics]
        cause, rule = min(problems, key=lambda pair: _BY_SEVERITY.index(pair[1]))
        place = cause.places[0] if cause.places else Place()
        problem = rule.diagnostic(
            at=replace(place, file=str(found.path)),
            expected=cause.expected,
            found=f"{cause.found} ({cause.rule.title})",
            remedy=cause.remedy,
        )
        if rule is F505:
            return replace(found, stop=problem)
        return replace(found, faults=(*found.faults, problem))
    roots = [proof.plan.collective.root for proof in proofs]
    root = next((root for root in roots if root != NONE), None)
    pairs = {
        (low, high)
        for proof in proofs
        if isinstance(proof.plan, OneSidedPlan)
        for low, high in proof.plan.neighbours.tolist()
    }
    conditions = dict.fromkeys(one for proof in proofs for one in _unchecked(proof, runtime))
    return replace(found, root=root, neighbours=tuple(sorted(pairs)), conditions=tuple(conditions))


_COMPARED = ("place", "root", "sizes", "hosts", "slots")
"""What conditions are about that a candidate has, or that the runtime's own connections have."""


def _unchecked(proof: Proof, runtime: Runtime) -> Iterator[Condition]:
    """The conditions of a proof that the runtime doesn't check, apart from those of candidates."""
    collective = proof.plan.collective
    about_root = root_conditions(collective, target_named(runtime.target))
    for one in proof.conditions:
        is_compared = one.about in _COMPARED or (one.about == "calls" and runtime.compares_op)
        is_promise = one.about == "input" and (collective.in_place or one == INPUT_KEPT)
        if not (is_compared or is_promise or one in about_root):
            yield one


_INT_MAX = (1 << 31) - 1

PLANNED = ("allreduce", "allgather", "reducescatter", "broadcast")
"""The collectives for which MSCCL++'s NCCL interface looks for a plan."""


def read_plan(path: Path, runtime: Runtime) -> CandidateFile:
    """An execution plan of MSCCL++. Errors: F506."""
    head = read_header(path)
    grid = Grid(head.ranks) if runtime.names is None else runtime.names[path.name]
    found = CandidateFile(
        path,
        head.collective,
        head.name,
        head.ranks,
        grid,
        PlaceSupport(not head.in_place, head.in_place),
        SizeRange(head.min_bytes, None if head.max_bytes == MAX_SIZE else head.max_bytes),
        _multiple(head),
        faults=tuple(_plan_faults(path, head, grid)),
    )
    reason = _why_plan_unused(found)
    is_hopeless = any(fault.rule is not F508 for fault in found.faults)
    if reason is not None or is_hopeless:
        return replace(found, unused=reason)
    return _prove(found, runtime, PLAN_CONSEQUENCES)


def _why_plan_unused(found: CandidateFile) -> Diagnostic | None:
    """Why no call chooses a plan; None if some may."""
    if found.sizes.begin_bytes > _INT_MAX:
        expected = f"min_message_size up to {_INT_MAX}, which MSCCL++ reads as 32 bits"
        return _unused(found, expected, "more")
    if found.collective not in PLANNED:
        return _unused(found, f"a collective of {', '.join(PLANNED)}", found.collective)
    return _why_unused(found)


def _multiple(head: PlanHeader) -> int:
    """The bytes of which the largest buffer of a call must be a multiple, for all ranks."""
    inner = head.ranks if head.collective == "allgather" else 1
    outer = head.ranks if head.collective == "reducescatter" else 1
    parts = (math.lcm(inner * max(one.input, 1), outer * max(one.output, 1)) for one in head.chunks)
    return head.alignment * math.lcm(*parts)


def _plan_faults(path: Path, head: PlanHeader, grid: Grid) -> Iterator[Diagnostic]:
    """What happens to calls that choose a plan, whatever their size is."""
    at = Place(str(path))
    if grid.ranks != head.ranks:
        expected = f"a plan for {grid}, as the name is registered"
        yield F508.diagnostic(at=at, expected=expected, found=f"one for {head.ranks} ranks")
    empty = [
        (word, rank)
        for rank, chunks in enumerate(head.chunks)
        for word, number in (("input_chunks", chunks.input), ("output_chunks", chunks.output))
        if number == 0
    ]
    for word, rank in empty[:1]:  # one such number ends the process
        expected = f"{word} of at least 1 on every rank"
        yield F515.diagnostic(at=at, expected=expected, found=f"0 on rank {rank}")
    if head.operations > MSCCLPP.operations:
        expected = f"at most {MSCCLPP.operations} operations in a thread block"
        yield F516.diagnostic(at=at, expected=expected, found=str(head.operations))


_ONLY_KNOWN = ("alltoallv", "send", "recv")
"""Names that msccl-executor-nccl and RCCL know, of collectives that sley doesn't have."""


def read_xml(path: Path, runtime: Runtime) -> CandidateFile:
    """A file of MSCCL XML. Errors: F504 or F506 for one whose first tag can't be read, F506 for one
    that is left out."""
    rule = F504 if runtime.stops else F506
    head, target = read_head(path, rule), XML_TARGETS[runtime.target]
    msccl = not target.reads_both_places
    collective = _collective(head, target, rule)
    ranks, chunks = head.number("ngpus"), head.number("nchunksperloop")
    channels, limit = head.number("nchannels"), target.channels
    least = head.number("minBytes", 0 if msccl else None)
    most = head.number("maxBytes", target.default_max_bytes)
    last = most if target.max_is_inclusive else most - 1
    if msccl:
        head.text("name")
    inside = head.number("inplace", 0 if msccl else None) != 0
    outside = not inside if msccl else head.number("outofplace") != 0
    if channels > limit and target.name != "executor":
        _refuse(str(path), F506, f"at most {limit} channels", f"nchannels={channels}")
    found = CandidateFile(
        path=path,
        collective=collective,
        plan_name=head.attributes.get("name", path.stem),
        ranks=ranks,
        grid=Grid(ranks),
        places=PlaceSupport(outside, inside),
        sizes=SizeRange(least, None if most == target.no_limit_bytes else last),
        multiple=max(abs(chunks), 1),
    )
    if chunks == 0:
        fault = F515.diagnostic(
            at=Place(str(path)), expected="nchunksperloop of at least 1", found="0"
        )
        return replace(found, faults=(fault,))
    reason = _why_unused(found)
    if collective in _ONLY_KNOWN and reason is None:
        reason = _unused(found, "a collective that calls ask for", collective)
    if reason is None and not _has_multiple(found):
        reason = _unused(found, f"a size that is a multiple of {found.multiple}", str(found.sizes))
    # A file with another suffix is read by the runtime, but sley knows formats by their suffix.
    is_known = collective in COLLECTIVE_NAMES.values() and path.suffix.lower() == runtime.suffix
    if reason is not None or not is_known:
        return replace(found, unused=reason)
    return _prove(found, runtime, XML_CONSEQUENCES)


def _has_multiple(found: CandidateFile) -> bool:
    """Whether the chunks of a file divide a size of its range."""
    least, most = max(found.sizes.begin_bytes, 1), found.sizes.end_bytes
    return most is None or -(-least // found.multiple) * found.multiple <= most


def _collective(head: XmlHead, target: XmlTarget, rule: Rule) -> str:
    """The collective of a file. Errors: `rule` if the runtime has none of this name."""
    word = head.text("coll")
    known = {theirs: own for own, theirs in target.collectives.items()}
    extra = _ONLY_KNOWN if target.custom_collective is None else (target.custom_collective,)
    if word in extra:
        return word
    if word not in known:
        _refuse(head.file, rule, f"coll to be one of {', '.join((*known, *extra))}", word)
    return known[word]


_NUMBER = re.compile(r"[ \t\n\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]{1,19})")
_SHOWN_BYTES = 40


@dataclass(frozen=True)
class XmlHead:
    """The attributes of a file's first tag."""

    attributes: Mapping[str, str]
    file: str
    rule: Rule

    def text(self, word: str) -> str:
        """An attribute. Errors: `rule`."""
        if word not in self.attributes:
            _refuse(self.file, self.rule, f"the attribute {word}", "a first tag without it")
        return self.attributes[word]

    def number(self, word: str, default: int | None = None) -> int:
        """An attribute as C's strtol reads it: other text is 0. Errors: `rule` for a missing one
        without a default."""
        if default is not None and word not in self.attributes:
            return default
        match = _NUMBER.match(self.text(word))
        if match is None:
            return 0
        digits = match[2]
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
        value = int(re.match("[0-7]*", digits)[0] or "0", 8) if base == 8 else int(digits, base)  # type: ignore[index]
        return -value if match[1] == "-" else value


def read_head(path: Path, rule: Rule) -> XmlHead:
    """The first tag of a file. Errors: `rule` for a file whose first tag can't be read."""
    file, text = str(path), text_of(path, rule).encode()
    tag, end = b"", 0
    # Only as far as the first tag: a runtime compares nothing else with a call.
    for match in tokens(text):
        end = match.end()
        if match[0][:1] == b"<" and match[0][:4] != b"<!--":
            tag = match[0]
            break
    if not tag:
        _refuse(file, rule, *_without_tag(text[end:]))
    pairs = attributes_of(tag)
    for expected, found in limit_faults(pairs):
        _refuse(file, rule, expected, found)
    attributes: dict[str, str] = {}
    for word, value in pairs:
        attributes.setdefault(word.decode(), value.decode())
    return XmlHead(attributes, file, rule)


def _without_tag(text: bytes) -> tuple[str, str]:
    """What a file should begin with, and begins with. text: from the place on that isn't read."""
    line = text.lstrip().partition(b"\n")[0]
    shown = ascii(line[:_SHOWN_BYTES].decode("utf-8", "replace"))
    if not re.match(rb"<[a-zA-Z]", line):
        expected = "a file of MSCCL XML, which begins with a tag such as <algo name=...>"
        return expected, f"the text {shown}" if line else "an empty file"
    if b">" not in text:
        return "a first tag that ends", f"a file that ends within its first tag, {shown}"
    expected = "a first tag with one space before each attribute, and no tabs or line ends"
    return expected, f"the tag {shown}"


def _refuse(file: str, rule: Rule, expected: str, found: str) -> NoReturn:
    """Raises a rule for a file."""
    raise rule.error(at=Place(file), expected=expected, found=found)
