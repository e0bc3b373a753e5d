"""Candidates: the plans of a space of options, each compiled and simulated when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sley.compiler.options import Options
from sley.compiler.pipeline import Phase, build
from sley.compiler.space import Space
from sley.errors import SleyError
from sley.formats import files
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Allocation, Protocol, Schedule
from sley.model.bounds import Bounds
from sley.model.simulation import LeastTime, Simulator

T = TypeVar("T")

Contender: TypeAlias = tuple[Program, Plan | None]
"""What is compiled to candidates: a program, with each combination of a space; and the plan that it
was lifted from, which is a candidate as it is, None without one."""

_GIVEN = -1

LEAST_BLOCKS = 0.9
"""The least blocks of a plan, as a share of the blocks that its instances need separately: sharing
blocks with one another saved instances at most 3 % on packaged machines."""


class Position(NamedTuple):
    """The position of a candidate in the search: the number of its contender, of the series of its
    options, and of the options in it. The simpler one of two compiled candidates comes first."""

    contender: int
    series: int
    number: int

    @property
    def as_given(self) -> bool:
        """Whether the candidate is the plan of a contender, as it was given."""
        return self.series == _GIVEN


class Series(NamedTuple):
    """Options for a contender, with ascending instances. number: among all of the contender's."""

    contender: int
    number: int
    options: tuple[Options, ...]

    @property
    def shares_blocks(self) -> bool:
        """Whether connections share thread blocks, which takes most of the time of compiling."""
        return self.options[0].allocate is Allocation.STATE


class CandidateCompiler:
    """Compiles the candidates of contenders.

    series: all options of the space, for each contender. refused: why the target, if there is one,
    can't run the first plan that it can't run.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        topology: Topology,
        space: Space,
        *,
        interpreter: bool,
    ) -> None:
        self.contenders, self.topology, self.space = contenders, topology, space
        self.interpreter = interpreter
        self.series = [
            Series(contender, number, tuple(options))
            for contender, (program, _) in enumerate(contenders)
            for number, options in enumerate(_first_apart(space.series(program)))
        ]
        self.refused: SleyError | None = None
        self._plans = _Plans(topology)
        self._blocks: dict[tuple[int, Options], int] = {}
        # All are for one collective, whose bounds don't depend on how finely a program cuts it.
        self.bounds = Bounds.of(contenders[0][0].collective, topology)

    def given(self) -> Iterator[Candidate]:
        """The plans of the contenders, as they are, that the target can run."""
        for contender, (_, plan) in enumerate(self.contenders):
            if plan is not None:
                options = Options(protocol=plan.protocol, max_blocks=self.space.fixed.max_blocks)
                one = Candidate(self, Position(contender, _GIVEN, 0), options)
                if one.runs:
                    yield one

    def compiled(
        self, series: Series, wanted: Callable[[Options], bool] = lambda _options: True
    ) -> Iterator[Candidate]:
        """The candidates of a series that are wanted."""
        for number, options in enumerate(series.options):
            if number > 0 and self._shares_too_many(series, options):
                return
            if not wanted(options):
                continue
            one = Candidate(self, Position(series.contender, series.number, number), options)
            yield one
            if one.plan.blocks_per_rank >= self.limit(options):
                return  # more instances only need more blocks

    def limit(self, options: Options) -> int:
        """The most thread blocks of a rank."""
        most = self.space.most_blocks
        return options.max_blocks or (self.topology.model.most_blocks if most is None else most)

    def _shares_too_many(self, series: Series, options: Options) -> bool:
        """Whether the plan will have more blocks than the limit although it shares them: by the
        blocks of the series' first options, since instances run side by side."""
        if not series.shares_blocks or options.max_blocks is not None:
            return False
        first = replace(series.options[0], protocol=None, channels=None)
        key = series.contender, first
        if key not in self._blocks:
            program = self.contenders[series.contender][0]
            plan = build(program, first, topology=self.topology, verify=False, simulates=False)
            self._blocks[key] = plan.blocks_per_rank
        blocks = self._blocks[key] * (options.instances or 1) / (first.instances or 1)
        return blocks * LEAST_BLOCKS > self.limit(options)

    def can_run(self, plan: Plan) -> bool:
        """Whether the target, if there is one, can run a plan."""
        try:
            if self.space.target is not None:
                files.check(plan, self.space.target)
        except SleyError as error:
            self.refused = self.refused or error
            return False
        return True

    def plan(self, position: Position, options: Options) -> Plan:
        """The plan of a candidate."""
        program, given = self.contenders[position.contender]
        if position.as_given:
            assert given is not None
            return replace(given, topology=self.topology)
        return self._plans.of(program, options)


def _first_apart(series: Iterable[list[Options]]) -> Iterator[list[Options]]:
    """The same series, the simplest options in one of their own: a search that ends early has tried
    these of each contender."""
    for number, options in enumerate(series):
        parts = [options] if number else [options[:1], options[1:]]
        yield from filter(None, parts)


class Candidate:
    """A plan that may be chosen. plan: if it has been compiled."""

    def __init__(
        self,
        compiler: CandidateCompiler,
        position: Position,
        options: Options,
        plan: Plan | None = None,
    ) -> None:
        self._compiler, self.position, self.options = compiler, position, options
        if plan is not None:
            self.plan = plan

    @property
    def program(self) -> Program:
        """The program."""
        return self._compiler.contenders[self.position.contender][0]

    @cached_property
    def plan(self) -> Plan:
        """The plan."""
        return self._compiler.plan(self.position, self.options)

    @cached_property
    def runs(self) -> bool:
        """Whether the target, if there is one, can run the plan. For MSCCL++ that takes most of the
        time of compiling, since it makes the file."""
        return self._compiler.can_run(self.plan)

    @cached_property
    def simulator(self) -> Simulator:
        """Simulates the plan, as the target runs it."""
        made, target = self._compiler, self._compiler.space.target
        run = self.plan if target is None else target.simulated(self.plan)
        return Simulator(run, made.topology, interpreter=made.interpreter, bounds=made.bounds)

    @property
    def least(self) -> LeastTime:
        """The lower bound of its times."""
        return self.simulator.least


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
    compiler = CandidateCompiler(contenders, topology, space, interpreter=interpreter)
    total, done = sum(len(series.options) for series in compiler.series), 0
    distinct = dict[bytes, Candidate]()
    for one in compiler.given():
        distinct.setdefault(digest(one.plan), one)
    for series in compiler.series:
        for one in compiler.compiled(series):
            if one.runs:
                distinct.setdefault(digest(one.plan), one)
        done += len(series.options)
        progress(done, total)
    found = list(distinct.values())
    if not found and compiler.refused is not None:
        raise compiler.refused
    fewest = min(one.plan.blocks_per_rank for one in found)
    # Where no plan is within the limit, those with the fewest blocks are left, so there is always
    # one.
    return [
        one for one in found if one.plan.blocks_per_rank <= max(compiler.limit(one.options), fewest)
    ]


class _Plans:
    """Plans, each compiled once for all protocols for which the passes do the same. Passes that do
    the same for several combinations of options run once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._at: tuple[Program, Schedule | None] | None = None
        self._known: dict[Options, Plan] = {}
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
        key = replace(shared, protocol=protocol) if is_timed else shared
        if self._at is None or self._at[0] is not program or self._at[1] is not options.schedule:
            self._known, self._at = {}, (program, options.schedule)  # they take much memory
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
