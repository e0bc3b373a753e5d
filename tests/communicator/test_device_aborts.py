"""Ends of communicators on devices before their time: an abort, a refusal or the end of a process,
at any moment, ends what all ranks do in an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import numpy as np
import pytest

from sley.communicator import DeviceCommunicator, FolderStore, LocalStore, Settings
from sley.engine.devices import Engine, ThreadsDevice
from sley.engine.devices import Settings as KernelSettings
from sley.errors import Rule, SleyError
from sley.errors.devices import K503, K507
from support.devices.communicators import codes, on_all, opened
from support.devices.device_calls import threads
from support.processes.process_ranks import together
from support.processes.rank_processes import start

SHORTLY_S = 0.05
"""Usually enough for a call to wait for other ranks. An abort ends it earlier, too."""

ENDED = {"N608", "N630"}


@pytest.fixture
def two() -> Iterator[list[DeviceCommunicator]]:
    comms = opened([threads()] * 2, types=["int32"])
    yield comms
    on_all(comms, lambda comm: comm.close())


def data(dtype: type = np.int32) -> Any:
    return np.ones(8, dtype)


def started(comm: DeviceCommunicator) -> None:
    comm.all_reduce(data(), stream=comm.device.stream())
    comm.synchronize()


PHASES: dict[str, Callable[[DeviceCommunicator], Any]] = {
    "a call": lambda comm: comm.all_reduce(data()),
    "a call on a stream": started,
    "a barrier": lambda comm: comm.barrier(),
    "a split": lambda comm: comm.split(0),
    "no part of a split": lambda comm: comm.split(None),
    "loading": lambda comm: comm.all_reduce(data(np.int64)),
    "scratch": lambda comm: comm.all_to_all(own := data(), own),
    "memory": lambda comm: comm.empty("int32", 8),
}


@pytest.mark.parametrize("by", [[0], [0, 1]], ids=["one", "two"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_ends_what_a_rank_waits_in(
    two: list[DeviceCommunicator], phase: str, by: list[int]
) -> None:
    """For the other rank. Another of its threads aborts, or both ranks do at once: then the one
    that waits may hear of the other's abort first."""
    waiting = Event()

    def wait() -> None:
        waiting.set()
        with pytest.raises(SleyError) as caught:
            PHASES[phase](two[0])
        assert caught.value.code in ENDED

    def end(rank: int) -> None:
        waiting.wait()
        Event().wait(SHORTLY_S)
        two[rank].abort()

    together([wait, *(lambda rank=rank: end(rank) for rank in by)])
    assert set(codes(two, lambda comm: comm.check())) <= ENDED
    for comm in two:
        given_up = [f"{'this rank' if r == comm.rank else f'rank {r}'} gave up" for r in by]
        assert any(words in str(comm.error()) for words in given_up)
    for call in PHASES.values():
        assert codes(two, call) == ["N630"] * 2
    for comm in two:
        comm.abort()


@pytest.mark.parametrize("by", ["close", "exception", "exception in a call"])
def test_a_rank_that_leaves_is_named_to_the_others(two: list[DeviceCommunicator], by: str) -> None:
    """By the end of its `with` block, which ends its calls after an exception."""
    left = Event()

    def leave(comm: DeviceCommunicator) -> None:
        problem = None if by == "close" else KeyboardInterrupt()
        if by == "exception in a call":
            comm.barrier(stream=comm.device.stream())
        comm.__exit__(problem and KeyboardInterrupt, problem, None)
        left.set()

    def call(comm: DeviceCommunicator) -> None:
        if by != "close":
            left.wait()
        comm.split(None) if by == "exception" else comm.barrier()

    on_all(two, lambda comm: comm.barrier())
    assert codes(two, lambda c: leave(c) if c.rank else call(c))[1] == ""
    assert "rank 1 has closed" in str(two[0].error())


def test_a_close_raises_the_error_that_nobody_has_got(two: list[DeviceCommunicator]) -> None:
    """Rank 1 doesn't make the call."""
    two[0].barrier(stream=two[0].device.stream())
    assert codes(two, lambda comm: comm.close()) == ["N623", ""]


