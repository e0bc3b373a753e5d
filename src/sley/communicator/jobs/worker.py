"""The processes of a job: a spawner, and one worker a rank.

The launcher starts ``python -m sley.communicator.jobs.worker`` once. This process, the spawner,
forks one worker for each rank, so that N ranks cost one start of Python. It then reports every
worker that ends to the launcher. It has one thread, so forking is safe, and it is a new process, so
the workers inherit no threads, open files or ``__main__`` of the caller.

No process outlives the launcher: the spawner ends when its socket is closed (or its parent
changes), and kills the workers; the kernel kills them when the spawner dies.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from sley.communicator import Call, Communicator, FolderStore, Parts
from sley.communicator.arrays import is_in_place, span
from sley.communicator.calls import OWN
from sley.communicator.jobs.commands import (
    BenchCall,
    CountWrong,
    Execute,
    FailedCallError,
    Load,
    Raised,
    Setup,
    Time,
)
from sley.engine import native
from sley.engine.check import CheckedBuffers, Pattern, Promise
from sley.engine.memory import is_out_of_memory
from sley.engine.native import die_with_parent  # loaded before the fork, the engine is shared
from sley.engine.program import buffer_sizes
from sley.engine.types import DATA_TYPES, Array
from sley.engine.varying import blocks_of, places_in
from sley.errors import SleyError
from sley.ir.plan import Plan

_PARENT_CHECK_S = 1.0
"""How often the spawner checks that the launcher is alive, besides watching its socket: a child
that the launcher forked may keep the socket open."""


class Worker:
    """One rank: a communicator, the plans that it has loaded, and the memory of the last call."""

    def __init__(self, setup: Setup) -> None:
        store = FolderStore(setup.folder)
        self._comm = Communicator(
            store, setup.rank, setup.ranks, name="job", settings=setup.settings
        )
        self._comm.endpoint.set_timeout(setup.timeout_s)
        self._plans: dict[int, Plan] = {}
        self._promises: dict[int, Promise] = {}
        self._buffers: CheckedBuffers | None = None
        self._layout: object = None

    def do(self, command: Any, fd: int | None) -> Any:
        """Carry out a command and return its answer. Errors: `FailedCallError` for a call."""
        try:
            match command:
                case Load():
                    self._load(command)
                case CountWrong():
                    return self._count_wrong(command.call)
                case Time():
                    return self._times_us(command)
                case Execute():
                    assert fd is not None  # it comes with the command
                    array = native.Segment.attach(fd, command.segment_bytes).array
                    memory = [array[start:end] for start, end in command.memory]
                    self._run(self._call(command.call, memory, command.counts), 1)
        except FailedCallError:
            raise
        except Exception:
            self._comm.abort()  # the others need not wait for this rank
            raise
        return None

    def close(self) -> None:
        """Leaves the communicator. A process that ends needn't."""
        self._comm.close()

    def _load(self, command: Load) -> None:
        plan: Plan = pickle.loads(command.content)
        self._comm.endpoint.load(plan)
        self._plans[command.number] = plan
        self._promises[command.number] = Promise.of(plan, self._comm.rank)

    def _count_wrong(self, call: BenchCall) -> int:
        self._layout = None  # a wrong plan must not find the last call's results
        buffers = self._test_data(call)
        self._run(self._call(call, [buffer.array for buffer in buffers.memory]), 1)
        return buffers.count_wrong()

    def _times_us(self, command: Time) -> list[float]:
        memory = [buffer.array for buffer in self._test_data(command.call).memory]
        times = []
        for turn in command.turns:
            call = self._call(command.call, memory, number=turn.plan)
            if turn.warm:
                self._run(call, turn.warm)
            times.append(self._run(call, turn.calls))
        return times

    def _test_data(self, call: BenchCall) -> CheckedBuffers:
        """Buffers with test data; those of the last call if that had the same layout, whose data no
        longer matter."""
        plan, rank, dtype = self._plans[call.plan], self._comm.rank, DATA_TYPES[call.dtype]
        in_place = plan.collective.in_place
        sizes = buffer_sizes(plan, rank, call.count)
        layout = sizes, call.count, call.dtype, in_place
        if self._buffers is None or layout != self._layout:
            # Free the buffers of the last size first: both together may not fit.
            self._buffers = self._layout = None
            promise = self._promises[call.plan]
            pattern = Pattern.make(dtype, call.reduce_op, promise.width)
            self._buffers = CheckedBuffers(rank, promise, sizes, call.count, pattern, in_place)
            self._buffers.fill()
            self._layout = layout
        return self._buffers

    def _call(
        self,
        call: BenchCall,
        memory: Sequence[Array],
        counts: tuple[list[int], list[int]] | None = None,
        number: int | None = None,
    ) -> Call:
        """The call on memory: input and output, or in place the data and nothing. number: of the
        plan, by default the call's."""
        plan, dtype = self._plans[call.plan if number is None else number], DATA_TYPES[call.dtype]
        c = plan.collective
        if c.varies:
            blocks = blocks_of(c, c.input_chunks), blocks_of(c, c.output_chunks)
            counts = counts or ([call.count] * blocks[0], [call.count] * blocks[1])
            item = dtype.size_bytes
            places = [places_in(*one, item) for one in zip(memory, counts, strict=True)]
            return Call(OWN, 0, 0, 0, 0, 0, dtype, plan=plan, parts=Parts.of(*places))
        first, last = span(memory[0]), span(memory[0 if c.in_place else 1])
        return Call(OWN, *first, *last, call.count, dtype, call.reduce_op, plan=plan)

    def _run(self, call: Call, calls: int) -> float:
        """The time of a call, in microseconds. Errors: `FailedCallError`."""
        time_us, report = self._comm.endpoint.repeat(call, calls)
        if report is not None:
            in_place = is_in_place(call, self._comm.rank)
            error = self._comm.endpoint.error_of(call, in_place, report)
            assert error is not None
            raise FailedCallError(report, error)
        return time_us


