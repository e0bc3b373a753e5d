"""LinkSet: what a communicator's ranks have between calls, whatever plans the calls run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sley.engine import native
from sley.engine.devices.device import Device, Memory
from sley.engine.devices.device_ranks import DeviceRanks, Exchange
from sley.engine.devices.failures import failure
from sley.engine.devices.link_layout import LinkLayout, laid_out
from sley.engine.devices.memory import LinkMemory
from sley.engine.devices.settings import LATE_TIMEOUT_S, Launching, Settings
from sley.engine.limits import instance
from sley.errors import Diagnostic, SleyError, counted
from sley.errors.devices import K506
from sley.errors.runtime import R514
from sley.ir.plan import Plan
from sley.ir.words import Protocol


class LinkSet(LinkLayout):
    """What persists between the calls of a communicator, for the executors of its plans.

    plans: verified plans of the same ranks. The other arguments: as for an `Executor`. By default
        the slots on a device share 24 MiB as there, with the connections of all plans; slots of LL,
        of LL128 and of the other protocols each have their own.
    largest_bytes: the size of each plan's largest call, if there is one: then slots aren't larger
        than its messages. Larger calls are cut into more tiles.

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
        largest_bytes: Sequence[int | None] = (),
    ) -> None:
        self.settings = Settings() if settings is None else instance(settings, Settings, "settings")
        count = _ranks_of(plans)
        has_lines = any(plan.protocol is Protocol.LL128 for plan in plans)
        self.ranks = ranks = DeviceRanks(count, devices, exchange, has_lines=has_lines)
        self.timeout_s = self.settings.timeout_of(is_one_process=ranks.is_one_process)
        with ranks.telling():
            if self.settings.launching is Launching.BY_RANK:
                for device in ranks.places:
                    check_queues(device, len(ranks.on(device)))
        largest_bytes = largest_bytes or [None] * len(plans)
        super().__init__(**vars(laid_out(plans, self.settings, ranks, largest_bytes)))
        with ranks.telling():
            ranks.reach()
            windows = ranks.windows(self.lanes[0].teams, self.lanes[0].sizes)
        # Shared, so that a call that is given up in one process ends in all.
        self.abort = ranks.allocate_host(native.Barrier.bytes(ranks.count))
        self.order = native.CallOrder(self.abort.array)
        with ranks.telling():
            self.launches = {device: self._launches_on(device) for device in ranks.places}
            self.memory = LinkMemory(ranks)
        self.native = self._made(self.lanes[0].bases(windows))
        self.mailboxes = {
            rank: Memory(address, int(self.boxes.size[rank]), self.native)
            for rank, address in self.native.mailboxes.items()
        }
        self.on_devices = self.native.plans
        """Each plan on each device of `launches`."""
        self.native.keep((windows, self.memory, self.launches))
        self.failed: tuple[Diagnostic, ...] = ()
        """Of the call after which none can be used."""
        self._ending = threading.RLock()
        """Held while reports are read, which `close` frees."""

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

    def register(self, arrays: Mapping[int, Any]) -> tuple[int, dict[int, list[int]]]:
        """Registers arrays, of each rank of this process one, when no call is under way. All
        processes call this together. Returns the registration's number, and the ranks that read the
        memory of each. Errors: as for `wait`; K504, K519, R504, K507; K514 if a process ends."""
        with self.ranks.telling():
            views = {
                rank: self.ranks.devices[rank].view(array, what=f"array of rank {rank}")
                for rank, array in arrays.items()
            }
            self.wait()
        return self.native.register({r: (v.address, v.size_bytes) for r, v in views.items()})

    def deregister(self, number: int) -> None:
        """Ends a registration; the rest as for `register`, and R503 if processes name others."""
        with self.ranks.telling():
            self.wait()
        self.native.deregister(number)

    def check(self) -> None:
        """Raises K508 if a block timed out, R508 if one did earlier or if the links are closed;
        otherwise returns without waiting."""
        if self.native.check():
            return
        with self._ending:
            self.native.check()
            self.native.end()
            try:
                if found := self._failure():
                    raise SleyError([found])
                if not self.ranks.is_one_process:
                    self.native.refuse()
            except SleyError as error:
                self.failed = error.diagnostics  # before others are refused because of it
                self.native.fail(error.diagnostics[0].found)
                raise

    def close(self, *, meet: bool = True) -> None:
        """See `Executor.close`. meet: whether to wait for other processes."""
        with self._ending:
            if self.native.is_closed:
                return
            try:
                self.native.close(meet)
            finally:
                if self.native.is_closed:
                    del self.launches, self.mailboxes, self.on_devices, self.memory

    def _made(self, behind: list[int]) -> native.Links:
        """The links in C++; behind: the addresses of the segments behind the mailboxes'."""
        ranks, patience_s = self.ranks, max(self.timeout_s, LATE_TIMEOUT_S)
        own = list(ranks.devices)
        return native.Links(
            ranks.memory,
            self.memory.index,
            native.Barrier(self.abort.array, ranks.count, own, patience_s),
            self.order,
            self.abort.address,
            self.boxes.size.tolist(),
            list(self.tables),
            [(d.native, [own for own, _ in on], behind) for d, on in self.launches.items()],
            int(self.timeout_s * 1e9),
        )

    def _launches_on(self, device: Device) -> list[tuple[list[int], Any]]:
        """The ranks of each launch of a call on a device, ascending, and its stream by default.
        Streams are the links', so that calls of all plans use the same ones."""
        ranks = self.ranks.on(device)
        if self.settings.launching is Launching.TOGETHER:
            return [(ranks, device.default_stream())]
        return [([rank], device.stream()) for rank in ranks]

    def _failure(self) -> Diagnostic | None:
        """K508 for the first call of which blocks have reported: calls that were started after it,
        of whatever plan, ended because of it. None without reports."""
        found = {
            number: reports
            for number, plans in enumerate(self.on_devices)
            if (reports := [report for plan in plans for report in plan.stuck()])
        }
        if not found:
            return None
        number = min(found, key=lambda number: min(one["ticks"] for one in found[number]))
        loaded, kernels = self.loaded[number], self.kernels[number]
        return failure(loaded, kernels, found[number], self.timeout_s)


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
        instance(plan, Plan, "a plan")
    counts = sorted({plan.collective.ranks for plan in plans})
    if len(counts) != 1:
        found = " and ".join(f"plans of {counted(n, 'rank')}" for n in counts) or "no plan"
        raise R514.error(expected="plans of the same ranks", found=found)
    return counts[0]
