"""Calls: a rank's call, its record for the other ranks, and the call in progress."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Final, NamedTuple, TypeAlias

from sley.communicator.selection.kinds import BARRIER, CALLS
from sley.engine import native
from sley.engine.outcomes import Report
from sley.engine.types import DATA_TYPES, DataType
from sley.errors import SleyError
from sley.errors.runtime import R514
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import ReduceOp

OWN: Final = "run"
"""A call that brings its own plan."""

AGREEMENT: Final = "agreement"
"""The sum of the times of calls under a policy, which the communicator makes by itself."""

_NAMES = (*CALLS, OWN, AGREEMENT)
_NUMBER = {kind: number for number, kind in enumerate(_NAMES)}

VARYING_COUNT = 2**64 - 1
"""The count in the engine's record of a call of varying counts."""

_BYTE, _ROOT, _DIGEST = 8, 20, 24
"""Bits of the parts of a record."""

ELEMENTS: Final = (
    *DATA_TYPES,
    "bool",
    "uint16",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)
"""The names of callers' types, by their numbers in records and messages: the engine's types, and
types whose elements it moves or reduces as elements of its own."""

_ELEMENT_NUMBER = {name: number for number, name in enumerate(ELEMENTS)}
_OTHER = 254
"""The number of all other types."""


class Parts(NamedTuple):
    """The parts of a rank's buffers. output: the elements of each part of its output. most: of any
    part."""

    native: native.Parts
    output: tuple[int, ...]
    most: int

    @classmethod
    def of(cls, inputs: Places, outputs: Places) -> Parts:
        """The parts at these places: the address and the elements of each."""
        counts = tuple(count for _, count in outputs)
        most = max((count for _, count in (*inputs, *outputs)), default=0)
        return cls(native.Parts.create(inputs, outputs), counts, most)


Places: TypeAlias = "Sequence[tuple[int, int]]"
"""The address and the elements of each part of a buffer."""


@dataclass(slots=True)  # making a frozen one would take a tenth of the time of a small call
class Call:
    """One collective call of one rank; never changed.

    kind: one of `selection.kinds.CALLS`, or `OWN` for a call with its own plan.
    input, output: addresses, with their bytes; 0 for a rank that has none (a scatter has input on
        the root alone). In place they overlap as the collective defines.
    count: elements of one block: of the whole buffer for all_reduce, broadcast and reduce, of one
        rank's part for the others.
    input_is_read_only, output_is_read_only: whether the plan must not write it.
    parts: of a call of varying counts, which has neither input nor output nor count.
    blocks: of a call of equal counts, out of place, whose buffers' blocks are apart: `input` and
        `output` are 0 then.
    may_vary: for an AllToAll, out of place, whether other ranks may make it as an AllToAllV. If one
        does, so does this rank.
    element: the number of the caller's type, if that isn't `dtype`.
    division: of a call without a root that stands for several: a digest of their sizes, by
        `division_of`.
    """

    kind: str
    input: int
    input_bytes: int
    output: int
    output_bytes: int
    count: int
    dtype: DataType
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    plan: Plan | None = None
    parts: Parts | None = None
    blocks: Parts | None = None
    may_vary: bool = False
    input_is_read_only: bool = False
    output_is_read_only: bool = False
    element: int = NONE
    division: int = 0


def kind_number(kind: str) -> int:
    """The number of a kind of calls in records, and in the engine's ready calls."""
    return _NUMBER[kind]


@cache
def ready_kind(name: str) -> native.Kind:
    """A kind of calls, for the engine, which starts usual ones."""
    row = CALLS[name]
    parts = row.input_parts, row.output_parts
    return native.Kind(kind_number(name), row.reduces, bool(row.roles), *parts)


def kind_named(number: int) -> str:
    """The kind of calls with this number."""
    return _NAMES[number]


def element_number(name: str) -> int:
    """The number of the type that NumPy or PyTorch calls `name`."""
    return _ELEMENT_NUMBER.get(name, _OTHER)


def division_of(sizes: Sequence[int]) -> int:
    """A digest of the sizes of calls that run as one. Never 0."""
    return zlib.crc32(repr(list(sizes)).encode()) % ((1 << _ROOT) - 1) + 1


