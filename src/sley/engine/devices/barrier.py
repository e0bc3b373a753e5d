"""Barrier: how far each process of an executor has come, in memory that the processes share.

The exchange of an executor is its caller's function, which may wait for ever for a process that
doesn't come to it: one that has failed, has ended, or does something else. So the processes meet
here before each exchange, and wait here at the end, never without a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from sley.engine.devices.device import HostMemory
from sley.errors import Diagnostic, SleyError, counted
from sley.errors.devices import K508, K514
from sley.ir.tables import LongArray

_ABORT_BYTES = 64  # a cache line: kernels poll its first word
_POLL_S = 1e-4
_LEFT = 2**64 - 1


def shared_bytes(ranks: int) -> int:
    """The size of the memory: the word with which a call is given up, one of each rank's way, and
    one of decisions."""
    return _ABORT_BYTES + 8 * (ranks + 1)


class Barrier:
    """A barrier of an executor's processes, which come to its meetings in one order.

    memory: of `shared_bytes`. ranks: those of this process. patience_s: the longest wait for
    another process.

    The process of rank 0 decides whether a meeting takes place. Otherwise one process could give up
    while another goes to an exchange, and waits there.
    """

    def __init__(self, memory: HostMemory, ranks: Collection[int], patience_s: float) -> None:
        words = memory.array.view(np.uint64)
        self._abort = words[:1]
        self._way, self._decision = np.split(words[_ABORT_BYTES // 8 :], [-1])
        self._ranks, self._patience_s = list(ranks), patience_s
        self._decides = 0 in ranks
        self._meeting = 0

    @property
    def is_given_up(self) -> bool:
        """Whether a process has given up a call or a meeting."""
        return bool(self._abort[0])

    def meet(self) -> None:
        """Waits until all processes have come here as often as this one. If one can't come any
        more: K508 if its call failed, K514 otherwise. K514 if one doesn't come in time; then all
        give up, as after a failed call."""
        self._meeting += 1
        self._way[self._ranks] = self._meeting
        if self._decides:
            self._wait(lambda: self._here(self._meeting) or (self._way == _LEFT).any())
            takes_place = self._here(self._meeting) and not (self._way == _LEFT).any()
            if self._decision[0] != _LEFT:
                self._decision[0] = self._meeting if takes_place else _LEFT
        else:
            self._wait(lambda: self._decision[0] >= self._meeting)
        if self._decision[0] != self._meeting:
            raise self._refusal()

    def leave(self) -> None:
        """Says that no kernel of this process runs or will run, and that it comes no more."""
        self._way[self._ranks] = _LEFT
        if self._decides:
            self._decision[0] = _LEFT

    def wait_for_others(self) -> None:
        """Waits until all processes have left or one has given up; K514 if one does neither in
        time."""
        if not self._wait(lambda: self._here(_LEFT) or self.is_given_up):
            raise self._absence(_LEFT)

    def _here(self, number: int) -> bool:
        return bool((self._way >= number).all())

    def _wait(self, is_over: Callable[[], bool]) -> bool:
        """Waits until `is_over`, and gives up in time; whether it is over."""
        until = time.monotonic() + self._patience_s
        while not is_over():
            if time.monotonic() > until:
                self._abort[0] = 1
                return False
            time.sleep(_POLL_S)
        return True

    def _refusal(self) -> SleyError:
        """The reason why a meeting doesn't take place."""
        left = np.flatnonzero(self._way == _LEFT)
        if not len(left):
            return self._absence(self._meeting)
        if self.is_given_up:
            return SleyError([given_up()])
        return K514.error(
            expected="the same calls in all processes",
            found=f"an executor that {_processes(left)} closed",
        )

    def _absence(self, number: int) -> SleyError:
        absent = np.flatnonzero(self._way < number)
        doing = "close the executor" if number == _LEFT else "make the same calls"
        return K514.error(
            expected=f"all processes to {doing} within {self._patience_s:g} s",
            found=f"not {_processes(absent)}",
        )


def given_up() -> Diagnostic:
    """K508 for a call of which this process has no report."""
    return K508.diagnostic(
        expected="calls that all processes make", found="one that another process has given up"
    )


def _processes(ranks: Sequence[int] | LongArray) -> str:
    return f"the process of {counted(len(ranks), 'rank')} ({', '.join(map(str, ranks))})"
