"""Flight recorder: the latest collectives of a process, in files for PyTorch's `torchfrtrace`.

Off unless SLEY_DUMP, or a variable of PyTorch's, names how the files begin. When a call of a group
has failed on any rank, each rank writes its file: one that is in a call before it raises its error,
another one in a thread beside the program, which looks for failures. So a rank writes it, too, that
waits elsewhere, in Python or in C++, but not one that is stopped or keeps Python's lock.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any

import torch.distributed as dist

from sley.communicator import Call, Work
from sley.communicator.calls import ELEMENTS
from sley.communicator.selection.kinds import BARRIER, CALLS
from sley.communicator.stats import logger
from sley.errors import reason_of
from sley.errors.aside import LateError, fork_safe, within
from sley.ir.tables import NONE

VARIABLES = ("SLEY_DUMP", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What may name the beginning of the files' names: the first one that is set. Empty: no files."""

MOST_ENTRIES, MOST_BYTES, _MOST_FRAMES = 2000, 8 << 20, 16
"""The most collectives that are kept, as PyTorch's recorder does; bytes of a file; and frames of
the caller's."""

_BESIDE_NCCL = "sley_"
"""How the files' names begin beside those of NCCL's groups. The tool reads every file of a folder
with the prefix that it is given anywhere in its name, so this must not contain the other."""

_VERSION = "2.10"
"""The version of the files' format, which is PyTorch 2.13's."""

_LOOK_S = 0.05
"""How often the thread looks for failures: torchrun ends the other ranks a tenth of a second after
one has ended."""

_WRITE_S = 5.0
"""How long an error waits until the file is written."""

_TYPES: Mapping[str, str] = {
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all_v": "all_to_all",
}
"""The tool's names of collectives where they differ from sley's."""

_OWN = f"{Path(__file__).parents[1]}{os.sep}"


@dataclass(slots=True)
class Entry:
    """A collective: the call, where it was made, and when. record: its number in this process.
    number: in its group, from 1. ended_ns: None until it has succeeded."""

    record: int
    log: GroupLog
    number: int
    call: Call
    frames: list[tuple[CodeType, int]]
    created_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None

    def end(self, work: Work | None = None) -> None:
        """Records the end of the call. work: if it is asynchronous; it may have failed."""
        if work is None or work.error() is None:
            self.ended_ns = time.time_ns()


class GroupLog:
    """The record of a group's calls, also after its end: its name, description and global ranks."""

    def __init__(self, recorder: FlightRecorder, group: Any) -> None:
        self.recorder, self._group = recorder, weakref.ref(group)
        self.name = self.description = ""
        self.ranks: list[int] = []
        self.is_told = False

    def begin(self, number: int, call: Call) -> Entry:
        """Records the beginning of a collective, of this number in the group."""
        if not self.ranks:
            self.update()
        return self.recorder.begin(self, number, call)

    def update(self) -> None:
        """Reads what PyTorch says of the group, which it names after it has made it."""
        group = self._group()
        if group is not None:
            self.name, self.description = group.getGroupName(), group.getGroupDesc() or "undefined"
            self.ranks = list(range(group.size()))
            with contextlib.suppress(ValueError, RuntimeError, KeyError):  # none of PyTorch's yet
                self.ranks = dist.get_process_group_ranks(group)
        if dist.is_initialized():  # no more, once the program has ended its groups
            self.recorder.rank = dist.get_rank()
            kinds = [str(kind) for kind, _ in dist.distributed_c10d._world.pg_map.values()]
            self.recorder.beside_nccl |= any("nccl" in kind for kind in kinds)

    def has_failed(self) -> bool:
        group = self._group()
        return group is not None and bool(group._endpoint.has_failed)

    def has_ended(self) -> bool:
        return self._group() is None


