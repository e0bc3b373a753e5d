"""The end of an executor, and its memory until then."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Settings
from support.devices.device_calls import TIMEOUT_S, enqueue, executor, memory_of_threads, threads
from support.processes.process_ranks import apart, together

RANKS = 3


def interpreted() -> Executor:
    plan = sley.compile(build("ring-allreduce", ranks=RANKS, in_place=True))
    return executor(plan, engine=Engine.INTERPRETED)


def in_files() -> Executor:
    """With an exchange: what ranks share is in files."""
    plan = sley.compile(build("ring-reducescatter", ranks=RANKS, in_place=False), fusion=False)
    places = dict.fromkeys(range(RANKS), threads())
    settings = Settings(Engine.INTERPRETED, timeout_s=TIMEOUT_S)
    return Executor(plan, places, settings, exchange=lambda said: [said])


def zeros() -> list[Any]:
    return [np.zeros(8, np.int32) for _ in range(RANKS)]


def closed(call: Callable[[], Any]) -> None:
    with pytest.raises(sley.SleyError) as caught:
        call()
    assert caught.value.code == "R508"
    assert "a closed one" in str(caught.value)


def test_a_closed_executor_frees_its_memory_and_refuses_calls() -> None:
    before = memory_of_threads()
    on = in_files()
    data = [np.ones(8 * RANKS, np.int32) for _ in range(RANKS)]
    call = on.prepare(data, zeros())
    call()
    on.empty("int32", 5)
    assert len(memory_of_threads().keys() - before) > 2 * RANKS
    on.close()
    gc.collect()
    found = memory_of_threads()
    left = sum(found[file] for file in found.keys() - before)
    assert left < 200, "more than the word of the abort, and the table that a call refers to"
    for use in (call, on.synchronize, on.check, lambda: on(data, zeros())):
        closed(use)
    closed(lambda: on.reserve(8, "int32"))
    closed(lambda: on.empty("int32", 8))
    on.close()


def test_closing_waits_for_calls_on_any_stream() -> None:
    stream, gate, data = threads().stream(), Event(), zeros()
    data[0][:] = 5
    with interpreted() as on:
        enqueue(stream, lambda: gate.wait(0.2))
        on(data, streams=stream)
        assert data[1][0] == 0
    assert (data[1] == 5).all()
    closed(on.check)


def test_a_close_waits_for_a_check_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which reads the reports of a call that was given up."""
    on, checking = interpreted(), Event()
    read = on.links._failure

    def slowly() -> Any:
        checking.set()
        Event().wait(0.05)  # usually enough for a close
        return read()

    monkeypatch.setattr(on.links, "_failure", slowly)
    on.links.native.give_up(0)
    on.links.order.wait()
    together([on.check, lambda: (checking.wait(), on.close())[1]])
    closed(on.check)


def test_a_close_that_is_interrupted_frees_nothing() -> None:
    """Kernels still use the memory."""
    stream, gate, data, on = threads().stream(), Event(), zeros(), interpreted()
    enqueue(stream, lambda: gate.wait(TIMEOUT_S))
    on(data, streams=stream)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            on.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    on.check()
    gate.set()
    on.close()
    closed(on.check)


def test_a_process_closes_when_all_have_come_to_it() -> None:
    """One that still works may write into the memory of one that has closed."""
    before = memory_of_threads()
    plan = sley.compile(build("ring-allreduce", ranks=RANKS, in_place=True))
    ons, said = apart(plan, [[0], [1, 2]], engine=Engine.INTERPRETED), list[str]()

    def end(rank: int) -> None:
        if rank:
            Event().wait(0.2)
        said.append(f"{rank} comes")
        ons[rank].close()
        said.append(f"{rank} is closed")

    together([lambda: end(0), lambda: end(1)])
    assert said[:2] == ["0 comes", "1 comes"]
    gc.collect()
    assert len(memory_of_threads().keys() - before) == 1


