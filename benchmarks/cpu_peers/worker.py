"""Worker: one rank of an engine that is called from Python, with commands over named pipes.

A folder has the pipe `commands-RANK` of each rank and `answers`, which all ranks share. A command
is a line, and its answer is a line that starts with the rank:

    prepare COLLECTIVE SIZE_BYTES   allocates and touches the buffers of a cell      ok
    time ITERATIONS WARMUP          calls back to back, after as many untimed ones   seconds a call
    sample CALLS LATE_S             calls one by one, to the file samples-RANK       seconds of CPU
    check                           one call whose result is checked                 right | wrong
    stop                            ends the rank, as the end of the pipe does

The file of samples has for each call two float64: when it began, by the monotonic clock that all
processes of a machine share, and how many seconds it took; before each call rank 0 sleeps LATE_S
seconds. The answer is the CPU time that the process used meanwhile.

A rank's first line is `RANK ready VERSION`; `RANK error TEXT` is its last. Between commands it
sleeps in read(), so that engines that wait for their turn cost nothing. rank.hpp does the same for
engines that are called from C++.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cpu_peers.cells import FLOAT32_BYTES, ROOT, Collective, layout, partner_of

Array = np.ndarray[Any, np.dtype[np.float32]]

Repeated = Callable[[int], float]
"""Makes a number of back-to-back calls, and returns the seconds of one call."""

PERIOD = 61
"""The period of the checked values: a prime, so that different blocks have different values."""


class Calls(Protocol):
    """The interface of an engine."""

    version: str

    def empty(self, elements: int) -> Array:
        """A new float32 buffer of the compared kind."""

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        """The collective as a function that reads source and writes target; in place, the same. A
        rank that lacks one of them has an empty one."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""


def looped(call: Callable[[], object]) -> Repeated:
    """A call that Python repeats."""

    def repeated(iterations: int) -> float:
        begin = time.perf_counter()
        for _ in range(iterations):
            call()
        return (time.perf_counter() - begin) / iterations

    return repeated


def exchange(
    rank: int, ranks: int, send: Callable[[int], object], recv: Callable[[int], object]
) -> Callable[[], object]:
    """The call of SendRecv: a message to the rank's partner, and one from it; the partner with the
    lower number sends first. send, recv: of a message, with the partner."""
    partner = partner_of(rank, ranks)
    if partner is None:
        return lambda: None
    first, second = (send, recv) if rank < partner else (recv, send)

    def call() -> None:
        first(partner)
        second(partner)

    return call


def values(rank: int, first: int, elements: int) -> Array:
    """A rank's input from an index on: small integers, so that sums are exact."""
    period = (np.arange(first, first + PERIOD) % PERIOD + 1) * (rank + 1)
    return np.resize(period.astype(np.float32), elements)


def expected(collective: Collective, rank: int, ranks: int, whole: int) -> Array | None:
    """The correct output of a rank; None if it has none. whole: the number of elements of the
    larger buffer."""
    part = whole // ranks
    sum_of_ranks = np.float32(ranks * (ranks + 1) // 2)
    partner = partner_of(rank, ranks)
    if collective in (Collective.REDUCE, Collective.GATHER) and rank != ROOT:
        return None
    if collective is Collective.SEND_RECV:
        return None if partner is None else values(partner, 0, whole)
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE):
        return sum_of_ranks * values(0, 0, whole)
    if collective is Collective.REDUCE_SCATTER:
        return sum_of_ranks * values(0, rank * part, part)
    if collective is Collective.BROADCAST:
        return values(ROOT, 0, whole)
    if collective is Collective.SCATTER:
        return values(ROOT, rank * part, part)
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
        sizes = layout(collective, ranks, rank, self._whole)
        # An engine's allocator needn't know empty buffers.
        made = [calls.empty(size) if size else np.empty(0, np.float32) for size in sizes]
        self._input = made[0]
        self._output = self._input if collective.is_in_place else made[1]
        self._input.fill(0)
        self._output.fill(0)
        self._call = calls.bound(collective, self._input, self._output)

    def seconds(self, iterations: int, warmup: int) -> float:
        """The average time of a call in a loop of back-to-back calls."""
        self._calls.barrier()
        if warmup:
            self._call(warmup)
        seconds = self._call(iterations)
        self._calls.barrier()
        return seconds

    def sample(self, calls: int, late_s: float) -> tuple[float, list[float]]:
        """The seconds of CPU of calls one by one, and their beginnings and seconds, alternating.

        late_s: what rank 0 sleeps before each call."""
        late_s = late_s if self._rank == 0 else 0.0
        samples = []
        self._calls.barrier()
        burned = time.process_time()
        for _ in range(calls):
            if late_s:
                time.sleep(late_s)
            begin = time.monotonic()
            samples += [begin, self._call(1)]
        burned = time.process_time() - burned
        self._calls.barrier()
        return burned, samples

    def is_right(self) -> bool:
        """Whether the result of one call is correct."""
        self._input[:] = values(self._rank, 0, len(self._input))
        self._call(1)
        wanted = expected(self._collective, self._rank, self._ranks, self._whole)
        right = wanted is None or bool(np.array_equal(self._output, wanted))
        self._calls.barrier()
        return right


def serve(calls: Calls, folder: Path, rank: int, ranks: int) -> None:
    """Answers commands until the command stop."""
    with (
        (folder / "answers").open("w") as answers,
        (folder / f"commands-{rank}").open() as commands,
    ):

        def say(text: str) -> None:
            answers.write(f"{rank} {text}\n")
            answers.flush()

        say(f"ready {calls.version}")
        try:
            _serve(calls, commands, say, folder, rank, ranks)
        except Exception as error:  # any error: the parent gets it, and excludes this engine
            words = " ".join(str(error).split())
            say(f"error {type(error).__name__}: {words[:1000]}")
            raise


def _serve(
    calls: Calls, commands: Any, say: Callable[[str], None], folder: Path, rank: int, ranks: int
) -> None:
    buffers: Buffers | None = None
    for line in commands:
        command, *words = line.split()
        if command == "stop":
            return
        if command == "prepare":
            buffers = None  # frees memory before allocating more
            buffers = Buffers(calls, Collective(words[0]), int(words[1]), rank, ranks)
            say("ok")
        elif buffers is None:
            raise ValueError(f"{command} before prepare")
        elif command == "time":
            say(repr(buffers.seconds(int(words[0]), int(words[1]))))
        elif command == "sample":
            burned, samples = buffers.sample(int(words[0]), float(words[1]))
            np.array(samples).tofile(folder / f"samples-{rank}")
            say(repr(burned))
        elif command == "check":
            say("right" if buffers.is_right() else "wrong")
        else:
            raise ValueError(f"no command {line!r}")


def arguments() -> tuple[str, Path, int, int]:
    """KIND FOLDER RANK RANKS of the command line."""
    kind, folder, rank, ranks = sys.argv[1:5]
    return kind, Path(folder), int(rank), int(ranks)
