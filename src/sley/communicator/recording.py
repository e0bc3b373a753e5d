"""Recording: what a process calls, and computes between its calls, as a workload."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from sley.communicator.calls import OWN, Call
from sley.communicator.stats import logger
from sley.errors import SleyError
from sley.ir.collectives import STANDARD, standard
from sley.rendezvous.hosts import Hosts
from sley.selection.kinds import CALLS, size_of
from sley.workloads import Group, Steps, Workload, write
from sley.workloads.workload import MOST_STEPS

VARIABLE = "SLEY_RECORD"
"""The environment variable with the file that a process records its workload to."""


class Caller(Protocol):
    """A rank of a communicator: an `Endpoint`."""

    name: str
    rank: int
    ranks: int
    hosts: Hosts


@dataclass(frozen=True, eq=False)
class Member:
    """What is kept of a rank of a communicator, which may be closed."""

    name: str
    rank: int
    ranks: int
    hosts: Hosts


class Recorder:
    """Records the collectives of this process in the order of their starts, and the time between
    the end of each and the start of the next as computation.

    Not recorded: messages, also those of an AllToAll with different sizes; calls with plans of the
    caller's for no standard collective; calls of groups that no `Group` describes. Computations
    before the first call are left out.
    """

    def __init__(self) -> None:
        self._events: list[_Called | _Waited] = []
        self._members: dict[int, Member] = {}
        self._end_s: float | None = None
        self._lock = threading.Lock()

    def begin(self, caller: Caller, call: Call) -> Recorded:
        """A call begins."""
        with self._lock:
            c, hosts = caller, caller.hosts
            key = id(hosts)  # which stays alive in the member
            if key not in self._members:
                self._members[key] = Member(c.name, c.rank, c.ranks, hosts)
            member = self._members[key]
            event = _Called(self._pause_us(), member, *_kind_of(member, call))
            self._add(event)
            return Recorded(self, event, threading.get_ident())

    def workload(self, name: str = "recorded") -> Workload:
        """The workload so far. Without any call it has one empty step."""
        with self._lock:
            events = list(self._events)
        groups = {id(member): self._group(member) for member in self._members.values()}
        steps, numbers = Steps(), dict[int, int]()
        for event in events:
            steps.compute(event.compute_us)
            if isinstance(event, _Waited):
                if id(event.call) in numbers:
                    steps.wait(numbers.pop(id(event.call)))
            elif (group := groups[id(event.member)]) is not None and event.collective:
                number = steps.call(
                    event.collective, event.size_bytes, group=group, overlaps=event.is_async
                )
                if event.is_async:
                    numbers[id(event)] = number
        return steps.workload(name, self._world.ranks if events else 1)

    @property
    def is_first(self) -> bool:
        """Whether it has calls, and this process is rank 0 of its largest communicator."""
        return bool(self._events) and self._world.rank == 0

    @property
    def _world(self) -> Member:
        """The member of the communicator with the most ranks."""
        return max(self._members.values(), key=lambda member: member.ranks)

    def end(self) -> None:
        """A call or a wait ends: what follows is computation."""
        self._end_s = time.perf_counter()

    def wait(self, call: _Called) -> None:
        """A wait for a call begins."""
        with self._lock:
            self._add(_Waited(self._pause_us(), call))

    def _pause_us(self) -> float:
        now = time.perf_counter()
        pause = 0.0 if self._end_s is None else max(now - self._end_s, 0.0)
        self._end_s = now
        return pause * 1e6

    def _add(self, event: _Called | _Waited) -> None:
        if len(self._events) < MOST_STEPS - 1:
            self._events.append(event)
        elif len(self._events) == MOST_STEPS - 1:
            self._events.append(event)
            logger.warning("only the first %d calls and waits are recorded", MOST_STEPS)

    def _group(self, member: Member) -> Group | None:
        """The group that makes the calls of a member; None if no `Group` describes it."""
        world = self._world
        if member.ranks == world.ranks:
            return Group.CLUSTER
        in_host = np.bincount(world.hosts.host)
        own = np.bincount(member.hosts.host)
        if member.ranks == own.max() == in_host.min() == in_host.max():
            return Group.NODE
        if own.max() == 1 and member.ranks == len(in_host):
            return Group.RAIL
        logger.warning(
            "%s: its calls are not recorded: its ranks are neither a node nor one of each node",
            member.name,
        )
        return None


@dataclass(eq=False)
class _Called:
    """A call. collective: "" if it is not recorded. is_async: whether it was seen to overlap what
    follows."""

    compute_us: float
    member: Member
    collective: str
    size_bytes: int
    is_async: bool = field(default=False)


@dataclass(eq=False)
class _Waited:
    """A wait for a call."""

    compute_us: float
    call: _Called


class Recorded:
    """A recorded call in progress."""

    __slots__ = ("_call", "_is_waited", "_recorder", "_thread")

    def __init__(self, recorder: Recorder, call: _Called, thread: int) -> None:
        self._recorder, self._call, self._thread = recorder, call, thread
        self._is_waited = False

    def end(self) -> None:
        """The call has ended, and nothing ran beside it."""
        self._recorder.end()

    def overlap(self) -> Recorded:
        """The call runs on while its caller continues."""
        self._call.is_async = True
        self._recorder.end()
        return self

    def begin_wait(self) -> None:
        """A thread begins to wait for the call. Only the caller's thread counts: others finish the
        call's work."""
        if threading.get_ident() == self._thread and not self._is_waited:
            self._recorder.wait(self._call)

    def end_wait(self) -> None:
        """A wait has ended."""
        if threading.get_ident() == self._thread and not self._is_waited:
            self._is_waited = True
            self._recorder.end()


class Recording:
    """The recorder of this process, which is one rank. recorder: None while nothing is recorded."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._path: Path | None = None

    def start(self) -> None:
        """Records from now on if SLEY_RECORD names a file."""
        path = os.environ.get(VARIABLE)
        if path and self.recorder is None:
            self._path, self.recorder = Path(path), Recorder()

    def save(self) -> None:
        """Writes what has been recorded to the file, if this process is rank 0 of its largest
        communicator. A failure is logged, for it must not end a training."""
        recorder, path = self.recorder, self._path
        if recorder is None or path is None:
            return
        try:
            if recorder.is_first:
                write(recorder.workload(path.stem), path)
        except SleyError as error:
            logger.warning("%s=%s: %s", VARIABLE, path, error)

    def forget(self) -> None:
        """Stops recording without a file."""
        self.recorder = self._path = None


RECORDING = Recording()
"""What this process records: one value, for a workload has the calls of all communicators."""

# A forked child is not a rank.
os.register_at_fork(after_in_child=RECORDING.forget)


@contextlib.contextmanager
def record() -> Iterator[Recorder]:
    """Records the calls in its block: ``with record() as recorder: step()``, then
    ``recorder.workload("a step")``."""
    before = RECORDING.recorder
    recorder = RECORDING.recorder = Recorder()
    try:
        yield recorder
    finally:
        RECORDING.recorder = before


def _kind_of(member: Member, call: Call) -> tuple[str, int]:
    """The collective and the size of a call; "" for what is not recorded."""
    if call.kind == OWN:
        plan = call.plan
        if plan is None or standard(plan.collective) is None:
            return "", 0
        blocks = plan.collective.blocks
        return plan.collective.name, call.count * call.dtype.size_bytes * blocks
    name = CALLS[call.kind].name
    size_bytes = size_of(call.kind, member.ranks, call.count, call.dtype.size_bytes)
    return (name, size_bytes) if size_bytes and name in STANDARD else ("", 0)
