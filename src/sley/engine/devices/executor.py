"""Executor: a plan on devices, ready for repeated calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any
from weakref import finalize

import numpy as np

from sley.engine.devices import tables
from sley.engine.devices.arguments import Arguments, Arrays, check_arguments, check_factor
from sley.engine.devices.barrier import Barrier, given_up, shared_bytes
from sley.engine.devices.calls import Order, PreparedCall, Start
from sley.engine.devices.counters import State, read_state
from sley.engine.devices.deferred_free import release
from sley.engine.devices.device import Device, Launch
from sley.engine.devices.device_ranks import DeviceRanks, Exchange
from sley.engine.devices.device_state import DeviceState, Group, Mailboxes
from sley.engine.devices.failures import failure
from sley.engine.devices.memory import Pair, Scratch, SharedArrays
from sley.engine.devices.settings import LATE_TIMEOUT_S, Launching, Settings
from sley.engine.devices.tables import CALL, Cut
from sley.engine.devices.windows import Lanes, single_messages, way_of_groups
from sley.engine.kernels import KERNELS, Engine, Kernels, Platform, Variant
from sley.engine.limits import check_slot, whole
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.engine.program import load
from sley.engine.types import DataType, data_type, reduction
from sley.errors import SleyError
from sley.errors.devices import K506, K507
from sley.errors.runtime import R503, R508, R514
from sley.ir.cut import longest_chunk
from sley.ir.plan import Plan
from sley.ir.words import Protocol, ReduceOp

_MAX_TILES = 2**31 - 2


class Executor:
    """Runs a plan's ranks of this process on the process's devices.

    plan: a verified plan. devices: one for each rank of the plan, or, with `exchange`, a mapping
        from the ranks of this process to their devices.
    settings: how the plan runs.
    exchange: for ranks in several processes: an all-gather of bytes among the processes. All
        processes make their executors, and their calls, in the same order. An error that one
        process finds before an exchange is raised in all of them.

    Counters in the devices' memory persist between calls, so the host need not wait between calls.
    Calls run one after the other, even on different streams: each waits for the one before. A call
    may be captured into a graph. The caller then orders the graph with other calls, and the calls
    of the graph among each other, since the executor doesn't know when the graph runs. The executor
    and the arrays must outlive the graph. Only one thread at a time may use an executor. `close`,
    or leaving a `with` block, frees its memory; so does dropping the last reference, after waiting
    for this process's devices, but not for other processes. Errors: K5xx, R5xx.
    """

    def __init__(
        self,
        plan: Plan,
        devices: Sequence[Device] | Mapping[int, Device],
        settings: Settings | None = None,
        *,
        exchange: Exchange | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise R514.error(
                expected="a Plan, as `sley.compile` makes it", found=f"{type(plan).__name__}"
            )
        self.settings = settings or Settings()
        self._given = plan
        self._ranks = DeviceRanks(plan, devices, exchange)
        self.timeout_s = self.settings.timeout_of(is_one_process=self._ranks.is_one_process)
        with self._ranks.telling():
            self._check_queues()
            self._single_messages = single_messages(
                plan, self._ranks.devices, is_one_process=self._ranks.is_one_process
            )
            self._kernels = Kernels.of(plan, switches=not self._single_messages)
        self.plan = plan = self._kernels.plan
        connections = self._kernels.operands.connections
        received = np.bincount(connections.dst, minlength=plan.collective.ranks).tolist()
        most = self._ranks.most_on_a_device(received)
        with self._ranks.telling():
            loaded = load(plan, *self.settings.slots_of(plan, most))
            self.loaded = replace(loaded, homes=self._kernels.operands.homes)
            self._check_room()
            wiring = self.loaded.wiring
            self._lanes = Lanes.of(self._kernels.operands, wiring.slots * wiring.slot_bytes)
            self._windows = self._ranks.windows(self._lanes.teams, self._lanes.sizes)
        # Shared, so that a call that is given up in one process ends in all.
        self._abort = self._ranks.allocate_host(shared_bytes(plan.collective.ranks))
        patience_s = max(self.timeout_s, LATE_TIMEOUT_S)
        self._barrier = Barrier(self._abort, self._ranks.devices, patience_s)
        self._states = self._make_states()
        self._programs: dict[tuple[Device, str, ReduceOp, bool], Any] = {}
        self._scratch = Scratch(self._ranks, plan, self.loaded.homes.misplaced)
        self._arrays = SharedArrays(self._ranks)
        self._order = Order()
        self._failed = ""
        """What was found when a call failed. Not the error: its traceback has this executor, which
        would then live until the garbage collector finds the cycle."""
        self._is_closed = False
        memory: list[Any] = [self._ranks, self._abort, self._states, self._mailboxes]
        memory += [self._windows, self._scratch, self._arrays]
        places = [place for place in self._ranks.places if not place.keeps_launched]
        self._dropped = finalize(self, _end, places, self._barrier, memory)
        # At exit the driver frees the memory; it may already be unloaded.
        self._dropped.atexit = False
        self._ranks.use(self._barrier)

    @property
    def ranks(self) -> list[int]:
        """The ranks of this process, ascending."""
        return list(self._ranks.devices)

    def way_of_groups(self, dtype: str, reduce_op: ReduceOp = ReduceOp.SUM) -> str:
        """How calls run the instructions whose peer is a group, in words; empty if the plan has
        none. R504, R514 for an unknown type or reduction."""
        kind, op = data_type(dtype), reduction(reduce_op)
        return way_of_groups(self._given, self._single_messages, kind, op)

    def empty(self, dtype: str, elements: int) -> dict[int, Any]:
        """New arrays, one for each rank of this process, that other processes can read. With ranks
        in several processes, calls of a plan with the direct protocol need such arrays. All
        processes allocate the same arrays in the same order. They last until the executor is
        closed."""
        self.check()
        return self._arrays.empty(dtype, elements)

    def reserve(self, count: int, dtype: str) -> None:
        """Allocates scratch for calls of `count` elements a block. A call does so itself, unless it
        is captured into a graph."""
        self.check()
        count, kind = whole(count, "count", 0), data_type(dtype)
        elements = longest_chunk(self.plan.collective.chunks, count, kind.size_bytes)
        self._scratch.reserve(elements * kind.size_bytes, self.synchronize)

    def __call__(
        self,
        inputs: Arrays,
        outputs: Arrays | None = None,
        *,
        count: int | None = None,
        dtype: str | None = None,
        reduce_op: ReduceOp = ReduceOp.SUM,
        factor: Any = None,
        streams: Any = None,
    ) -> None:
        """Runs the plan on arrays of the ranks of this process; in place: on `inputs` alone.

        inputs, outputs: arrays on the ranks' devices (PyTorch, CuPy, NumPy for threads; anything
            with DLPack or the CUDA array interface), contiguous, of one type; None for a rank
            without such a buffer. An array that the call writes must not overlap another.
        count: elements of a block of the collective; by default derived from the arrays.
        dtype: the elements' type, by default the arrays'; types that NumPy lacks take their bits.
        factor: with SUM, what each input is multiplied by, once, as its rank first reads it (NCCL's
            PreMulSum; its averages of floats: by 1/n): a number, or, on one device, an array of one
            element, which kernels read. The product is rounded to the type.
        streams: the caller's stream, or one for each launch; the call then returns as soon as it is
            started, and the next call or `synchronize` raises its error. By default the call is
            ordered after the devices' default streams and returns when it is done.
        """
        call = self.prepare(
            inputs, outputs, count=count, dtype=dtype, reduce_op=reduce_op, factor=factor
        )
        call(streams)

    def prepare(
        self,
        inputs: Arrays,
        outputs: Arrays | None = None,
        *,
        count: int | None = None,
        dtype: str | None = None,
        reduce_op: ReduceOp = ReduceOp.SUM,
        factor: Any = None,
    ) -> PreparedCall:
        """Validates and lays out a call once, for repeated calls on the same arrays: each then
        costs the host little more than its launches. Arguments: as for a call. With the direct
        protocol and ranks in several processes, all processes prepare their calls together; an
        error of one is raised in all."""
        self.check()
        with self._ranks.telling() if self._is_read_remotely else nullcontext():
            devices, op = self._ranks.devices, reduction(reduce_op)
            arguments = check_arguments(self.plan, devices, inputs, outputs, count, dtype)
            cut = self._cut(arguments)
            scales = factor is not None
            fields: dict[str, int] = {**vars(cut)}
            if scales:
                fields |= check_factor(self.plan, devices, factor, arguments.dtype, op)
            programs = [self._program(state, arguments.dtype, op, scales) for state in self._states]
        self.reserve(arguments.count, arguments.dtype.name)
        remote = self._arrays.remote(arguments.views) if self._is_read_remotely else {}
        keeps = (self, inputs, outputs, factor)
        starts = []
        for state, program in zip(self._states, programs, strict=True):
            for group in state.groups:
                call = self._call(state, group, arguments, remote.get(state.device, {}), fields)
                kernels = KERNELS if op is ReduceOp.AVG and group.divisions else KERNELS[:1]
                launches = tuple(
                    Launch(
                        name,
                        call,
                        group.blocks,
                        self.settings.threads,
                        group.together and name == KERNELS[0],
                        keeps,
                    )
                    for name in kernels
                )
                starts.append(Start(state.device, program, launches, group.stream))
        return PreparedCall(tuple(starts), self._order, self.synchronize, self.check)

    def synchronize(self) -> None:
        """Waits until all calls on the executor's own streams are done. Raises K508 if a call on
        any stream timed out; the executor is then unusable."""
        self.check()
        for state in self._states:
            for group in state.groups:
                state.device.synchronize(group.stream)
        self.check()

    def read_state(self) -> State:
        """The counters and reports in the devices' memory as numbers, for whoever looks for the
        cause of a hang; also while a call runs, and after it failed. R508 if the executor is
        closed."""
        self._check_open()
        connections, memories = self._kernels.operands.connections, self._mailboxes.memories
        return read_state(self.plan, connections, self._boxes, memories, self._states)

    def close(self) -> None:
        """Waits for the devices and, with `exchange`, until all processes call this; then frees the
        executor's memory. Afterwards neither the executor, nor its prepared calls, nor graphs that
        captured them can be used. After a failed call, of any process, it doesn't wait for other
        processes, which may have ended. K514, after the memory is freed, if one doesn't call it for
        `LATE_TIMEOUT_S`, or the executor's time-out if that is longer. A second call does
        nothing."""
        self._close(meet=True)

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an exception here, other processes may never call `close`.
        self._close(meet=problem is None)

    def check(self) -> None:
        """Raises K508 if a block timed out, R508 if one did earlier or if the executor is closed;
        otherwise returns without waiting."""
        self._check_open()
        if self._failed:
            raise R508.error(expected="an executor without a failed call", found=self._failed)
        if self._barrier.is_given_up:
            for state in self._states:
                state.device.synchronize(None)  # all blocks have reported
            self._barrier.leave()
            found = failure(self.loaded, self._kernels, self._states, self.timeout_s)
            if found is None and not self._ranks.is_one_process:
                found = given_up()
            if found is not None:
                self._failed = found.found
                raise SleyError([found])

    def _check_open(self) -> None:
        if self._is_closed:
            raise R508.error(expected="an executor that is open", found="a closed one")

    def _make_states(self) -> list[DeviceState]:
        """The states of this process's devices, with the ranks' mailboxes."""
        wiring, connections = self.loaded.wiring, self._kernels.operands.connections
        boxes = Mailboxes.of(self.plan, connections, wiring.slots, wiring.slot_bytes, self._lanes)
        self._boxes = boxes
        self._mailboxes = self._ranks.allocate(boxes.size.tolist())
        return [
            DeviceState.of(
                device,
                self._ranks.on(device),
                self._kernels,
                boxes,
                self._mailboxes.addresses[device],
                self._lanes,
                self._windows,
                self.settings.launching,
            )
            for device in self._ranks.places
        ]

    def _close(self, *, meet: bool) -> None:
        if self._is_closed:
            return
        for device in self._ranks.places:
            device.synchronize(None)
        self._is_closed = True
        self._barrier.leave()
        self._ranks.detach()
        try:
            if meet:  # kernels of other processes write into this one's memory
                self._barrier.wait_for_others()
        finally:
            self._dropped.detach()
            del self._states, self._mailboxes, self._windows, self._scratch, self._arrays
            del self._programs

    def _check_room(self) -> None:
        """K507 if the slots exceed the memory of any device."""
        wiring, connections = self.loaded.wiring, self._kernels.operands.connections
        slots_bytes = len(connections) * wiring.slots * wiring.slot_bytes
        if slots_bytes > LARGEST:
            raise K507.error(expected=f"{slots_bytes:,} bytes of slots", found=BEYOND)

    def _check_queues(self) -> None:
        """K506 if launches of the ranks on a device could wait for one another in a queue."""
        if self.settings.launching is Launching.TOGETHER:
            return
        for device in self._ranks.places:
            launches, queues = len(self._ranks.on(device)), device.queues
            if queues is not None and launches > queues:
                raise K506.error(
                    expected=f"at most {queues} ranks with launches of their own on {device.name}",
                    found=f"{launches} ranks",
                    remedy="Use Launching.TOGETHER, fewer ranks on a device, or set "
                    "CUDA_DEVICE_MAX_CONNECTIONS=32 before the process uses CUDA.",
                )

    def _cut(self, arguments: Arguments) -> Cut:
        """The call's cut into tiles. R503 or R506 if there is none."""
        check_slot(self.loaded, arguments.dtype)
        cut = tables.cut(
            self.loaded,
            arguments.dtype.size_bytes,
            arguments.count,
            self.settings.slices_of(self.plan),
        )
        if cut.tiles > _MAX_TILES:
            raise R503.error(
                expected=f"at most {_MAX_TILES} tiles a chunk", found=f"{cut.tiles} tiles"
            )
        return cut

    @property
    def _is_read_remotely(self) -> bool:
        """Whether other processes read messages from this process's arrays."""
        return self.plan.protocol is Protocol.DIRECT and not self._ranks.is_one_process

    def _program(self, state: DeviceState, dtype: DataType, op: ReduceOp, scales: bool) -> Any:
        key = (state.device, dtype.name, op, scales)
        if key not in self._programs:
            variant = Variant(
                Platform(state.device.platform),
                dtype.number,
                op,
                self.settings.threads,
                self._ranks.is_one_device,
                scales,
            )
            engine = Engine.INTERPRETED if scales else self.settings.engine
            text = self._kernels.source(engine, variant)
            program = state.device.build(text, KERNELS)
            room = state.device.capacity(program, KERNELS[0], self.settings.threads)
            if state.blocks > room:
                threads = self.settings.threads
                raise K506.error(
                    expected=f"at most {room} blocks of {threads} threads at once on "
                    f"{state.device.name}",
                    found=f"{state.blocks} blocks",
                )
            self._programs[key] = program
        return self._programs[key]

    def _call(
        self,
        state: DeviceState,
        group: Group,
        arguments: Arguments,
        remote: Mapping[int, Pair],
        fields: Mapping[str, int],
    ) -> bytes:
        """The argument of a launch. remote: inputs and outputs of other processes' ranks. fields:
        of the cut and the factor."""
        row = np.zeros(1, CALL)
        values = {
            **state.addresses(group),
            "abort": self._abort.address,
            "timeout_ns": int(self.timeout_s * 1e9),
            **fields,
            "slot_bytes": self.loaded.wiring.slot_bytes,
            "chunks": self.plan.collective.chunks,
            "slots": self.loaded.wiring.slots,
            "steps": int(np.diff(self.plan.block_offset).max(initial=1)),
            "division_count": group.divisions,
        }
        for name, value in values.items():
            row[name] = value
        buffers = row["buffers"].reshape(-1, 3)
        pairs = {
            rank: (first.address if first else 0, second.address if second else 0)
            for rank, (first, second) in arguments.views.items()
        }
        for rank, pair in {**pairs, **remote}.items():
            buffers[rank] = (*pair, self._scratch.address(state.device, rank))
        return row.tobytes()


def _end(places: Sequence[Device], barrier: Barrier, memory: list[Any]) -> None:
    """Frees the memory of an executor that was dropped: after all its devices are done, since
    kernels on one device write into the memory of another. `finalize` holds the memory, so that it
    isn't freed before, in whatever order the garbage collector finds things."""

    def freed() -> None:
        for device in places:
            with suppress(SleyError):  # a failed call's, which nobody waits for any more
                device.synchronize(None)
        barrier.leave()
        memory.clear()

    release(freed)
