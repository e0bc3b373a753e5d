"""Executor: a plan on devices, ready for repeated calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sley.engine import native
from sley.engine.devices.arguments import Arrays, PlanArguments, check_factor
from sley.engine.devices.calls import PreparedCall
from sley.engine.devices.counters import State, read_state
from sley.engine.devices.device import Device
from sley.engine.devices.device_ranks import Exchange
from sley.engine.devices.links import LinkSet
from sley.engine.devices.programs import Programs, check_capture
from sley.engine.devices.settings import Launching, Settings
from sley.engine.devices.stamps import Stamps
from sley.engine.devices.windows import way_of_groups
from sley.engine.kernels import KERNELS
from sley.engine.limits import check_slot, whole
from sley.engine.types import DataType, data_type, reduction
from sley.errors.runtime import R514
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.model.simulation.result import Simulation


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
    may be captured into a graph, which takes its turn when it is launched; its calls keep their
    order, too. The executor and the arrays must outlive the graph.
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
        self._tables = links.tables[number]
        self._arguments = PlanArguments(self.plan, links.ranks.devices)
        self.programs = Programs(links)
        self._stamps = Stamps(links, number) if self.settings.stamps else None

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
        """New arrays, one for each rank of this process, that other processes can read: with the
        direct protocol they do so without a copy, where messages in other arrays are copied as with
        Simple. All processes allocate the same arrays in the same order. They last until the links
        are closed, and serve all their executors."""
        self.links.settle()
        return self.links.memory.empty(dtype, elements)

    def reserve(self, count: int, dtype: str, reduce_op: ReduceOp = ReduceOp.SUM) -> None:
        """Loads the kernels of calls without a factor, also those that were compiled in the
        meantime, and allocates scratch for `count` elements a block, which other processes can
        read, as arrays of `empty`; all processes do so together. A call gets what it lacks itself,
        unless it is captured into a graph, but other processes don't read such scratch."""
        self.check()
        with self.links.ranks.telling():
            kind, op = data_type(dtype), reduction(reduce_op)
            sizes = self._tables.scratch_bytes(kind.size_bytes, whole(count, "count", 0))
        self.links.settle()
        self.links.memory.reserve(sizes)
        with self.links.ranks.telling():
            wait = self.links.wait
            self.programs.of(self._number, kind, op, scales=False, wait=wait, again=True)
        self.links.ranks.meet()  # a kernel that starts earlier may wait for a rank that loads

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
            inputs,
            outputs,
            count=count,
            dtype=dtype,
            reduce_op=reduce_op,
            factor=factor,
            streams=streams,
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
        streams: Any = None,
    ) -> PreparedCall:
        """Validates and lays out a call once, for repeated calls on the same arrays: each then
        costs the host little more than its launches. Arguments: as for a call. Each process does so
        for itself, whatever arrays others have. It waits for its own calls before it loads kernels
        or allocates scratch that it lacks; K518 then if one of `streams` is captured."""
        self.check()
        devices, own = self.links.ranks.devices, self.links.on_devices[self._number]
        op, scales = reduction(reduce_op), factor is not None
        arguments = self._arguments.check(inputs, outputs, count, dtype)
        kind, count = arguments.dtype, arguments.count
        check_slot(self.loaded, kind)
        factors = check_factor(self.plan, devices, factor, kind, op) if scales else {}
        wait = partial(self._wait, streams, op, kind)
        programs = self.programs.of(self._number, kind, op, scales=scales, wait=wait)
        # Concurrent launches aren't cooperative: the driver may serialise those that are.
        together = self.settings.launching is Launching.TOGETHER
        run, divide, place = KERNELS
        stamps = self._stamps.addresses if self._stamps else [0] * len(own)
        places = [
            (plan, program[run], program[divide] if op is ReduceOp.AVG else 0, program[place], at)
            for plan, program, at in zip(own, programs, stamps, strict=True)
        ]
        links, threads = self.links, self._tables.threads(kind.size_bytes, count)
        keeps = (self, inputs, outputs, factor)
        call = native.PlanCall(links.order, links.memory.index, places, threads, together, keeps)
        buffers = [(rank, *first, *second) for rank, (first, second) in arguments.pieces.items()]
        if not call.lay_out(kind.size_bytes, count, buffers, **factors):
            links.memory.grow(self._tables.scratch_bytes(kind.size_bytes, count), wait)
            call.lay_out(kind.size_bytes, count, buffers, **factors)
        size_bytes = count * kind.size_bytes * self.plan.collective.blocks
        return PreparedCall(call, self.links, size_bytes, self._stamps)

    def synchronize(self) -> None:
        """Waits until all calls on the links' own streams are done. Raises K508 if a call on any
        stream timed out; the executors of the links are then unusable."""
        self.links.synchronize()

    def timeline(self, simulation: Simulation) -> Simulation:
        """A simulation of the executor's plan with the times of its last call instead, which must
        be done, as blocks noted them: so reports and traces of simulations show it. Times count
        from the begin of the first block; its launch ends when a block has read what it begins
        with. A block notes its first thousand executions, a run as its first instruction; words of
        LL and LL128 are waited for while data move. Blocks of other processes have none; clocks of
        several GPUs may differ. R514 without `Settings.stamps` or a call, and for another plan or
        size."""
        if self._stamps is None:
            raise R514.error(expected="Settings(stamps=True)", found="blocks that note no times")
        return self._stamps.timeline(simulation)

    def read_state(self) -> State:
        """The counters and reports in the devices' memory as numbers, for whoever looks for the
        cause of a hang; also while a call runs, and after it failed. R508 if the executor is
        closed."""
        self.links.native.check_open()
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

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        # After an exception here, other processes may never call `close`.
        self.links.close(meet=problem is None)

    def check(self) -> None:
        """Raises K508 if a block timed out, R508 if one did earlier, in any executor of the links,
        or if they are closed; otherwise returns without waiting."""
        self.links.check()

    def _wait(self, streams: Any, op: ReduceOp, dtype: DataType) -> None:
        """Waits for this process's calls, before a call gets what it lacks."""
        given = streams if isinstance(streams, list | tuple) else [streams]
        check_capture(self.links.ranks.places[0], given, op, dtype)
        self.links.wait()
