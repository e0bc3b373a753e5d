"""Monitored: a barrier over a group's store, whose error names the ranks that are late."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from sley.communicator.rendezvous.gather import GRACE_S
from sley.errors.aside import LateError, within
from sley.errors.torch import B907
from sley.torch.work import CollectiveError

_SHORTEST = timedelta(milliseconds=1)
"""A store takes 0 for no timeout at all."""

_ALL = "all"
"""The verdict on a barrier that all ranks reached; otherwise it is the late ranks."""


class MonitoredBarrier:
    """Barriers of the `ranks` ranks of a group. They use its `store` alone, so that they find late
    ranks whatever has become of its communicator.

    Every rank leaves a key at the store and waits for those of the others. The first one that has
    seen them all, or whose time is up, stores the verdict, which holds for all ranks.
    """

    def __init__(self, store: dist.Store, rank: int, ranks: int) -> None:
        self._store = dist.PrefixStore("monitored_barrier/", store)
        self._rank, self._ranks = rank, ranks
        self._number = 0

    def wait(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Returns when all ranks have called it; B907 on all ranks if some haven't in `timeout`.

        wait_all_ranks: the error names all late ranks, not only the first.
        """
        self._number += 1
        try:
            verdict = within(timeout.total_seconds() + GRACE_S, self._meet, self._number, timeout)
        except LateError:
            found = "no answer of the group's store: the process that serves it may be stopped"
        else:
            if verdict == _ALL:
                return
            late = verdict.split(",") if wait_all_ranks else verdict.split(",")[:1]
            ranks = f"Rank{'s' * (len(late) > 1)} {', '.join(late)}"
            found = f"{ranks} failed to pass monitoredBarrier in time"  # gloo's words
        seconds = f"{timeout.total_seconds():g} s"
        expected = f"monitored_barrier: calls of all {self._ranks} ranks in {seconds}"
        raise CollectiveError([B907.diagnostic(expected=expected, found=found)])

    def _meet(self, number: int, timeout: timedelta) -> str:
        """The verdict on a barrier. Without an answer of the store, it doesn't return."""
        store = self._store
        store.set(f"{number}/{self._rank}", "here")
        verdict = self._decide(number, timeout)
        if verdict == _ALL:
            # All have come here, so all have done with the barrier before.
            store.delete_key(f"{number - 1}/{self._rank}")
            if self._rank == 0:
                store.delete_key(f"{number - 1}/verdict")
        return verdict

    def _decide(self, number: int, timeout: timedelta) -> str:
        """The verdict on a barrier, by this rank or by another one before."""
        store, verdict = self._store, f"{number}/verdict"
        found = ""
        if not store.check([verdict]):
            found = ",".join(map(str, self._await(number, timeout))) or _ALL
        stored: bytes = store.compare_set(verdict, "", found)
        return stored.decode()

    def _await(self, number: int, timeout: timedelta) -> list[int]:
        """Waits for all ranks; those that are late, which are none unless the time is up."""
        keys = [f"{number}/{rank}" for rank in range(self._ranks)]
        try:
            self._store.wait(keys, max(timeout, _SHORTEST))
        except RuntimeError:  # each store has its own
            return [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        return []