def test_closing_after_an_error_waits_for_nobody() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=RANKS, in_place=True))
    on, _ = apart(plan, [[0], [1, 2]], engine=Engine.INTERPRETED)
    with pytest.raises(ZeroDivisionError), on:
        _ = 1 // 0
    closed(on.check)


def in_two_processes(**options: Any) -> list[Executor]:
    """Of rank 0 and of ranks 1 and 2, whose calls wait for one another for 0.2 seconds."""
    plan = sley.compile(build("ring-allreduce", ranks=RANKS, in_place=True))
    return apart(plan, [[0], [1, 2]], engine=Engine.INTERPRETED, timeout_s=0.2)


def alone(on: Executor) -> None:
    """A call that the other process doesn't make."""
    assert "K508" in refused(lambda: on({rank: np.zeros(8, np.int32) for rank in on.ranks}))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(sley.SleyError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("failed", [0, 1])
def test_nobody_waits_for_a_process_whose_call_fails_meanwhile(
    failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sley.engine.devices.links.LATE_TIMEOUT_S", 20.0)
    ons = in_two_processes()
    together([ons[1 - failed].close, lambda: alone(ons[failed])])
    ons[failed].close()
    ons = in_two_processes()
    found = list[str]()
    other = lambda: found.append(refused(lambda: ons[1 - failed].empty("int32", 8)))  # noqa: E731
    together([other, lambda: alone(ons[failed])])
    assert "one that another process has given up" in found[0]


@pytest.mark.parametrize("absent", [0, 1])
def test_a_process_that_does_not_come_is_named(
    absent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sley.engine.devices.links.LATE_TIMEOUT_S", 0.2)
    names = ["1 rank (0)", "2 ranks (1, 2)"]
    for use, doing in (
        (Executor.close, "close the executor"),
        (lambda on: on.empty("int32", 8), "make the same calls"),
    ):
        ons = in_two_processes()
        found = refused(partial(use, ons[1 - absent]))
        assert "K514" in found
        assert f"all processes to {doing} within 0.2 s" in found
        assert f"not the process of {names[absent]}" in found
        ons[1 - absent].close()
        ons[absent].close()


def test_a_process_that_has_closed_is_named() -> None:
    ons, found = in_two_processes(), list[str]()

    def other() -> None:
        found.append(refused(lambda: ons[1].empty("int32", 8)))
        ons[1].close()

    together([ons[0].close, other])
    assert "an executor or communicator that the process of 1 rank (0) closed" in found[0]
    assert "the same calls on all, `register`, `split` and `close` too" in found[0]


def test_a_forked_child_leaves_what_it_drops_to_its_parent() -> None:
    """It would say, in the memory of all processes, that this one comes no more."""
    ons = in_two_processes()
    child = os.fork()
    if not child:
        del ons
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    waits = lambda: (Event().wait(0.05), ons[0].empty("int32", 5))[1]  # noqa: E731
    together([lambda: ons[1].empty("int32", 5), waits])
    together([on.close for on in ons])


@pytest.mark.parametrize("gone", [0, 1])
def test_a_process_that_has_closed_is_not_waited_for(gone: int) -> None:
    ons = in_two_processes()
    ons[gone].__exit__(KeyError, KeyError(), None)
    assert "closed" in refused(lambda: ons[1 - gone].empty("int32", 8))
    ons[1 - gone].close()


def test_scratch_that_grows_slowly_stays_bounded() -> None:
    on = in_files()
    assert on.plan.scratch_chunks.all()
    before = memory_of_threads()
    for count in range(1, 2000):
        on.reserve(count, "int32")
    most = 4 * 2000 * int(on.plan.scratch_chunks.sum())
    found = memory_of_threads()
    sizes = [found[file] for file in found.keys() - before]
    assert sum(sizes) <= 4 * most
    assert len(sizes) <= 12 * RANKS
