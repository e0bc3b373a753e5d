"""What a call costs the host: two communicators, 64 sizes and 16 buffers at random, beside a bare
launch of a kernel with as many blocks and bytes of arguments that does nothing."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

from first_contact.lines import Lines, run_step, step_parser
from first_contact.replays import captured
from sley.engine.devices import Executor, Settings
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.tables import structure
from sley.engine.kernels import KERNELS
from sley.engine.types import DATA_TYPES
from sley.ir.words import Protocol, ReduceOp
from support.devices.gpu_checks import part
from support.devices.gpu_plans import ring

RANKS, COMMUNICATORS, SIZES, BUFFERS = 2, 2, 64, 16
LEAST_BYTES, MOST_BYTES = 256, 1 << 20
BATCH, BATCHES = 128, 32
"""Calls before the host waits for the device: fewer than its queue holds, so that none waits in
it."""

Start = Callable[[], object]


class Calls:
    """Every call that is drawn: of each communicator, size and buffer."""

    def __init__(self, device: CudaDevice, most_bytes: int, timeout_s: float) -> None:
        self.device, self.stream = device, device.stream()
        plan, settings = ring(RANKS, Protocol.LL), Settings(timeout_s=timeout_s)
        self.ons = [Executor(plan, [device] * RANKS, settings) for _ in range(COMMUNICATORS)]
        buffers = [[device.allocate(most_bytes) for _ in range(RANKS)] for _ in range(BUFFERS)]
        sizes = np.geomspace(min(LEAST_BYTES, most_bytes), most_bytes, SIZES).astype(int) // 4
        self.every = [
            self._start(on, [part(device, memory, 0, "float32", count) for memory in buffer])
            for on in self.ons
            for count in sizes.tolist()
            for buffer in buffers
        ]

    def _start(self, on: Executor, arrays: Sequence[Any]) -> Start:
        return partial(on.prepare(arrays), self.stream)

    def bare(self) -> Start:
        """A launch of the kernel that divides, with nothing to divide."""
        on, (state,) = self.ons[0], self.ons[0].links.states[0]
        kind, wait = DATA_TYPES["float32"], on.links.wait
        (program,) = on.programs.of(0, kind, ReduceOp.SUM, scales=False, wait=wait)
        call, threads = bytes(structure("Call").itemsize), on.settings.threads
        row = program[KERNELS[1]], KERNELS[1], call, state.plan.blocks, threads, True, None
        return partial(self.device.native.launch, row, self.device.stream_address(self.stream))

    def drawn(self) -> list[Start]:
        return Random(0).choices(self.every, k=BATCH * BATCHES)

    def wait(self) -> None:
        self.device.synchronize(self.stream)
        for on in self.ons:
            on.synchronize()


def _times_us(starts: Sequence[Start]) -> list[float]:
    found = []
    for start in starts:
        begin = time.perf_counter_ns()
        start()
        found.append((time.perf_counter_ns() - begin) / 1e3)
    return found


def _outside(calls: Calls, starts: Sequence[Start]) -> Mapping[str, Any]:
    found: list[float] = []
    for first in range(0, len(starts), BATCH):
        found += _times_us(starts[first : first + BATCH])
        calls.wait()
    return _percentiles(found)


def _captured(calls: Calls, starts: Sequence[Start]) -> Mapping[str, Any]:
    """In a capture, whose graph isn't launched."""
    found: list[float] = []
    with captured(calls.device, calls.stream):
        found += _times_us(starts)
    return _percentiles(found)


def _percentiles(times_us: Sequence[float]) -> Mapping[str, Any]:
    p50, p99 = np.percentile(times_us, [50, 99]).round(2).tolist()
    return {"p50_us": p50, "p99_us": p99, "calls": len(times_us)}


def _asked(calls: Calls, start: Start) -> Mapping[str, Any]:
    """What a call asks of the driver, by name, where that keeps a journal: the stand-in does."""
    journal = getattr(ctypes.CDLL("libcuda.so.1"), "fake_journal", None)
    if journal is None:
        return {"asked": "this driver keeps no journal"}
    journal.restype = ctypes.c_char_p
    calls.wait()
    journal()
    start()
    entries = [line for line in journal().decode().splitlines() if line.startswith("cu")]
    calls.wait()
    few = {"cuLaunchKernelEx": 1, "cuEventRecordWithFlags": 1, "cuStreamWaitEvent": 1}
    asked = Counter(entries)
    return {"asked": asked, "wrong": sum(asked[name] > most for name, most in few.items())}


def step(lines: Lines, most_bytes: int, timeout_s: float) -> bool:
    device = CudaDevice.open(0)
    made: list[Calls] = []

    def first() -> Mapping[str, Any]:
        made.append(Calls(device, most_bytes, timeout_s))
        made[0].every[0]()
        made[0].wait()
        return {}

    if not lines.attempt({"what": "the first call"}, first):
        return False
    (calls,) = made
    drawn, bare = calls.drawn(), [calls.bare()] * BATCH * BATCHES
    label = {"ranks": RANKS, "sizes": SIZES, "buffers": BUFFERS, "communicators": COMMUNICATORS}
    good = [lines.attempt({"what": "driver"}, lambda: _asked(calls, drawn[0]))]
    for place, measured in (("a stream", _outside), ("a capture", _captured)):
        for what, starts in (("a call", drawn), ("a bare launch", bare)):
            row = {"what": what, "in": place, **label}
            good.append(lines.attempt(row, partial(measured, calls, starts)))
    return all(good)


if __name__ == "__main__":
    parser = step_parser(__doc__)
    parser.add_argument("--most-bytes", type=int, default=MOST_BYTES)
    options = parser.parse_args()
    most_bytes = min(options.most_bytes, MOST_BYTES)
    run_step("host", options.lines, lambda lines: step(lines, most_bytes, options.timeout_s))
