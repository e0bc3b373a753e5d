"""Executor: a plan on devices, ready for repeated calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import numpy as np

from sley.engine.devices import tables
from sley.engine.devices.arguments import Arguments, Arrays, check_arguments, check_factor
from sley.engine.devices.calls import PreparedCall
from sley.engine.devices.counters import State, read_state
from sley.engine.devices.device import Device, Launch, Start
from sley.engine.devices.device_ranks import Exchange
from sley.engine.devices.device_state import DeviceState, Group
from sley.engine.devices.links import LinkSet
from sley.engine.devices.mailboxes import kind_of_slots
from sley.engine.devices.memory import Pair
from sley.engine.devices.settings import Launching, Settings
from sley.engine.devices.tables import CALL, Cut
from sley.engine.devices.windows import way_of_groups
from sley.engine.kernels import KERNELS, Engine, Platform, Variant
from sley.engine.limits import check_slot, whole
from sley.engine.types import DataType, data_type, reduction
from sley.errors.devices import K506, K518
from sley.errors.runtime import R503, R514
from sley.ir.cut import UNIT_BYTES, longest_chunk
from sley.ir.plan import Plan
from sley.ir.words import Protocol, ReduceOp
from sley.verification.scales import prove_scales

_NUMBERS = 2**31 - 2
"""The most numbers of a call: an epoch of LL's flags has one more (`primitives/kernel.hpp`)."""
_ALIGNMENT = 256
"""Bytes. Devices align new memory to it; scratch gets the same alignment."""


