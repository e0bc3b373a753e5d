"""The runs on a device: executors on checked data, and plain copies."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernels_plans import Case
from kernels_timing import CudaTimer, Timer

import sley
from sley.engine.check import PERIOD, Pattern
from sley.engine.devices import Device, Engine, Executor, Launching, Settings
from sley.engine.devices.device import Memory
from sley.engine.limits import TIMEOUT_S
from sley.engine.types import DATA_TYPES
from sley.ir.sizes import size_text

SCALE = np.float32(2.0**-100)
"""Inputs are small integers times this power of two, so that sums are exact. Calls in place, whose
results are the next call's inputs, reach infinity only after more than seventy calls."""

CHECKED_BYTES = 512 << 10
"""The number of bytes of each rank's data that are written and checked at each size."""

PIECE = 256 * PERIOD
"""Number of elements of one write into a buffer: a multiple of the data's period."""


class Data:
    """A buffer for each rank on one device, with inputs of known sum. dtype: "float32" or
    "bfloat16"."""

    def __init__(self, device: Device, ranks: int, most_bytes: int, dtype: str = "float32") -> None:
        self.device, self.ranks, self.dtype = device, ranks, dtype
        self._type = DATA_TYPES[dtype]
        self.item = self._type.size_bytes
        self.memory = [device.allocate(most_bytes) for _ in range(ranks)]
        self._pattern = Pattern.make(self._type, sley.ReduceOp.SUM, ranks)
        elements = most_bytes // self.item
        for rank, memory in enumerate(self.memory):
            piece = self._input(rank, 0, PIECE)
            for start in range(0, elements, PIECE):
                self._write(memory, start, piece[: elements - start])

    def arrays(self, size_bytes: int) -> list[Any]:
        """An array of `size_bytes` bytes for each rank."""
        return [self.device.array(m, self.dtype, size_bytes // self.item) for m in self.memory]

    def fill(self, size_bytes: int) -> None:
        """Writes the inputs into the parts that are checked."""
        for start, count in self._parts(size_bytes):
            for rank, memory in enumerate(self.memory):
                self._write(memory, start, self._input(rank, start, count))

    def wrong(self, size_bytes: int) -> int:
        """The number of wrong sums in the checked parts."""
        wrong = 0
        for start, count in self._parts(size_bytes):
            expected = sum(self._input(rank, start, count) for rank in range(self.ranks))
            for memory in self.memory:
                found = np.empty(count, self._type.array)
                self.device.read(memory, start * self.item, found.view(np.uint8))
                wrong += int(np.count_nonzero(found != self._rounded(expected)))
        return wrong

    def _parts(self, size_bytes: int) -> list[tuple[int, int]]:
        """(first element, elements) of the buffer's start and, if it is large, its end."""
        elements, most = size_bytes // self.item, CHECKED_BYTES // self.item
        if elements <= most:
            return [(0, elements)]
        return [(0, most // 2), (elements - most // 2, most // 2)]

    def _input(self, rank: int, start: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        values = self._pattern.values(rank, np.arange(start, start + count))
        return values.astype(np.float32) * SCALE

    def _write(self, memory: Memory, start: int, values: np.ndarray[Any, Any]) -> None:
        rounded = self._rounded(values)
        self.device.write(memory, start * self.item, rounded.view(np.uint8))

    def _rounded(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """float32 values, which the buffers' type holds exactly, as elements of the buffers."""
        if self.dtype == "float32":
            return values
        return (values.view(np.uint32) >> 16).astype(np.uint16)


class Call:
    """An executor as a run. graph: whether its calls are captured in a CUDA graph. is_wide: whether
    its fences order memory for the whole system, as for several devices."""

    def __init__(
        self,
        case: Case,
        data: Data,
        timer: Timer,
        *,
        engine: Engine = Engine.GENERATED,
        launching: Launching = Launching.TOGETHER,
        threads: int = 512,
        graph: bool = False,
        slot_bytes: int | None = None,
        timeout_s: float = TIMEOUT_S,
        is_wide: bool = False,
        **label: Any,
    ) -> None:
        ranks = case.plan.collective.ranks
        self._data, self._timer, self._graph = data, timer, graph
        self.executor = Executor(
            case.plan,
            dict.fromkeys(range(ranks), data.device),
            Settings(
                engine=engine,
                threads=threads,
                launching=launching,
                slot_bytes=slot_bytes,
                timeout_s=timeout_s,
            ),
            exchange=(lambda message: [message]) if is_wide else None,
        )
        self._streams = timer.streams(1 if launching is Launching.TOGETHER else ranks)
        wiring = self.executor.loaded.wiring
        self.label = {
            **label,
            "by": "sley",
            "algorithm": case.algorithm,
            "protocol": case.plan.protocol.value,
            "engine": engine.value,
            "launching": launching.value
            + (" in a graph" if graph else "")
            + (f", slots of {size_text(slot_bytes)}" if slot_bytes else ""),
            "ranks": ranks,
            "blocks": case.plan.blocks_per_rank,
            "threads": threads,
            "slots": wiring.slots,
            "slot_bytes": wiring.slot_bytes,
        }

    def prepare(self, size_bytes: int) -> str:
        """Builds the executor, runs one call and checks the sums."""
        self._data.fill(size_bytes)
        arrays = self._data.arrays(size_bytes)
        self.executor(arrays, dtype=self._data.dtype, streams=self._streams)
        for stream in self._streams:
            self._data.device.synchronize(stream)
        self.executor.synchronize()
        wrong = self._data.wrong(size_bytes)
        return f"{wrong} wrong elements" if wrong else ""

    def time_us(self, size_bytes: int, calls: int) -> float:
        arrays = self._data.arrays(size_bytes)

        def start(streams: list[Any]) -> None:
            self.executor(arrays, dtype=self._data.dtype, streams=streams)

        if self._graph and isinstance(self._timer, CudaTimer):
            us = self._timer.graph_us(start, calls)
        else:
            us = self._timer.time_us(start, self._streams, calls)
        self.executor.synchronize()
        return us


class Copy:
    """A plain copy on the device with the bytes that an AllReduce in place of `ranks` buffers must
    read and write: every buffer once."""

    def __init__(self, data: Data, timer: Timer) -> None:
        self._data, self._timer = data, timer
        self._streams = timer.streams(1)
        self.label = {"by": "copy", "ranks": data.ranks}

    def prepare(self, size_bytes: int) -> str:
        """Allocates source and destination, once for all sizes."""
        if not hasattr(self, "_memory"):
            room = max(memory.size_bytes for memory in self._data.memory) * self._data.ranks
            self._memory = [self._data.device.allocate(room) for _ in range(2)]
        return ""

    def time_us(self, size_bytes: int, calls: int) -> float:
        src, dst = self._memory
        moved = size_bytes * self._data.ranks

        def start(streams: list[Any]) -> None:
            if isinstance(self._timer, CudaTimer):
                self._timer.copy(dst.address, src.address, moved, streams[0])
            else:
                copied = self._data.device.array(src, "uint8", moved)
                self._data.device.write(dst, 0, copied)

        return self._timer.time_us(start, self._streams, calls)
