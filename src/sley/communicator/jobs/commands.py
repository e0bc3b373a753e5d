"""Commands: the launcher's messages to its workers, their answers, and the transport of both.

A command is an instance of one of these classes. The answer to a command that failed is a `Raised`,
or a `FailedCallError` if a call did; every other answer is a plain value. Messages are pickled and
sent over a local socket, with a file descriptor if they need one. Unpickling is safe, since the
launcher started the other process.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sley.communicator import Settings
from sley.engine.outcomes import Report
from sley.errors import SleyError
from sley.ir.words import ReduceOp

_HEADER = struct.Struct("<q")


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


def send_message(sock: socket.socket, value: Any, fd: int | None = None) -> None:
    """Send `value`, and a duplicate of descriptor `fd`; OSError if the other end is closed."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    header = _HEADER.pack(len(data))
    if fd is None:
        sock.sendall(header)
    else:
        socket.send_fds(sock, [header], [fd])
    sock.sendall(data)


def receive_message(sock: socket.socket) -> tuple[Any, int | None]:
    """The next value and its descriptor, if it has one; EOFError if the other end is closed."""
    try:
        header, fds, _, _ = socket.recv_fds(sock, _HEADER.size, 1)
        fd = fds[0] if fds else None
        header += _receive_exactly(sock, _HEADER.size - len(header)) if header else b""
        if not header:
            raise EOFError
        return pickle.loads(_receive_exactly(sock, _HEADER.unpack(header)[0])), fd
    except ConnectionError as error:
        raise EOFError from error


def _receive_exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        n = sock.recv_into(view[got:])
        if n == 0:
            raise EOFError
        got += n
    return data
