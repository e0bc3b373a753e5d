"""A communicator of ranks that share a GPU: calls of every kind, place, type and size against
NumPy, of threads and of processes; what its opening takes; and calls of two communicators beside
work that fills the GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from first_contact.lines import Lines, run_step, step_parser
from first_contact.replays import TURNS, Ranks, opened
from sley.communicator import DeviceCommunicator, FolderStore
from sley.communicator.selection.kinds import CALLS
from sley.engine.devices import Settings
from sley.engine.devices.cuda import CudaDevice
from sley.engine.types import DATA_TYPES
from sley.ir.words import ReduceOp
from support.devices.device_calls import current
from support.devices.gpu_checks import part
from support.generators.random_steps import KINDS
from support.machines.meaning import results
from support.processes.process_ranks import together

TYPES = {"float32": ReduceOp.SUM, "int32": ReduceOp.MAX, "float16": ReduceOp.SUM}
COUNTS = [0, 1, 2, 3, 5, 8, 17, 64, 100, 255, 1000, 1024, 4099, 9973, 16384, 30_001]
COUNTS += [65_536, 100_003, 250_007, 1_000_003]
"""Elements of a block; the larger ones for fewer ranks."""

MOST_BYTES = 8 << 20
"""Of an array of all blocks."""

ROOM = MOST_BYTES + 64
"""Bytes for such an array, and where it begins."""

MANY = 200
"""Communicators of 2 ranks that are opened beside one another."""

FULL_BYTES = 256 << 20
"""Of memory that is set while calls run: enough to fill a GPU for some hundred microseconds."""


@dataclass(eq=False)
class Case:
    ranks: int
    kind: str
    in_place: bool
    root: int
    dtype: str
    op: ReduceOp
    count: int

    @cached_property
    def values(self) -> list[np.ndarray[Any, Any]]:
        """The ranks' inputs."""
        size = self.count * (self.ranks if CALLS[self.kind].input_parts else 1)
        drawn = np.random.default_rng(self.count).integers(0, 3, size + self.ranks)
        return [drawn[rank : rank + size].astype(np.float32) for rank in range(self.ranks)]

    @cached_property
    def results(self) -> list[np.ndarray[Any, Any] | None]:
        """The ranks' outputs; None where nothing is promised."""
        made = results(self.kind, self.values, self.op, self.root)
        keeps = self.kind == "reduce"
        return [None if keeps and rank != self.root else array for rank, array in enumerate(made)]


def cases(ranks: int, most_bytes: int) -> Iterator[Case]:
    """Every kind, place, type and size, at a root that is drawn."""
    random, most = Random(ranks), most_bytes // ranks // 4
    counts = [count for count in COUNTS if count <= most]
    for kind, in_place, (dtype, op), count in product(KINDS, (0, 1), TYPES.items(), counts):
        if in_place and kind in ("gather", "scatter"):
            continue
        root = random.randrange(ranks) if CALLS[kind].roles else 0
        op = op if CALLS[kind].reduces else ReduceOp.SUM
        yield Case(ranks, kind, bool(in_place), root, dtype, op, count)


class Rank:
    """A rank and its memory, from which calls take their arrays. shared: whether other ranks can
    read it in place."""

    def __init__(self, comm: DeviceCommunicator, device: CudaDevice, *, shared: bool) -> None:
        self._comm, self._device, self._stream = comm, device, device.stream()
        self._memory = [
            comm.empty("uint8", ROOM).memory if shared else device.allocate(ROOM) for _ in range(2)
        ]

    def wrong(self, every: Sequence[Case]) -> Mapping[Case, int]:
        """The number of wrong elements of each call that has any."""
        found = {case: self._wrong(case) for case in every}
        return {case: wrong for case, wrong in found.items() if wrong}

    def _wrong(self, case: Case) -> int:
        comm, kind = self._comm, DATA_TYPES[case.dtype].array
        own = case.values[comm.rank].astype(kind)
        first, second = self._memory
        at = kind.itemsize * (case.count % 7)  # data begins anywhere
        mine = at + comm.rank * case.count * kind.itemsize
        elements = case.count * (comm.ranks if CALLS[case.kind].output_parts else 1)
        array = partial(part, self._device, dtype=case.dtype)
        source = array(first, start=at, elements=len(own))
        target = array(second, start=at, elements=elements)
        written, read = (first, at), (second, at)
        if case.kind in ("broadcast", "reduce"):
            target, read = None, (first, at)
        elif case.in_place and case.kind == "all_gather":
            source, target = (
                array(first, start=mine, elements=len(own)),
                array(first, start=at, elements=elements),
            )
            written, read = (first, mine), (first, at)
        elif case.in_place and case.kind == "reduce_scatter":
            target, read = array(first, start=mine, elements=elements), (first, mine)
        elif case.in_place:
            target, read = source, (first, at)
        if len(own):
            self._device.write(written[0], written[1], own.view(np.uint8))
        self._call(case, source, target)
        self._device.synchronize(self._stream)
        expected = case.results[comm.rank]
        if not case.count or expected is None:
            return 0
        found = np.empty(len(expected), kind)
        self._device.read(read[0], read[1], found.view(np.uint8))
        return int(np.count_nonzero(found != expected.astype(kind)))

    def _call(self, case: Case, source: Any, target: Any) -> None:
        arrays = (source,) if target is None else (source, target)
        further: list[Any] = [case.op] if CALLS[case.kind].reduces else []
        further += [case.root] if CALLS[case.kind].roles else []
        getattr(self._comm, case.kind)(*arrays, *further, stream=self._stream)


