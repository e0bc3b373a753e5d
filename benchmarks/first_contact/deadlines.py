"""Processes with a deadline: one that is over is killed with all its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05
_LAST_WORDS_S = 1.0
"""Between the signal at which Python tells where it is, and the one that kills."""

_KILLED_S = 5.0
"""After this a process that was killed but holds on, in the driver, is left behind."""


@dataclass(frozen=True)
class End:
    """How a process ended. code: its exit code; None if it was over its deadline. last: its last
    lines; after the deadline, where its threads were."""

    code: int | None
    seconds: float
    last: str

    @property
    def is_good(self) -> bool:
        return self.code == 0


def run_within(
    command: Sequence[str],
    deadline_s: float,
    log: Path,
    *,
    cwd: Path,
    environment: Mapping[str, str],
) -> End:
    """Runs a command until its end or its deadline; the output is printed and in `log`. Afterwards
    no process of its group is left. The process must not buffer its output, and Python's must tell
    at SIGABRT where they are: PYTHONUNBUFFERED and PYTHONFAULTHANDLER are set."""
    begin = time.monotonic()
    variables = {**environment, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    with log.open("wb") as written, log.open("rb") as seen:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its children are in its group
        )
        try:
            code = _wait(process, begin + deadline_s, seen)
            if code is None:
                _signal(process, signal.SIGABRT)
                _wait(process, time.monotonic() + _LAST_WORDS_S, seen)
        finally:
            _signal(process, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
        _show(seen)
    lines = log.read_text(errors="replace").splitlines()
    return End(code, time.monotonic() - begin, "\n".join(lines[-25:]))


def _wait(process: subprocess.Popen[bytes], until: float, seen: object) -> int | None:
    """The exit code; None if the process runs on at `until`."""
    while (code := process.poll()) is None and time.monotonic() < until:
        _show(seen)
        time.sleep(_POLL_S)
    return code


def _show(seen: object) -> None:
    new = seen.read()  # type: ignore[attr-defined]
    if new:
        sys.stdout.write(new.decode(errors="replace"))
        sys.stdout.flush()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
