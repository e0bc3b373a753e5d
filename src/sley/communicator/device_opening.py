"""Opening a communicator on devices: what its ranks choose and make together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from sley.communicator.call_table import CallTable, Key, programs_of
from sley.communicator.calls import kind_number
from sley.communicator.link_tables import scratch_bytes
from sley.communicator.ready import log_problems, who_tells
from sley.communicator.rendezvous.bootstrap import Rendezvous
from sley.communicator.selection.device_rules import DeviceLimits
from sley.communicator.selection.kinds import CALLS
from sley.communicator.selection.plans import Plans
from sley.communicator.settings import Settings
from sley.communicator.stats import logger
from sley.engine import native
from sley.engine.devices import Device, Launching, LinkSet
from sley.engine.devices import Settings as KernelSettings
from sley.engine.devices.device import Memory
from sley.engine.devices.links import check_queues
from sley.engine.devices.programs import Programs
from sley.engine.kernels import KERNELS, Engine
from sley.engine.types import DataType
from sley.errors import SleyError, telling
from sley.errors.communicator import N604
from sley.errors.devices import K514
from sley.ir.topology import Topology
from sley.ir.words import ReduceOp
from sley.topologies import topology_of

_WORD_BYTES = 256
_DIGITS = 16


@dataclass(frozen=True)
class DeviceCore:
    """What an open communicator has. A call keeps it until it returns, even if another thread
    closes the communicator meanwhile.

    stream: of calls without one. word: memory of barriers. users: the numbers of the user's plans.
    """

    links: LinkSet
    programs: Programs
    calls: native.DeviceCalls
    stream: Any
    word: Memory
    users: frozenset[int]

    def load(self, number: int, dtype: DataType, op: ReduceOp, *, scales: bool = False) -> None:
        """Loads the kernels of a plan's calls, while none is under way. Errors: K5xx."""
        # Generated code of 142 plans (8 ranks) for three types would be 340 programs on a GPU.
        engine = None if number in self.users else Engine.INTERPRETED
        (program,) = self.programs.of(
            number, dtype, op, scales=scales, wait=lambda: None, engine=engine
        )
        run, divide, _ = KERNELS
        addresses = program[run], program[divide]
        self.calls.set_program(number, dtype.number, int(op), scales, *addresses)


