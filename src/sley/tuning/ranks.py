"""Ranks: processes of this machine with a communicator, which check plans and time their calls.

A command goes to all ranks, and each rank answers when it has carried it out. Within a command the
ranks make the same calls one after the other, without a word from the parent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from sley.communicator import Call, Communicator, FolderStore, Settings
from sley.communicator.arrays import span
from sley.communicator.calls import OWN
from sley.communicator.jobs.commands import Raised
from sley.communicator.jobs.group import Death, WorkerGroup
from sley.communicator.rendezvous.gather import name_ranks
from sley.engine.check import CheckedBuffers, Pattern, Promise
from sley.engine.program import buffer_sizes
from sley.engine.types import DATA_TYPES, Array
from sley.errors import Place, SleyError
from sley.errors.closing import Closing
from sley.errors.runtime import R501, R507, R508, R511, R513
from sley.formats.plan_file import decode, encode
from sley.ir.plan import Plan
from sley.ir.tables import FloatArray
from sley.ir.words import ReduceOp

DTYPE = DATA_TYPES["float32"]
"""The type of all measured calls. They are sums."""

_SILENT_S = 120.0
"""How long a rank may be silent beside its communicator's timeout: it starts, compares results, or
makes calls that take long."""

_DEATH_S = 0.5
"""How long the news of a rank's end may take after the error of another rank that missed it."""


class Turn(NamedTuple):
    """Equal calls back to back. plan: its number. warm: calls before those that are timed. calls:
    timed ones."""

    plan: int
    warm: int
    calls: int


@dataclass(frozen=True)
class Setup:
    """The first command: a rank joins the communicator. folder: of its store."""

    rank: int
    ranks: int
    folder: str
    settings: Settings


@dataclass(frozen=True)
class Load:
    """Keeps a plan by its number. content: as `plan_file.encode` writes it."""

    plan: int
    content: bytes


@dataclass(frozen=True)
class CountWrong:
    """Runs a plan once on test data; answers with the number of wrong elements. count: elements of
    a block."""

    plan: int
    count: int


@dataclass(frozen=True)
class Time:
    """Makes the turns; answers with the time of a call in each, in microseconds."""

    count: int
    turns: tuple[Turn, ...]


class Worker:
    """One rank, in a process that `sley.communicator.jobs.worker` starts."""

    def __init__(self, setup: Setup, _memory_fd: int) -> None:
        store = FolderStore(setup.folder)
        self._comm = Communicator(
            store, setup.rank, setup.ranks, name="tune", settings=setup.settings
        )
        self._plans: dict[int, Plan] = {}
        self._memory: dict[int, tuple[Array, ...]] = {}

    def do(self, command: Any, _fd: int | None) -> Any:
        """Carries out a command, and returns its answer."""
        match command:
            case Load():
                self._plans[command.plan] = decode(command.content)
            case CountWrong():
                return self._count_wrong(self._plans[command.plan], command.count)
            case Time():
                return [self._time_us(turn, command.count) for turn in command.turns]
        return None

    def close(self) -> None:
        """Leaves the communicator. A process that ends needn't."""
        self._comm.close()

    def _count_wrong(self, plan: Plan, count: int) -> int:
        rank, in_place = self._comm.rank, plan.collective.in_place
        promise = Promise.of(plan, rank)
        pattern = Pattern.make(DTYPE, ReduceOp.SUM, promise.width)
        sizes = buffer_sizes(plan, rank, count)
        checked = CheckedBuffers(rank, promise, sizes, count, pattern, in_place)
        checked.fill()
        data, out = (buffer.array for buffer in checked.memory)
        self._comm.run(plan, data, None if in_place else out, count=count)
        return checked.count_wrong()

    def _time_us(self, turn: Turn, count: int) -> float:
        plan = self._plans[turn.plan]
        arrays = self._arrays(plan, count)
        memory = (*span(arrays[0]), *span(arrays[-1]))
        call = Call(OWN, *memory, count, DTYPE, ReduceOp.SUM, plan=plan)
        if turn.warm:
            self._comm.endpoint.time_us(call, turn.warm)
        return self._comm.endpoint.time_us(call, turn.calls)

    def _arrays(self, plan: Plan, count: int) -> tuple[Array, ...]:
        """The memory of calls of a size: the data in place, else input and output. It is written
        here, for the system gives memory only when it is; sums of zeros stay zeros."""
        if count not in self._memory:
            sizes = buffer_sizes(plan, self._comm.rank, count)
            in_place = plan.collective.in_place
            elements = (sizes.data,) if in_place else (sizes.input, sizes.output)
            self._memory[count] = tuple(np.full(one, 0, DTYPE.array) for one in elements)
        return self._memory[count]


