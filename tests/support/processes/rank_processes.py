"""Communicators whose ranks are processes, for tests of deaths, signals and leaks."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sley.communicator import Communicator, FolderStore, Settings
from sley.errors import SleyError
from support.processes.forked import PROCESSES

GIVEN_UP_S = 60.0


def wait_for_file(path: Path, within_s: float = GIVEN_UP_S / 2) -> None:
    """Waits until another process has made a file, which fails the test if it doesn't in time."""
    end = time.monotonic() + within_s
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert path.exists(), path


@dataclass(frozen=True)
class End:
    """How a rank ended: the result of its function, the text of its error, or its exit code."""

    value: Any = None
    error: str = ""
    exit: int | None = None
    seconds: float = 0.0


@dataclass
class Started:
    """Running processes. pids: by rank. folder: where they meet, removed at their ends."""

    processes: list[Any]
    pipes: list[Connection]
    folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def wait_for(self, *ranks: int) -> None:
        """Waits for the ends of these ranks, at most until the timeout."""
        deadline = time.monotonic() + GIVEN_UP_S
        for rank in ranks:
            self.pipes[rank].poll(max(0.0, deadline - time.monotonic()))

    def ends(self, within_s: float = GIVEN_UP_S) -> list[End]:
        """How each rank ended; kills those that do not end in time, which fails the test."""
        deadline = time.monotonic() + within_s
        ends: list[End | None] = [None] * len(self.pipes)
        while any(end is None for end in ends) and time.monotonic() < deadline:
            open_pipes = {p: r for r, p in enumerate(self.pipes) if ends[r] is None}
            for pipe in wait(list(open_pipes), timeout=deadline - time.monotonic()):
                rank = open_pipes[pipe]  # type: ignore[index]
                try:
                    ends[rank] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    self.processes[rank].join(5)
                    ends[rank] = End(exit=self.processes[rank].exitcode)
        hanging = [rank for rank, end in enumerate(ends) if end is None]
        for process in self.processes:
            process.join(0 if hanging else 5)
            process.kill()
        if self.folder is not None:
            for process in self.processes:
                process.join()  # until then it could write there
            self.folder.cleanup()
        assert not hanging, f"ranks {hanging} hang"
        return [end for end in ends if end is not None]


def start(
    ranks: int,
    function: Callable[..., Any],
    *arguments: Any,
    settings: Settings | None = None,
    environ: Callable[[int], Mapping[str, str]] = lambda rank: {},
    enter: Callable[[int], None] | None = None,
    folder: str | None = None,
    join: Callable[[str, int, int, Settings], Any] | None = None,
) -> Started:
    """Starts `function(comm, *arguments)` on this number of ranks. enter: each process calls it
    first. join: makes what stands in the place of the communicator, from the folder, the rank, the
    number of ranks and the settings."""
    own = None if folder else tempfile.TemporaryDirectory(prefix="sley-test-")
    settings = settings or Settings(timeout_s=10, use_cache=False)
    processes, pipes = [], []
    for rank in range(ranks):
        ours, theirs = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(
            target=_live,
            args=(
                theirs,
                own.name if own else folder,
                rank,
                ranks,
                settings,
                dict(environ(rank)),
                enter,
                join or _communicator,
                function,
                arguments,
            ),
            daemon=True,
        )
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    return Started(processes, pipes, own)


def _communicator(folder: str, rank: int, ranks: int, settings: Settings) -> Communicator:
    return Communicator(FolderStore(folder), rank, ranks, settings=settings)


def _live(
    pipe: Connection,
    folder: str,
    rank: int,
    ranks: int,
    settings: Settings,
    environ: dict[str, str],
    enter: Callable[[int], None] | None,
    join: Callable[[str, int, int, Settings], Any],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(environ)
    if enter is not None:
        enter(rank)
    begun = time.monotonic()
    try:
        with join(folder, rank, ranks, settings) as comm:
            begun = time.monotonic()
            value = function(comm, *arguments)
        end = End(value=value)
    except SleyError as error:
        end = End(error=str(error), seconds=time.monotonic() - begun)
    except Exception:  # of the test itself, such as a wrong result
        end = End(error=traceback.format_exc(), seconds=time.monotonic() - begun)
    pipe.send(end)
