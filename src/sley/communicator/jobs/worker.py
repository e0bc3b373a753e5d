"""The processes of a job: a spawner, and one worker a rank.

The launcher starts ``python -m sley.communicator.jobs.worker MODULE`` once. This process, the
spawner, imports the module, whose class `Worker` is a rank, and forks one worker for each rank, so
that N ranks cost one start of Python. It then reports every worker that ends to the launcher. It
has one thread, so forking is safe, and it is a new process, so the workers inherit no threads, open
files or ``__main__`` of the caller.

No process outlives the launcher: the spawner ends when its socket is closed (or its parent
changes), and kills the workers; the kernel kills them when the spawner dies.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from sley.communicator.jobs.commands import (
    Allocate,
    Attach,
    CountWrong,
    Fill,
    Raised,
    Run,
    Setup,
    receive_message,
    send_message,
)
from sley.engine import native
from sley.engine.check import CheckedBuffers, Pattern
from sley.engine.memory import is_out_of_memory
from sley.engine.outcomes import Report
from sley.engine.types import DATA_TYPES
from sley.engine.varying import places_in
from sley.errors import SleyError

_PARENT_CHECK_S = 1.0
"""How often the spawner checks that the launcher is alive, besides watching its socket: a child
that the launcher forked may keep the socket open."""


class Server(Protocol):
    """A rank that answers commands."""

    def do(self, command: Any, fd: int | None) -> Any:
        """Carries out a command, and returns its answer."""


Make = Callable[[Any, int], Server]
"""Makes a rank from its first command and the descriptor of the shared memory (-1 without any)."""


class Worker:
    """One rank: an engine, and the memory of the current call."""

    def __init__(self, setup: Setup, memory_fd: int) -> None:
        self._rank = setup.program.rank
        self._promise = setup.promise
        wiring = setup.wiring
        memory = native.Segment.attach(memory_fd, wiring.shape().bytes)
        self._engine = setup.program.engine(wiring.fabric(memory, self._rank), wiring)
        self._checked: CheckedBuffers | None = None
        nothing = np.zeros(0, np.uint8)
        self._memory = (nothing, nothing)
        self._counts: tuple[list[int], list[int]] | None = None

    def do(self, command: Any, fd: int | None) -> Any:
        """Carry out a command and return its answer."""
        match command:
            case Attach():
                self._attach(command, fd)
            case Allocate():
                self._allocate(command)
            case Fill():
                self._buffers().fill()
            case Run():
                return self._run(command)
            case CountWrong():
                return self._buffers().count_wrong()
        return None

    def _attach(self, command: Attach, fd: int | None) -> None:
        assert fd is not None  # it comes with the command
        array = native.Segment.attach(fd, command.segment_bytes).array
        (a, b), (c, d) = command.memory
        self._checked, self._memory = None, (array[a:b], array[c:d])
        self._counts = command.counts

    def _allocate(self, command: Allocate) -> None:
        pattern = Pattern.make(DATA_TYPES[command.dtype], command.reduce_op, self._promise.width)
        # Free the buffers of the last size first: both together may not fit.
        self._checked, self._memory = None, (np.zeros(0, np.uint8), np.zeros(0, np.uint8))
        self._checked = CheckedBuffers(
            self._rank, self._promise, command.sizes, command.count, pattern, command.in_place
        )
        first, second = (buffer.array.view(np.uint8) for buffer in self._checked.memory)
        self._memory, self._counts = (first, second), None

    def _buffers(self) -> CheckedBuffers:
        if self._checked is None:
            raise RuntimeError("no buffers allocated")
        return self._checked

    def _run(self, command: Run) -> Report:
        dtype = DATA_TYPES[command.dtype]
        if self._counts is not None:
            places = [
                places_in(memory, counts, dtype.size_bytes)
                for memory, counts in zip(self._memory, self._counts, strict=True)
            ]
            parts = native.Parts.create(*places)
            last = command.iterations, command.timeout_s
            return self._engine.run_varying(parts, dtype.number, *last)
        return self._engine.run(
            command.count,
            dtype.number,
            int(command.reduce_op),
            *self._memory,
            command.iterations,
            command.timeout_s,
        )


def serve(sock: socket.socket, memory_fd: int, make: Make) -> None:
    """Runs a worker: makes it from the first command, which it answers with its process id, then
    answers commands until the launcher closes the socket."""
    worker: Server | None = None
    while True:
        try:
            command, fd = receive_message(sock)
        except EOFError:
            return
        answer: Any = None
        try:
            if worker is None:
                worker, answer = make(command, memory_fd), os.getpid()
            else:
                answer = worker.do(command, fd)
        except Exception as error:
            own = error if isinstance(error, SleyError) else None
            answer = Raised(traceback.format_exc(limit=-3), is_out_of_memory(error), own)
        finally:
            if fd is not None:
                os.close(fd)
        try:
            send_message(sock, answer)
        except OSError:
            return


def _become_worker(
    spawner: int, sock: socket.socket, others: list[socket.socket], memory_fd: int, make: Make
) -> None:
    """Runs the worker in a forked child; never returns."""
    try:
        native.die_with_parent()
        if os.getppid() != spawner:
            return  # the spawner died before die_with_parent took effect
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            other.close()
        serve(sock, memory_fd, make)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class Spawner:
    """Forks the workers, reports their ends, and kills them when it ends."""

    def __init__(
        self, control: socket.socket, ranks: list[socket.socket], memory_fd: int, make: Make
    ) -> None:
        self._control, self._ranks, self._memory_fd = control, ranks, memory_fd
        self._make = make
        self._parent = os.getppid()
        self._rank_of: dict[int, int] = {}

    def run(self) -> None:
        """Fork the workers, then watch until the launcher has ended."""
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        everything = [self._control, wake_read, wake_write, *self._ranks]
        spawner = os.getpid()
        for rank, sock in enumerate(self._ranks):
            pid = os.fork()
            if pid == 0:
                others = [s for s in everything if s is not sock]
                _become_worker(spawner, sock, others, self._memory_fd, self._make)
            self._rank_of[pid] = rank
        for sock in self._ranks:
            sock.close()
        try:
            self._watch(wake_read)
        finally:
            for pid in self._rank_of:
                os.kill(pid, signal.SIGKILL)
            for pid in self._rank_of:
                os.waitpid(pid, 0)

    def _watch(self, wake: socket.socket) -> None:
        poll = select.poll()  # unlike select, it takes descriptors of any number
        for sock in (self._control, wake):
            poll.register(sock, select.POLLIN)
        while os.getppid() == self._parent:
            ready = {fd for fd, _ in poll.poll(_PARENT_CHECK_S * 1000)}
            if self._control.fileno() in ready:
                return  # the launcher sends nothing here: its end is closed
            if wake.fileno() in ready:
                wake.recv(4096)
                self._report()

    def _report(self) -> None:
        while self._rank_of:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            send_message(self._control, (self._rank_of.pop(pid), status))


def main(arguments: list[str]) -> None:
    """``worker MODULE MEMORY_FD CONTROL_FD RANK_FD...``, all inherited."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    make: Make = importlib.import_module(arguments[0]).Worker
    memory_fd, control, *ranks = (int(a) for a in arguments[1:])
    sockets = [socket.socket(fileno=fd) for fd in ranks]
    Spawner(socket.socket(fileno=control), sockets, memory_fd, make).run()


if __name__ == "__main__":
    main(sys.argv[1:])
