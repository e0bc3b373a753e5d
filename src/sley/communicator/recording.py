"""Recording: what a process calls, and computes between its calls, as a workload."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sley.communicator.calls import Call
from sley.communicator.rendezvous.hosts import Hosts, Process
from sley.communicator.selection.kinds import CALLS, size_of
from sley.communicator.stats import logger
from sley.engine import native
from sley.errors import SleyError
from sley.ir.collectives import standard
from sley.tuning.workloads import Group, Steps, Workload, write
from sley.tuning.workloads.workload import MOST_STEPS

VARIABLE = "SLEY_RECORD"
"""The environment variable with the file that a process records its workload to."""


@dataclass(frozen=True, eq=False)
class Member:
    """A rank of a communicator, for a recording, which is longer in use than the communicator.

    name: the communicator's. processes: of all its ranks.
    """

    name: str
    rank: int
    processes: tuple[Process, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.processes)

    @cached_property
    def hosts(self) -> Hosts:
        """Which ranks share a host."""
        return Hosts.of([process.host for process in self.processes])


class Recorder:
    """Records the collectives of this process in the order of their starts, and the time between
    the end of each and the start of the next as computation.

    Not recorded: messages; calls of varying counts, whose sizes no rank knows; calls with
    the caller's own plans for no standard collective; calls without data; calls of groups that no
    `Group` describes; computations before the first call.
    """

    def __init__(self) -> None:
        self._events: list[Called | _Waited] = []
        self._members: dict[Member, None] = {}  # in the order of their first calls
        self._end_s: float | None = None
        self._lock = threading.Lock()

    def begin(self, member: Member, call: Call) -> Called:
        """A call begins."""
        with self._lock:
            self._members.setdefault(member)
            event = Called(self._pause_us(), member, *_kind_of(member, call))
            self._add(event)
            return event

    def workload(self, name: str = "recorded") -> Workload:
        """The workload so far. Without any call it has one empty step."""
        with self._lock:
            events = list(self._events)
            groups = {member: self._group(member) for member in self._members}
        steps, numbers = Steps(), dict[int, int]()
        for event in events:
            steps.compute(event.compute_us)
            if isinstance(event, _Waited):
                if id(event.call) in numbers:
                    steps.wait(numbers.pop(id(event.call)))
            elif (group := groups[event.member]) is not None and event.collective:
                number = steps.call(
                    event.collective, event.size_bytes, group=group, overlaps=event.async_op
                )
                if event.async_op:
                    numbers[id(event)] = number
        return steps.workload(name, self._world.ranks if events else 1)

    @property
    def is_first(self) -> bool:
        """Whether it has calls, and this process is rank 0 of its largest communicator."""
        return bool(self._events) and self._world.rank == 0

    @property
    def _world(self) -> Member:
        """The member of the communicator with the most ranks."""
        return max(self._members, key=lambda member: member.ranks)

    def end(self) -> None:
        """A call or a wait ends: what follows is computation."""
        self._end_s = time.perf_counter()

    def wait(self, call: Called) -> None:
        """A wait for a call begins."""
        with self._lock:
            self._add(_Waited(self._pause_us(), call))

    def _pause_us(self) -> float:
        now = time.perf_counter()
        pause = 0.0 if self._end_s is None else max(now - self._end_s, 0.0)
        self._end_s = now
        return pause * 1e6

    def _add(self, event: Called | _Waited) -> None:
        most = MOST_STEPS - 1  # a workload may end with a further step, a wait for what is open
        if len(self._events) < most:
            self._events.append(event)
            if len(self._events) == most:
                logger.warning("only the first %d calls and waits are recorded", most)

    def _group(self, member: Member) -> Group | None:
        """The group that makes the calls of a member; None if no `Group` describes it."""
        world = self._world
        rank_of = {process: rank for rank, process in enumerate(world.processes)}
        if all(process in rank_of for process in member.processes):
            ranks = [rank_of[process] for process in member.processes]
            if len(ranks) == world.ranks:
                return Group.CLUSTER
            hosts = world.hosts
            if hosts.is_uniform and set(ranks) == set(hosts.of_host(ranks[0])):
                return Group.NODE
            if len(ranks) == hosts.count and len({hosts.local[rank] for rank in ranks}) == 1:
                return Group.RAIL
        logger.warning(
            "%s: its calls are not recorded: its ranks are neither all of %s, nor those of a node, "
            "nor those with the same place in each node",
            member.name,
            world.name,
        )
        return None


@dataclass(eq=False)
class Called:
    """A recorded call.

    compute_us: the computation before it. collective: its name; "" for a call that the workload
    leaves out. async_op: whether the caller continued while it ran.
    """

    compute_us: float
    member: Member
    collective: str
    size_bytes: int
    async_op: bool = field(default=False)


@dataclass(eq=False)
class _Waited:
    """A wait for a call."""

    compute_us: float
    call: Called


class Recorded:
    """A call in progress, and its entry in each recorder."""

    __slots__ = ("_entries", "_is_waited", "_thread")

    def __init__(self, entries: tuple[tuple[Recorder, Called], ...]) -> None:
        self._entries, self._thread = entries, threading.get_ident()
        self._is_waited = False

    def end(self) -> None:
        """The call has ended, and nothing ran beside it."""
        for recorder, _ in self._entries:
            recorder.end()

    def overlap(self) -> Recorded:
        """The call runs on while its caller continues."""
        for _, call in self._entries:
            call.async_op = True
        self.end()
        return self

    def drop(self) -> None:
        """The call ran with varying counts, since another rank gave some."""
        for _, call in self._entries:
            call.collective = ""

    def begin_wait(self) -> None:
        """A thread begins to wait for the call. Only the caller's thread counts: others finish the
        call's work."""
        if threading.get_ident() == self._thread and not self._is_waited:
            for recorder, call in self._entries:
                recorder.wait(call)

    def end_wait(self) -> None:
        """A wait has ended."""
        if threading.get_ident() == self._thread and not self._is_waited:
            self._is_waited = True
            self.end()