def record_of(kind: str, element: int, op: ReduceOp, root: int, digest: bytes) -> int:
    """64 bits that are equal on all ranks if these make the same call: kind, type, operation and
    root, which messages can read back, and a part of the plan's digest. root: or the division of a
    call without one."""
    word = _NUMBER[kind]
    word = word << _BYTE | element
    word = word << 4 | int(op)
    word = word << _ROOT | root
    return word << _DIGEST | int.from_bytes(digest[: _DIGEST // 8], "little")


def differ_in_plan(record: int, other: int) -> bool:
    """Whether two records are equal but for the plan."""
    return record != other and record >> _DIGEST == other >> _DIGEST


def describe_record(record: int, count: int) -> str:
    """A call in words, from its record. Calls that differ only in their plan get the same words."""
    rest = record >> _DIGEST
    rest, root = rest >> _ROOT, rest & ((1 << _ROOT) - 1)
    rest, op = rest >> 4, rest & 15
    number, element = rest >> _BYTE, rest & ((1 << _BYTE) - 1)
    kind = _NAMES[number] if number < len(_NAMES) else f"call {number}"
    name = ELEMENTS[element] if element < len(ELEMENTS) else "elements of another type"
    reduction = ReduceOp(op).name if op in ReduceOp.__members__.values() else f"operation {op}"
    if kind == BARRIER:
        return "all_reduce of a sparse tensor" if root else kind
    if kind == AGREEMENT:
        return "the agreement on a policy's times"
    if count == VARYING_COUNT:
        return f"{kind} of {name}"
    row = CALLS.get(kind)  # of a call with its own plan, the plan says whether it reduces
    if name.startswith("complex"):
        count //= 2  # the engine's elements are the real and imaginary parts
    words = [f"{kind} of {count} x {name}"]
    if kind == OWN or (row is not None and row.reduces):
        words.append(reduction)
    if row is not None and row.roles:
        words.append(f"root {root}")
    elif root:
        words.append(f"for several calls, whose sizes have the checksum {root:05x}")
    return ", ".join(words)


Explain = Callable[[Report | None], SleyError | None]
"""Makes the error of an outcome of the engine; None for a good one."""

_PIECE_S = 0.1


def check_wait(timeout_s: float | None) -> None:
    """Refuses a time of `Work.wait` that is no number. Errors: R514."""
    if timeout_s is not None and (not isinstance(timeout_s, Real) or math.isnan(timeout_s)):
        raise R514.error(expected="timeout_s in seconds", found=f"timeout_s={timeout_s!r}")


class Work:
    """A call in progress. Keeps the `owners` of its memory alive until it has ended, even if this
    object is dropped.

    source: after a receive, the sender's rank.
    """

    __slots__ = ("_error", "_explain", "_lock", "_ticket", "source")

    def __init__(
        self, ticket: native.Ticket | None, explain: Explain, owners: tuple[object, ...] = ()
    ) -> None:
        self._ticket, self._explain = ticket, explain
        if ticket is not None and owners:
            ticket.keep(owners)
        self.source = NONE
        self._error: SleyError | None = None
        self._lock = threading.Lock()

    def is_completed(self) -> bool:
        """Whether the call has ended, successfully or not."""
        ticket = self._ticket
        return ticket is None or ticket.is_done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the call, and raises its error; False if it has not ended within
        `timeout_s`: then it continues. Errors: those of the call, R514."""
        check_wait(timeout_s)
        ticket = self._ticket  # another thread may take it away
        if ticket is not None:
            if not self._await(ticket, timeout_s):
                return False
            self._finish()
        if self._error is not None:
            raise self._error
        return True

    def error(self) -> SleyError | None:
        """The call's error; None while it is in progress and after success."""
        if self.is_completed():
            self._finish()
        return self._error

    def check(self) -> None:
        """Raises the error of the call, which has ended."""
        error = self.error()
        if error is not None:
            raise error

    def on_done(self, then: Callable[[], None]) -> None:
        """Calls `then` in the thread that ends the call, or at once if it has ended."""
        ticket = self._ticket
        if ticket is None:
            then()
        else:
            ticket.on_done(then)

    def _await(self, ticket: native.Ticket, timeout_s: float | None) -> bool:
        """Waits in pieces, so that Python's signal handlers can run between them."""
        end = None if timeout_s is None else time.monotonic() + float(timeout_s)
        while not self._await_briefly(ticket, _PIECE_S if end is None else _left_s(end)):
            if end is not None and time.monotonic() >= end:
                return False
        return True

    def _await_briefly(self, ticket: native.Ticket, timeout_s: float) -> bool:
        return ticket.wait(timeout_s)

    def _finish(self) -> None:
        with self._lock:
            ticket = self._ticket
            if ticket is None:
                return
            report = ticket.outcome
            self._error = self._explain(report)
            self.source = ticket.rank
            self._ticket = None


def _left_s(end: float) -> float:
    return min(_PIECE_S, max(0.0, end - time.monotonic()))


class CallWork(Work):
    """A collective in progress. Who waits without a limit runs it, and the calls before it, if the
    communicator's thread has not begun them."""

    __slots__ = ("_calls",)

    def __init__(
        self,
        calls: native.Calls,
        ticket: native.Ticket,
        explain: Explain,
        owners: tuple[object, ...],
    ) -> None:
        super().__init__(ticket, explain, owners)
        self._calls = calls

    def _await(self, ticket: native.Ticket, timeout_s: float | None) -> bool:
        if timeout_s is None and not self._calls.is_own_thread():
            self._calls.run_up_to(ticket)
        return super()._await(ticket, timeout_s)


class Done(Work):
    """A call that has already succeeded."""

    __slots__ = ()

    def __init__(self, source: int = NONE) -> None:
        super().__init__(None, lambda _: None)
        self.source = source


DONE = Done()
"""The work of a call that has succeeded before it returns."""
