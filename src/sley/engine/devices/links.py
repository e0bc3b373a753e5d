"""LinkSet: what a communicator's ranks have between calls, whatever plans the calls run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any
from weakref import finalize

import numpy as np

from sley.engine import native
from sley.engine.devices.device import Device
from sley.engine.devices.device_ranks import DeviceRanks, Exchange
from sley.engine.devices.device_state import DeviceState, plan_tables
from sley.engine.devices.failures import failure
from sley.engine.devices.mailboxes import Mailboxes, kind_of_slots
from sley.engine.devices.memory import LinkMemory
from sley.engine.devices.settings import LATE_TIMEOUT_S, Launching, Settings
from sley.engine.devices.windows import Lanes, single_messages
from sley.engine.kernels import Kernels
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.engine.program import Loaded, load
from sley.errors import Diagnostic, SleyError, counted
from sley.errors.devices import K506, K507
from sley.errors.runtime import R508, R514
from sley.ir.plan import Plan
from sley.ir.tables import IntArray
from sley.ir.words import Protocol


class LinkSet:
    """What persists between the calls of a communicator, for the executors of its plans.

    plans: verified plans of the same ranks. The other arguments: as for an `Executor`. By default
        the slots on a device share 24 MiB as there, with the connections of all plans; slots of LL,
        of LL128 and of the other protocols each have their own.

    The calls of all executors run one after the other, and in one order in all processes. After one
    has failed, none can be used. `close` frees the memory, as for an executor. Errors: K5xx, R5xx.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        devices: Sequence[Device] | Mapping[int, Device],
        settings: Settings | None = None,
        *,
        exchange: Exchange | None = None,
    ) -> None:
        count = _ranks_of(plans)
        self.plans = list(plans)
        self.settings = settings or Settings()
        has_lines = any(plan.protocol is Protocol.LL128 for plan in plans)
        self.ranks = DeviceRanks(count, devices, exchange, has_lines=has_lines)
        is_one_process = self.ranks.is_one_process
        self.timeout_s = self.settings.timeout_of(is_one_process=is_one_process)
        with self.ranks.telling():
            if self.settings.launching is Launching.BY_RANK:
                for device in self.ranks.places:
                    check_queues(device, len(self.ranks.on(device)))
            self.single_messages = [
                single_messages(plan, self.ranks.devices, is_one_process=is_one_process)
                for plan in plans
            ]
            self.kernels = [
                Kernels.of(plan, switches=not why)
                for plan, why in zip(plans, self.single_messages, strict=True)
            ]
        receivers = _receivers(self.kernels)
        most = {
            kind: self.ranks.most_on_a_device(np.bincount(dst, minlength=count).tolist())
            for kind, dst in receivers.items()
        }
        with self.ranks.telling():
            self.ranks.reach()
            self.loaded = [self._load(k, most[kind_of_slots(k.plan)]) for k in self.kernels]
            self.slots_bytes = {
                kind: _room([own for own in self.loaded if kind_of_slots(own.plan) is kind], dst)
                for kind, dst in receivers.items()
            }
            operands = [k.operands for k in self.kernels]
            lanes = Lanes.of(operands, self.slots_bytes.get(Protocol.SIMPLE, 0))
            self._windows = self.ranks.windows(lanes[0].teams, lanes[0].sizes)
        # Shared, so that a call that is given up in one process ends in all.
        self.abort = self.ranks.allocate_host(native.Barrier.bytes(count))
        patience_s = max(self.timeout_s, LATE_TIMEOUT_S)
        own = list(self.ranks.devices)
        self._barrier = native.Barrier(self.abort.array, count, own, patience_s)
        self.boxes = Mailboxes.of(operands, lanes, self.slots_bytes)
        self.mailboxes = self.ranks.allocate(self.boxes.size.tolist())
        self.launches = {device: self._launches_on(device) for device in self.ranks.places}
        self.tables = [
            plan_tables(k, own, self.settings, self.boxes, lane, self.slots_bytes)
            for k, own, lane in zip(self.kernels, self.loaded, lanes, strict=True)
        ]
        behind = lanes[0].bases(self._windows)
        segments = {
            device: [by_rank[rank] for rank in range(count)] + behind
            for device, by_rank in self.mailboxes.addresses.items()
        }
        self.states = [
            [self._state(made, device, segments[device]) for device in self.launches]
            for made in self.tables
        ]
        self.memory = LinkMemory(self.ranks)
        self.order = native.CallOrder(self.abort.array)
        self._failed = ""
        """What was found when a call failed. Not the error: its traceback has this object, which
        would then live until the garbage collector finds the cycle."""
        self._is_closed = False
        memory: list[Any] = [self.ranks, self.abort, self.states, self.mailboxes]
        memory += [self._windows, self.memory, self.order]
        self._dropped = finalize(self, _end, self._barrier, memory)
        # At exit the driver frees the memory; it may already be unloaded.
        self._dropped.atexit = False
        self.ranks.use(self._barrier)

    def number_of(self, plan: Plan) -> int:
        """The number of a plan among those of the links; R514 if it is none of them."""
        if not isinstance(plan, Plan) or plan not in self.plans:
            raise R514.error(
                expected="one of the plans from which the links were made",
                found=plan.name if isinstance(plan, Plan) else f"{type(plan).__name__}",
            )
        return self.plans.index(plan)

    def synchronize(self) -> None:
        """Waits until all calls on the links' own streams are done; errors as for `check`."""
        self.check()
        for device, launches in self.launches.items():
            for _, stream in launches:
                device.synchronize(stream)
        self.check()

    def wait(self) -> None:
        """Waits until none of this process's calls is under way, on whatever streams; errors as for
        `check`."""
        self.check()
        self.order.wait()
        self.check()

    def settle(self) -> None:
        """Waits until no call is under way in any process: all call this together, before memory
        that all make. Errors: as for `check`; K514 if a process has ended."""
        self.wait()
        self.ranks.meet()

    def check(self) -> None:
        """Raises K508 if a block timed out, R508 if one did earlier or if the links are closed;
        otherwise returns without waiting."""
        self.check_open()
        if self._failed:
            raise R508.error(expected="an executor without a failed call", found=self._failed)
        if self._barrier.is_given_up:
            self.order.wait()  # all blocks have reported
            self._barrier.leave()
            try:
                if found := self._failure():
                    raise SleyError([found])
                if not self.ranks.is_one_process:
                    self._barrier.refuse()
            except SleyError as error:
                self._failed = error.diagnostics[0].found
                raise

    def give_up(self) -> None:
        """Ends all calls that are under way, in all processes; any thread may call it."""
        self.abort.array[0] = 1

    def leave(self) -> None:
        """Says that this process comes to no further meeting: others that wait for it fail, but for
        those that close their links."""
        self._barrier.leave()

    def check_open(self) -> None:
        """R508 if the links are closed."""
        if self._is_closed:
            raise R508.error(expected="an executor that is open", found="a closed one")

    def close(self, *, meet: bool = True) -> None:
        """See `Executor.close`. meet: whether to wait for other processes."""
        if self._is_closed:
            return
        self.order.wait()
        self._is_closed = True
        self._barrier.leave()
        self.ranks.detach()
        try:
            if meet:  # kernels of other processes write into this one's memory
                self._barrier.wait_for_others()
        finally:
            self._dropped.detach()
            for state in chain(*self.states):
                state.plan.free()
            del self.states, self.launches, self.mailboxes, self._windows, self.memory

    def _load(self, kernels: Kernels, received: int) -> Loaded:
        loaded = load(kernels.plan, *self.settings.slots_of(kernels.plan, received))
        return replace(loaded, homes=kernels.operands.homes)

    def _launches_on(self, device: Device) -> list[tuple[list[int], Any]]:
        """The ranks of each launch of a call on a device, ascending, and its stream by default.
        Streams are the links', so that calls of all plans use the same ones."""
        ranks = self.ranks.on(device)
        if self.settings.launching is Launching.TOGETHER:
            return [(ranks, device.default_stream())]
        return [([rank], device.stream()) for rank in ranks]

    def _state(self, made: native.PlanTables, device: Device, segments: list[int]) -> DeviceState:
        ranks, streams = zip(*self.launches[device], strict=True)
        timeout_ns = int(self.timeout_s * 1e9)
        plan = native.DevicePlan(
            made, device.native, ranks, segments, self.abort.address, timeout_ns
        )
        return DeviceState(device, plan, list(streams))

    def _failure(self) -> Diagnostic | None:
        """K508 for the first call of which blocks have reported: calls that were started after it,
        of whatever plan, ended because of it. None without reports."""
        found = [
            (report["ticks"], number)
            for number, states in enumerate(self.states)
            for state in states
            for report in state.plan.stuck()
        ]
        if not found:
            return None
        _, number = min(found)
        loaded, kernels = self.loaded[number], self.kernels[number]
        return failure(loaded, kernels, self.states[number], self.timeout_s)