class Recording:
    """The recorders of this process, which is one rank: that of SLEY_RECORD's file, and those of
    `record`'s blocks. Each gets all calls."""

    def __init__(self) -> None:
        self._recorders: tuple[Recorder, ...] = ()
        self._file: tuple[Path, Recorder] | None = None

    @property
    def recorders(self) -> tuple[Recorder, ...]:
        """Those that record now."""
        return self._recorders

    @recorders.setter
    def recorders(self, recorders: tuple[Recorder, ...]) -> None:
        if bool(recorders) != bool(self._recorders):
            native.TensorCalls.is_watched = bool(recorders)  # calls without Python aren't recorded
        self._recorders = recorders

    def start(self) -> None:
        """Records from now on if SLEY_RECORD names a file."""
        path = os.environ.get(VARIABLE)
        if path and self._file is None:
            self._file = Path(path), self.add()

    def add(self) -> Recorder:
        """A further recorder, which gets the calls from now on."""
        recorder = Recorder()
        self.recorders = (*self.recorders, recorder)
        return recorder

    def remove(self, recorder: Recorder) -> None:
        """A recorder gets no further calls."""
        self.recorders = tuple(one for one in self.recorders if one is not recorder)

    def begin(self, member: Member, call: Call) -> Recorded:
        """A call begins."""
        return Recorded(tuple((one, one.begin(member, call)) for one in self.recorders))

    def save(self) -> None:
        """Writes the recording to SLEY_RECORD's file, if this process is rank 0 of its largest
        communicator. A failure is logged, for it must not end a training."""
        if self._file is None:
            return
        path, recorder = self._file
        try:
            if recorder.is_first:
                write(recorder.workload(path.stem), path)
        except SleyError as error:
            logger.warning("%s=%s: %s", VARIABLE, path, error)

    def forget(self) -> None:
        """Stops all recorders without writing the file."""
        self.recorders, self._file = (), None


RECORDING = Recording()
"""What this process records: one value, for a workload has the calls of all communicators."""

# A forked child is not a rank.
os.register_at_fork(after_in_child=RECORDING.forget)


@contextlib.contextmanager
def record() -> Iterator[Recorder]:
    """Records the calls in its block: ``with record() as recorder: step()``, then
    ``recorder.workload("a step")``."""
    recorder = RECORDING.add()
    try:
        yield recorder
    finally:
        RECORDING.remove(recorder)


def _kind_of(member: Member, call: Call) -> tuple[str, int]:
    """The collective and the size of a call; "" for what is not recorded."""
    if call.parts is not None:
        return "", 0
    if call.plan is None:
        name = CALLS[call.kind].name
        size_bytes = size_of(call.kind, member.ranks, call.count, call.dtype.size_bytes)
    else:
        c = call.plan.collective
        name = "" if standard(c) is None else c.name
        size_bytes = call.count * call.dtype.size_bytes * c.blocks
    return (name, size_bytes) if name and size_bytes else ("", 0)
