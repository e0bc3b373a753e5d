"""Ranks in separate processes, or in threads that simulate them: their exchanges and calls.

This is a separate module because new processes import their functions.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from threading import Barrier, Thread
from typing import Any

import numpy as np

import sley
from sley.engine.devices import Engine, Executor, Settings
from support.devices.device_calls import threads
from support.processes.forked import PROCESSES

TIMEOUT_S = 1.0
"""The timeout of an instruction that waits for a lost rank."""

PATIENCE_S = 60.0


@dataclass
class Meeting:
    """An exchange among threads of one process, each of which stands for one of `members`
    processes."""

    members: int
    said: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._barrier = Barrier(self.members, timeout=PATIENCE_S)
        self.said = [b""] * self.members

    def exchange(self, member: int) -> Callable[[bytes], Sequence[bytes]]:
        """The exchange of member number `member`."""

        def call(message: bytes) -> list[bytes]:
            self.said[member] = message
            self._barrier.wait()
            said = list(self.said)
            self._barrier.wait()
            return said

        return call


def apart(plan: sley.Plan, members: Sequence[Sequence[int]], **options: Any) -> list[Executor]:
    """An executor for each of `members`, the ranks of one simulated process."""
    meeting, made = Meeting(len(members)), [None] * len(members)
    settings = Settings(**options)

    def make(member: int, ranks: Sequence[int]) -> None:
        devices = dict.fromkeys(ranks, threads(member))
        made[member] = Executor(plan, devices, settings, exchange=meeting.exchange(member))

    together([lambda m=m, r=r: make(m, r) for m, r in enumerate(members)])
    return made


def together(calls: Sequence[Callable[[], None]]) -> None:
    """Runs the calls in threads; raises the first error."""
    errors: list[BaseException | None] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            calls[number]()
        except BaseException as error:
            errors[number] = error

    threads = [Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error


@dataclass(frozen=True)
class Order:
    """The calls of the processes. plan: of an AllReduce. members: the ranks of each process.
    counts: of the successive calls. killed: the process that ends before the last call. plain: the
    ranks with arrays that other processes can't read."""

    plan: sley.Plan
    engine: Engine
    members: Sequence[Sequence[int]]
    counts: Sequence[int]
    killed: int | None = None
    plain: Collection[int] = ()


def numbers(rank: int, count: int) -> Any:
    """The input of a rank."""
    return np.random.default_rng([rank, count]).integers(-999, 999, count)


def process(order: Order, member: int, pipe: Connection) -> None:
    """Runs one process: sends ("exchange", bytes), ("error", text) and ("results", arrays)."""

    def exchange(message: bytes) -> Sequence[bytes]:
        pipe.send(("exchange", message))
        answer: Sequence[bytes] = pipe.recv()
        return answer

    on = Executor(
        order.plan,
        dict.fromkeys(order.members[member], threads(member)),
        Settings(engine=order.engine, timeout_s=TIMEOUT_S, slot_bytes=2048),
        exchange=exchange,
    )
    results: list[dict[int, Any]] = []
    try:
        for number, count in enumerate(order.counts):
            is_last = number == len(order.counts) - 1
            call = _prepared(on, count, order.plain)
            exchange(b"")  # all have compiled their kernels
            if is_last and member == order.killed:
                os.kill(os.getpid(), signal.SIGKILL)
            results.append(call())
    except sley.SleyError as error:
        pipe.send(("error", str(error)))
    pipe.send(("results", results))


def _prepared(on: Executor, count: int, plain: Collection[int]) -> Callable[[], dict[int, Any]]:
    """An AllReduce; it returns each rank's output."""

    def arrays() -> dict[int, Any]:
        made = on.empty("int64", count)
        return made | {rank: np.empty_like(made[rank]) for rank in made if rank in plain}

    inputs = outputs = arrays()
    for rank in on.ranks:
        inputs[rank][:] = numbers(rank, count)
    if not on.plan.collective.in_place:
        outputs = arrays()
    prepared = on.prepare(inputs, None if outputs is inputs else outputs)

    def call() -> dict[int, Any]:
        prepared()
        return {rank: output.copy() for rank, output in outputs.items()}

    return call


@dataclass
class Report:
    """The outcome of the processes. results: of each process, the outputs of every finished call by
    rank. errors: by process. codes: the exit codes."""

    results: dict[int, list[dict[int, Any]]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    codes: list[int | None] = field(default_factory=list)


def run(order: Order) -> Report:
    """Starts the processes, forwards their exchanges, and waits for their ends."""
    pipes, children, report = [], [], Report()
    for member in range(len(order.members)):
        ours, theirs = PROCESSES.Pipe()
        child = PROCESSES.Process(target=process, args=(order, member, theirs), daemon=True)
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    try:
        _serve(pipes, report)
        for child in children:
            child.join(PATIENCE_S)
            report.codes.append(child.exitcode)
    finally:
        for child in children:
            child.kill()
    return report


def _serve(pipes: Sequence[Connection], report: Report) -> None:
    open_pipes, said = dict(enumerate(pipes)), dict[int, bytes]()
    while open_pipes:
        ready = wait(list(open_pipes.values()), PATIENCE_S)
        assert ready, "the processes say nothing"
        for member in [m for m, pipe in open_pipes.items() if pipe in ready]:
            try:
                word, value = open_pipes[member].recv()
            except EOFError:
                del open_pipes[member]
                continue
            if word == "exchange":
                said[member] = value
            elif word == "error":
                report.errors[member] = value
            else:
                report.results[member] = value
        if len(said) == len(pipes):
            for pipe in open_pipes.values():
                pipe.send([said[member] for member in sorted(said)])
            said.clear()