def check_queues(device: Device, launches: int) -> None:
    """K506 if so many launches on a device could wait for one another in a queue."""
    queues = device.queues
    if queues is not None and launches > queues:
        raise K506.error(
            expected=f"at most {queues} ranks with launches of their own on {device.name}",
            found=f"{launches} ranks",
            remedy="Use Launching.TOGETHER, fewer ranks on a device, or set "
            "CUDA_DEVICE_MAX_CONNECTIONS=32 before the process uses CUDA.",
        )


def _ranks_of(plans: Sequence[Plan]) -> int:
    """The number of ranks of the plans. R514 if there are none, or plans of different ranks."""
    for plan in plans:
        if not isinstance(plan, Plan):
            raise R514.error(
                expected="a Plan, as `sley.compile` makes it", found=f"{type(plan).__name__}"
            )
    counts = sorted({plan.collective.ranks for plan in plans})
    if len(counts) != 1:
        found = " and ".join(f"plans of {counted(n, 'rank')}" for n in counts) or "no plan"
        raise R514.error(expected="plans of the same ranks", found=found)
    return counts[0]


def _receivers(kernels: Sequence[Kernels]) -> dict[Protocol, IntArray]:
    """The receiver of each connection with slots of a kind, by kind."""
    found = {}
    for kind in Protocol:
        own = [k.operands.connections for k in kernels if kind_of_slots(k.plan) is kind]
        if own:
            _, first = np.unique(np.concatenate([c.keys for c in own]), return_index=True)
            found[kind] = np.concatenate([c.dst for c in own])[first]
    return found


def _room(loaded: Sequence[Loaded], receivers: IntArray) -> int:
    """The bytes of all slots of a connection, for any of the plans of a kind. K507 if those of all
    connections exceed the memory of any device."""
    room = max(own.wiring.slots * own.wiring.slot_bytes for own in loaded)
    if len(receivers) * room > LARGEST:
        raise K507.error(expected=f"{len(receivers) * room:,} bytes of slots", found=BEYOND)
    return room


def _end(barrier: native.Barrier, memory: list[Any]) -> None:
    """Frees the memory of links that were dropped: after all their calls are done, since kernels on
    one device write into the memory of another. `finalize` holds the memory, so that it isn't freed
    before, in whatever order the garbage collector finds things."""

    def freed() -> None:
        barrier.leave()
        memory.clear()

    native.release(freed)
