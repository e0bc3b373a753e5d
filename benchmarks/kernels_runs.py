"""The runs on a device: plans and communicators on checked data, and plain copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from kernels_plans import IN_PLACE, Case
from kernels_timing import CudaTimer, Timer

import sley
from sley.algorithms import build
from sley.communicator import DeviceCommunicator, LocalStore
from sley.communicator.selection.kinds import CALLS, size_of
from sley.engine.check import PERIOD, Pattern
from sley.engine.devices import Device, Engine, Executor, Launching, Settings
from sley.engine.devices.device import Memory
from sley.engine.limits import TIMEOUT_S
from sley.engine.types import DATA_TYPES
from sley.ir.plan_table import Recipe

SCALE = np.float32(2.0**-100)
"""Inputs are small integers times this power of two, so that sums are exact. Calls in place, whose
results are the next call's inputs, reach infinity only after more than seventy calls."""

CHECKED_BYTES = 128 << 10
"""The number of bytes of each rank's data that are written and checked at each size."""

PIECE = 256 * PERIOD
"""Number of elements of one write into a buffer: a multiple of the data's period."""

ROOM = 4 << 10
"""Bytes of a buffer beyond the largest size, for odd counts."""

Values = np.ndarray[Any, Any]


class Data:
    """Each rank's input and output on one device, with inputs of known results. Where a call is in
    place, its output is the input. dtype: "float32" or "bfloat16". allocate: makes memory."""

    def __init__(
        self,
        device: Device,
        ranks: int,
        most_bytes: int,
        dtype: str = "float32",
        allocate: Callable[[int], Memory] | None = None,
    ) -> None:
        self.device, self.ranks, self.dtype = device, ranks, dtype
        self._type = DATA_TYPES[dtype]
        self.item = self._type.size_bytes
        allocate = allocate or device.allocate
        made = [[allocate(most_bytes + ROOM) for _ in range(ranks)] for _ in range(2)]
        self.inputs, self.outputs = made
        self._pattern = Pattern.make(self._type, sley.ReduceOp.SUM, ranks)
        elements = most_bytes // self.item
        for rank, memory in enumerate(self.inputs):
            piece = self._input(rank, 0, PIECE)
            for start in range(0, elements, PIECE):
                self._write(memory, start, piece[: elements - start])
        self._expected = cache(self._result)

    def memory(self, kind: str) -> tuple[list[Memory], list[Memory]]:
        """The ranks' inputs and outputs of a call."""
        return self.inputs, self.inputs if kind in IN_PLACE else self.outputs

    def arrays(self, kind: str, count: int) -> list[tuple[Any, ...]]:
        """For each rank its arrays for a call of `count` elements a block: input and output, or in
        place one."""
        row, found = CALLS[kind], []
        for parts, memory in zip(
            (row.input_parts, row.output_parts), self.memory(kind), strict=True
        ):
            elements = count * (self.ranks if parts else 1)
            found.append([self.device.array(m, self.dtype, elements) for m in memory])
        return list(zip(*found[: 1 if kind in IN_PLACE else 2], strict=True))

    def fill(self, kind: str, count: int) -> None:
        """Writes the inputs into the parts that are checked, and clears those of the outputs."""
        blocks = self.ranks if CALLS[kind].input_parts else 1
        for rank, memory in enumerate(self.inputs):
            for start, number in self._pieces(kind, count, blocks):
                self._write(memory, start, self._input(rank, start, number))
        if kind not in IN_PLACE:
            for rank, _, at, number in self._checked(kind, count):
                self._write(self.outputs[rank], at, np.zeros(number, np.float32))

    def wrong(self, kind: str, count: int) -> int:
        """The number of wrong elements in the checked parts."""
        wrong = 0
        for rank, block, at, number in self._checked(kind, count):
            found = np.empty(number, self._type.array)
            self.device.read(self.memory(kind)[1][rank], at * self.item, found.view(np.uint8))
            expected = self._expected(kind, count, rank, block, at - block * count, number)
            wrong += int(np.count_nonzero(found != expected))
        return wrong

    def _checked(self, kind: str, count: int) -> Iterator[tuple[int, int, int, int]]:
        """(rank, block, first element, elements) of the checked parts of outputs."""
        row = CALLS[kind]
        blocks = self.ranks if row.output_parts else 1
        for rank in range(1 if row.output_of else self.ranks):
            for at, number in self._pieces(kind, count, blocks):
                yield rank, at // count, at, number

    def _pieces(self, kind: str, count: int, blocks: int) -> list[tuple[int, int]]:
        """(first element, elements) of the checked parts of a buffer: the start and the end of each
        of its blocks, or all of them if they are small."""
        most = CHECKED_BYTES // self.item // 2 // (self.ranks if CALLS[kind].has_parts else 1)
        within = [(0, count)] if count <= 2 * most else [(0, most), (count - most, most)]
        return [(block * count + at, n) for block in range(blocks) for at, n in within]

    def _result(
        self, kind: str, count: int, rank: int, block: int, start: int, number: int
    ) -> Values:
        """The right elements of a part of a block of a rank's output."""
        row = CALLS[kind]
        at = start + (rank * count if row.input_parts else 0)
        if row.reduces:
            return self._rounded(sum(self._input(src, at, number) for src in range(self.ranks)))
        return self._rounded(self._input(block if row.output_parts else 0, at, number))

    def _input(self, rank: int, start: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        values = self._pattern.values(rank, np.arange(start, start + count))
        return values.astype(np.float32) * SCALE

    def _write(self, memory: Memory, start: int, values: Values) -> None:
        self.device.write(memory, start * self.item, self._rounded(values).view(np.uint8))

    def _rounded(self, values: Any) -> Values:
        """float32 values, which the buffers' type holds exactly, as elements of the buffers."""
        if self.dtype == "float32":
            return np.asarray(values)
        return (values.view(np.uint32) >> 16).astype(np.uint16)


class Call:
    """An executor as a run. is_wide: whether its fences order memory for the whole system, as for
    several devices."""

    def __init__(
        self,
        case: Case,
        data: Data,
        timer: Timer,
        *,
        kind: str = "all_reduce",
        engine: Engine = Engine.GENERATED,
        threads: int | None = None,
        slot_bytes: int | None = None,
        timeout_s: float = TIMEOUT_S,
        is_wide: bool = False,
        **label: Any,
    ) -> None:
        ranks = case.plan.collective.ranks
        self._kind, self._data, self._timer = kind, data, timer
        settings = Settings(
            engine=engine,
            threads=threads or case.threads,
            slot_bytes=slot_bytes,
            timeout_s=timeout_s,
            launching=Launching.TOGETHER,
        )
        self.executor = Executor(
            case.plan,
            dict.fromkeys(range(ranks), data.device),
            settings,
            exchange=(lambda message: [message]) if is_wide else None,
        )
        self._streams = timer.streams(1)
        wiring = self.executor.loaded.wiring
        self.label = {
            "by": "sley",
            "kind": kind,
            "algorithm": case.algorithm,
            "protocol": case.plan.protocol.value,
            "engine": engine.value,
            "launching": "together",
            "ranks": ranks,
            "blocks": case.plan.blocks_per_rank,
            "threads": settings.threads,
            "slots": wiring.slots,
            "slot_bytes": wiring.slot_bytes,
            **label,
        }

    def prepare(self, count: int) -> str:
        """Builds the executor, runs one call and checks the results."""
        self._data.fill(self._kind, count)
        self._start(self._data.arrays(self._kind, count), self._streams)
        for stream in self._streams:
            self._data.device.synchronize(stream)
        self.executor.synchronize()
        return in_words(self._data.wrong(self._kind, count))

    def time_us(self, count: int, calls: int) -> float:
        start = partial(self._start, self._data.arrays(self._kind, count))
        us = self._timer.time_us(start, self._streams, calls)
        self.executor.synchronize()
        return us

    def _start(self, arrays: Sequence[tuple[Any, ...]], streams: list[Any]) -> None:
        self.executor(*zip(*arrays, strict=True), dtype=self._data.dtype, streams=streams)


def opened(device: Device, ranks: int, name: str, timeout_s: float) -> list[DeviceCommunicator]:
    """The ranks of a communicator, which are threads, on one device."""
    from support.processes.process_ranks import together

    store, found = LocalStore(), dict[int, DeviceCommunicator]()
    options: Any = {"name": name, "kernels": Settings(timeout_s=timeout_s), "types": ["float32"]}

    def make(rank: int) -> None:
        found[rank] = DeviceCommunicator(store, rank, ranks, device, **options)

    together([partial(make, rank) for rank in range(ranks)])
    return [found[rank] for rank in range(ranks)]


def close(comms: Sequence[DeviceCommunicator]) -> None:
    """Closes the ranks of a communicator, together. Raises the error of a failed call."""
    from support.processes.process_ranks import together

    together([comm.close for comm in comms])


class Chosen:
    """What a communicator chooses, as programs call it: each rank with a launch and a stream of its
    own, as NCCL's."""

    def __init__(
        self, comms: Sequence[DeviceCommunicator], kind: str, data: Data, timer: Timer
    ) -> None:
        self._comms, self._kind, self._data, self._timer = comms, kind, data, timer
        self._streams = timer.streams(len(comms))
        self.label: dict[str, Any] = {
            "by": "sley",
            "kind": kind,
            "algorithm": "its choice",
            "launching": "by-rank",
            "ranks": len(comms),
        }

    def prepare(self, count: int) -> str:
        """Runs one call, in threads, as a first call may wait for all ranks; checks the results."""
        from support.processes.process_ranks import together

        self.label |= named(chosen(self._comms[0], self._kind, count, self._data.item))
        self._data.fill(self._kind, count)
        arrays = self._data.arrays(self._kind, count)
        together([partial(self._call, rank, arrays, self._streams) for rank in range(len(arrays))])
        self._wait()
        return in_words(self._data.wrong(self._kind, count))

    def time_us(self, count: int, calls: int) -> float:
        arrays = self._data.arrays(self._kind, count)

        def start(streams: list[Any]) -> None:
            for rank in range(len(arrays)):
                self._call(rank, arrays, streams)

        us = self._timer.time_us(start, self._streams, calls)
        self._wait()
        return us

    def _call(self, rank: int, arrays: Sequence[tuple[Any, ...]], streams: list[Any]) -> None:
        getattr(self._comms[rank], self._kind)(*arrays[rank], stream=streams[rank])

    def _wait(self) -> None:
        for comm in self._comms:
            comm.synchronize()


class Together:
    """The plans that a communicator chooses, by `make` as runs with one launch for all ranks."""

    def __init__(
        self,
        comms: Sequence[DeviceCommunicator],
        kind: str,
        data: Data,
        make: Callable[[Case], Call],
    ) -> None:
        self._comm, self._kind, self._data = comms[0], kind, data
        self._make = cache(make)
        self._run: Call | None = None
        self.label: dict[str, Any] = {"by": "sley", "kind": kind, "ranks": len(comms)}

    def prepare(self, count: int) -> str:
        case = chosen(self._comm, self._kind, count, self._data.item)
        self._run = self._make(case)
        self.label |= {**self._run.label, **named(case), "algorithm": "its choice"}
        return self._run.prepare(count)

    def time_us(self, count: int, calls: int) -> float:
        assert self._run is not None
        return self._run.time_us(count, calls)


def chosen(comm: DeviceCommunicator, kind: str, count: int, item_bytes: int) -> Case:
    """The plan that a communicator runs for a call at root 0, in place if the call is."""
    size_bytes = size_of(kind, comm.ranks, count, item_bytes)
    either = comm._table.rows.get((kind, False, 0))  # of plans that run in either place
    rows = comm._table.rows.get((kind, kind in IN_PLACE, 0), either) or ()
    (recipe,) = [ready.row.recipe for sizes, ready in rows if sizes.covers(size_bytes)]
    return _compiled(recipe, kind in IN_PLACE)


@cache
def _compiled(recipe: Recipe, in_place: bool) -> Case:
    program = build(recipe.name, **{**recipe.arguments, "in_place": in_place})
    return Case(recipe.name, sley.compile(program, **recipe.options))


def named(case: Case) -> dict[str, Any]:
    """What a chosen plan is, in a run's label."""
    plan = case.plan
    return {
        "plan": plan.name,
        "protocol": plan.protocol.value,
        "blocks": plan.blocks_per_rank,
        "threads": case.threads,
    }


def in_words(wrong: int) -> str:
    return f"{wrong} wrong elements" if wrong else ""


class Copy:
    """A plain copy on the device of the largest buffers of all ranks."""

    def __init__(self, kind: str, data: Data, timer: Timer) -> None:
        self._kind, self._data, self._timer = kind, data, timer
        self._streams = timer.streams(1)
        self.label = {"by": "copy", "kind": kind, "ranks": data.ranks}

    def prepare(self, count: int) -> str:
        """Allocates source and destination, once for all sizes."""
        if not hasattr(self, "_memory"):
            room = self._data.inputs[0].size_bytes * self._data.ranks
            self._memory = [self._data.device.allocate(room) for _ in range(2)]
        return ""

    def time_us(self, count: int, calls: int) -> float:
        src, dst = self._memory
        ranks = self._data.ranks
        moved = size_of(self._kind, ranks, count, self._data.item) * ranks

        def start(streams: list[Any]) -> None:
            if isinstance(self._timer, CudaTimer):
                self._timer.copy(dst.address, src.address, moved, streams[0])
            else:
                copied = self._data.device.array(src, "uint8", moved)
                self._data.device.write(dst, 0, copied)

        return self._timer.time_us(start, self._streams, calls)
