"""Space: the candidates among which the simulator chooses, and which of them are plans."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from sley.bounds import Bounds
from sley.compiler.lower_time import LeastTime
from sley.compiler.options import Options
from sley.compiler.pipeline import build, gives_blocks
from sley.errors import SleyError
from sley.formats import Target, msccl_xml
from sley.ir.plan import Instructions, Plan
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import (
    FIFO_PROTOCOLS,
    MAX_NUMBER,
    Allocation,
    LoopOrder,
    Protocol,
    Schedule,
)
from sley.simulate import Simulator
from sley.verify import verify

INSTANCES = (1, 2, 4, 8, 16, 24)
CHANNELS = (1, 2, 4)
"""What is tried of instances and channels."""

RESIDENT_BLOCKS = 108
"""How many thread blocks a rank may have where `max_blocks` says nothing: blocks wait for one
another, so all of them have to be on the GPU at once, and an A100 has so many multiprocessors."""


@dataclass(frozen=True)
class Space:
    """What is tried: every combination of these, with `fixed` for the rest; None leaves an axis
    to the program (`candidates`).

    target: for which runtime plans have to be fit to be written, None for none.
    """

    protocols: tuple[Protocol, ...] | None = None
    schedules: tuple[Schedule, ...] | None = None
    allocations: tuple[Allocation, ...] | None = None
    channels: tuple[int, ...] | None = None
    instances: tuple[int, ...] | None = None
    fixed: Options = field(default_factory=Options)
    target: Target | None = None

    def series(self, program: Program) -> Iterator[list[Options]]:
        """The options to try for a program, the simpler first: series of rising instances."""
        # The model gives DIRECT Simple's times, so to try it unasked would tell nothing.
        protocols = (program.protocol,) if program.protocol else FIFO_PROTOCOLS
        shared = self.target is None and not gives_blocks(program)
        allocations = tuple(Allocation) if shared else (Allocation.CONNECTION,)
        axes = product(
            self.schedules or self._schedules(),
            self.allocations or allocations,
            self.channels or (CHANNELS if _leaves_channels(program) else (1,)),
            self.protocols or protocols,
        )
        t = program.transfers
        parts = int(np.lcm.reduce(t.instances.astype(np.int64))) if len(t) else 1
        fitting = tuple(i for i in INSTANCES if i * parts <= MAX_NUMBER) or (1,)
        for schedule, allocation, channels, protocol in axes:
            chosen = replace(
                self.fixed,
                protocol=protocol,
                schedule=schedule,
                allocate=allocation,
                channels=channels,
            )
            yield [replace(chosen, instances=i) for i in self.instances or fitting]

    def _schedules(self) -> tuple[Schedule, ...]:
        """The schedules that go with the fixed options."""
        if self.fixed.fusion:
            return (Schedule.MSCCL,)
        whole = self.fixed.loop_order is LoopOrder.INSTRUCTION
        return tuple(s for s in Schedule if not (whole and s is Schedule.MSCCL))


def _leaves_channels(program: Program) -> bool:
    """Whether any transfer's channel is the compiler's to choose."""
    t = program.transfers
    by_hand = (t.send_block != NONE) | (t.recv_block != NONE)
    return bool(((t.channel == NONE) & (t.src != t.dst) & ~by_hand).any())


@dataclass(frozen=True)
class Candidate:
    """A plan that may be chosen.

    index: the simpler of two candidates has the lower one.
    blocks: thread blocks of the rank that has most.
    least: what it takes at least.
    """

    index: int
    program: Program
    options: Options
    plan: Plan
    blocks: int
    least: LeastTime
    simulator: Simulator

    __hash__ = None  # type: ignore[assignment]


def candidates(
    programs: Sequence[Program],
    topology: Topology,
    space: Space,
    *,
    interpreter: bool,
    progress: Callable[[int, int], None],
) -> list[Candidate]:
    """The different plans of a space, the simpler first.

    Of a series of instances those are left out that have more blocks than `max_blocks`, or
    RESIDENT_BLOCKS; if that leaves none at all, those with the fewest blocks stay.

    progress: called with how many combinations are done, and how many there are. Errors: C3xx,
    V2xx for a program that does not do what it promises, F4xx where the target can run none.
    """
    rows = [(program, series) for program in programs for series in space.series(program)]
    total, done = sum(len(series) for _, series in rows), 0
    found: dict[bytes, tuple[Program, Options, Plan]] = {}
    refused: SleyError | None = None
    limit = space.fixed.max_blocks or RESIDENT_BLOCKS
    plans = _Plans(topology)
    for program, series in rows:
        for options in series:
            plan = plans.of(program, options)
            problem = _problem(plan, space.target)
            refused = refused or problem
            if problem is None:
                found.setdefault(fingerprint(plan), (program, options, plan))
            if blocks_per_rank(plan) >= limit:  # more instances only have more
                break
        done += len(series)
        progress(done, total)
    if not found and refused is not None:
        raise refused
    fewest = min(blocks_per_rank(plan) for _, _, plan in found.values())
    kept = (row for row in found.values() if blocks_per_rank(row[2]) <= max(limit, fewest))
    # All bring about one collective; how finely they cut it changes no bound.
    bounds = Bounds.of(programs[0].collective, topology)
    return [
        Candidate(
            index=index,
            program=program,
            options=options,
            plan=plan,
            blocks=blocks_per_rank(plan),
            least=LeastTime.of(plan, topology, interpreter=interpreter),
            simulator=Simulator(plan, topology, interpreter=interpreter, bounds=bounds),
        )
        for index, (program, options, plan) in enumerate(kept)
    ]


class _Plans:
    """Plans, each made once for all protocols for which the passes do the same."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: dict[tuple[int, Options], Plan] = {}
        self._checked: set[int] = set()

    def of(self, program: Program, options: Options) -> Plan:
        """The plan of a program with options that name a protocol."""
        protocol = options.protocol or Protocol.SIMPLE
        slots = options.slots or protocol.slots
        # Only the order by depth has to fit into the slots; whole transfers fit into any.
        told = slots if options.schedule is Schedule.MSCCL else None
        key = (id(program), replace(options, protocol=None, slots=told))
        if key not in self._known:
            # A wrong program is told from its first plan, before the search.
            verify = id(program) not in self._checked
            self._checked.add(id(program))
            self._known[key] = build(program, options, topology=self._topology, verify=verify)
        return replace(self._known[key], protocol=protocol, slots=slots)


def blocks_per_rank(plan: Plan) -> int:
    """Thread blocks of the rank that has most."""
    return int(np.diff(plan.rank_block).max(initial=0))


def _problem(plan: Plan, target: Target | None) -> SleyError | None:
    """Why a target can't run a plan."""
    if target is None:
        return None
    try:
        verify(plan, plan.protocol.slots, per_chunk=True)
        msccl_xml.write(plan, target)
    except SleyError as error:
        return error
    return None


def fingerprint(plan: Plan) -> bytes:
    """Equal for plans that do the same in the same way, whatever options made them."""
    t = plan.instructions
    digest = hashlib.blake2b(digest_size=16)
    scalars = (plan.name, plan.protocol, plan.loop_order, plan.slots, plan.per_chunk)
    digest.update(repr((scalars, plan.collective.chunks)).encode())
    told = ("transfer", "forward", "pipeline", "source")
    columns = [getattr(t, name) for name in Instructions.column_names() if name not in told]
    columns += [plan.block_rank, plan.block_offset, plan.waits.offset, plan.waits.target]
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()
