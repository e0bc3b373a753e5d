"""One rank of an engine that is called from Python: does what it is told over named pipes.

A folder holds the pipe `commands-RANK` of each rank and `answers`, which all ranks share. Commands
are lines, and each is answered by a line that begins with the rank:

    prepare COLLECTIVE SIZE_BYTES   allocates and touches the buffers of a cell      ok
    time ITERATIONS WARMUP          calls back to back, after as many untimed ones   seconds a call
    check                           one call whose result is looked at               right | wrong
    stop                            (as the end of the pipe does)

The first line that a rank writes is `RANK ready VERSION`; `RANK error TEXT` is its last. Between
commands it sleeps in read(), so that engines which wait for their turn cost nothing. mpi_worker.cpp
does the same for the MPIs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cpu_peers.cells import FLOAT32_BYTES, Collective

Array = np.ndarray[Any, np.dtype[np.float32]]

Repeated = Callable[[int], float]
"""Makes so many calls back to back, and gives the seconds of one of them."""

PERIOD = 61
"""Of the values that are checked: a prime, so that no two blocks look alike."""


class Calls(Protocol):
    """What an engine offers to this module."""

    version: str

    def empty(self, elements: int) -> Array:
        """A new float32 buffer of the kind that is compared."""

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        """The collective, which reads source and writes target: the same in place."""

    def barrier(self) -> None:
        """Returns when all ranks are there."""


def looped(call: Callable[[], object]) -> Repeated:
    """A call that Python repeats."""

    def repeated(iterations: int) -> float:
        begin = time.perf_counter()
        for _ in range(iterations):
            call()
        return (time.perf_counter() - begin) / iterations

    return repeated


def values(rank: int, first: int, elements: int) -> Array:
    """What a rank has from an index of its input on: small integers, so that sums are exact."""
    period = (np.arange(first, first + PERIOD) % PERIOD + 1) * (rank + 1)
    return np.resize(period.astype(np.float32), elements)


def expected(collective: Collective, rank: int, ranks: int, whole: int) -> Array:
    """The right result on a rank; whole: the elements of the larger buffer."""
    part = whole // ranks
    sum_of_ranks = np.float32(ranks * (ranks + 1) // 2)
    if collective is Collective.ALL_REDUCE:
        return sum_of_ranks * values(0, 0, whole)
    if collective is Collective.REDUCE_SCATTER:
        return sum_of_ranks * values(0, rank * part, part)
    first = rank * part if collective is Collective.ALL_TO_ALL else 0
    return np.concatenate([values(source, first, part) for source in range(ranks)])


class Buffers:
    """The buffers of one cell, and its call."""

    def __init__(
        self, calls: Calls, collective: Collective, size_bytes: int, rank: int, ranks: int
    ) -> None:
        self._calls, self._collective = calls, collective
        self._rank, self._ranks = rank, ranks
        self._whole = size_bytes // FLOAT32_BYTES
        part = self._whole // ranks
        self._input = calls.empty(part if collective is Collective.ALL_GATHER else self._whole)
        self._output = self._input
        if collective is not Collective.ALL_REDUCE:
            scattered = collective is Collective.REDUCE_SCATTER
            self._output = calls.empty(part if scattered else self._whole)
        self._input.fill(0)
        self._output.fill(0)
        self._call = calls.bound(collective, self._input, self._output)

    def seconds(self, iterations: int, warmup: int) -> float:
        """The time of a call, of so many back to back."""
        self._calls.barrier()
        if warmup:
            self._call(warmup)
        seconds = self._call(iterations)
        self._calls.barrier()
        return seconds

    def is_right(self) -> bool:
        """Whether one call does what it should."""
        self._input[:] = values(self._rank, 0, len(self._input))
        self._call(1)
        wanted = expected(self._collective, self._rank, self._ranks, self._whole)
        right = bool(np.array_equal(self._output, wanted))
        self._calls.barrier()
        return right


def serve(calls: Calls, folder: Path, rank: int, ranks: int) -> None:
    """Answers commands until it is told to stop."""
    with (
        (folder / "answers").open("w") as answers,
        (folder / f"commands-{rank}").open() as commands,
    ):

        def say(text: str) -> None:
            answers.write(f"{rank} {text}\n")
            answers.flush()

        say(f"ready {calls.version}")
        try:
            _serve(calls, commands, say, rank, ranks)
        except Exception as error:  # whatever it is: the parent is told, and leaves this engine out
            words = " ".join(str(error).split())
            say(f"error {type(error).__name__}: {words[:1000]}")
            raise


def _serve(calls: Calls, commands: Any, say: Callable[[str], None], rank: int, ranks: int) -> None:
    buffers: Buffers | None = None
    for line in commands:
        command, *words = line.split()
        if command == "stop":
            return
        if command == "prepare":
            buffers = None  # memory goes before more is taken
            buffers = Buffers(calls, Collective(words[0]), int(words[1]), rank, ranks)
            say("ok")
        elif buffers is None:
            raise ValueError(f"{command} before prepare")
        elif command == "time":
            say(repr(buffers.seconds(int(words[0]), int(words[1]))))
        elif command == "check":
            say("right" if buffers.is_right() else "wrong")
        else:
            raise ValueError(f"no command {line!r}")


def arguments() -> tuple[str, Path, int, int]:
    """KIND FOLDER RANK RANKS of the command line."""
    kind, folder, rank, ranks = sys.argv[1:]
    return kind, Path(folder), int(rank), int(ranks)
