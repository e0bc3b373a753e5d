"""Random calls on random groups for a long time: their results, and leaks."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sley.communicator import Communicator, FolderStore, Settings
from sley.ir.words import ReduceOp
from support.generators.random_steps import KINDS, PARTS, REDUCING, Step, begin
from support.machines.meaning import drawn_from, results

TYPES = ("float32", "float64", "float16", "int8", "int32", "int64")
ROUND, GROUPS = 20, 3
"""The number of calls after each new group, and of groups until all are closed again."""


@dataclass
class Holding:
    """A process's resources: private memory, descriptors, threads."""

    own_bytes: int = 0
    descriptors: int = 0
    threads: int = 0

    @classmethod
    def now(cls) -> Holding:
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)  # free memory between blocks in use would stay resident
        itself = Path("/proc/self")
        _, resident, shared, *_ = map(int, (itself / "statm").read_text().split())
        fds, threads = (len(list((itself / what).iterdir())) for what in ("fd", "task"))
        return cls((resident - shared) * os.sysconf("SC_PAGE_SIZE"), fds - 1, threads)


@dataclass
class Soaked:
    """A rank's calls and resources, after each round."""

    calls: int = 0
    groups: int = 0
    holding: list[Holding] = field(default_factory=list)


def drawn(rng: random.Random, number: int) -> Step:
    """A call on this number of ranks; most are small, a few have megabytes."""
    kind = rng.choice(KINDS)
    largest, dtype = 4 << 20, rng.choice(TYPES)
    count = int(2 ** rng.uniform(0, np.log2(largest / 8 / number))) - 1
    return Step(
        kind,
        count,
        dtype,
        rng.choice(drawn_from(dtype)) if kind in REDUCING else ReduceOp.SUM,
        rng.randrange(number),
        rng.random() < 0.5,
        rng.random() < 0.5,
        rng.random() < 0.5,
    )


def data_of(seed: int, step: Step, number: int) -> list[Any]:
    """The data of every rank, which all ranks can compute."""
    size = step.count * (number if step.kind in PARTS else 1)
    base = np.random.default_rng(seed).integers(1, 4, size)
    return [(base + rank) % 3 + 1 for rank in range(number)]


def one_call(comm: Communicator, rng: random.Random) -> None:
    """Makes a call, and checks its results."""
    step, seed = drawn(rng, comm.ranks), rng.randrange(2**31)
    given = data_of(seed, step, comm.ranks)
    work, out = begin(comm, step, given[comm.rank].astype(step.dtype))
    work.wait()
    wanted = results(step.kind, [d.astype(float) for d in given], step.op, step.root)[comm.rank]
    if wanted is not None:
        np.testing.assert_array_equal(out, wanted.astype(step.dtype), err_msg=str(step))


def message(comm: Communicator, rng: random.Random) -> None:
    """Sends a message along a ring of the ranks."""
    size, tag = int(2 ** rng.uniform(0, 20)), rng.randrange(100)
    data, out = np.full(size, comm.rank, np.uint8), np.zeros(size, np.uint8)
    work = comm.send(data, (comm.rank + 1) % comm.ranks, tag, async_op=True)
    comm.recv(out, (comm.rank - 1) % comm.ranks if rng.random() < 0.5 else None, tag)
    work.wait()
    assert (out == (comm.rank - 1) % comm.ranks).all()


def members(rng: random.Random, ranks: int) -> list[int]:
    """A random group of two or more of the ranks, in any order."""
    return rng.sample(range(ranks), rng.randint(2, ranks))


def soak(world: Communicator, folder: str, seconds: float, seed: int) -> Soaked:
    """Makes calls until the time is over, on groups that all ranks draw alike. Groups are opened
    and closed; the process's resources are measured while there is none."""
    rng, soaked, until = random.Random(seed), Soaked(), time.monotonic() + seconds
    over = np.zeros(1, np.int8)
    while not over[0]:
        _life(world, folder, rng, soaked)
        over[0] = time.monotonic() > until
        world.all_reduce(over, op=ReduceOp.MAX)
        soaked.holding.append(Holding.now())
    return soaked


def _life(world: Communicator, folder: str, rng: random.Random, soaked: Soaked) -> None:
    """Opens some groups, one after another, and makes calls on all of them."""
    with ExitStack() as opened:
        groups: list[Communicator | None] = [world]
        for _ in range(GROUPS):
            name = f"group {soaked.groups}"
            soaked.groups += 1
            groups.append(_joined(world, folder, name, members(rng, world.ranks), opened))
            for _ in range(ROUND):
                _one_turn(groups, rng, soaked)


def _one_turn(groups: list[Communicator | None], rng: random.Random, soaked: Soaked) -> None:
    """A call or a message on one of the groups: every rank draws it, the group's members make
    it."""
    group = rng.choice(groups)
    own = random.Random(rng.randrange(2**31))
    if group is not None:
        soaked.calls += 1
        (message if own.random() < 0.1 else one_call)(group, own)


def _joined(
    world: Communicator, folder: str, name: str, ranks: list[int], life: ExitStack
) -> Communicator | None:
    if world.rank not in ranks:
        return None
    settings = Settings(timeout_s=60, use_cache=False)
    made = Communicator(
        FolderStore(folder), ranks.index(world.rank), len(ranks), name=name, settings=settings
    )
    return life.enter_context(made)