class FlightRecorder:
    """The collectives of this process and its groups.

    prefix: how the names of the files begin; the global rank follows. is_own: whether the prefix is
    for sley's files alone. beside_nccl: whether the process has had groups of NCCL, too.
    """

    def __init__(self, prefix: str, *, is_own: bool = True) -> None:
        self.prefix, self.is_own, self.rank, self.beside_nccl = prefix, is_own, 0, False
        self._entries: deque[Entry] = deque(maxlen=MOST_ENTRIES)
        self._logs: list[GroupLog] = []
        self._records = count()
        # A handler of a signal or of the log may make a call, which fails, or fork.
        self._lock = fork_safe(threading.RLock())
        threading.Thread(target=self._look, name="sley-dump", daemon=True).start()

    def add(self, group: Any) -> GroupLog:
        """A record of the calls of a group from now on."""
        with self._lock:  # other threads make groups as well
            known = {id(entry.log) for entry in list(self._entries)}
            self._logs = [log for log in self._logs if not log.has_ended() or id(log) in known]
            self._logs.append(log := GroupLog(self, group))
        return log

    def begin(self, log: GroupLog, number: int, call: Call) -> Entry:
        """Records the beginning of a group's collective."""
        entry = Entry(next(self._records), log, number, call, _frames())
        self._entries.append(entry)
        return entry

    def tell(self) -> None:
        """Writes the file if a group has failed since it was written; not for longer than a few
        seconds. What prevents it is a warning, so that the call's own error can follow."""
        with self._lock:
            has_news = False
            for log in self._logs:
                has_failed = log.has_failed()
                has_news |= has_failed and not log.is_told
                log.is_told = has_failed
            if not has_news:
                return
            path = self.prefix
            try:
                path, content = self._content()
                within(_WRITE_S, _write, Path(path), content)
            except LateError:
                logger.warning("%s isn't written within %g s", path, _WRITE_S)
            except Exception as problem:  # whatever it is, the call's own error is more important
                logger.warning("%s can't be written: %s", path, reason_of(problem))

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            self.tell()

    def _content(self) -> tuple[str, bytes]:
        """The path of this rank's file, and its content: without the oldest entries, if there would
        be too many bytes."""
        for log in self._logs:
            log.update()
        entries = list(self._entries)
        while len(content := pickle.dumps(self._dump(entries))) > MOST_BYTES and entries:
            del entries[: len(entries) // 2 + 1]
        prefix = self.prefix
        if self.beside_nccl and not self.is_own:  # PyTorch's recorder writes files of this name
            prefix = os.path.join(os.path.dirname(prefix), _BESIDE_NCCL)  # noqa: PTH118, PTH120
        return f"{prefix}{self.rank}", content

    def _dump(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "comm_lib_version": "sley",
            "pg_config": {
                log.name: {"name": log.name, "desc": log.description, "ranks": str(log.ranks)}
                for log in self._logs
            },
            "pg_status": {
                str(number): {
                    "last_enqueued_collective": max((e.number for e in own), default=-1),
                    "last_started_collective": max((e.number for e in own), default=-1),
                    "last_completed_collective": max(
                        (e.number for e in own if e.ended_ns is not None), default=-1
                    ),
                }
                for number, log in enumerate(self._logs)
                for own in [[e for e in entries if e.log is log]]
            },
            "entries": [self._row(entry) for entry in entries],
        }

    def _row(self, entry: Entry) -> dict[str, Any]:
        """An entry as the tool reads it. It knows gloo and others, but no backend "sley"."""
        call, log = entry.call, entry.log
        sizes, kinds = _sizes(call, len(log.ranks)), [_type(call)]
        is_barrier = call.kind == BARRIER
        return {
            "record_id": entry.record,
            "pg_id": self._logs.index(log),
            "process_group": (log.name, log.description),
            "collective_seq_id": entry.number,
            "p2p_seq_id": 0,
            "op_id": entry.number,
            "profiling_name": f"gloo:{_TYPES.get(call.kind, call.kind)}",
            "time_created_ns": entry.created_ns,
            "time_discovered_started_ns": entry.created_ns,
            "time_discovered_completed_ns": entry.ended_ns,
            "input_sizes": [] if is_barrier else [[sizes[0]]],
            "output_sizes": [] if is_barrier else [[sizes[1]]],
            "input_dtypes": [] if is_barrier else kinds,
            "output_dtypes": [] if is_barrier else kinds,
            "state": "started" if entry.ended_ns is None else "completed",
            "retired": entry.ended_ns is not None,
            "is_p2p": False,
            "frames": [
                {"name": code.co_qualname, "filename": code.co_filename, "line": line}
                for code, line in entry.frames
            ],
        }


@cache
def _recorder(prefix: str, is_own: bool) -> FlightRecorder:
    return FlightRecorder(prefix, is_own=is_own)


# A forked child has no thread that looks for its failures.
os.register_at_fork(after_in_child=_recorder.cache_clear)


def recorder() -> FlightRecorder | None:
    """The recorder that the environment asks for."""
    variable = next((name for name in VARIABLES if name in os.environ), "")
    prefix = os.environ.get(variable)
    return _recorder(prefix, variable == VARIABLES[0]) if prefix else None


def _sizes(call: Call, ranks: int) -> tuple[int, int]:
    """The elements of a rank's input and output; of a call of varying counts the output's, which
    the tool compares with itself."""
    if call.parts is not None:
        return sum(call.parts.output), sum(call.parts.output)
    row = CALLS[call.kind]
    times = [ranks if parts else 1 for parts in (row.input_parts, row.output_parts)]
    return call.count * times[0], call.count * times[1]


def _type(call: Call) -> str:
    number = call.dtype.number if call.element == NONE else call.element
    return ELEMENTS[number] if number < len(ELEMENTS) else call.dtype.name


def _frames() -> list[tuple[CodeType, int]]:
    """The innermost frames of the program that has made a call, without sley's."""
    found: list[tuple[CodeType, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        if not frame.f_code.co_filename.startswith(_OWN):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _write(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, at once or not at all."""
    handle, name = tempfile.mkstemp(".new", prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
