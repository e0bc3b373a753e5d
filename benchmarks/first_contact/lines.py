"""Results as lines of JSON in one file, which are on the disk however the process ends."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LOST = "can no longer use the device"
"""The words of a diagnostic after which the process must end."""


class DeviceLostError(Exception):
    """The process can no longer use the device; the line is written."""


class Lines:
    """A file of results, to which several processes may append. step: names the writer in each
    line."""

    def __init__(self, path: Path, step: str) -> None:
        self.path, self._step = path, step

    def write(self, **found: Any) -> None:
        """Appends a line, and prints it; it is on the disk when this returns."""
        row = {"step": self._step, "time": round(time.time(), 3), **found}
        text = json.dumps(row, default=str)
        with self.path.open("a") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(text if len(text) < 300 else text[:300] + " ...", flush=True)

    def attempt(self, label: Mapping[str, Any], work: Callable[[], Mapping[str, Any]]) -> bool:
        """Writes a line before `work` and another with what it returns, or with its error; returns
        whether it ended without error or failure and found nothing wrong. Raises DeviceLostError
        if the process can do no more."""
        self.write(begins=label)
        begin = time.monotonic()
        try:
            found = dict(work())
        except Exception as error:  # every error is a result
            self.write(**label, failure=_words(error), s=_since(begin))
            if LOST in str(error):
                raise DeviceLostError from error
            return False
        self.write(**label, **found, s=_since(begin))
        return not found.get("wrong") and "failure" not in found


def _words(error: Exception) -> str:
    """The words of an error; a diagnostic of sley's names itself. sley isn't imported: before the
    step that builds it, it may not be there."""
    is_ours = type(error).__module__.startswith("sley.")
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


def _since(begin: float) -> float:
    return round(time.monotonic() - begin, 3)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of results; a last line that was cut off is left out."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def step_parser(text: str | None) -> argparse.ArgumentParser:
    """The parser of a step's options. text: the step's docstring."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--lines", type=Path, required=True, help="the file of results")
    parser.add_argument("--timeout-s", type=float, default=2.0, help="of an instruction's wait")
    return parser


def run_step(name: str, lines: Path, step: Callable[[Lines], bool]) -> None:
    """Runs a step and ends the process, with 1 if the step returns False or the device is lost."""
    try:
        good = step(Lines(lines, name))
    except DeviceLostError:
        good = False
    sys.stdout.flush()
    os._exit(0 if good else 1)  # a kernel that never ends would hold up an orderly exit
