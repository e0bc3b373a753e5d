"""Communicators whose ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from sley.communicator import Communicator, Settings
from sley.communicator.rendezvous.stores import LocalStore

T = TypeVar("T")


class Ranks:
    """`ranks` communicators, each in a separate thread.

    settings: of all ranks, or of each rank. environs: of each rank, to simulate several hosts.
    """

    def __init__(
        self,
        ranks: int,
        settings: Settings | Sequence[Settings] | None = None,
        environs: list[Mapping[str, str]] | None = None,
    ) -> None:
        self.ranks = ranks
        settings = settings or Settings(timeout_s=30, use_cache=False)
        of_rank = [settings] * ranks if isinstance(settings, Settings) else settings
        store = LocalStore()
        self._threads = [ThreadPoolExecutor(1) for _ in range(ranks)]

        def make(rank: int) -> Communicator:
            environ = {} if environs is None else environs[rank]
            return Communicator(store, rank, ranks, settings=of_rank[rank], environ=environ)

        self.comms: list[Communicator] = self._each(make)

    def each(self, function: Callable[[Communicator], T]) -> list[T]:
        """The results of `function` on each rank; raises the first error when all have ended."""
        return self._each(lambda rank: function(self.comms[rank]))

    def errors(self, function: Callable[[Communicator], Any]) -> list[BaseException | None]:
        """The error that `function` raises on each rank."""

        def caught(comm: Communicator) -> BaseException | None:
            try:
                function(comm)
            except Exception as error:
                return error
            return None

        return self.each(caught)

    def close(self) -> None:
        self.each(lambda comm: comm.close())
        for thread in self._threads:
            thread.shutdown()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _each(self, function: Callable[[int], T]) -> list[T]:
        futures = [t.submit(function, rank) for rank, t in enumerate(self._threads)]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]
