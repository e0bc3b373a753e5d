"""Processes that are the ranks of a group, for checks that run on all of them.

The processes live until a check fails, because PyTorch takes seconds to load. A check is a function
of an importable module; it raises an error if a result is wrong.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from support.processes.forked import PROCESSES

BACKEND = "sley"
GROUP_TIMEOUT = timedelta(seconds=60)
_CHECK_TIMEOUT_S = 120.0


class RankPool:
    """`ranks` processes, each a rank of the default group, with additional `environment`."""

    def __init__(
        self,
        ranks: int,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = _CHECK_TIMEOUT_S,
    ) -> None:
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._environment = {"OMP_NUM_THREADS": "1", **(environment or {})}
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, check: Any, *arguments: Any) -> list[Any]:
        """The results of `check(*arguments)` on each rank. Raises AssertionError with the text of
        the first rank's error; then new processes replace the old ones."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((check.__module__, check.__qualname__, arguments))
        results: dict[int, Any] = {}
        failure = ""
        end = time.monotonic() + self._timeout_s
        while len(results) < self._ranks and not failure:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in results]
            ready = wait(waiting, max(end - time.monotonic(), 0.0))
            if not ready:
                late = [rank for rank in range(self._ranks) if rank not in results]
                failure = f"ranks {late} did not end in {self._timeout_s} s"
            for pipe in ready:
                rank = self._pipes.index(pipe)
                try:
                    results[rank], wrong = pipe.recv()
                except EOFError:
                    wrong = "the process ended"
                failure = failure or (f"rank {rank}: {wrong}" if wrong else "")
        if failure:
            self.stop()
            raise AssertionError(failure)
        return [results[rank] for rank in range(self._ranks)]

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sley-test-"))
        for rank in range(self._ranks):
            here, there = PROCESSES.Pipe()
            process = PROCESSES.Process(
                target=_serve,
                args=(rank, self._ranks, str(self._folder / "store"), self._environment, there),
                daemon=True,
            )
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)

    def stop(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0.1)
            process.kill()
            process.join()
        if self._processes:
            shutil.rmtree(self._folder)
        self._processes, self._pipes = [], []


def _serve(
    rank: int, ranks: int, file: str, environment: Mapping[str, str], pipe: Connection
) -> None:
    os.environ.update(environment, RANK=str(rank))
    import torch
    import torch.distributed as dist

    import sley.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group(
        BACKEND, init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=GROUP_TIMEOUT
    )
    while True:
        try:
            module, name, arguments = pipe.recv()
        except EOFError:
            break
        try:
            answer = getattr(importlib.import_module(module), name)(*arguments), ""
        except BaseException:
            answer = None, traceback.format_exc()
        try:
            pipe.send(answer)
        except BrokenPipeError:  # another rank has already failed
            break
    if dist.is_initialized():
        dist.destroy_process_group()
