"""Device rules: which algorithm and protocol run for a call on devices of one host.

A search by simulation, like `sley.choose`, finds them for the machine that `DeviceLimits` tells.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from sley.algorithms import CATALOG, build
from sley.communicator.selection.kinds import CALLS
from sley.communicator.selection.ready_plans import Capacity, check_order
from sley.errors import SleyError, counted
from sley.errors.aside import fork_safe
from sley.ir.orders import SameBits, wanted_order
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.program import Program
from sley.ir.sizes import SizeRange, size_text
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import FIFO_PROTOCOLS, Allocation, Protocol, Schedule
from sley.topologies import find_machine, topology_of
from sley.topologies.one_gpu import ONE_H100

if TYPE_CHECKING:
    from sley.compiler import Choice

_FLAGGED_SLOTS = 4
"""Slots of LL and LL128: a message is written and read at the same time, so one is under way, one's
slot becomes free, and two are for ranks that are late. NCCL's eight would cost twice the memory."""

_SMALL_BYTES = 256 << 10
"""Size up to which LL is compared alone, in blocks that serve all peers: along rings it was the
fastest protocol on an H100, and a block takes the words of all its peers at once."""

_ALONE_BYTES = 4 << 10
_COMPARED = ((_ALONE_BYTES, 8 << 10, _SMALL_BYTES), (512 << 10, 256 << 20))
"""The sizes at which plans are compared: 4 KB alone, since the plan of a range may take a little
longer at its ends, as further blocks do there. Above 256 MB the choice is the one there."""

_INSTANCES = (1, 2, 4, 8, 16, 32)
_MOST_INSTANCES = 16
"""Where ranks have devices of their own: 32, measured on one, take twice the slots. Large calls in
one order have up to 32 nevertheless: with 16 they are up to a quarter slower than rings, by the
model, since a block that serves all peers receives, adds and sends one message after another."""


@dataclass(frozen=True)
class DeviceLimits:
    """What the rules know of the devices of one host; equal on all ranks.

    topology: the machine, whose first GPUs are the ranks, or its name, as for
        `sley.topologies.find`. None: one H100 that all ranks share (`is_one_device`), 8 GPUs on
        PCIe (without `has_lines`, if they suffice), or H100s around NVSwitches.
    has_lines: whether all 128 bytes that a warp stores into another device's memory arrive at once
        (`Device.carries_lines`); else nothing runs with LL128.
    is_one_device: whether all ranks are on one device. Then receivers read large messages in place
        (Direct), as their senders' memory is as near as slots.
    max_blocks: the most thread blocks of a rank: those of all ranks on a device must run at the
        same time. By default as many as NCCL's.

    Errors: those of `sley.topologies.find`.
    """

    topology: Topology | str | None = None
    has_lines: bool = True
    is_one_device: bool = False
    max_blocks: int = 32

    def __post_init__(self) -> None:
        if self.topology is not None:  # now, as a file may change
            object.__setattr__(self, "topology", topology_of(self.topology))

    @property
    def protocols(self) -> list[Protocol]:
        """Those that are compared. On one device Direct instead of Simple: whatever stays in its
        sender's buffer needs fewer bytes of its memory."""
        found = [p for p in FIFO_PROTOCOLS if p is not Protocol.LL128 or self.has_lines]
        if self.is_one_device:
            found[found.index(Protocol.SIMPLE)] = Protocol.DIRECT
        return found

    def machine(self, ranks: int) -> Topology:
        """The topology on which plans are compared, with the costs of sley's kernels."""
        found = self._machine(ranks)
        kernels = {} if found.model.runs else ONE_H100.kernels
        return replace(found, model=replace(found.model, **kernels))

    def _machine(self, ranks: int) -> Topology:
        if self.topology is not None:
            return topology_of(self.topology)
        if self.is_one_device:
            return ONE_H100.topology(ranks)
        if not self.has_lines and ranks <= (pcie := find_machine("pcie-8").topology()).ranks:
            return pcie
        known = find_machine("ndv5").topology()
        nvlink = known.links.nominal_GBps[0], known.links.GBps[0]
        name = f"{ranks} H100 around NVSwitches"
        return Topology.cluster(1, ranks, name=name, nvlink_GBps=nvlink, model=known.model)


