"""Measuring: the times of engines in one cell: all prepare, take turns, and are checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Protocol

from cpu_peers.cells import Cell, Engine, Row
from cpu_peers.group import GroupError

MOST_ITERATIONS = 100_000
ENOUGH = 0.25
"""The length of a trial that finds the number of calls, as a share of the wanted time."""

FIRST_CALLS = 12
"""Number of untimed calls of each engine in a cell: the first makes plans and connections, and then
sley tries three ways of copying, with three calls each."""

WARMUP = 0.1
"""Untimed calls at the start of a turn, as a share of the timed calls."""


class Ranks(Protocol):
    """An engine's ranks; group.Group is one."""

    def ask(self, command: str) -> list[str]:
        """The ranks' answers, by rank."""


def seconds_a_call(ranks: Ranks, iterations: int, warmup: int = 0) -> float:
    """The average time of a call in a loop of back-to-back calls, averaged over the ranks."""
    return fmean(map(float, ranks.ask(f"time {iterations} {warmup}")))


def iterations_for(seconds: float, wanted_s: float) -> int:
    """The number of calls, each of `seconds` seconds, that fill the wanted time."""
    return max(1, min(MOST_ITERATIONS, round(wanted_s / seconds)))


def calibrated(ranks: Ranks, wanted_s: float) -> int:
    """Finds by trials the number of calls that fill the wanted time."""
    seconds_a_call(ranks, FIRST_CALLS)
    calls = 1
    while True:
        seconds = seconds_a_call(ranks, calls)
        if seconds * calls >= ENOUGH * wanted_s or calls == MOST_ITERATIONS:
            return iterations_for(seconds, wanted_s)
        calls = min(MOST_ITERATIONS, math.ceil(wanted_s / seconds))


def in_turn(engines: Sequence[Engine], repeat: int) -> Iterable[Engine]:
    """Each engine once in a round; each round starts with a different engine."""
    for turn in range(repeat):
        first = turn % len(engines)
        yield from (*engines[first:], *engines[:first])


def measure(cell: Cell, engines: Mapping[Engine, Ranks], repeat: int, wanted_s: float) -> list[Row]:
    """The rows of one cell; an engine that fails has the reason instead of times."""
    rows: dict[Engine, Row] = {}
    for engine in engines:
        rows[engine] = {
            "engine": engine.value,
            "collective": cell.collective.value,
            "ranks": cell.ranks,
            "size_bytes": cell.size_bytes,
        }

    def attempt(engine: Engine, step: Callable[[Ranks, Row], None]) -> None:
        if "failure" in rows[engine]:
            return
        try:
            step(engines[engine], rows[engine])
        except GroupError as error:
            rows[engine]["failure"] = str(error)

    def prepare(ranks: Ranks, row: Row) -> None:
        ranks.ask(f"prepare {cell.collective.value} {cell.size_bytes}")
        row["iterations"] = calibrated(ranks, wanted_s)
        row["ms"] = []

    def take_time(ranks: Ranks, row: Row) -> None:
        iterations = row["iterations"]
        row["ms"].append(1e3 * seconds_a_call(ranks, iterations, int(WARMUP * iterations)))

    for engine in engines:
        attempt(engine, prepare)
    for engine in in_turn(list(engines), repeat) if engines else ():
        attempt(engine, take_time)
    for engine in engines:
        if engine is not Engine.FAKE:  # it does nothing
            attempt(engine, _check)
    return [_finished(row) for row in rows.values()]


def _check(ranks: Ranks, row: Row) -> None:
    answers = ranks.ask("check")
    wrong = [str(rank) for rank, answer in enumerate(answers) if answer != "right"]
    if wrong:
        row["failure"] = f"a wrong result on rank {', '.join(wrong)}"


def _finished(row: Row) -> Row:
    if "failure" in row:
        return {key: value for key, value in row.items() if key not in ("ms", "iterations")}
    return {**row, "median_ms": median(row["ms"])}
