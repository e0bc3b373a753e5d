"""Ranks that stop at a named place, as by SIGSTOP from outside, and what becomes of the others."""

from __future__ import annotations

import os
import signal
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from support.processes.rank_processes import End, Started


class Place(NamedTuple):
    """Where a rank stops: in a function, at a call of it. rank: which one. is_after: when the call
    has returned instead of before it. call: the number of the call, from 1 on."""

    function: str
    rank: int = 0
    is_after: bool = False
    call: int = 1

    def __str__(self) -> str:
        when = "after" if self.is_after else "before"
        function = ".".join(self.function.split(".")[-2:])
        return f"rank {self.rank} {when} {function} {self.call}"

    def prepare(self, rank: int) -> None:
        """Makes this process stop there if it is the rank."""
        if rank == self.rank:
            stop_at(self.function, self.is_after, self.call)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def state(pid: int) -> str:
    """Of a process, as proc_pid_stat(5) names it: T for one that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop_at(function: str, is_after: bool = False, call: int = 1) -> None:
    """Makes this process stop at a call of a function, "package.module.Class.function"."""
    owner, name = _find(function)
    original, calls = getattr(owner, name), 0

    @wraps(original)
    def stopping(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        is_here = calls == call
        if is_here and not is_after:
            stop()
        result = original(*args, **kwargs)
        if is_here and is_after:
            stop()
        return result

    setattr(owner, name, stopping)


def _find(function: str) -> tuple[Any, str]:
    path, name = function.rsplit(".", 1)
    try:
        return import_module(path), name
    except ModuleNotFoundError:
        module, owner = path.rsplit(".", 1)
        return getattr(import_module(module), owner), name


def outcomes(*stopped: tuple[Started, Place]) -> list[dict[int, End]]:
    """For each start, how the other ranks than the one that stands still ended, by rank. That one
    is killed when they have: at its end, a process would wait for a stopped child for ever."""
    others = []
    for started, place in stopped:
        others.append([rank for rank in range(len(started.pids)) if rank != place.rank])
        started.wait_for(*others[-1])
        started.processes[place.rank].kill()
    found = [started.ends() for started, _ in stopped]
    return [{rank: ends[rank] for rank in ranks} for ends, ranks in zip(found, others, strict=True)]
