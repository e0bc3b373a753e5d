"""Decisions: a call of a collective, what it does with the files of a directory, and why no other
file runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NoReturn

from sley.compiler.deployment.candidates import CandidateFile
from sley.compiler.deployment.examination import (
    PLACE_WORDS,
    SPLIT,
    Examination,
    mixed_places,
    other_roots,
    split_disagreement,
)
from sley.compiler.deployment.folders import Reading
from sley.compiler.deployment.runtimes import Grid, Runtime
from sley.engine.types import DATA_TYPES
from sley.errors import Diagnostic, Place, Rule, check_name
from sley.errors.deployment import (
    F508,
    F509,
    F511,
    F512,
    F515,
    F516,
    F519,
    F520,
    F524,
    F525,
    F529,
    F530,
    F533,
)
from sley.ir.collectives import SIZED
from sley.ir.sizes import size_text

TYPES = MappingProxyType({name: one.size_bytes for name, one in DATA_TYPES.items()})
"""The bytes of an element, by type."""

OPERATIONS = ("sum", "prod", "min", "max", "avg")


_CALL = Place(detail="call")


def _refuse(expected: str, found: str) -> NoReturn:
    raise F525.error(at=_CALL, expected=expected, found=found)


@dataclass(frozen=True)
class DeployedCall:
    """A call of a collective on a communicator.

    collective: sley's name. size_bytes: of the largest buffer of any rank, as in nccl-tests.
    ranks, node: the ranks of the communicator, and of each node. dtype: the type of the elements.
    in_place: whether input and output are the same memory. op: the reduction, which collectives
    without one ignore. root: the root, None if it isn't known or the collective has none.
    Errors: F525.
    """

    collective: str
    size_bytes: int
    ranks: int
    node: int
    in_place: bool = False
    dtype: str = "float32"
    op: str = "sum"
    root: int | None = None

    def __post_init__(self) -> None:
        for word, value, known in (
            ("collective", self.collective, tuple(SIZED)),
            ("type", self.dtype, tuple(TYPES)),
            ("reduction", self.op, OPERATIONS),
        ):
            check_name(F525, f"a {word}", value, known, _CALL)
        if self.ranks < 1 or self.node < 1 or self.ranks % self.node:
            found = f"{self.ranks} ranks, {self.node} a node"
            _refuse("ranks that the ranks of a node divide", found)
        if self.root is not None and not (self.has_root and 0 <= self.root < self.ranks):
            ranks = f"a root below {self.ranks}"
            expected = ranks if self.has_root else f"no root for {self.collective}"
            _refuse(expected, f"root {self.root}")
        unit = TYPES[self.dtype] * self.parts
        if self.size_bytes < 1 or self.size_bytes % unit:
            expected = f"a multiple of {unit} bytes, one element for each part of the buffer"
            _refuse(expected, f"{self.size_bytes} bytes")

    @property
    def parts(self) -> int:
        """The number of equal parts of the largest buffer: one for each rank, or 1."""
        return self.ranks if SIZED[self.collective].has_parts else 1

    @property
    def reduces(self) -> bool:
        """Whether the collective has a reduction."""
        return SIZED[self.collective].reduces

    @property
    def has_root(self) -> bool:
        """Whether the collective has a root."""
        return "root" in SIZED[self.collective].roles

    def __str__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        op = f" {self.op}" if self.reduces else ""
        place = "in place" if self.in_place else "out of place"
        nodes = "" if self.node == self.ranks else f", {self.node} a node"
        size = size_text(self.size_bytes)
        ranks = f"{self.ranks} ranks{nodes}{root}"
        return f"{self.collective} of {size} {self.dtype}{op} on {ranks}, {place}"


_ENDING = (F508, F515, F519)
"""Faults of a plan of MSCCL++ that end the process of a call which chooses it."""


class CallAction(Enum):
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


_BY_SEVERITY = (
    CallAction.RUNS,
    CallAction.UNPROVEN,
    CallAction.WRONG,
    CallAction.FAILS,
    CallAction.ENDS,
)
"""What a call that runs a file does, the gravest last."""


@dataclass(frozen=True)
class CallDecision:
    """What happens for a call.

    chosen: the names of the files of which one runs; several if the order is unknown. effects: what
        the call does with each of them, by name, if this isn't the same for all.
    why_not: for each other file, by name, why it doesn't run. faults: what is wrong with the files
        that are chosen, or why no communicator starts. remarks: what may be wrong with them.
    """

    call: DeployedCall
    outcome: CallAction
    chosen: tuple[str, ...]
    why_not: dict[str, Diagnostic]
    faults: tuple[Diagnostic, ...] = ()
    remarks: tuple[Diagnostic, ...] = ()
    effects: Mapping[str, CallAction] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether the call runs, and rightly as far as sley knows."""
        right = (CallAction.RUNS, CallAction.OWN, CallAction.OTHER)
        return self.outcome in right and not self.faults

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