def test_a_rank_that_closes_waits_no_longer_than_until_an_abort(
    two: list[DeviceCommunicator],
) -> None:
    closing = Event()

    def abort() -> None:
        closing.wait()
        Event().wait(SHORTLY_S)
        two[1].abort()

    together([lambda: (closing.set(), two[0].close())[1], abort])
    assert codes(two, lambda comm: comm.barrier()) == ["N623", "N630"]


def test_a_call_outlives_a_close_by_another_thread() -> None:
    """Its thread is slow to see that it is over."""
    device, calling, closed = ThreadsDevice(flags=["-O0"]), Event(), Event()
    comms = opened([device, threads()], types=["int32"])
    arrays, synchronize = [data(), data()], device.synchronize

    def slowly(stream: Any) -> None:
        synchronize(stream)
        if stream is not device.default_stream():
            closed.wait()

    def close() -> None:
        calling.wait()
        Event().wait(SHORTLY_S)
        together([comms[0].close, lambda: (comms[1].all_reduce(arrays[1]), comms[1].close())[1]])
        closed.set()

    device.synchronize = slowly  # type: ignore[method-assign]
    together([lambda: (calling.set(), comms[0].all_reduce(arrays[0]))[1], close])
    assert [array.tolist() for array in arrays] == [[2] * 8] * 2
    assert comms[0].error() is None


class Broken(ThreadsDevice):
    """A device on which `end` is called instead of the method `at`, from its `after`-th call on."""

    def __init__(self, at: str, after: int, end: Callable[[], Any]) -> None:
        super().__init__(9, flags=["-O0"])
        made, calls = getattr(self, at), list[int]()

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            return end() if len(calls) > after else made(*arguments, **options)

        setattr(self, at, call)


@pytest.mark.parametrize(
    ("at", "after", "rule"),
    [
        ("allocate", 0, K507),
        ("build", 0, K503),
        ("build", 1, K503),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_open_is_refused_on_all(
    rank: int, at: str, after: int, rule: Rule
) -> None:
    store = LocalStore()

    def refuse() -> None:
        raise rule.error(expected="what it had", found=f"none at {at}")

    def make(number: int) -> None:
        device = Broken(at, after, refuse) if number == rank else threads()
        with pytest.raises(SleyError) as caught:
            DeviceCommunicator(store, number, 2, device, types=["int32"])
        assert caught.value.code == rule.code
        assert f"none at {at}" in str(caught.value)

    together([lambda number=number: make(number) for number in range(2)])


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def opening(folder: str, rank: int, ranks: int, settings: Settings) -> DeviceCommunicator:
    at = os.environ["DIES_AT"]
    if rank == 1 and at == "start":
        kill()
    device = Broken(at, 0, kill) if rank == 1 and hasattr(ThreadsDevice, at) else threads()
    kernels = KernelSettings(Engine.INTERPRETED, timeout_s=3)
    settings = Settings(timeout_s=3)
    return DeviceCommunicator(
        FolderStore(folder),
        rank,
        ranks,
        device,
        types=["int32"],
        kernels=kernels,
        settings=settings,
    )


def loads(comm: DeviceCommunicator) -> None:
    if comm.rank == 1:
        comm.device.build = lambda *_: kill()  # type: ignore[method-assign, assignment, return-value]
    comm.all_reduce(data(np.int64))


def splits(comm: DeviceCommunicator) -> None:
    if comm.rank == 1:
        kill()
    comm.split(0)


@pytest.mark.parametrize(
    ("at", "does", "code"),
    [
        ("start", splits, "N601"),
        ("allocate", splits, "N620"),
        ("split", splits, "N620"),
        ("load", loads, "N620"),
    ],
)
def test_the_end_of_a_process_ends_what_others_do(
    at: str, does: Callable[[DeviceCommunicator], None], code: str
) -> None:
    ends = start(2, does, join=opening, environ=lambda rank: {"DIES_AT": at}).ends()
    assert ends[1].exit == -signal.SIGKILL
    assert code in ends[0].error, ends[0]
    assert "rank 1" in ends[0].error or "(1)" in ends[0].error
