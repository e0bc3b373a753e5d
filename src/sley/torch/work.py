"""Work: the work objects that collectives return, with their futures and errors."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from itertools import count

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from sley.communicator import Work
from sley.errors import SleyError
from sley.errors.torch import B904

UNSET = timedelta(0)
"""The value that torch.distributed passes for no timeout."""

_CALLBACK_THREADS = 32


class CollectiveError(SleyError, dist.DistBackendError):
    """A failed collective: a SleyError with its diagnostics, and a `DistBackendError` (a
    `RuntimeError`) for programs that catch PyTorch's exceptions."""


def collective_error(error: SleyError) -> CollectiveError:
    """`error` with the type that users of torch.distributed expect."""
    return CollectiveError(error.diagnostics)


def wait_for(parts: Iterable[Work], timeout_s: float | None) -> bool:
    """Waits for the end of all parts; False if it takes longer than `timeout_s`."""
    if timeout_s is None:
        return all(part.wait() for part in parts)
    end = time.monotonic() + timeout_s
    return all(part.wait(max(end - time.monotonic(), 0.0)) for part in parts)


def call_at_end(parts: Sequence[Work], then: Callable[[], None]) -> None:
    """Calls `then` once, in the thread that ends the last part, or at once if all have ended."""
    if len(parts) == 1:
        parts[0].on_done(then)
        return
    if not parts:
        then()
    ended = count(1)
    for part in parts:
        part.on_done(lambda: then() if next(ended) == len(parts) else None)


class Outputs(dist.Work):
    """What all work objects have in common. outputs: the result."""

    outputs: Sequence[Tensor] = ()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return list(self.outputs)

    def source_rank(self) -> int:
        """The sender's rank in the group; -1 if this is not a receive."""
        return -1

    def _source_rank(self) -> int:
        return self.source_rank()


class Finished(Outputs):
    """A call that ended before it returned. source: a message's sender; -1 if this is not a
    receive."""

    source = -1

    def wait(self, timeout: timedelta = UNSET) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def source_rank(self) -> int:
        return self.source

    def get_future(self) -> Future[list[Tensor]]:
        future: Future[list[Tensor]] = Future()
        future.set_result(self.result())
        return future


class Pending(Outputs):
    """A collective in progress. It has ended when all its parts have, and then `unpack`.

    The callbacks of the parts keep this object alive until they have ended, and it keeps the memory
    that they use. So a caller may drop it. on_error: called before `wait` raises an error.
    """

    def __init__(
        self,
        parts: Sequence[Work],
        outputs: Sequence[Tensor],
        *,
        owners: object = None,
        unpack: Callable[[], None] | None = None,
        timeout_s: float | None = None,
        source: Callable[[], int] | None = None,
        on_error: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._parts, self.outputs = parts, outputs
        self._owners = owners
        self._unpack = unpack
        self._timeout_s = timeout_s
        self._source, self._on_error = source, on_error
        self._lock = threading.Lock()
        self._has_ended = False
        self._error: Exception | None = None
        self._ending: Future[None] | None = None
        self._future: Future[list[Tensor]] | None = None
        call_at_end(parts, self._on_end)

    def wait(self, timeout: timedelta = UNSET) -> bool:
        """Blocks until the collective has ended; True.

        timeout: overrides that of the call. Raises CollectiveError if the collective failed or
        didn't end in time.
        """
        if not self._has_ended:
            timeout_s = timeout.total_seconds() if timeout > UNSET else self._timeout_s
            try:
                if not wait_for(self._parts, timeout_s):
                    raise B904.error(
                        expected=f"the end of the call within {timeout_s} s",
                        found="a call that is still in progress",
                    )
            except SleyError as error:
                self._tell()
                raise collective_error(error) from None
            self._finish()
        if self._error is not None:
            self._tell()
            raise self._error
        return True

    def _tell(self) -> None:
        if self._on_error is not None:
            self._on_error()

    def is_completed(self) -> bool:
        if not self._has_ended and all(part.is_completed() for part in self._parts):
            self._finish()
        return self._has_ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error if self.is_completed() else None

    def source_rank(self) -> int:
        """See `Outputs.source_rank`."""
        return -1 if self._source is None else self._source()

    def get_future(self) -> Future[list[Tensor]]:
        """A future that completes with the output tensors, or with the error, at the end."""
        with self._lock:
            if self._future is None:
                # Raised in a callback, because PyTorch's C++ sees only errors of callbacks: the
                # exception of a Python future is an ordinary value there.
                self._ending = Future()
                self._future = self._ending.then(lambda _: self._value())
                if self._has_ended:
                    self._ending.set_result(None)
            return self._future

    def _value(self) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self.result()

    def _on_end(self) -> None:
        """Called in the thread that ended the last part."""
        ending = self._settle()
        if ending is None:
            return
        # The future's callbacks may wait for further collectives of the group. This thread runs
        # those, so here the callbacks would wait forever.
        with contextlib.suppress(RuntimeError):  # the interpreter is ending
            _callbacks().submit(ending.set_result, None)

    def _finish(self) -> None:
        """Called in a thread of the caller's."""
        ending = self._settle()
        if ending is not None:
            ending.set_result(None)

    def _settle(self) -> Future[None] | None:
        """Settles the work once, in the first thread that finds all parts ended. Returns the future
        that this thread must complete, if there is one."""
        with self._lock:
            if self._has_ended:
                return None
            try:
                for part in self._parts:
                    part.check()
                if self._unpack is not None:
                    self._unpack()
            except SleyError as error:
                self._error = collective_error(error)
            except Exception as error:  # of PyTorch, where a result is copied to the tensors
                self._error = error
            self._owners = self._unpack = None  # before another thread can see the end
            self._has_ended = True
            return self._ending


class Together(Outputs):
    """Several collectives as one, which has ended when all of them have."""

    def __init__(self, works: Sequence[dist.Work], outputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._works, self.outputs = works, outputs

    def wait(self, timeout: timedelta = UNSET) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        return next((e for work in self._works if (e := work.exception()) is not None), None)

    def get_future(self) -> Future[list[Tensor]]:
        """As `Pending.get_future`, but only for Python, where its error is the call's own."""
        future: Future[list[Tensor]] = Future()
        turns = count()

        def end(_: object = None) -> None:
            if next(turns) < len(self._works):
                return
            error = self.exception()
            if error is None:
                future.set_result(self.result())
            else:
                future.set_exception(error)

        for work in self._works:
            work.get_future().add_done_callback(end)
        end()
        return future


@cache
def _callbacks() -> ThreadPoolExecutor:
    """The threads that run the callbacks of futures."""
    return ThreadPoolExecutor(_CALLBACK_THREADS, thread_name_prefix="sley-callback")
