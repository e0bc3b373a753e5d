"""Ranks that meet as threads of one process or as processes, and the outcome of each."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from sley.communicator.rendezvous import bootstrap as bootstrapping
from sley.communicator.rendezvous import gather, local
from sley.communicator.rendezvous.bootstrap import bootstrap
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.rendezvous.stores import FolderStore, Store
from sley.errors import SleyError
from support.processes.forked import PROCESSES

TIMEOUT_S = 30.0
"""A timeout longer than any successful step."""

SHORT_S = 0.5
"""The timeout of ranks that wait for a missing one."""

PATIENCE_S = 60.0


def on_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs all calls at once in threads; returns the result of each, or the SleyError that it
    raises."""
    outcomes: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            outcomes[number] = calls[number]()
        except BaseException as error:
            outcomes[number] = error

    threads = [Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a rank hangs"
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, SleyError):
            raise outcome
    return outcomes


def arrive(store: Store, rank: int, ranks: int, **options: Any) -> Any:
    """The Rendezvous of a rank. Its member `texts` has the contents of the other ranks'
    descriptors."""
    texts: dict[int, list[bytes]] = {}

    def attach(hosts: Hosts, fds: Mapping[int, tuple[int, ...]]) -> None:
        for peer, those in fds.items():
            assert not any(os.get_inheritable(fd) for fd in those)
            texts[peer] = [content(fd) for fd in those]

    on: Any = bootstrap(store, rank, ranks, attach=attach, **options)
    on.texts = texts
    return on


def meet(
    store: Store,
    ranks: int,
    *,
    who: Sequence[int] | None = None,
    hosts: Sequence[int] | None = None,
    timeout_s: float = TIMEOUT_S,
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Any]:
    """Meets with ranks as threads; returns the result of `arrive`, or an error, for each rank of
    `who` (by default all). hosts: for each rank the number of its simulated host."""

    def call(rank: int) -> Callable[[], Any]:
        host = {} if hosts is None else {"SLEY_HOST_ID": str(hosts[rank])}
        settings = {"name": "group", "timeout_s": timeout_s, "segments": tuple, **options}
        own = {**(environ or {}), **host}
        return lambda: arrive(store, rank, ranks, environ=own, **settings)

    return on_threads([call(rank) for rank in (range(ranks) if who is None else who)])


def codes(outcomes: Sequence[Any]) -> list[str]:
    """The code of each error; empty for a success."""
    return [outcome.code if isinstance(outcome, SleyError) else "" for outcome in outcomes]


def descriptors() -> dict[str, str]:
    """The open descriptors of this process, after a garbage collection."""
    gc.collect()
    gc.freeze()  # the next collection doesn't look again at all that other tests have left
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except FileNotFoundError:
            continue  # the descriptor of the listing
    return found


def content(fd: int) -> bytes:
    return os.pread(fd, 100, 0)


@contextmanager
def segment(text: str) -> Iterator[int]:
    """A descriptor of memory that contains a text."""
    fd = os.memfd_create("segment")
    try:
        os.write(fd, text.encode())
        yield fd
    finally:
        os.close(fd)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Ranks:
    """Ranks as processes that meet over a folder, each with a segment that contains its number.

    dying: a rank, and the function of the module bootstrap in which it kills itself.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        *,
        timeout_s: float = PATIENCE_S,
        dying: tuple[int, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.pipes, self.processes = [], list[BaseProcess]()
        for rank in range(ranks):
            ours, theirs = PROCESSES.Pipe()
            dies_at = dying[1] if dying and dying[0] == rank else ""
            arguments = (folder, rank, ranks, timeout_s, dies_at, dict(environ or {}), theirs)
            process = PROCESSES.Process(target=_rank, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            process.kill()
            process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()

    def message(self, rank: int) -> Any:
        """The next message of a rank; None at its end."""
        assert self.pipes[rank].poll(PATIENCE_S), f"rank {rank} sends nothing"
        try:
            return self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            return None


def _rank(
    folder: Path,
    rank: int,
    ranks: int,
    timeout_s: float,
    dies_at: str,
    environ: Mapping[str, str],
    pipe: Any,
) -> None:
    """Sends ("met", texts of segments by rank) or ("error", code, text)."""
    if dies_at:
        setattr(bootstrapping, dies_at, die)
    try:
        with segment(str(rank)) as fd:
            on = arrive(
                FolderStore(folder),
                rank,
                ranks,
                name="group",
                timeout_s=timeout_s,
                segments=lambda: [fd],
                environ=environ,
            )
    except SleyError as error:
        pipe.send(("error", error.code, str(error)))
        return
    pipe.send(("met", {peer: texts[0] for peer, texts in on.texts.items()}))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the condition does not hold in time"
        time.sleep(0.005)


@pytest.fixture
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes threads that have lost a rank answer for only a short time."""
    for module in (gather, local):
        monkeypatch.setattr(module, "GRACE_S", 0.8)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """In modules that import it, every test must close all descriptors that it opens."""
    resource_tracker.ensure_running()  # both stay open after the first process
    forkserver.ensure_running()
    before = descriptors()
    yield
    assert descriptors() == before
