"""Times that `sley run` shows, beside those of a program with a communicator for the same call.

    python benchmarks/run_command.py [--ranks 2,4,8] [--sizes 1K,16K,256K,1M,16M] [--rounds 9]

The call is a ring AllReduce of float32, in place, on the same plan. The program's ranks are
processes of this script, each with a `Communicator` that repeats the call (`Endpoint.time_us`). The
two take turns, round by round, so that other load affects both alike. A cell has the smallest and
the median time of the rounds, in us, averaged over the ranks; the ratios are of these.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import tempfile
from functools import partial
from multiprocessing.connection import Connection
from statistics import fmean, median
from typing import Any

import numpy as np
from common import machine
from common.sizes import read_sizes
from common.tables import ratio_text, table

import sley
from sley.communicator import Call, Communicator, FolderStore
from sley.communicator.arrays import span
from sley.communicator.calls import OWN
from sley.communicator.jobs import Job
from sley.engine.measure import Sweep
from sley.engine.types import DATA_TYPES
from sley.ir.sizes import size_text

FLOAT32 = DATA_TYPES["float32"]
WARM, ENOUGH_US, MOST_CALLS = 12, 20_000.0, 1000


def serve(rank: int, ranks: int, folder: str, plan: sley.Plan, pipe: Connection) -> None:
    """A rank of the program: answers (elements, calls) with the us of a call, until None."""
    with Communicator(FolderStore(folder), rank, ranks, name="program") as comm:
        data = np.zeros(0, np.float32)
        for count, calls in iter(pipe.recv, None):
            if data.size != count:  # a rank of `sley run` keeps its memory, too, and has written it
                data = np.ones(count, np.float32)
            call = Call(OWN, *span(data), *span(data), count, FLOAT32, plan=plan)
            comm.endpoint.time_us(call, WARM)
            pipe.send(comm.endpoint.time_us(call, calls))


class Program:
    """The processes of the program."""

    def __init__(self, plan: sley.Plan, folder: str) -> None:
        ranks, self._pipes = plan.ranks, list[Any]()
        context = multiprocessing.get_context("spawn")
        for rank in range(ranks):
            here, there = context.Pipe()
            given = (rank, ranks, folder, plan, there)
            context.Process(target=serve, args=given, daemon=True).start()
            self._pipes.append(here)

    def time_us(self, count: int, calls: int) -> float:
        """The time of a call, averaged over the ranks."""
        for pipe in self._pipes:
            pipe.send((count, calls))
        return fmean(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.send(None)


def compare(ranks: int, sizes: list[int], rounds: int) -> None:
    """Prints the table of a number of ranks."""
    plan = sley.compile(sley.algorithms.build("ring-allreduce", ranks=ranks, in_place=True))
    with tempfile.TemporaryDirectory() as folder, Job([plan]) as job:
        program = Program(plan, folder)
        rows = []
        for size in sizes:
            count = size // FLOAT32.size_bytes
            once_us = program.time_us(count, 3)
            calls = int(np.clip(ENOUGH_US / once_us, 3, MOST_CALLS))
            sweep = Sweep([], iterations=calls, warmup=WARM)
            own, others = list[float](), list[float]()
            both = [
                (own, partial(job.plans[0].time_us, count, sweep)),
                (others, partial(program.time_us, count, calls)),
            ]
            for _ in range(rounds):
                for times, measure in both:
                    times.append(measure())
                both.reverse()  # what comes first finds caches that others have used
            cells = [f"{min(us):.1f}, {median(us):.1f}" for us in (own, others)]
            ratios = [ratio_text(of(own) / of(others)) for of in (min, median)]
            rows.append([size_text(size), *cells, ", ".join(ratios)])
        program.close()
    print(f"\n{ranks} ranks, {rounds} rounds\n")
    print(table(["size", "sley run", "communicator", "ratios"], rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", type=read_sizes, default="1K,16K,256K,1M,16M")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    # The scheduler shares cores among sessions, and the ranks of `sley run` have one.
    with contextlib.suppress(PermissionError):
        os.setsid()
    print(machine.text(machine.facts()))
    for ranks in map(int, given.ranks.split(",")):
        compare(ranks, given.sizes, given.rounds)


if __name__ == "__main__":
    main()
