"""Commands: the launcher's messages to its workers, their answers, and the transport of both.

A command is an instance of one of these classes. The answer to a command that failed is a `Raised`;
every other answer is a plain value. Messages are pickled and sent over a local socket, with a file
descriptor if they need one. Unpickling is safe, since the launcher started the other process.
"""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from sley.engine.check import Promise
from sley.engine.program import BufferSizes, RankProgram, Wiring
from sley.errors import SleyError
from sley.ir.words import ReduceOp

_HEADER = struct.Struct("<q")


@dataclass(frozen=True)
class Setup:
    """The first message to each worker."""

    wiring: Wiring
    program: RankProgram
    promise: Promise


@dataclass(frozen=True)
class Attach:
    """Use memory of the attached segment: input (or data) and output as byte ranges. counts: of the
    blocks of input and output, if they vary."""

    segment_bytes: int
    memory: tuple[tuple[int, int], tuple[int, int]]
    counts: tuple[list[int], list[int]] | None = None


@dataclass(frozen=True)
class Allocate:
    """Allocate buffers for a call of `count` elements a block, for measuring and checking."""

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