@dataclass(frozen=True)
class DeviceOpening:
    """What the ranks of a communicator do together to open it. Its fields are arguments of
    `DeviceCommunicator`, but for the finished rendezvous. Errors: those of its class."""

    rendezvous: Rendezvous
    device: Device
    settings: Settings
    kernels: KernelSettings
    types: tuple[DataType, ...]
    ops: tuple[ReduceOp, ...]

    def exchange(self, value: bytes) -> list[bytes]:
        """An all-gather with a timeout of its own: plans are compiled between two of them."""
        self.rendezvous.renew(self.settings.patience_s)
        return self.rendezvous.exchange(value)

    def choose(self, topology: Topology | str | None) -> tuple[Plans, CallTable]:
        """What chooses plans, and the plans of all calls, which are equal on all ranks."""
        rendezvous, settings = self.rendezvous, self.settings
        if rendezvous.hosts.count > 1:
            found = f"ranks on {rendezvous.hosts.count} hosts"
            remedy = "Use sley.Communicator between hosts; on one, give all ranks one SLEY_HOST_ID."
            raise K514.error(expected="all ranks on one host", found=found, remedy=remedy)
        limits = self._limits(topology)
        with telling(rendezvous.refuse):
            plans = Plans(
                rendezvous.hosts,
                devices=limits,
                plan_dir=settings.plan_dir,
                cache=settings.use_cache,
                same_bits=settings.same_bits,
            )
            folder = settings.plan_dir
            unfit = None if folder is None else self.device.read_code(Path(folder))
            problems = [*plans.folder_problems, *([unfit] if unfit else [])]
            if settings.plan_dir_strict and problems:
                raise SleyError(problems)
            table = CallTable.of(plans, rendezvous.ranks, plans.places)
        own = ", ".join(one.plan.name for one in plans.own)
        rows = [("calls of the user's plans", own or "none")]  # which decide what rows there are
        rows += [
            (
                f"{_in_words(key, ready.row.in_place)}, of {sizes}",
                f"{ready.plan.name} {ready.digest.hex()[:_DIGITS]}",
            )
            for key, ranges in table.rows.items()
            for sizes, ready in ranges
        ]
        told = [str(problem) for problem in (*plans.problems, *([unfit] if unfit else []))]
        who = who_tells(self._check_same(rows, told), rendezvous.rank)
        if rendezvous.rank == 0:
            for row in rows:
                logger.info("%s: for %s: %s", rendezvous.name, *row)
        if who:
            log_problems(rendezvous.name, who, plans.problems)
        if who and unfit:
            words = "%s, %s: kernels are not taken from the folder of plans: %s"
            logger.warning(words, rendezvous.name, who, unfit)
        return plans, table

    def core(self, table: CallTable, watched: Callable[[LinkSet], None]) -> DeviceCore:
        """What the communicator has: the plans over one set of links, each once, and their
        kernels. watched: gets the links before ranks wait for one another there."""
        rank, mates = self.rendezvous.rank, self._mates
        users = frozenset(
            table.numbers[one.digest] for one in table.ready if one.origin == "registered"
        )
        settings = replace(
            self.kernels,
            timeout_s=self.kernels.timeout_s or self.settings.timeout_s,
            launching=Launching.BY_RANK if len(mates) > 1 else self.kernels.launching,
        )
        links = LinkSet(
            table.plans,
            {rank: self.device},
            settings,
            exchange=self.exchange,
            largest_bytes=table.largest_bytes,
        )
        watched(links)
        ((_, stream),) = links.launches[self.device]
        together = settings.launching is Launching.TOGETHER
        calls = native.DeviceCalls(links.order, links.memory.index, rank, together)
        for (plan,) in links.on_devices:
            calls.add_plan(plan)
        with links.ranks.telling():
            word = self.device.allocate(_WORD_BYTES)
            core = DeviceCore(links, Programs(links, mates), calls, stream, word, users)
            for kind, in_place, root in table.rows:
                ends, of = table.ranges((kind, in_place, root))
                calls.set_table(kind_number(kind), in_place, root, ends, of)
                for number, (dtype, op) in product(of, programs_of(kind, self.types, self.ops)):
                    core.load(number, dtype, op)
        # So that no small call, which may be captured, has to wait until ranks have scratch for it.
        ranks = self.rendezvous.ranks
        links.memory.reserve([scratch_bytes(table, links.tables, ranks, users)] * ranks)
        links.ranks.meet()  # a kernel that starts earlier may wait for a rank that loads
        return core

    @property
    def _devices(self) -> list[bytes]:
        """The identity of each rank's device."""
        return [bytes.fromhex(one.offered["device"]) for one in self.rendezvous.descriptions]

    @property
    def _mates(self) -> list[int]:
        """The ranks on this rank's device."""
        return [rank for rank, at in enumerate(self._devices) if at == self.device.identity]

    def _limits(self, topology: Topology | str | None) -> DeviceLimits:
        """What the rules know of the devices, equal on all ranks."""
        devices, offered = self._devices, self.rendezvous.descriptions
        shares = Counter(devices)
        rooms = [
            int(o.offered["blocks"]) // shares[d] for o, d in zip(offered, devices, strict=True)
        ]
        with telling(self.rendezvous.refuse):
            topology = None if topology is None else topology_of(topology)
            processes = [one.process for one in offered]
            here = processes[self.rendezvous.rank]
            check_queues(self.device, sum(processes[mate] == here for mate in self._mates))
            own = all(map(self.device.carries_lines, {*devices} - {self.device.identity}))
        has_lines = all(map(int, self.exchange(b"1" if own else b"0")))
        with telling(self.rendezvous.refuse):
            return DeviceLimits(
                topology,
                has_lines=has_lines,
                is_one_device=len(shares) == 1,
                max_blocks=max(1, min(*rooms, DeviceLimits.max_blocks)),
            )

    def _check_same(
        self, rows: list[tuple[str, str]], problems: Sequence[str]
    ) -> list[Sequence[str]]:
        """The problems of each rank. N604, on all ranks, unless they have the same rows: calls and
        plans in words."""
        every = [json.loads(one) for one in self.exchange(json.dumps([rows, problems]).encode())]
        first, *others = [one[0] for one in every]
        for rank, other in enumerate(others, 1):
            if other != first:
                pairs = zip_longest(first, other, fillvalue=("no further calls", "none"))
                one, two = next(pair for pair in pairs if pair[0] != pair[1])
                raise N604.error(
                    expected=f"the same plans on all ranks of communicator "
                    f"{self.rendezvous.name!r}, as on rank 0: for {one[0]}, {one[1]}",
                    found=f"for {two[0]}, {two[1]} on rank {rank}",
                )
        return [one[1] for one in every]


def _in_words(key: Key, in_place: bool | None) -> str:
    kind, _, root = key
    of_root = f", root {root}" if CALLS[kind].roles else ""
    place = {True: ", in place", False: ", out of place", None: ""}[in_place]
    return f"{kind}{of_root}{place}"