_LOCK = fork_safe(threading.Lock())


def device_rows(
    kind: str,
    ranks: int,
    limits: DeviceLimits,
    *,
    disk: bool,
    either_place: bool = False,
    same_bits: SameBits = False,
    root: int = 0,
) -> list[PlanRow]:
    """What runs for a kind of call: rows without place and root, by ascending ends of sizes; the
    last one has no end.

    root: of the calls. Plans for root 0 are compared, for all roots; in one order plans for root 1
    for all roots but the first and the last rank, which the last rank sends its sum.
    disk: whether the result of the search is kept in the cache on disk. either_place: compares
    only algorithms whose plans can be right in either place (`places`), by those out of place;
    otherwise all, by those in place. same_bits: compares only algorithms that sum in one order, and
    which. Errors: those of `sley.choose`; C305 or C301 if the machine has too few GPUs or links
    for every algorithm, N658 if none sums in this order.
    """
    with _LOCK:  # one is enough for ranks that are threads
        middle = bool(same_bits) and 0 < root < ranks - 1
        return _rows(CALLS[kind].name, ranks, limits, disk, either_place, same_bits, int(middle))


@cache
def _rows(
    collective: str,
    ranks: int,
    limits: DeviceLimits,
    disk: bool,
    either_place: bool,
    same_bits: SameBits,
    root: int,
) -> list[PlanRow]:
    from sley.communicator.selection.plan_cache import cached_choice

    machine = limits.machine(ranks)

    def found() -> str:
        programs = {
            how: _programs(
                collective, ranks, machine, how if either_place else None, same_bits, root
            )
            for how in (Allocation.INSTANCE, Allocation.CONNECTION)
        }
        return json.dumps(_found(programs, limits, machine, same_bits))

    state = hashlib.sha256(
        pickle.dumps((limits, machine, either_place, same_bits, root))
    ).hexdigest()
    request = f"{collective} {ranks} {state}"
    rows = json.loads(cached_choice(request, found) if disk else found())
    return [
        PlanRow(
            Recipe(name, _arguments(name, ranks, same_bits), options),
            SizeRange(0, end),
            note=note,
            refused=tuple(refused),
        )
        for name, options, end, note, refused in rows
    ]


def _found(
    programs: Mapping[Allocation, list[Program]],
    limits: DeviceLimits,
    machine: Topology,
    same_bits: SameBits,
) -> list[tuple[object, ...]]:
    """For each row the algorithm, its options, the last size, the note, and what was refused.
    programs: the compared ones, by the allocation of blocks."""
    from sley.compiler.candidates import CandidateCompiler
    from sley.compiler.search import search_ranges
    from sley.compiler.space import Space

    choices: list[Choice] = []
    for sizes in _COMPARED:
        is_small = sizes[-1] <= _SMALL_BYTES
        how = Allocation.INSTANCE if is_small else Allocation.CONNECTION
        # No ring sums in one order, and blocks for each pair leave room for two instances.
        both = (limits.is_one_device or bool(same_bits)) and not is_small
        most = limits.max_blocks if both or limits.is_one_device else _MOST_INSTANCES
        options = {
            "protocol": [Protocol.LL] if is_small else limits.protocols,
            "instances": [number for number in _INSTANCES if number <= most],
            "channels": 1,
            "schedule": Schedule.MSCCL,
            "allocate": [how, Allocation.INSTANCE] if both else how,
        }
        space = Space.of(None, options, most_blocks=limits.max_blocks)
        compared = [(program, None) for program in programs[how]]
        compiler = CandidateCompiler(compared, machine, space, interpreter=True)
        choices += search_ranges(compiler, sizes, ends=[_ALONE_BYTES]).ranges
    note = f"the fastest by the model of {machine.name}, not measured here"
    ends = [*(choice.end.size_bytes for choice in choices[:-1]), None]
    rows = [
        (choice.algorithm, _options(choice, limits), end, note, _refused(choice))
        for choice, end in zip(choices, ends, strict=True)
    ]
    # Equal neighbours are one row, with the end of the last.
    return [row for row, after in zip(rows, [*rows[1:], ()], strict=True) if row[:2] != after[:2]]