def decide(examined: Examination, call: DeployedCall) -> CallDecision:
    """What happens for a call, and why no other file runs."""
    runtime, reading = examined.runtime, examined.reading
    if examined.refusal is not None:
        return CallDecision(call, CallAction.OWN, (), {}, (examined.refusal,))
    stops = [*reading.stops]
    if call.ranks in reading.stopped_ranks:
        stops += [one.stop for one in reading.candidates if one.stop and one.ranks == call.ranks]
    if stops:
        return CallDecision(call, CallAction.NO_START, (), dict(reading.left_out), tuple(stops))
    why_not = dict(reading.left_out)
    # A runtime that computes with files before it compares them with a call ends at any of them.
    lethal = [one for one in reading.candidates if any(f.rule is F515 for f in one.faults)]
    if lethal and runtime.divides_first:
        names = tuple(one.name for one in lethal)
        return CallDecision(call, CallAction.ENDS, names, why_not, lethal[0].faults)
    why_not |= _replacements(reading)
    # Why it isn't determined which plan runs.
    is_split = runtime.place_by_begin and call.collective == SPLIT and call.in_place
    unknown = mixed_places(reading) or (split_disagreement(reading.folder) if is_split else None)
    chosen: list[CandidateFile] = []
    for one in reading.candidates:
        reason = (
            (None if runtime.stops else one.stop)  # else it is for other ranks
            or one.unused
            or why_not.get(one.name)
            or _why_not(one, call, runtime, undecided=unknown is not None)
        )
        if reason is None and chosen and runtime.in_order:
            reason = F512.diagnostic(
                at=Place(str(one.path)),
                expected="no earlier match",
                found=chosen[0].name,
                remedy="Give the file an earlier name, or other sizes.",
            )
        if reason is None:
            chosen.append(one)
        else:
            why_not[one.name] = reason
    names = tuple(one.name for one in chosen)
    if not chosen:
        own = runtime.own is None or (call.collective in runtime.own and call.node == call.ranks)
        return CallDecision(call, CallAction.OWN if own else CallAction.OTHER, (), why_not)
    if unknown is not None:
        return CallDecision(call, CallAction.UNKNOWN, names, why_not, (unknown,))
    return _decision_among(chosen, call, reading, why_not)


def _decision_among(
    chosen: Sequence[CandidateFile],
    call: DeployedCall,
    reading: Reading,
    why_not: dict[str, Diagnostic],
) -> CallDecision:
    """What happens for a call that runs any of these files."""
    found = {one.name: _faults(one, call, reading.runtime) for one in chosen}
    effects = {name: _effect(faults, call) for name, faults in found.items()}
    faults = [fault for each in found.values() for fault in each]
    outcome = max(effects.values(), key=_BY_SEVERITY.index)
    if len(chosen) > 1:
        outcome = CallAction.ANY if outcome is CallAction.RUNS else outcome
        at = [Place(str(one.path)) for one in chosen]
        both = " and ".join(effects)
        faults.insert(0, F511.diagnostic(at=at, expected="one file for each size", found=both))
    differ = effects if len(set(effects.values())) > 1 else {}
    rooted = [one for one in chosen if call.root is None and one.root is not None]
    remarks = [*map(other_roots, rooted), *(one for one in reading.findings if one.rule is F533)]
    return CallDecision(
        call, outcome, tuple(effects), why_not, tuple(faults), tuple(remarks), differ
    )


def _replacements(reading: Reading) -> dict[str, Diagnostic]:
    """The later plan of the same name that replaces a plan, by the replaced file's name."""
    runtime = reading.runtime
    if not runtime.knows_names:
        return {}
    order = list(runtime.names or [one.name for one in reading.candidates])
    last: dict[tuple[str, str], CandidateFile] = {}
    found: dict[str, Diagnostic] = {}
    for one in sorted(reading.candidates, key=lambda one: order.index(one.name)):
        earlier = last.get((one.collective, one.plan_name))
        if earlier is not None:
            at, later = Place(str(earlier.path)), f"{one.name} has the same, {one.plan_name!r}"
            found[earlier.name] = F509.diagnostic(at=at, expected="a name of its own", found=later)
        last[one.collective, one.plan_name] = one
    return found


def _why_not(
    one: CandidateFile, call: DeployedCall, runtime: Runtime, *, undecided: bool
) -> Diagnostic | None:
    """Why a file doesn't match a call; None if it does, or if it may. undecided: whether the place
    for which the runtime takes files is unknown."""
    size = call.size_bytes // (call.parts if call.collective in runtime.part_of else 1)
    rule: Rule = F520
    if one.collective != call.collective:
        expected, found = call.collective, one.collective
    elif not one.grid.has(call.ranks, call.node):
        expected, found = str(Grid(call.ranks, call.node)), str(one.grid)
    elif not one.places.has(call.in_place) and not undecided:
        expected, found = PLACE_WORDS[call.in_place], PLACE_WORDS[not call.in_place]
    elif not one.sizes.covers(size):
        expected, found = f"a range with {size_text(size)}", str(one.sizes)
    elif runtime.compares_op and call.op == "avg" and call.reduces:
        rule, expected, found = F524, "sum, prod, min or max", call.op
    elif runtime.divides_first and (elements := size // TYPES[call.dtype]) % one.multiple:
        rule = F519
        expected, found = f"a multiple of {one.multiple} elements", f"{elements}"
    else:
        return None
    return rule.diagnostic(at=Place(str(one.path)), expected=expected, found=found)


def _effect(faults: Sequence[Diagnostic], call: DeployedCall) -> CallAction:
    """What happens to a call that runs a file with these faults."""
    rules = [fault.rule for fault in faults]
    if any(rule in _ENDING for rule in rules):
        return CallAction.ENDS
    if F516 in rules or (F524 in rules and call.op == "sum"):
        return CallAction.FAILS
    if any(rule is not F529 for rule in rules):
        return CallAction.WRONG
    return CallAction.UNPROVEN if faults else CallAction.RUNS


def _faults(one: CandidateFile, call: DeployedCall, runtime: Runtime) -> list[Diagnostic]:
    """What is wrong when a call runs a file."""
    found, at = list(one.faults), Place(str(one.path))
    if None not in (one.root, call.root) and one.root != call.root:
        expected = f"calls with root {one.root}"
        found.append(F530.diagnostic(at=at, expected=expected, found=f"root {call.root}"))
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