class Ranks(Closing):
    """Processes of this machine that make calls of plans together, in a communicator.

    settings: of the communicator, by default those of the environment; without user plans and
    policies in any case. Use it as a context manager, or `close` it. After an error it is unusable
    (R508). Errors: R501, R507, R511, R513, and the communicator's.
    """

    def __init__(self, ranks: int, settings: Settings | None = None) -> None:
        settings = Settings.from_environment() if settings is None else settings
        self.ranks = ranks
        self.settings = replace(settings, plan_dir=None, tuner=None, explore=0.0)
        self._unusable = ""
        self._plans = 0
        self._folder = TemporaryDirectory(prefix="sley-tune-", ignore_cleanup_errors=True)
        self._group: WorkerGroup | None = None
        try:
            self._group = WorkerGroup(ranks, __name__)
            folder = self._folder.name
            pids = self._ask([Setup(r, ranks, folder, self.settings) for r in range(ranks)])
        except BaseException:
            self.close()
            raise
        self.pids: tuple[int, ...] = tuple(pids)

    def close(self) -> None:
        """Ends the processes. Closing twice does nothing."""
        self._unusable = self._unusable or "they were closed"
        if self._group is not None:
            self._group.close()
        self._folder.cleanup()

    def load(self, plan: Plan) -> int:
        """Gives all ranks a plan, which gets a number."""
        number = self._plans
        # The number is taken even if the command is interrupted: some ranks may have the plan.
        self._plans += 1
        self._ask([Load(number, encode(plan))] * self.ranks)
        return number

    def count_wrong(self, plan: int, count: int) -> int:
        """Runs a plan once on test data; returns the number of wrong elements on all ranks. count:
        elements of a block."""
        return sum(self._ask([CountWrong(plan, count)] * self.ranks))

    def time_us(self, turns: Sequence[Turn], count: int) -> FloatArray:
        """float64 (turns,): the time of a call in each turn, in microseconds: the mean of its timed
        calls on the slowest rank. All turns have collectives of the same buffers."""
        answers = self._ask([Time(count, tuple(turns))] * self.ranks)
        times: FloatArray = np.array(answers, np.float64)
        return np.asarray(times.max(axis=0))

    def _ask(self, commands: Sequence[Any]) -> list[Any]:
        """The ranks' answers to a command for each. Errors: R508, and those of `_collect`."""
        if self._unusable or self._group is None:
            raise R508.error(expected="ranks that run", found=self._unusable)
        try:
            for rank, command in enumerate(commands):
                self._group.send(rank, command)
            answers = self._collect(self._group)
        except BaseException as error:
            code = error.code if isinstance(error, SleyError) else type(error).__name__
            self._unusable = self._unusable or f"a command ended with {code}"
            self.close()
            raise
        return [answers[rank] for rank in range(self.ranks)]

    def _collect(self, group: WorkerGroup) -> dict[int, Any]:
        """Every rank's answer. Errors: R501 for a rank that died, R513 for a silent one, and the
        first error of a rank."""
        patience_s = _SILENT_S + 2 * self.settings.patience_s
        answers: dict[int, Any] = {}
        waiting = set(range(self.ranks))
        end = time.monotonic() + patience_s
        while waiting:
            news = group.receive(waiting, max(0.0, end - time.monotonic()))
            answers |= news.answers
            waiting -= news.answers.keys()
            raised = {r: a for r, a in sorted(news.answers.items()) if isinstance(a, Raised)}
            # A rank that dies makes the calls of the others fail, and their answers may be first.
            death = news.death or (group.receive(set(), _DEATH_S).death if raised else None)
            if death is not None:
                raise _death_error(death, group)
            for rank, answer in raised.items():
                raise _error_of(rank, answer)
            if waiting and time.monotonic() >= end:
                raise R513.error(
                    at=Place(detail=f"rank {min(waiting)}"),
                    expected=f"an answer from every rank within {patience_s:g} s",
                    found=f"none from {name_ranks(sorted(waiting))}",
                )
        return answers


def _death_error(death: Death, group: WorkerGroup) -> SleyError:
    notes = group.stderr().splitlines()
    if death.rank is None:
        return R511.error(expected="worker processes", found=death.how, notes=notes)
    return R501.error(
        at=Place(detail=f"rank {death.rank}"),
        expected="every rank's process to live until the tuner ends",
        found=f"the process of rank {death.rank} {death.how}",
        notes=notes,
    )


def _error_of(rank: int, answer: Raised) -> SleyError:
    """The error of a rank."""
    if answer.error is not None:
        return answer.error
    lines = answer.text.strip().splitlines()
    if answer.out_of_memory:
        found = f"rank {rank}: {lines[-1]}"
        return R507.error(expected="memory for the buffers of a call", found=found)
    return R511.error(
        at=Place(detail=f"rank {rank}"),
        expected="a worker without errors",
        found=lines[-1],
        notes=lines[:-1],
    )
