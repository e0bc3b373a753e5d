"""Group: the ranks of an engine in the measuring process, which starts, commands and ends them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpu_peers.launch import Command

Floats = np.ndarray[Any, np.dtype[np.float64]]

ANSWER_S = 90.0
"""A rank that takes longer to answer is stuck; the longest calls take a few seconds."""

START_S, START_RANK_S = 60.0, 5.0
"""How long the start may take: so long, and so much longer for each rank."""

END_S = 5.0
SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.2
SHOWN = 400
"""Number of characters of an engine's output in a failure."""


class GroupError(Exception):
    """An engine could not start, failed, or did not answer."""


@dataclass(frozen=True)
class Samples:
    """Calls one by one. begin_s: when each began, by a clock that the ranks share; call_s: its
    seconds; both [rank, call]. cpu_s: each rank's seconds of CPU for all calls [rank]."""

    begin_s: Floats
    call_s: Floats
    cpu_s: Floats

    def after_last_s(self) -> Floats:
        """The seconds of each call from the beginning of its last rank to the end on all."""
        ends: Floats = self.begin_s + self.call_s
        found: Floats = ends.max(axis=0) - self.begin_s.max(axis=0)
        return found


class Group:
    """An engine's ranks, which wait for commands (worker.py lists them).

    ranks: number of ranks. commands: returns the processes to start, for a folder of pipes.
    version: rank 0's version. Raises GroupError if the ranks don't start.
    """

    def __init__(self, ranks: int, commands: Callable[[Path], Sequence[Command]]) -> None:
        self.ranks = ranks
        self._folder = Path(tempfile.mkdtemp(prefix="cpu-peers-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[int] = []
        self._rest = b""
        try:
            # Open for reading and writing, so that opening never waits for the other end. When this
            # process dies its ends are closed, which the ranks notice.
            self._answers = self._pipe("answers")
            self._asking = [self._pipe(f"commands-{rank}") for rank in range(ranks)]
            with (self._folder / "log").open("wb") as log:
                for command in commands(self._folder):
                    self._start(command, log.fileno())
            self.version = " ".join(self._gather(START_S + START_RANK_S * ranks)[0].split()[1:])
        except BaseException:
            self.close()
            raise

    def ask(self, command: str) -> list[str]:
        """The answers of all ranks to a command, by rank. Raises GroupError if one is missing."""
        for pipe in self._asking:
            os.write(pipe, f"{command}\n".encode())
        return self._gather(ANSWER_S)

    def sample(self, calls: int, late_s: float = 0.0) -> Samples:
        """Calls one by one, before each of which rank 0 sleeps late_s seconds. Raises
        GroupError."""
        cpu_s = [float(answer) for answer in self.ask(f"sample {calls} {late_s}")]
        files = [self._folder / f"samples-{rank}" for rank in range(self.ranks)]
        pairs = np.stack([np.fromfile(file).reshape(calls, 2) for file in files])
        return Samples(pairs[..., 0], pairs[..., 1], np.array(cpu_s))

    def close(self) -> None:
        """Ends the ranks, by a signal if necessary."""
        for pipe in self._asking if self._processes else []:
            with suppress(OSError):
                os.write(pipe, b"stop\n")
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            self._end(number)
        for pipe in self._pipes:
            os.close(pipe)
        self._processes, self._pipes, self._asking = [], [], []
        # vLLM and DeepSpeed leave shared memory behind, which is named after the folder.
        for left in SHARED_MEMORY.glob(f"*{self._folder.name}*"):
            left.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pipe(self, name: str) -> int:
        path = self._folder / name
        os.mkfifo(path)
        self._pipes.append(os.open(path, os.O_RDWR))
        return self._pipes[-1]

    def _start(self, command: Command, log: int) -> None:
        self._processes.append(
            subprocess.Popen(
                command.words,
                env={**os.environ, **command.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # not a session of its own (launch.py)
            )
        )

    def _gather(self, timeout_s: float) -> list[str]:
        answers: dict[int, str] = {}
        until = time.monotonic() + timeout_s
        while len(answers) < self.ranks:
            for line in self._lines():
                rank, text = line.split(" ", 1)
                if text.startswith("error "):
                    raise GroupError(f"rank {rank}: {text.removeprefix('error ')}")
                answers[int(rank)] = text
            ended = next((p for p in self._processes if p.poll() is not None), None)
            if ended is not None and len(answers) < self.ranks:
                raise GroupError(f"a process ended with {ended.returncode}: {self._words()}")
            if time.monotonic() > until:
                missing = [str(rank) for rank in range(self.ranks) if rank not in answers]
                raise GroupError(
                    f"no answer of rank {', '.join(missing)} in {timeout_s:g} s: {self._words()}"
                )
        return [answers[rank] for rank in range(self.ranks)]

    def _lines(self) -> list[str]:
        """The complete lines that have arrived; waits a moment if there are none."""
        if not select.select([self._answers], [], [], POLL_S)[0]:
            return []
        *lines, self._rest = (self._rest + os.read(self._answers, 65536)).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _words(self) -> str:
        """The end of the processes' output."""
        text = (self._folder / "log").read_text(errors="replace")
        return " ".join(text.split())[-SHOWN:] or "it said nothing"

    def _end(self, number: signal.Signals | None) -> None:
        """Sends a signal to the remaining processes, and waits for their end."""
        left = [process for process in self._processes if process.poll() is None]
        for process in left:
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        until = time.monotonic() + END_S
        for process in left:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
