"""Policy: which plan runs for the calls of each collective and size (GC3, section 12.8).

It is a table of plans (`ir.plan_table`). Nothing in its file is executed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sley.algorithms import CATALOG, build
from sley.compiler import Options
from sley.errors import Place, SleyError, check_name
from sley.errors.policy import D901, D904
from sley.formats import write_file
from sley.ir.collectives import SIZED
from sley.ir.plan_table import Machine, PlanRow, PlanTable, Recipe, read_table
from sley.ir.program import Program
from sley.ir.sizes import SizeRange
from sley.ir.tables import NONE
from sley.ir.topology import MAX_RANKS
from sley.ir.words import Schedule, is_integer

TILES = tuple(0.5**power for power in range(7))
"""The tiles that a recipe may ask for, as shares of the runtime's own tile."""

CHANGE: Mapping[str, type] = {
    "call": int,
    "collective": str,
    "size_bytes": int,
    "before": str,
    "after": str,
}
"""A change of what an agent would deploy for a size, during its training: the number of the call of
this collective, from 1; the collective and the size; the recipes in words."""


@dataclass(frozen=True)
class Policy(PlanTable):
    """What a tuner has learned on one machine. A call in no row's sizes runs the default of the
    runtime.

    rows: those of a collective have ascending sizes that don't overlap. A recipe names an algorithm
        of the collective, with no arguments but `orders`: the rings of a `multi-ring-` algorithm,
        if they aren't its own. No row has a number of ranks, a place or a root.
    machine: where it was trained. facts: "agent", the agent that learned it; "notes" about the
        training (seed, samples, version of sley), texts by name; "changes", dicts of `CHANGE`, in
        order.

    Errors: D901, also for unknown collectives; D904 for unknown algorithms and those of another
    collective.
    """

    machine: Machine = field(kw_only=True)

    def __post_init__(self) -> None:
        _check_facts(self.facts)
        last: dict[str, SizeRange] = {}
        for row in self.rows:
            try:
                _check_row(row)
                # Ascending ranges without overlaps: each size has one row, so `find` may take any.
                before = last.get(row.collective, SizeRange(-1, -1))
                last[row.collective] = row.sizes
                if before.end_bytes is None or before.end_bytes >= row.sizes.begin_bytes:
                    expected, found = "ascending ranges that don't overlap", f"after {before}"
                    raise D901.error(expected=expected, found=found)
            except SleyError as error:
                place = row.entry if row.entry.file else Place(detail=label(row))
                refused = [
                    # D901 is also for an option's C304.
                    replace(d, rule=D904 if d.rule is D904 else D901, places=(place,))
                    for d in error.diagnostics
                ]
                raise SleyError(refused) from error

    @property
    def agent(self) -> str:
        """The agent that learned it; "" for none."""
        return str(self.facts.get("agent", ""))

    @property
    def collectives(self) -> tuple[str, ...]:
        """The collectives with rows, in their order."""
        return tuple(dict.fromkeys(row.collective for row in self.rows))

    def find(self, collective: str, size_bytes: int) -> PlanRow | None:
        """The row of a call; None where the default runs."""
        return next((row for row in self.of(collective) if row.sizes.covers(size_bytes)), None)


def label(row: PlanRow) -> str:
    """A row in words, for messages."""
    return f"{row.collective}, {row.sizes}"


def program_of(recipe: Recipe, nodes: int, gpus: int, *, in_place: bool) -> Program:
    """The program of a policy's recipe for nodes of GPUs. Errors: L120, and the algorithm's own."""
    given = recipe.given(nodes=nodes, gpus=gpus, in_place=in_place)
    return build(recipe.name, **given.arguments)


def write(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Writes a policy; equal policies give equal bytes. Errors: F461."""
    write_file(path, policy.text())


def read(path: str | os.PathLike[str]) -> Policy:
    """The policy of a file. Errors: D901, D904."""
    at = Place(os.fspath(path))
    table = read_table(Path(path), D901)
    if table.machine is None:
        raise D901.error(at=at, expected="[machine]", found="a table without it")
    try:
        return Policy(table.rows, machine=table.machine, facts=table.facts)
    except SleyError as error:
        refused = [d if d.places else replace(d, places=(at,)) for d in error.diagnostics]
        raise SleyError(refused) from error


def _check_facts(facts: Mapping[str, Any]) -> None:
    """Refuses what a file can't have. Errors: D901."""
    notes, changes = facts.get("notes", {}), facts.get("changes", [])
    is_text = isinstance(facts.get("agent", ""), str) and isinstance(notes, Mapping)
    is_text = is_text and all(isinstance(value, str) for value in notes.values())
    unknown = facts.keys() - {"agent", "notes", "changes"}
    if unknown or not is_text or not isinstance(changes, list):
        expected = "facts: agent, notes (texts by name) and changes"
        raise D901.error(expected=expected, found=f"{facts!r:.80}")
    for one in changes:
        if (
            not isinstance(one, Mapping)
            or one.keys() != CHANGE.keys()
            or not all(type(one[word]) is kind for word, kind in CHANGE.items())
        ):
            raise D901.error(expected=f"a change with {', '.join(CHANGE)}", found=f"{one!r:.80}")


def _check_row(row: PlanRow) -> None:
    """Refuses a row for some calls of a collective only, one without sizes, and a recipe that the
    collective or a file can't have. Errors: C304, D901, D904."""
    check_name(D901, "a collective", row.collective, SIZED)
    if (row.in_place, row.ranks, row.root) != (None, None, None):
        expected = "rows without in_place, ranks and root: a policy is for all calls"
        raise D901.error(expected=expected, found=str(row))
    if row.sizes.begin_bytes < 0 or row.sizes.is_empty:
        raise D901.error(expected="a range of sizes from 0 on", found=str(row.sizes))
    sizes = [one.size_bytes for one in row.measured]
    if sizes != sorted({*sizes}) or not all(map(row.sizes.covers, sizes)):
        found = ", ".join(map(str, sizes))
        raise D901.error(expected="measured sizes of the range, ascending", found=found)
    for recipe in (row.recipe, *row.alternatives):
        _check_recipe(recipe, row.collective)


_ROWS = {"orders": 0, "trees": NONE, "up_trees": NONE, "routes": NONE}
"""Arguments that a policy may have, with the least number in their rows. Weights of trees and
routes are numbers below MAX_RANKS, too."""


def _check_recipe(recipe: Recipe, collective: str) -> None:
    """Errors: C304, D901, D904."""
    names = [a.name for a in CATALOG.values() if a.collective == collective]
    check_name(D904, "an algorithm", recipe.name, names)
    for word, rows in recipe.arguments.items():
        least = _ROWS.get(word, MAX_RANKS)
        is_list = isinstance(rows, tuple) and all(isinstance(one, tuple) and one for one in rows)
        if least == MAX_RANKS or not (
            is_list and all(is_integer(n) and least <= n < MAX_RANKS for one in rows for n in one)
        ):
            expected = f"no arguments but {', '.join(_ROWS)}, lists of ranks"
            raise D901.error(expected=expected, found=f"{word}={rows!r:.80}")
    if Options.of(None, recipe.options).schedule is Schedule.AUTO:
        raise D901.error(expected="one schedule, which auto would choose", found="schedule='auto'")
    if recipe.tile not in TILES:
        expected = f"a tile of {', '.join(f'{tile:g}' for tile in TILES)}"
        raise D901.error(expected=expected, found=f"{recipe.tile!r}")
