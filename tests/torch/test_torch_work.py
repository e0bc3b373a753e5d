"""Work objects, without a communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from sley.errors import SleyError
from sley.errors.runtime import R502
from sley.torch import CollectiveError
from sley.torch import work as module
from sley.torch.work import Finished, Pending, Together


class Part:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._error: SleyError | None = None
        self._callbacks: list[Callable[[], None]] = []

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._end.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._end.is_set()

    def check(self) -> None:
        self.wait(0)

    def on_done(self, callback: Callable[[], None]) -> None:
        if self._end.is_set():
            callback()
        else:
            self._callbacks.append(callback)

    def end(self, error: SleyError | None = None) -> None:
        self._error = error
        self._end.set()
        while self._callbacks:
            self._callbacks.pop()()


def failure() -> SleyError:
    return R502.error(expected="an end", found="none")


def test_work_is_pending_until_all_its_parts_have_ended() -> None:
    parts = [Part(), Part()]
    output = torch.zeros(2)
    unpacked: list[bool] = []
    work = Pending(parts, [output], unpack=lambda: unpacked.append(True))
    assert not work.is_completed()
    assert not work.is_success()
    parts[1].end()
    assert not work.is_completed()
    assert not unpacked
    parts[0].end()
    assert unpacked == [True]
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()
    assert work.exception() is None
    assert unpacked == [True]
    assert work.result()[0] is output
    assert work.source_rank() == -1


def test_work_without_parts_has_ended() -> None:
    """As that of an AllToAll among one rank."""
    output = torch.zeros(1)
    work = Pending([], [output])
    assert work.get_future().done()
    assert work.get_future().wait()[0] is output


def test_waiting_ends_the_work_before_its_callbacks_run() -> None:
    class Silent(Part):
        def on_done(self, callback: Callable[[], None]) -> None:
            pass

    part = Silent()
    unpacked: list[bool] = []
    work = Pending([part], [], unpack=lambda: unpacked.append(True))
    future = work.get_future()
    part.end()
    assert not unpacked
    work.wait()
    assert unpacked == [True]
    assert future.done()


def test_errors_are_those_of_both_libraries() -> None:
    part = Part()
    work = Pending([part], [torch.zeros(1)])
    future = work.get_future()
    part.end(failure())
    with pytest.raises(CollectiveError, match="R502") as error:
        work.wait()
    assert isinstance(error.value, SleyError)
    assert isinstance(error.value, RuntimeError)
    assert isinstance(error.value, dist.DistBackendError)
    assert error.value.code == "R502"
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), CollectiveError)
    with pytest.raises(RuntimeError, match="R502"):
        future.wait()
    with pytest.raises(RuntimeError, match="R502"):
        work.get_future().wait()


def test_an_error_of_copying_the_result_ends_work_and_future() -> None:
    def fail() -> None:
        raise RuntimeError("no such view")

    part = Part()
    work = Pending([part], [], unpack=fail)
    future = work.get_future()
    part.end()
    with pytest.raises(RuntimeError, match="no such view"):
        work.wait()
    with pytest.raises(RuntimeError, match="no such view"):
        future.wait()


def test_no_output_is_unpacked_after_an_error() -> None:
    part = Part()
    unpacked: list[bool] = []
    work = Pending([part], [], unpack=lambda: unpacked.append(True))
    part.end(failure())
    assert work.is_completed()
    assert not unpacked


def test_a_timeout_leaves_the_work_as_it_is() -> None:
    part = Part()
    work = Pending([part], [], timeout_s=30.0)
    with pytest.raises(CollectiveError, match="B904"):
        work.wait(timedelta(milliseconds=1))
    assert not work.is_completed()
    part.end()
    assert work.wait()
    short = Pending([Part()], [], timeout_s=0.001)
    with pytest.raises(CollectiveError, match="B904"):
        short.wait()


def test_the_future_of_work_is_completed_by_its_end() -> None:
    part = Part()
    output = torch.ones(3)
    work = Pending([part], [output])
    future = work.get_future()
    assert work.get_future() is future
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert not future.done()
    part.end()
    assert torch.equal(doubled.wait(), torch.full((3,), 2.0))
    assert future.wait()[0] is output
    after = Pending([part], [output])
    assert after.get_future().wait()[0] is output


def test_callbacks_of_a_future_do_not_run_in_the_thread_that_ends_calls() -> None:
    """They may wait for a call that this thread has yet to run."""
    first, second = Part(), Part()
    work = Pending([first], [torch.ones(1)])
    inner = Pending([second], [torch.ones(1)])
    outer = work.get_future().then(lambda _: inner.wait())

    def end_both() -> None:
        first.end()
        second.end()

    thread = threading.Thread(target=end_both)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert outer.wait() is True


def test_work_keeps_memory_until_it_has_ended() -> None:
    part = Part()
    tensor = torch.ones(1)
    freed = threading.Event()

    class Owner:
        def __del__(self) -> None:
            freed.set()

    Pending([part], [tensor], owners=[Owner()])  # let go at once
    assert not freed.is_set()
    part.end()
    assert freed.wait(60)


def test_finished_work_is_done_from_the_start() -> None:
    work = Finished()
    work.outputs = [torch.ones(1)]
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.get_future().wait() == work.result()


def test_work_together_is_done_when_all_of_it_is() -> None:
    part = Part()
    finished = Finished()
    work = Together([finished, Pending([part], [])], [torch.ones(1)])
    assert not work.is_completed()
    future = work.get_future()
    part.end()
    assert work.wait()
    assert work.is_success()
    assert future.wait()[0] is work.result()[0]
    broken = Part()
    work = Together([finished, Pending([broken], [])], [])
    broken.end(failure())
    assert isinstance(work.exception(), CollectiveError)
    with pytest.raises(CollectiveError):
        work.wait()
    with pytest.raises(RuntimeError, match="R502"):
        work.get_future().wait()


def test_a_call_may_end_while_the_interpreter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads for callbacks take nothing any more; that is no error of anybody's."""
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    monkeypatch.setattr(module, "_callbacks", lambda: threads)
    part = Part()
    work = Pending([part], [])
    work.get_future()
    part.end()
    assert work.wait()


def test_memory_is_free_before_the_end_is_seen() -> None:
    """Another thread may see the end at once, and resize the memory."""
    seen: list[bool] = []

    class Memory:
        def __del__(self) -> None:
            seen.append(work.is_completed())

    part = Part()
    work = Pending([part], [], owners=Memory())
    part.is_completed = lambda: False  # type: ignore[method-assign]
    part.end()
    assert seen == [False]
    assert work.is_completed()
