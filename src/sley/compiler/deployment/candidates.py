"""Candidates: files that a runtime reads, with what it compares with a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sley.compiler.deployment.consequences import worst
from sley.compiler.deployment.runtimes import Grid, Runtime
from sley.errors import Diagnostic, Place, Rule, SleyError
from sley.errors.deployment import F505
from sley.errors.formats import F463
from sley.formats import files, target_named
from sley.formats.format import root_conditions
from sley.ir.conditions import INPUT_KEPT, Condition
from sley.ir.one_sided import OneSidedPlan
from sley.ir.sizes import SizeRange
from sley.ir.tables import NONE
from sley.verification import Proof


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


def why_unused(found: CandidateFile) -> Diagnostic | None:
    """Why no call of any runtime chooses a file; None if some may."""
    if found.sizes.is_empty or found.sizes.end_bytes == 0:
        # A runtime that reads the end as the first size too large has none before 0.
        begin, end = found.sizes.begin_bytes, found.sizes.end_bytes
        sizes = f"{begin} to {end}" if end is None or end >= 0 else "no size"
        return unused(found, "a range of sizes", sizes)
    if not any(found.places):
        return unused(found, "inplace or outofplace to be 1", "both 0")
    return None


def unused(of: CandidateFile, expected: str, found: str) -> Diagnostic:
    """The diagnostic of a file that no call chooses."""
    return F463.diagnostic(
        at=Place(str(of.path)),
        expected=expected,
        found=found,
        remedy="Correct the attribute that the message names, or remove the file.",
    )


def prove(
    found: CandidateFile, runtime: Runtime, consequences: Mapping[str, Rule]
) -> CandidateFile:
    """A candidate with what is wrong when the runtime reads all of the file, and runs it, and with
    its root. consequences: those of problems, by code."""
    try:
        proofs = files.verify_file(found.path, runtime.target).proofs
    except SleyError as error:
        cause, rule = worst(error.diagnostics, consequences)
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
