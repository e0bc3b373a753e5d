"""What a call costs the host: of a rank, in two communicators, 64 sizes and 16 buffers at random,
from Python and in C++ alone, beside a bare launch of a kernel that does nothing, with as many
blocks and bytes of arguments."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any

import numpy as np

from first_contact.lines import Lines, run_step, step_parser
from first_contact.replays import captured, opened
from sley.communicator import DeviceCommunicator
from sley.communicator.selection.kinds import CALLS
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.tables import structure
from sley.engine.kernels import KERNELS
from sley.engine.native import StartOutcome
from sley.engine.types import DATA_TYPES
from sley.ir.words import ReduceOp
from support.devices.gpu_checks import part
from support.processes.process_ranks import together

RANKS, COMMUNICATORS, SIZES, BUFFERS = 2, 2, 64, 16
LEAST_BYTES, MOST_BYTES = 256, 1 << 20
BATCH, BATCHES = 128, 32
"""Calls before the host waits for the device: fewer than its queue holds, so that none waits in
it."""

FLOAT = DATA_TYPES["float32"]
Start = Callable[[], object]
Starts = list[tuple[Start, ...]]
"""Calls: of each rank what starts it. The first one's is timed."""


class Calls:
    """What is drawn from: a call of each communicator on each size of each buffer.

    from_python: as a program makes them. in_native: without Python's part. bare: launches alone.
    """

    def __init__(self, device: CudaDevice, most_bytes: int, timeout_s: float) -> None:
        self.device, self.streams = device, [device.stream() for _ in range(RANKS)]
        self.comms = [
            opened(f"host-{n}", device, RANKS, "float32", timeout_s) for n in range(COMMUNICATORS)
        ]
        buffers = [[device.allocate(most_bytes) for _ in range(RANKS)] for _ in range(BUFFERS)]
        counts = np.geomspace(min(LEAST_BYTES, most_bytes), most_bytes, SIZES).astype(int) // 4
        self.from_python: Starts = []
        self.in_native: Starts = []
        for comm, count, buffer in product(self.comms, counts[::-1].tolist(), buffers):
            arrays = [_tensor(part(device, memory, 0, "float32", count)) for memory in buffer]
            self.arrays = type(arrays[0]).__name__
            ranks = [*zip(comm, arrays, self.streams, strict=True)]
            self.from_python.append(
                tuple(partial(one.all_reduce, array, stream=stream) for one, array, stream in ranks)
            )
            self.in_native.append(
                tuple(
                    self._native(one, memory.address, count)
                    for one, memory in zip(comm, buffer, strict=True)
                )
            )

    def first(self) -> Mapping[str, Any]:
        """Makes all of them once, the largest first, which get what calls lack: each rank in a
        thread, since they wait for one another then. wrong: calls in C++ that didn't start."""
        together([partial(self._first, rank) for rank in range(RANKS)])
        self.wait()
        failed = 0
        for first in range(0, len(self.in_native), BATCH):
            for call in self.in_native[first : first + BATCH]:
                failed += sum(start() != StartOutcome.STARTED for start in call)
            self.wait()
        return {"wrong": failed}

    def _first(self, rank: int) -> None:
        for call in self.from_python:
            call[rank]()

    def _native(self, comm: DeviceCommunicator, address: int, count: int) -> Start:
        size_bytes = count * FLOAT.size_bytes
        kind, stream = list(CALLS).index("all_reduce"), self.streams[comm.rank]
        return partial(
            _core(comm).calls.start,
            *(kind, True, 0, FLOAT.number, int(ReduceOp.SUM), size_bytes, FLOAT.size_bytes, count),
            *(address, size_bytes, 0, 0, self.device.stream_address(stream)),
        )

    def bare(self) -> Start:
        """A launch of the kernel that divides, with nothing to divide."""
        core = _core(self.comms[0][0])
        ((plan,), *_), wait = core.links.on_devices, core.links.wait
        (program,) = core.programs.of(0, FLOAT, ReduceOp.SUM, scales=False, wait=wait)
        call, threads = bytes(structure("Call").itemsize), core.links.settings.threads
        row = program[KERNELS[1]], KERNELS[1], call, plan.blocks, threads, False, None
        address = self.device.stream_address(self.streams[0])
        return partial(self.device.native.launch, row, address)

    def wait(self) -> None:
        for one in (one for comm in self.comms for one in comm):
            one.synchronize()