def _options(choice: Choice, limits: DeviceLimits) -> dict[str, object]:
    protocol = choice.plan.protocol
    options: dict[str, object] = {"protocol": protocol.value, "instances": choice.options.instances}
    if choice.options.allocate is Allocation.INSTANCE:
        options["allocate"] = Allocation.INSTANCE.value
    if protocol in (Protocol.LL, Protocol.LL128):
        options["slots"] = _FLAGGED_SLOTS
    if choice.plan.blocks_per_rank > limits.max_blocks:  # as have all candidates
        options["max_blocks"] = limits.max_blocks
    return options


def _refused(choice: Choice) -> list[str]:
    """The runner-up, in words."""
    if (other := choice.runner_up) is None:
        return []
    o = other.options
    assert o.protocol is not None
    assert o.instances is not None
    how = f", blocks for each {o.allocate.value}" if o.allocate else ""
    made = f"{o.protocol.value}, {counted(o.instances, 'instance')}{how}"
    by = f"{abs(other.slower):.0%} {'slower' if other.slower >= 0 else 'faster'}"
    return [f"{other.algorithm} ({made}): {by} at {size_text(other.size_bytes)}, by the model"]


def in_order(name: str, same_bits: SameBits) -> dict[str, Any]:
    """The argument with which an algorithm sums in this order, if it has one."""
    takes = "same_bits" in CATALOG[name].parameters
    return {"same_bits": same_bits} if same_bits and takes else {}


def _arguments(name: str, ranks: int, same_bits: SameBits) -> dict[str, Any]:
    return {"ranks": ranks} | in_order(name, same_bits)


_NOT_MEASURED = frozenset(
    {
        *("swing-allreduce", "swing-doubling-allreduce", "swing-allgather", "swing-reducescatter"),
        *("bidirectional-ring-allreduce", "bine-broadcast", "bine-reduce"),
    }
)
"""Algorithms that no GPU has run: the model alone doesn't make them defaults."""


def _programs(
    collective: str,
    ranks: int,
    machine: Topology,
    either_place: Allocation | None,
    same_bits: SameBits,
    root: int,
) -> list[Program]:
    """The algorithms for a collective that the machine links, without those for switches: with a
    process for each rank no switch runs them.

    either_place: an allocation whose plans must be right in either place, or None. Blocks that send
    to all peers before they receive make more of them right. same_bits, errors: as `device_rows`.
    root: the one whose plans are compared.
    """
    from sley.communicator.selection.places import in_either_place
    from sley.compiler import compile
    from sley.compiler.passes.links import check_links

    order = Capacity(ranks, order=wanted_order(same_bits, [range(ranks)]))
    found: list[Program] = []
    problems: list[SleyError] = []
    for one in CATALOG.values():
        if one.collective != collective or "ranks" not in one.parameters:
            continue
        if one.is_synthesised or one.name in _NOT_MEASURED:
            continue
        try:
            arguments = _arguments(one.name, ranks, same_bits) | {"in_place": either_place is None}
            compared = {"root": root} if root and "root" in one.parameters else {}
            program = build(one.name, **(arguments | compared))
            check_links(program, machine)
            if either_place is not None:
                in_either_place(compile(program, allocate=either_place))
            for to in range(ranks if "root" in one.parameters else 1) if same_bits else ():
                own = arguments | ({"root": to} if to else {})
                check_order(compile(build(one.name, **own)), order, one.name)
        except SleyError as problem:  # of an algorithm for other numbers of ranks too
            problems.append(problem)
        else:
            found += [program] if (program.transfers.group == NONE).all() else []
    if not found:
        raise problems[0]
    return found
