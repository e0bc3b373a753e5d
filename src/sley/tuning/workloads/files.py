"""Files: reads and writes workloads as TOML, also written by hand.

A workload has a format, a name, its ranks, and a list of steps. A step may have `compute_us`; then
`wait`, a list of names of overlapping calls; then a call: `collective`, `size` (bytes, or a text
such as "64K"), `group` ("cluster", "node" or "rail"), and `overlaps`, the name under which a later
step waits for it. What is not waited for is waited for at the end.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from sley.errors import Place, SleyError, did_you_mean
from sley.errors.text_files import text_of, toml_tables
from sley.errors.tuning import D945
from sley.formats import write_file
from sley.ir.sizes import text_in_bytes
from sley.ir.tables import NONE
from sley.tuning.workloads.workload import COLLECTIVES, MOST_STEPS, Group, Steps, Workload

FORMAT = 1
"""The number of the file format."""

_TOP = ("format", "name", "ranks", "step")
_STEP = ("compute_us", "wait", "collective", "size", "group", "overlaps")
_OF_A_CALL = ("size", "group", "overlaps")
_GROUPS = {group.name.lower(): group for group in Group}


def read(path: str | os.PathLike[str]) -> Workload:
    """The workload of a file. Errors: D945."""
    file = os.fspath(path)
    return parse(text_of(Path(path), D945), file)


def write(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Writes a workload; equal ones give equal bytes. Errors: F461."""
    write_file(path, text(workload))


def text(workload: Workload) -> str:
    """The text of a workload's file."""
    lines = [
        f"format = {FORMAT}",
        f"name = {_quoted(workload.name)}",
        f"ranks = {workload.ranks}",
    ]
    for row, step in enumerate(workload):
        lines += ["", "[[step]]"]
        waits = np.flatnonzero((workload.waited == row) & workload.overlaps).tolist()
        if step.compute_us or (step.collective == NONE and not waits):
            lines.append(f"compute_us = {step.compute_us!r}")
        if waits:
            lines.append(f"wait = {json.dumps([f'call {call}' for call in waits])}")
        if step.collective == NONE:
            continue
        lines.append(f'collective = "{COLLECTIVES[step.collective]}"')
        lines.append(f"size = {step.size_bytes}")
        if step.group != Group.CLUSTER:
            lines.append(f'group = "{Group(step.group).name.lower()}"')
        if step.waited > row:
            lines.append(f'overlaps = "call {row}"')
    return "\n".join(lines) + "\n"


def parse(content: str, file: str) -> Workload:
    """The workload of a text in `file`. Errors: D945."""
    tables = toml_tables(file, content, D945)
    at = Place(file)
    _check_words(tables, _TOP, at)
    missing = [word for word in _TOP if word not in tables]
    if missing:
        raise _bad(at, f"the entries {', '.join(_TOP)}", f"without {', '.join(missing)}")
    if tables["format"] != FORMAT or isinstance(tables["format"], bool):
        raise _bad(at, f"format {FORMAT}", f"format {tables['format']!r}")
    if not isinstance(tables["name"], str):
        raise _bad(at, "name as a text", repr(tables["name"]))
    rows = tables["step"]
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_STEPS:
        raise _bad(at, f"1 to {MOST_STEPS} steps ([[step]])", _shown(rows))
    reader = _Reader(file)
    for number, row in enumerate(rows, 1):
        reader.step(row, number)
    try:
        return reader.steps.workload(tables["name"], tables["ranks"])
    except SleyError as error:
        first = error.diagnostics[0]
        raise _bad(at, first.expected, first.found) from error


class _Reader:
    """Reads steps in their order. open: the overlapping calls that nothing has waited for."""

    def __init__(self, file: str) -> None:
        self.file, self.steps, self.open = file, Steps(), dict[str, int]()

    def step(self, row: Any, number: int) -> None:
        at = self.steps.at = Place(self.file, detail=f"step {number}")
        if not isinstance(row, dict):
            raise _bad(at, "a table of TOML", _shown(row))
        _check_words(row, _STEP, at)
        self.steps.compute(row.get("compute_us", 0.0))
        if "wait" in row:
            self._wait(row["wait"], at)
        if "collective" not in row:
            for word in _OF_A_CALL:
                if word in row:
                    raise _bad(at, f"a collective, which has a {word}", "none")
            if "wait" not in row and "compute_us" not in row:
                raise _bad(at, "compute_us, wait or a collective", "an empty step")
            return
        self._call(row, at)

    def _wait(self, names: Any, at: Place) -> None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _bad(at, "wait as a list of names", _shown(names))
        for name in names:
            if name not in self.open:
                expected = "the name of an overlapping call that nothing has waited for"
                raise _bad(at, expected, repr(name), did_you_mean(name, list(self.open)))
        if len(set(names)) < len(names):
            raise _bad(at, "each name once", repr(names))
        self.steps.wait(*(self.open.pop(name) for name in names))

    def _call(self, row: dict[str, Any], at: Place) -> None:
        if "size" not in row:
            raise _bad(at, "the size of the call", "none")
        group, name = row.get("group", "cluster"), row.get("overlaps")
        if not isinstance(group, str) or group not in _GROUPS:
            raise _bad(at, f"a group of {', '.join(_GROUPS)}", repr(group))
        if name is not None and (not isinstance(name, str) or name in self.open):
            expected = "overlaps as a name that no other overlapping call has"
            raise _bad(at, expected, repr(name))
        call = self.steps.call(
            row["collective"],
            text_in_bytes(row["size"]),
            group=_GROUPS[group],
            overlaps=name is not None,
        )
        if name is not None:
            self.open[name] = call


def _quoted(words: str) -> str:
    """A text as a string of TOML."""
    return json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_words(table: dict[str, Any], known: tuple[str, ...], at: Place) -> None:
    for word in table:
        if word not in known:
            expected = f"entries of {', '.join(known)}"
            raise _bad(at, expected, repr(word), did_you_mean(word, known))


def _shown(value: Any) -> str:
    """A value in a message, at most 80 characters of it."""
    words = repr(value)
    return words if len(words) <= 80 else f"{words[:77]}..."


def _bad(at: Place, expected: str, found: str, remedy: str = "") -> SleyError:
    return D945.error(at=at, expected=expected, found=found, remedy=remedy)