def _of_threads(
    device: CudaDevice, ranks: int, most_bytes: int, timeout_s: float
) -> Mapping[str, Any]:
    """All cases, and the seconds and MiB a rank that the opening took."""
    free, begin = _free_bytes(device), time.perf_counter()
    comms = opened(f"calls-{ranks}", device, ranks, "float32", timeout_s)
    opening_s, took = time.perf_counter() - begin, free - _free_bytes(device)
    every, found = list(cases(ranks, most_bytes)), dict[Case, int]()
    for shared in (False, True):
        made: dict[int, Rank] = {}

        def make(rank: int, made: dict[int, Rank] = made, shared: bool = shared) -> None:
            made[rank] = Rank(comms[rank], device, shared=shared)

        def run(rank: int, made: dict[int, Rank] = made) -> None:
            found.update(made[rank].wrong(every))

        together([partial(make, rank) for rank in range(ranks)])
        together([partial(run, rank) for rank in range(ranks)])
    mib = took / ranks / 2**20, (free - _free_bytes(device)) / ranks / 2**20
    together([comm.close for comm in comms])
    return {
        "calls": 2 * len(every),
        "wrong": len(found),
        "first_wrong": list(found.items())[:3],
        "opening_s": round(opening_s, 3),
        "mib_a_rank": {"open": round(mib[0], 1), "after all, with data": round(mib[1], 1)},
    }


def _of_processes(ranks: int, most_bytes: int, timeout_s: float) -> Mapping[str, Any]:
    """A part of the cases."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        command = [sys.executable, "-m", "first_contact.communicator", "--lines", folder]
        command += ["--timeout-s", str(timeout_s), "--ranks", str(ranks)]
        command += ["--most-bytes", str(most_bytes)]
        begun = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, "--rank", str(rank)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(ranks)
        ]
        told = [one.communicate()[0].strip().splitlines() for one in begun]
    ends = [lines[-1] if lines else "" for lines in told]
    wrong = sum(end != "right" for end in ends)
    return {"ranks_as": "processes", "wrong": wrong, "ends": told if wrong else ends}


def _process(folder: Path, rank: int, ranks: int, most_bytes: int, timeout_s: float) -> None:
    device = CudaDevice.open(0)
    comm = DeviceCommunicator(
        FolderStore(str(folder)), rank, ranks, device, kernels=Settings(timeout_s=10 * timeout_s)
    )
    every = Random(7).sample(list(cases(ranks, most_bytes)), 150)
    found = [Rank(comm, device, shared=shared).wrong(every) for shared in (False, True)]
    comm.close()
    print("right" if not any(found) else found)


def _many(device: CudaDevice, timeout_s: float) -> Mapping[str, Any]:
    free, begin, cpu_s = _free_bytes(device), time.perf_counter(), time.process_time()
    made = [opened(f"many-{n}", device, 2, "float32", timeout_s) for n in range(MANY)]
    found = {
        "mib_a_rank": round((free - _free_bytes(device)) / MANY / 2 / 2**20, 1),
        "opening_s": round((time.perf_counter() - begin) / MANY, 3),
        "opening_cpu_s": round((time.process_time() - cpu_s) / MANY, 3),
    }
    for comms in made:
        together([comm.close for comm in comms])
    return found | {"mib_left": round((free - _free_bytes(device)) / 2**20, 1)}


def _beside_full(device: CudaDevice, timeout_s: float) -> Mapping[str, Any]:
    """Two communicators, on a stream for each rank, and on a further one what fills the GPU."""
    first, second = (Ranks(f"full-{n}", device, timeout_s) for n in range(2))
    stream, memory = device.stream(), device.allocate(FULL_BYTES)
    raw = cu.CUstream(device.stream_address(stream))
    for turn in range(TURNS):
        with current(device):
            cu.cuMemsetD8Async(memory.address, turn % 256, FULL_BYTES, raw)
        for one in (first, second) if turn % 2 else (second, first):
            one.start()
    device.synchronize(stream)
    return {"wrong": first.wrong(TURNS) + second.wrong(TURNS)}


def _free_bytes(device: CudaDevice) -> int:
    device.synchronize(None)
    with current(device):
        result, free, _ = cu.cuMemGetInfo()
    assert result == cu.CUresult.CUDA_SUCCESS, result.name
    return int(free)


def step(lines: Lines, most_bytes: int, timeout_s: float) -> bool:
    device, good = CudaDevice.open(0), []
    for ranks in (2, 8, 3):
        row = {"what": "calls of threads", "ranks": ranks}
        good.append(lines.attempt(row, partial(_of_threads, device, ranks, most_bytes, timeout_s)))
    for ranks in (2, 4):
        row = {"what": "calls of processes", "ranks": ranks}
        good.append(lines.attempt(row, partial(_of_processes, ranks, most_bytes, timeout_s)))
    for what, work in (("beside a full GPU", _beside_full), ("many communicators", _many)):
        good.append(lines.attempt({"what": what}, partial(work, device, timeout_s)))
    return all(good)


if __name__ == "__main__":
    parser = step_parser(__doc__)
    parser.add_argument("--rank", type=int, help="of a process that the step starts")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--most-bytes", type=int, default=MOST_BYTES)
    options = parser.parse_args()
    limits = min(options.most_bytes, MOST_BYTES), options.timeout_s
    if options.rank is not None:
        _process(options.lines, options.rank, options.ranks, *limits)
    else:
        run_step("communicator", options.lines, lambda lines: step(lines, *limits))
