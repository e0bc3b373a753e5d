"""Group: the processes of a job, seen from the launcher: sockets, deaths, shutdown."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from dataclasses import dataclass
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from sley.errors import SleyError
from sley.errors.runtime import R511

_EXIT_S = 5.0
"""How long the spawner may take to end once its socket is closed."""

_STATUS_S = 2.0
"""How long the status of a worker that ended may take to arrive."""

_STDERR_BYTES = 4000


@dataclass(frozen=True)
class Death:
    """The end of a worker (`rank`), or of all of them (None)."""

    rank: int | None
    how: str


@dataclass(frozen=True)
class News:
    """Messages received: answers by rank, and at most one death."""

    answers: dict[int, Any]
    death: Death | None = None


class WorkerGroup:
    """The spawner and its workers, one a rank."""

    def __init__(self, ranks: int) -> None:
        with contextlib.ExitStack() as local:
            try:
                self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
                control, control_end = Pipe()
                pairs = [Pipe() for _ in range(ranks)]
                for end in (control_end, *(end for _, end in pairs)):
                    local.callback(end.close)
                self._control = control
                self._pipes = [pipe for pipe, _ in pairs]
                ends = [control_end.fileno(), *(end.fileno() for _, end in pairs)]
                self._process = _start(ends, self._errors)
            except OSError as error:
                raise _start_error(str(error)) from error
        self._end = weakref.finalize(
            self, _shut, self._process, [self._control, *self._pipes], self._errors
        )

    def send(self, rank: int, command: Any, fd: int | None = None) -> None:
        """Send a command. `receive` reports a worker that has ended."""
        with contextlib.suppress(OSError):
            self._pipes[rank].send(command)
            if fd is not None:
                reduction.send_handle(self._pipes[rank], fd, None)

    def receive(self, ranks: set[int], timeout_s: float) -> News:
        """The messages from `ranks`; waits for the first one, for at most `timeout_s`."""
        by_pipe = {self._pipes[rank]: rank for rank in ranks}
        answers: dict[int, Any] = {}
        try:
            ready = wait([self._control, *by_pipe], timeout_s)
            if self._control in ready:
                return News(answers, self._status())
            for pipe in [pipe for pipe in by_pipe if pipe in ready]:
                try:
                    answers[by_pipe[pipe]] = pipe.recv()
                except (EOFError, ConnectionError):
                    return News(answers, self._status(by_pipe[pipe]))
        except (OSError, ValueError, TypeError) as error:  # of a connection closed meanwhile
            if not self._control.closed:
                raise
            raise _start_error("the job was closed during a call") from error
        return News(answers)

    def stderr(self) -> str:
        """The last lines that the processes wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - _STDERR_BYTES, 0))
        return self._errors.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End all processes and free their resources."""
        self._end()

    def _status(self, rank: int | None = None) -> Death:
        """The next death that the spawner reports; without one, that of `rank`."""
        if not wait([self._control], _STATUS_S):
            return Death(rank, "ended")
        try:
            dead, status = self._control.recv()
        except (EOFError, ConnectionError):
            return Death(None, "they ended")
        return Death(dead, _how(status))


def _start(ends: list[int], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        # The workers import modules from the same places as the caller.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        # Threads of a linear algebra library would make forking unsafe, and aren't needed.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    # A session of its own: Ctrl-C in a terminal is for the caller, who then ends the workers.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sley.communicator.jobs.worker", *map(str, ends)],
        pass_fds=ends,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )


def _start_error(found: str) -> SleyError:
    return R511.error(expected="worker processes", found=found)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was ended by signal {number} ({signal.strsignal(number)})"
    return f"exited with status {os.waitstatus_to_exitcode(status)}"


def _shut(process: subprocess.Popen[bytes], pipes: list[Connection], errors: IO[bytes]) -> None:
    for pipe in pipes:
        pipe.close()
    try:
        process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # the kernel then kills the workers
        process.wait()
    errors.close()
