"""What the launcher says to a worker: plain values, one class a command."""

from __future__ import annotations

from dataclasses import dataclass

from sley.engine.check import Promise
from sley.engine.program import BufferSizes, RankProgram, Wiring
from sley.ir.words import ReduceOp


@dataclass(frozen=True)
class Setup:
    """The first message to each worker."""

    wiring: Wiring
    program: RankProgram
    promise: Promise


@dataclass(frozen=True)
class Attach:
    """Use memory of the segment that comes along: input (or data) and output as byte ranges."""

    segment_bytes: int
    memory: tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Allocate:
    """Use own memory for a call of `count` elements, for measuring and checking."""

    sizes: BufferSizes
    count: int
    dtype: str
    reduce_op: ReduceOp
    in_place: bool


@dataclass(frozen=True)
class Fill:
    """Write the test pattern into the buffers."""


@dataclass(frozen=True)
class Run:
    """Run the plan; the answer is the engine's report."""

    count: int
    dtype: str
    reduce_op: ReduceOp
    iterations: int
    timeout_s: float


@dataclass(frozen=True)
class CountWrong:
    """Check the buffers; the answer is the number of wrong elements."""


@dataclass(frozen=True)
class Raised:
    """The answer of a worker in which a command raised an error."""

    text: str
    out_of_memory: bool
