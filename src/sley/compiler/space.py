"""Space: the options that `choose` tries, and their plans, the candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import product
from typing import Any, TypeAlias, TypeVar

import numpy as np

from sley.compiler.options import Options
from sley.compiler.pipeline import Phase, build
from sley.errors import SleyError
from sley.errors.compiler import C304
from sley.formats import FORMATS, Target, files
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import FIFO_PROTOCOLS, MAX_NUMBER, Allocation, LoopOrder, Protocol, Schedule
from sley.model.bounds import Bounds
from sley.model.simulation import Simulator
from sley.report.limit import RESIDENT_BLOCKS

T = TypeVar("T")

INSTANCES = (1, 2, 4, 8, 16, 24)
CHANNELS = (1, 2, 4)
"""The values of instances and channels to try."""

_WHOLE = (Schedule.HPDS, Schedule.ROUND_ROBIN)

SEARCHED = ("schedule", "allocate", "channels", "protocol", "instances")
"""The options that are tried if they are open. Of two candidates the simpler one has the earlier
value of the first of these options in which they differ."""


@dataclass(frozen=True)
class Space:
    """The combinations of the values of `tried`, with `fixed` for the other options.

    tried: values of options, the simplest first. fixed: options of `SEARCHED` that it leaves open
    get the values that fit the program (`series`).
    target: the runtime that must be able to run the plans, or None.
    most_blocks: of a rank, in plans that `max_blocks` doesn't limit.
    """

    tried: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Options = field(default_factory=Options)
    target: Target | None = None
    most_blocks: int = RESIDENT_BLOCKS

    @classmethod
    def of(
        cls, options: Options | None, overrides: Mapping[str, Any], target: Target | None
    ) -> Space:
        """The space of options, whose overrides may be lists of values. Errors: C304, C307."""
        lists = {
            word: list(value)
            for word, value in overrides.items()
            if isinstance(value, Iterable) and not isinstance(value, str)
        }
        fixed = Options.of(options, {w: v for w, v in overrides.items() if w not in lists})
        if fixed.schedule is Schedule.AUTO:
            fixed = replace(fixed, schedule=None)
        if target is not None:
            fixed = fixed.filled(FORMATS[target.suffix].needs)
        return cls({word: _values(word, lists[word]) for word in lists}, fixed, target)

    def limit(self, options: Options) -> int:
        """The most thread blocks of a rank."""
        return options.max_blocks or self.most_blocks

    def series(self, program: Program) -> Iterator[list[Options]]:
        """The options to try for a program, the simplest first: series of ascending instances."""
        further = [word for word in self.tried if word not in SEARCHED]
        for values in product(*(self.tried[word] for word in further)):
            fixed = replace(self.fixed, **dict(zip(further, values, strict=True)))
            axes = [self._axis(word, fixed, program) for word in SEARCHED]
            for chosen in product(*axes[:-1]):
                base = replace(fixed, **dict(zip(SEARCHED[:-1], chosen, strict=True)))
                # Only on request does a block move whole transfers, one peer after another.
                serial = base.allocate is Allocation.INSTANCE and base.schedule in _WHOLE
                if serial and fixed.allocate is None and "allocate" not in self.tried:
                    continue
                yield [replace(base, instances=instances) for instances in axes[-1]]

    def _axis(self, word: str, fixed: Options, program: Program) -> tuple[Any, ...]:
        """The values to try of a searched option."""
        if word in self.tried:
            return self.tried[word]
        given = getattr(fixed, word)
        return _fitting(fixed, program)[word] if given is None else (given,)


def _values(word: str, values: list[Any]) -> tuple[Any, ...]:
    """The distinct values in a list for an option: members in the order of their enumeration,
    numbers in ascending order, others in the order of the list. Errors: C304, C307."""
    checked = [getattr(Options.of(None, {word: value}), word) for value in values]
    if not checked or None in checked or Schedule.AUTO in checked:
        raise C304.error(
            expected=f"{word} as a list of one value or more to try", found=f"{word}={values!r}"
        )
    distinct = list(dict.fromkeys(checked))
    kind = type(distinct[0])
    if issubclass(kind, Enum):
        return tuple(one for one in kind if one in distinct)
    return tuple(sorted(distinct) if issubclass(kind, int) else distinct)


def _fitting(fixed: Options, program: Program) -> dict[str, tuple[Any, ...]]:
    """The values of each searched option that fit the fixed options and a program."""
    t = program.transfers
    # Whether switches make transfers together.
    has_groups = fixed.switches is not False and bool((t.group != NONE).any())
    schedules: tuple[Schedule, ...] = _WHOLE
    if fixed.fusion or has_groups:
        schedules = (Schedule.MSCCL,)
    elif fixed.loop_order is not LoopOrder.INSTRUCTION:
        schedules = (Schedule.MSCCL, *_WHOLE)
    by_connection = t.by_hand.any() or has_groups
    # Whether the compiler may choose the channel of any transfer.
    has_open_channel = ((t.channel == NONE) & t.remote & ~t.by_hand).any()
    # DIRECT only on request: in the model it has the times of Simple.
    protocols = (Protocol.SIMPLE,) if has_groups else FIFO_PROTOCOLS
    parts = int(np.lcm.reduce(t.instances.astype(np.int64))) if len(t) else 1
    return {
        "schedule": schedules,
        "allocate": (Allocation.CONNECTION,) if by_connection else tuple(Allocation),
        "channels": CHANNELS if has_open_channel else (1,),
        "protocol": (program.protocol,) if program.protocol else protocols,
        "instances": tuple(i for i in INSTANCES if i * parts <= MAX_NUMBER) or (1,),
    }


@dataclass(frozen=True)
class LeastTime:
    """A lower bound of the simulated time of a plan, from the load of its blocks and links.

    The simulator moves no byte faster than the block's own rate, and no link carries more than its
    capacity; so a plan takes at least the time of its busiest block and of its busiest link without
    any waiting. This is linear in the size, and exact enough to save most simulations of large
    sizes.

    launch_us: the time before any byte moves. us_per_byte: the time for each byte of the size.
    """

    launch_us: float
    us_per_byte: float

    def __call__(self, size_bytes: int) -> float:
        """Microseconds for a size."""
        return self.launch_us + self.us_per_byte * size_bytes

    @classmethod
    def of(cls, simulator: Simulator) -> LeastTime:
        """Of the simulator's plan on its topology."""
        plan, c = simulator.plan, simulator.inputs
        chunks = c.messages.astype(float) * c.chunks  # that an instruction moves
        kinds = len(c.class_cap)
        moving = c.kind != NONE
        moved = np.bincount(c.kind[moving], chunks[moving], minlength=kinds)
        if len(c.wire):
            wire = c.wire[c.send_target]
            sent = np.repeat(chunks, np.diff(c.send_offset))
            second = wire != NONE
            moved += np.bincount(wire[second], sent[second], minlength=kinds)
        each = np.repeat(moved, np.diff(c.class_first)) * c.class_weight
        load = np.bincount(c.class_resource, each, minlength=len(c.capacity))
        work = np.bincount(plan.block, np.where(moving, chunks / c.class_cap[c.kind], 0.0))
        us_per_chunk_byte = max(
            float(work.max(initial=0.0)), float((load / c.capacity).max(initial=0.0))
        )
        collective, efficiency = plan.collective, simulator.topology.model.wire_efficiency
        data = collective.blocks * collective.chunks * efficiency[plan.protocol]
        return cls(c.launch_us, us_per_chunk_byte / data)