class Executor:
    """Runs a plan's ranks of this process on the process's devices.

    plan: a verified plan. devices: one for each rank of the plan, or, with `exchange`, a mapping
        from the ranks of this process to their devices; or, instead of devices, settings and
        exchange, the `LinkSet` that the executor shares with others.
    settings: how the plan runs.
    exchange: for ranks in several processes: an all-gather of bytes among the processes. All
        processes make their executors, and their calls, in the same order. An error that one
        process finds before an exchange is raised in all of them.

    Counters in the devices' memory persist between calls, so the host need not wait between calls.
    Calls run one after the other, even on different streams: each waits for the one before. A call
    may be captured into a graph, which takes its turn when it is launched; the caller orders the
    calls on several streams within a capture. The executor and the arrays must outlive the graph.
    Only one thread at a time may use an executor, or others over the same links. `close`, or
    leaving a `with` block, frees the links' memory; so does dropping the last reference, when no
    call of this process is under way, without waiting for other processes. Errors: K5xx, R5xx.
    """

    def __init__(
        self,
        plan: Plan,
        devices: Sequence[Device] | Mapping[int, Device] | LinkSet,
        settings: Settings | None = None,
        *,
        exchange: Exchange | None = None,
    ) -> None:
        if not isinstance(devices, LinkSet):
            devices = LinkSet([plan], devices, settings, exchange=exchange)
        elif settings is not None or exchange is not None:
            raise R514.error(
                expected="links alone, which have settings and an exchange",
                found="others beside them",
            )
        self.links = links = devices
        self._number = number = links.number_of(plan)
        self.settings, self.timeout_s = links.settings, links.timeout_s
        self._kernels, self.loaded = links.kernels[number], links.loaded[number]
        self.plan = self._kernels.plan
        # Before its scratch, each rank of a plan that keeps chunks at the places of others has a
        # unit for each chunk of its input and output: room for the last elements of a longer chunk
        # there (`docs/machine.md`, "Memory").
        misplaced = self.loaded.homes.misplaced
        most = int(self.plan.collective.data_chunks.max()) if misplaced else 0
        self._front = -(-2 * most * UNIT_BYTES // _ALIGNMENT) * _ALIGNMENT
        self._steps = int(np.diff(self.plan.block_offset).max(initial=1))
        self._programs: dict[tuple[str, ReduceOp, bool], list[Any]] = {}
        """Of the links' states, by type, reduction, and whether inputs are scaled."""

    @property
    def ranks(self) -> list[int]:
        """The ranks of this process, ascending."""
        return list(self.links.ranks.devices)

    def way_of_groups(self, dtype: str, reduce_op: ReduceOp = ReduceOp.SUM) -> str:
        """How calls run the instructions whose peer is a group, in words; empty if the plan has
        none. R504, R514 for an unknown type or reduction."""
        kind, op = data_type(dtype), reduction(reduce_op)
        links, number = self.links, self._number
        return way_of_groups(links.plans[number], links.single_messages[number], kind, op)

    def empty(self, dtype: str, elements: int) -> dict[int, Any]:
        """New arrays, one for each rank of this process, that other processes can read. With ranks
        in several processes, calls of a plan with the direct protocol need such arrays. All
        processes allocate the same arrays in the same order. They last until the links are closed,
        and serve all their executors."""
        self.links.settle()
        return self.links.arrays.empty(dtype, elements)

    def reserve(self, count: int, dtype: str, reduce_op: ReduceOp = ReduceOp.SUM) -> None:
        """Allocates scratch for calls of `count` elements a block, and loads their kernels; all
        processes call this together. A call does so itself, unless it is captured into a graph."""
        self.check()
        count, kind, op = whole(count, "count", 0), data_type(dtype), reduction(reduce_op)
        self._reserve(count, kind, op, scales=False, streams=())

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
        given = streams if isinstance(streams, list | tuple) else [streams]
        self._prepare(inputs, outputs, count, dtype, reduce_op, factor, given)(streams)

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
        costs the host little more than its launches. Arguments: as for a call. With ranks in
        several processes, all processes prepare together the first call of a type and reduction,
        a call that needs more scratch, and any call with the direct protocol; an error of one is
        raised in all."""
        return self._prepare(inputs, outputs, count, dtype, reduce_op, factor, ())

    def _prepare(
        self,
        inputs: Arrays,
        outputs: Arrays | None,
        count: int | None,
        dtype: str | None,
        reduce_op: ReduceOp,
        factor: Any,
        streams: Sequence[Any],
    ) -> PreparedCall:
        self.check()
        ranks, states = self.links.ranks, self.links.states[self._number]
        # Others wait for this process if its call is the first.
        waited = self._is_read_remotely or not self._programs
        with ranks.telling() if waited else nullcontext():
            devices, op = ranks.devices, reduction(reduce_op)
            arguments = check_arguments(self.plan, devices, inputs, outputs, count, dtype)
            cut = self._cut(arguments)
            scales = factor is not None
            fields: dict[str, int] = {**vars(cut)}
            if scales:
                fields |= check_factor(self.plan, devices, factor, arguments.dtype, op)
        programs = self._reserve(arguments.count, arguments.dtype, op, scales, streams)
        remote = self.links.arrays.remote(arguments.views) if self._is_read_remotely else {}
        # Concurrent launches aren't cooperative: the driver may serialise those that are.
        together = self.settings.launching is Launching.TOGETHER
        keeps = (self, inputs, outputs, factor)
        starts = []
        for state, program in zip(states, programs, strict=True):
            for group in state.groups:
                call = self._call(state, group, arguments, remote.get(state.device, {}), fields)
                kernels = KERNELS if op is ReduceOp.AVG and group.divisions else KERNELS[:1]
                launches = tuple(
                    Launch(
                        name,
                        call,
                        group.blocks,
                        self.settings.threads,
                        together and name == KERNELS[0],
                        keeps,
                    )
                    for name in kernels
                )
                starts.append(Start(state.device, program, launches, group.stream))
        return PreparedCall(tuple(starts), self.links.order, self.synchronize, self.check)

    def synchronize(self) -> None:
        """Waits until all calls on the links' own streams are done. Raises K508 if a call on any
        stream timed out; the executors of the links are then unusable."""
        self.links.synchronize()

    def read_state(self) -> State:
        """The counters and reports in the devices' memory as numbers, for whoever looks for the
        cause of a hang; also while a call runs, and after it failed. R508 if the executor is
        closed."""
        self.links.check_open()
        return read_state(self.links, self._number)

    def close(self) -> None:
        """Waits for the links' calls and, with `exchange`, until all processes call this; then
        frees the links' memory, when no call of other links is under way. Afterwards neither the
        executor, nor another one of its links, nor prepared calls, nor graphs that captured them
        can be used. After a failed call, of any process, it doesn't wait for other processes, which
        may have ended. K514, after the memory is freed, if one doesn't call it for
        `LATE_TIMEOUT_S`, or the executor's time-out if that is longer. A second call does
        nothing."""
        self.links.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an exception here, other processes may never call `close`.
        self.links.close(meet=problem is None)

    def check(self) -> None:
        """Raises K508 if a block timed out, R508 if one did earlier, in any executor of the links,
        or if they are closed; otherwise returns without waiting."""
        self.links.check()

    def _cut(self, arguments: Arguments) -> Cut:
        """The call's cut into tiles. R503 or R506 if there is none."""
        check_slot(self.loaded, arguments.dtype)
        cut = tables.cut(
            self.loaded,
            arguments.dtype.size_bytes,
            arguments.count,
            self.settings.slices_of(self.plan),
        )
        if cut.tiles > (most := _NUMBERS // self._steps):
            raise R503.error(expected=f"at most {most} tiles a chunk", found=f"{cut.tiles} tiles")
        return cut

    @property
    def _is_read_remotely(self) -> bool:
        """Whether other processes read messages from this process's arrays."""
        return self.plan.protocol is Protocol.DIRECT and not self.links.ranks.is_one_process

    def _reserve(
        self, count: int, dtype: DataType, op: ReduceOp, scales: bool, streams: Sequence[Any]
    ) -> list[Any]:
        """Sees to a call's scratch and kernels, and returns its programs, one for each state. The
        driver may wait for all kernels then, also for one that waits for this process's next call:
        so none is under way, and none starts before all processes are done. K518 if one of
        `streams` is captured."""
        links, key = self.links, (dtype.name, op, scales)
        elements = longest_chunk(self.plan.collective.chunks, count, dtype.size_bytes)
        chunks, room = self.plan.scratch_chunks.tolist(), elements * dtype.size_bytes
        sizes = [self._front + number * room for number in chunks]
        if key in self._programs and links.scratch.has(sizes):
            return self._programs[key]
        if any(links.ranks.places[0].is_captured(each) for each in streams if each is not None):
            raise K518.error(
                expected="scratch and kernels that are there before the capture",
                found=f"the first call of {op.name} of {dtype.name}, or the first of this size",
                remedy="Call `reserve` before the capture, or make the call once.",
            )
        links.settle()
        links.scratch.reserve(sizes)
        if key not in self._programs:
            with links.ranks.telling():
                programs = [
                    self._program(state, dtype, op, scales) for state in links.states[self._number]
                ]
            links.ranks.meet()
            self._programs[key] = programs
        return self._programs[key]

    def _program(self, state: DeviceState, dtype: DataType, op: ReduceOp, scales: bool) -> Any:
        variant = Variant(
            Platform(state.device.platform),
            dtype.number,
            op,
            self.settings.threads,
            self.links.ranks.is_one_device,
            scales,
        )
        if scales:
            prove_scales(self.plan)
        engine = Engine.INTERPRETED if scales else self.settings.engine
        program = state.device.build(self._kernels.source(engine, variant), KERNELS)
        room = state.device.capacity(program, KERNELS[0], self.settings.threads)
        if state.blocks > room:
            threads = self.settings.threads
            raise K506.error(
                expected=f"at most {room} blocks of {threads} threads at once on "
                f"{state.device.name}",
                found=f"{state.blocks} blocks",
            )
        return program

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
            "abort": self.links.abort.address,
            "timeout_ns": int(self.timeout_s * 1e9),
            **fields,
            "slot_bytes": self.loaded.wiring.slot_bytes,
            "slots_bytes": self.links.slots_bytes[kind_of_slots(self.plan)],
            "chunks": self.plan.collective.chunks,
            "slots": self.loaded.wiring.slots,
            "steps": self._steps,
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
            buffers[rank] = (*pair, self.links.scratch.address(state.device, rank) + self._front)
        return row.tobytes()