def _tensor(array: Any) -> Any:
    """The array as a tensor, which calls read fastest, if PyTorch sees the GPU."""
    try:
        import torch
    except ImportError:
        return array
    return torch.as_tensor(array, device="cuda") if torch.cuda.is_available() else array


def _core(comm: DeviceCommunicator) -> Any:
    assert comm._core is not None
    return comm._core


def _drawn(starts: Starts) -> Starts:
    return Random(0).choices(starts, k=BATCH * BATCHES)


def _times_us(starts: Starts, *, alone: bool = False) -> list[float]:
    found = []
    for timed, *others in starts:
        begin = time.perf_counter_ns()
        timed()
        found.append((time.perf_counter_ns() - begin) / 1e3)
        for start in () if alone else others:
            start()
    return found


def _outside(calls: Calls, starts: Starts) -> Mapping[str, Any]:
    found: list[float] = []
    for first in range(0, len(starts), BATCH):
        found += _times_us(starts[first : first + BATCH])
        calls.wait()
    return _percentiles(found)


def _captured(calls: Calls, starts: Starts) -> Mapping[str, Any]:
    """In a capture, whose graph isn't launched."""
    found: list[float] = []
    with captured(calls.device, calls.streams[0]):
        found += _times_us(starts, alone=True)
    return _percentiles(found)


def _percentiles(times_us: Sequence[float]) -> Mapping[str, Any]:
    p50, p99 = np.percentile(times_us, [50, 99]).round(2).tolist()
    return {"p50_us": p50, "p99_us": p99, "calls": len(times_us)}


def _asked(calls: Calls) -> Mapping[str, Any]:
    """What a call asks of the driver, by name, where that keeps a journal: the stand-in does."""
    journal = getattr(ctypes.CDLL("libcuda.so.1"), "fake_journal", None)
    if journal is None:
        return {"asked": "this driver keeps no journal"}
    journal.restype = ctypes.c_char_p
    start, *others = calls.from_python[0]
    journal()
    start()
    asked = Counter(line for line in journal().decode().splitlines() if line.startswith("cu"))
    for other in others:
        other()
    calls.wait()
    few = {"cuLaunchKernelEx": 1, "cuEventRecordWithFlags": 1, "cuStreamWaitEvent": 1}
    return {"asked": asked, "wrong": sum(asked[name] > most for name, most in few.items())}


def step(lines: Lines, most_bytes: int, timeout_s: float) -> bool:
    device = CudaDevice.open(0)
    made: list[Calls] = []

    def opening() -> Mapping[str, Any]:
        made.append(Calls(device, most_bytes, timeout_s))
        return {"arrays": made[0].arrays}

    for what, work in (("opening", opening), ("the first calls", lambda: made[0].first())):
        if not lines.attempt({"what": what}, work):
            return False
    (calls,) = made
    good = [lines.attempt({"what": "driver"}, lambda: _asked(calls))]
    every = {"a call": calls.from_python, "a call in C++": calls.in_native}
    every["a bare launch"] = [(calls.bare(),)]
    label = {"ranks": RANKS, "sizes": SIZES, "buffers": BUFFERS, "communicators": COMMUNICATORS}
    for place, measured in (("a stream", _outside), ("a capture", _captured)):
        for what, starts in every.items():
            row = {"what": what, "in": place, **label}
            good.append(lines.attempt(row, partial(measured, calls, _drawn(starts))))
    return all(good)


if __name__ == "__main__":
    parser = step_parser(__doc__)
    parser.add_argument("--most-bytes", type=int, default=MOST_BYTES)
    options = parser.parse_args()
    most_bytes = min(options.most_bytes, MOST_BYTES)
    run_step("host", options.lines, lambda lines: step(lines, most_bytes, options.timeout_s))