Contender: TypeAlias = tuple[Program, Plan | None]
"""What is compiled to candidates: a program, with each combination of a space; and the plan that it
was lifted from, which is a candidate as it is, None without one."""


@dataclass(frozen=True)
class Candidate:
    """A plan that may be chosen.

    as_given: whether it is the plan of a contender, of which `options` has the protocol
        and the limit of blocks.
    least: the lower bound of its times. simulator: simulates it, as a target runs it.
    """

    program: Program
    options: Options
    plan: Plan
    as_given: bool
    least: LeastTime
    simulator: Simulator


def candidates(
    contenders: Sequence[Contender],
    topology: Topology,
    space: Space,
    *,
    interpreter: bool,
    progress: Callable[[int, int], None],
) -> list[Candidate]:
    """The distinct plans of a space, the simplest first, before them the given ones.

    Plans with more blocks on a rank than `max_blocks` or `most_blocks` are left out; if all have
    more, those with the fewest blocks stay.

    progress: called with the number of combinations that are done, and of all. Errors: C3xx, V2xx
    for a program that does not do what it promises, F4xx if the target can run none.
    """
    rows = [(program, series) for program, _ in contenders for series in space.series(program)]
    total, done = sum(len(series) for _, series in rows), 0
    found: dict[bytes, tuple[Program, Options, Plan, bool]] = {}
    refused: SleyError | None = None
    for program, given in contenders:
        if given is not None:
            plan = replace(given, topology=topology)
            refused = refused or (problem := _problem(plan, space.target))
            if problem is None:
                options = Options(protocol=plan.protocol, max_blocks=space.fixed.max_blocks)
                found.setdefault(digest(plan), (program, options, plan, True))
    plans = _Plans(topology)
    for program, series in rows:
        for options in series:
            plan = plans.of(program, options)
            problem = _problem(plan, space.target)
            refused = refused or problem
            if problem is None:
                found.setdefault(digest(plan), (program, options, plan, False))
            if plan.blocks_per_rank >= space.limit(options):  # more instances only need more blocks
                break
        done += len(series)
        progress(done, total)
    if not found and refused is not None:
        raise refused
    fewest = min(plan.blocks_per_rank for _, _, plan, _ in found.values())
    # All are for one collective, whose bounds don't depend on how finely a program cuts it.
    bounds = Bounds.of(contenders[0][0].collective, topology)
    made = []
    for program, options, plan, as_given in found.values():
        # Where no plan is within the limit, those with the fewest blocks are left, so there is
        # always one.
        if plan.blocks_per_rank > max(space.limit(options), fewest):
            continue
        run = plan if space.target is None else space.target.simulated(plan)
        simulator = Simulator(run, topology, interpreter=interpreter, bounds=bounds)
        least = LeastTime.of(simulator)
        made.append(Candidate(program, options, plan, as_given, least, simulator))
    return made