def serve(pipe: Connection) -> None:
    """Runs a worker: makes it from the first command, which it answers with its process id, then
    answers commands until the launcher closes the connection."""
    worker: Worker | None = None
    while True:
        fd = None
        try:
            command = pipe.recv()
            if isinstance(command, Execute):
                fd = reduction.recv_handle(pipe)
        except (EOFError, ConnectionError):
            return
        answer: Any = None
        try:
            if worker is None:
                worker, answer = Worker(command), os.getpid()
            else:
                answer = worker.do(command, fd)
        except FailedCallError as failed:
            answer = failed
        except Exception as error:
            own = error if isinstance(error, SleyError) else None
            answer = Raised(traceback.format_exc(limit=-3), is_out_of_memory(error), own)
        finally:
            if fd is not None:
                os.close(fd)
        try:
            pipe.send(answer)
        except OSError:
            return


def _become_worker(spawner: int, pipe: Connection, others: list[Any]) -> None:
    """Runs the worker in a forked child; never returns."""
    try:
        die_with_parent()
        if os.getppid() != spawner:
            return  # the spawner died before die_with_parent took effect
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            other.close()
        serve(pipe)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class Spawner:
    """Forks the workers, reports their ends, and kills them when it ends."""

    def __init__(self, control: Connection, ranks: list[Connection]) -> None:
        self._control, self._ranks = control, ranks
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
        gc.freeze()  # no collection then writes to the pages that the workers share
        for rank, pipe in enumerate(self._ranks):
            pid = os.fork()
            if pid == 0:
                others = [one for one in everything if one is not pipe]
                _become_worker(spawner, pipe, others)
            self._rank_of[pid] = rank
        for pipe in self._ranks:
            pipe.close()
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
            self._control.send((self._rank_of.pop(pid), status))


def main(arguments: list[str]) -> None:
    """``worker CONTROL_FD RANK_FD...``, all inherited."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a rank has 3 descriptors of each other
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    control, *ranks = (Connection(int(fd)) for fd in arguments)
    Spawner(control, ranks).run()


if __name__ == "__main__":
    main(sys.argv[1:])
