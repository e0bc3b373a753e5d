"""Files: a policy as a table of plans (`ir.plan_table`), which communicators read too.

The table's facts are the agent, the notes and the changes. Nothing in such a file is executed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sley.errors import Place, SleyError
from sley.errors.policy import D901
from sley.errors.recognition import OLD_POLICY, kind_of
from sley.formats import write_file
from sley.ir.plan_table import PlanTable, read_table
from sley.ir.words import is_integer
from sley.tuning.policy.policy import Change, Policy, Range

_FACTS = ("agent", "notes", "changes")


def table_of(policy: Policy) -> PlanTable:
    """The table of a policy, as a file has it."""
    facts: dict[str, Any] = {"agent": policy.agent, "notes": dict(sorted(policy.notes.items()))}
    facts["changes"] = [vars(one) for one in policy.changes]
    names = sorted(policy.ranges)
    rows = tuple(one.row(name) for name in names for one in policy.ranges[name])
    return PlanTable(rows, policy.machine, {word: facts[word] for word in _FACTS if facts[word]})


def write(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Writes a policy; equal policies give equal bytes. Errors: F461."""
    write_file(path, table_of(policy).text())


def read(path: str | os.PathLike[str]) -> Policy:
    """The policy of a file. Errors: D901, D901, D904."""
    at = Place(os.fspath(path))
    if kind_of(path) is OLD_POLICY:
        raise D901.error(
            at=at, expected="a policy in TOML", found=OLD_POLICY.text, remedy=OLD_POLICY.remedy
        )
    table = read_table(Path(path), D901)
    try:
        return _policy(table)
    except SleyError as error:
        raise _located(error, at.file) from error


def _policy(table: PlanTable) -> Policy:
    """Errors: D901, D904."""
    if table.machine is None:
        raise D901.error(expected="[machine]", found="a table without it")
    ranges: dict[str, list[Range]] = defaultdict(list)
    for row in table.rows:
        if (row.in_place, row.ranks, row.root) != (None, None, None):
            expected = "rows without in_place, ranks and root: a policy is for all calls"
            raise D901.error(at=row.entry, expected=expected, found=str(row))
        try:
            ranges[row.collective].append(Range.of(row))
        except SleyError as error:
            d = error.diagnostics[0]
            at = row.entry
            raise D901.error(at=at, expected=d.expected, found=d.found, remedy=d.remedy) from error
    facts = table.facts
    notes, changes = facts.get("notes", {}), facts.get("changes", [])
    is_text = all(isinstance(value, str) for value in (facts.get("agent", ""), *_values(notes)))
    if set(facts) - {*_FACTS} or not (is_text and isinstance(changes, list)):
        expected = "facts: agent, notes (texts by name) and changes"
        raise D901.error(expected=expected, found=f"{facts!r:.80}")
    return Policy(
        table.machine,
        {name: tuple(found) for name, found in ranges.items()},
        facts.get("agent", ""),
        notes,
        tuple(map(_change, changes)),
    )


def _values(notes: Any) -> list[Any]:
    return list(notes.values()) if isinstance(notes, Mapping) else [None]


def _change(given: Any) -> Change:
    kinds = {one.name: int if one.type == "int" else str for one in fields(Change)}
    is_whole = isinstance(given, Mapping) and set(given) == set(kinds)
    if not is_whole or not all(
        is_integer(given[word]) if kind is int else isinstance(given[word], str)
        for word, kind in kinds.items()
    ):
        raise D901.error(expected=f"a change with {', '.join(kinds)}", found=f"{given!r:.80}")
    return Change(**given)


def _located(error: SleyError, file: str) -> SleyError:
    """The error, with the file in all of its places."""
    return SleyError(
        [
            replace(d, places=tuple(replace(at, file=file) for at in d.places or (Place(),)))
            for d in error.diagnostics
        ]
    )