class _Plans:
    """Plans, each compiled once for all protocols for which the passes do the same. Passes that do
    the same for several combinations of options run once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: dict[tuple[int, Options], Plan] = {}
        self._checked: set[int] = set()
        self._results = _PassResults()

    def of(self, program: Program, options: Options) -> Plan:
        """The plan of a program with options that name a protocol."""
        protocol = options.protocol or Protocol.SIMPLE
        slots = options.slots or protocol.slots
        # Only the order by depth has to fit into the slots; whole transfers fit into any.
        relevant = slots if options.schedule is Schedule.MSCCL else None
        shared = replace(options, protocol=None, slots=relevant)
        # Sharing blocks, and the estimate of whole transfers, take the times of the protocol.
        is_timed = (
            options.schedule is not Schedule.MSCCL
            or options.allocate is Allocation.STATE
            or options.max_blocks is not None
        )
        key = (id(program), replace(shared, protocol=protocol) if is_timed else shared)
        if key not in self._known:
            # The first plan of a program shows before the search whether the program is wrong.
            verify = id(program) not in self._checked
            self._checked.add(id(program))
            phase = self._results.of(program, shared)
            self._known[key] = build(
                program, options, topology=self._topology, verify=verify, phase=phase
            )
        return replace(self._known[key], protocol=protocol, slots=slots)


class _PassResults:
    """The results of the passes before thread blocks are merged, kept for options that differ in
    later passes only. They take much memory, so only those of one program and schedule are kept."""

    _WHOLE = ("parallelize", "copies", "dependencies", "links")
    _LOWERED = ("fuse", "channels", "copy sends")
    _ORDERED = ("order", "pipelines", "blocks")

    def __init__(self) -> None:
        self._program: Program | None = None
        self._schedule: Schedule | None = None
        self._kept: dict[tuple[str, Options], Any] = {}

    def of(self, program: Program, options: Options) -> Phase:
        """Runs the phases of a program with these options, without protocol."""
        if self._program is not program:
            self._kept.clear()
        elif self._schedule is not options.schedule:
            self._kept = {key: one for key, one in self._kept.items() if key[0] in self._WHOLE}
        self._program, self._schedule = program, options.schedule
        # The passes don't read what is None here. Slots limit the width of fused messages.
        ordered = replace(options, max_blocks=None, loop_order=None)
        if options.allocate is Allocation.STATE:
            ordered = replace(ordered, allocate=Allocation.CONNECTION)
        lowered = replace(ordered, allocate=None)
        lowered = lowered if options.per_chunk else replace(lowered, slots=None)
        whole = replace(lowered, schedule=None, channels=None)
        read = dict.fromkeys(self._WHOLE, whole) | dict.fromkeys(self._LOWERED, lowered)
        read |= dict.fromkeys(self._ORDERED, ordered)

        def run(name: str, work: Callable[[], T], /) -> T:
            if name not in read:
                return work()
            key = name, read[name]
            if key not in self._kept:
                self._kept[key] = work()
            result: T = self._kept[key]
            return result

        return run


def _problem(plan: Plan, target: Target | None) -> SleyError | None:
    """The error if a target can't run a plan."""
    try:
        if target is not None:
            files.check(plan, target)
    except SleyError as error:
        return error
    return None
