"""Commands: the launcher's messages to its workers, and their answers.

A command is an instance of one of these classes. The answer to a command that failed is a `Raised`,
or a `FailedCallError` if a call did; every other answer is a plain value. Connections of
`multiprocessing` pickle them, which is safe, since the launcher started the other process. The
descriptor of a segment follows an `Execute`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sley.communicator import Settings
from sley.engine.outcomes import Report
from sley.errors import SleyError
from sley.ir.words import ReduceOp


@dataclass(frozen=True)
class Setup:
    """The first message to each worker: the rank joins the communicator. folder: of its store.
    timeout_s: of its calls; that of the settings is for the start."""

    rank: int
    ranks: int
    folder: str
    settings: Settings
    timeout_s: float


@dataclass(frozen=True)
class Load:
    """Load a plan, which gets a number. content: the proven plan, pickled."""

    number: int
    content: bytes


@dataclass(frozen=True)
class BenchCall:
    """A call of a plan on test data. plan: its number. count: elements of a block."""

    plan: int
    count: int
    dtype: str
    reduce_op: ReduceOp


@dataclass(frozen=True)
class CountWrong:
    """Make a call on fresh test data; the answer is the number of wrong elements."""

    call: BenchCall


class Turn(NamedTuple):
    """Equal calls back to back. plan: its number. warm: calls before those that are timed. calls:
    timed ones."""

    plan: int
    warm: int
    calls: int


@dataclass(frozen=True)
class Time:
    """Make turns of calls; the answer is the time of a call in each, in microseconds. call: what
    they have in common: all plans have the same buffers."""

    call: BenchCall
    turns: Sequence[Turn]


@dataclass(frozen=True)
class Execute:
    """Make a call in the segment that comes with the command: input (or data) and output are byte
    ranges. counts: of the blocks of input and output, if they vary."""

    call: BenchCall
    segment_bytes: int
    memory: tuple[tuple[int, int], tuple[int, int]]
    counts: tuple[list[int], list[int]] | None


class FailedCallError(Exception):
    """The answer of a worker in which a call failed. report: the engine's. error: the
    communicator's."""

    def __init__(self, report: Report, error: SleyError) -> None:
        super().__init__(report, error)
        self.report, self.error = report, error


@dataclass(frozen=True)
class Raised:
    """The answer of a worker in which a command raised an error. error: one with diagnostics."""

    text: str
    out_of_memory: bool
    error: SleyError | None = None
