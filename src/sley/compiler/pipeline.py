"""The pipeline: the passes from a Program to a Plan, in order (MSCCLang 4, 5; ResCCL 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Protocol as Interface
from typing import TypeVar

import numpy as np

from sley.compiler.options import Options
from sley.compiler.passes.allocate import allocate
from sley.compiler.passes.blocks import assign_blocks, blocks_of_instances
from sley.compiler.passes.channels import assign_channels
from sley.compiler.passes.copies import forward_copies
from sley.compiler.passes.cuts import cut_copies
from sley.compiler.passes.emit import emit
from sley.compiler.passes.fuse import fuse, fuse_copies
from sley.compiler.passes.links import check_links, check_switches, used_links
from sley.compiler.passes.order import eager, order
from sley.compiler.passes.parallelize import parallelize
from sley.compiler.passes.pipelines import pipelines
from sley.compiler.passes.scratch import without_untouched
from sley.compiler.passes.timeline import TILES, Estimator, HopCosts
from sley.errors.compiler import C307, C309, C314
from sley.ir.dag import Allocated, Blocks, Forwarded, InstructionDag, Links, Order
from sley.ir.dependencies import dependencies
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import GROUP_PROTOCOLS, Allocation, LoopOrder, Protocol, Schedule
from sley.model.bounds import Bounds
from sley.model.simulation import Simulator
from sley.verification import verify as verify_plan

T = TypeVar("T")


class Pass(StrEnum):
    """The passes by name, in the order of the compiler; no program needs all of them."""

    PARALLELIZE = "parallelize"
    COPIES = "copies"
    DEPENDENCIES = "dependencies"
    LINKS = "links"
    FUSE = "fuse"
    CHANNELS = "channels"
    COPY_SENDS = "copy sends"
    ORDER = "order"
    PIPELINES = "pipelines"
    BLOCKS = "blocks"
    ALLOCATE = "allocate"
    EMIT = "emit"


PASSES = tuple(each.value for each in Pass)
"""The names of the passes, in the order of the compiler."""


SIMULATED_BYTES = (2**20, 2**26)
"""Sizes of calls by which ways to share thread blocks are compared: one that latencies decide, and
one that rates decide. No call has more than four times `TILES` tiles a chunk."""


class Phase(Interface):
    """Runs a phase of the compiler: calls `work` and returns its value, which for a pass in
    `PASSES` is the pass's result. So it can observe names, times and results."""

    def __call__(self, name: str, work: Callable[[], T], /) -> T: ...


def run_phase(_name: str, work: Callable[[], T], /) -> T:
    """The phase that observes nothing."""
    return work()


def build(
    program: Program,
    options: Options,
    *,
    topology: Topology | None = None,
    verify: bool = True,
    phase: Phase = run_phase,
    simulates: bool = True,
) -> Plan:
    """The plan for `program` with these options, whose schedule is not auto.

    simulates: whether ways to share thread blocks are simulated; the plan has as many blocks
    without, but may be slower.

    Errors: C3xx for a program or options that can't be compiled, V2xx if `verify` refuses the plan.
    """
    # Results of passes are as large as the plan, and go before the proof needs room for its own.
    plan = _run_passes(program, options, topology, phase, simulates=simulates)
    if verify:
        phase("verification", lambda: verify_plan(plan))
    return plan


def _run_passes(
    program: Program,
    options: Options,
    topology: Topology | None,
    phase: Phase,
    *,
    simulates: bool,
) -> Plan:
    """`build` without the proof."""
    if options.switches is False:
        program = without_groups(program)
    topology = topology or program.topology
    settings = _CompileSettings.of(program, options)
    _check(program, settings, topology)
    parts = phase(Pass.PARALLELIZE, lambda: parallelize(program, settings.instances))
    forwarded = phase(Pass.COPIES, lambda: _forward_copies(parts, settings))
    dag = phase(Pass.DEPENDENCIES, lambda: dependencies(forwarded.program, forwarded.operands))
    links = phase(Pass.LINKS, lambda: used_links(forwarded.program, topology))
    fuses_receives = settings.fusion and settings.by_depth
    forward = phase(Pass.FUSE, lambda: fuse(dag, settings.widest)) if fuses_receives else None
    lowered = phase(Pass.CHANNELS, lambda: assign_channels(dag, forward, settings.channels))
    if settings.fusion:
        unfused = lowered
        lowered = phase(Pass.COPY_SENDS, lambda: fuse_copies(unfused, settings.widest))
    if settings.by_depth:
        ordered = phase(Pass.ORDER, lambda: _order(lowered, settings))
    else:
        ordered = phase(Pass.PIPELINES, lambda: pipelines(lowered, links, settings.schedule))
    assign = blocks_of_instances if settings.by_instance else assign_blocks
    blocks = phase(Pass.BLOCKS, lambda: assign(lowered, ordered))
    estimate = None
    if settings.estimates:
        allocated = phase(
            Pass.ALLOCATE,
            lambda: _allocate(
                lowered, ordered, blocks, links, topology, settings, simulates=simulates
            ),
        )
        ordered, blocks, estimate = allocated.order, allocated.blocks, allocated.estimate
    return phase(
        Pass.EMIT,
        lambda: replace(
            _emit(lowered, ordered, blocks, settings), estimate=estimate, topology=topology
        ),
    )


@dataclass(frozen=True)
class _CompileSettings:
    """The options of a compilation with their defaults, each as in `Options`; `switches` changes
    the program instead."""

    instances: int
    channels: int
    schedule: Schedule
    loop_order: LoopOrder
    protocol: Protocol
    slots: int
    per_chunk: bool
    fusion: bool
    allocate: Allocation
    max_blocks: int | None

    @classmethod
    def of(cls, program: Program, options: Options) -> _CompileSettings:
        """Errors: C309."""
        schedule = options.schedule or Schedule.MSCCL
        by_depth = schedule is Schedule.MSCCL
        loop_order = options.loop_order or (LoopOrder.TILE if by_depth else LoopOrder.INSTRUCTION)
        if by_depth and loop_order is LoopOrder.INSTRUCTION:
            raise C309.error(expected="hpds or round-robin for instruction order", found="msccl")
        if options.fusion and not by_depth:
            raise C309.error(expected="whole transfers", found=f"{schedule.value} with fusion")
        protocol = options.protocol or program.protocol or Protocol.SIMPLE
        return cls(
            instances=options.instances or 1,
            channels=options.channels or 1,
            schedule=schedule,
            loop_order=loop_order,
            protocol=protocol,
            slots=options.slots or protocol.slots,
            per_chunk=bool(options.per_chunk),
            fusion=options.fusion is not False,
            allocate=options.allocate or Allocation.CONNECTION,
            max_blocks=options.max_blocks,
        )

    @property
    def by_depth(self) -> bool:
        """Whether instructions are ordered by depth, not whole transfers by pipelines."""
        return self.schedule is Schedule.MSCCL

    @property
    def by_instance(self) -> bool:
        """Whether each parallel part of a rank has one thread block."""
        return self.allocate is Allocation.INSTANCE

    @property
    def merges(self) -> bool:
        """Whether thread blocks may serve several connections."""
        return self.allocate is not Allocation.CONNECTION or self.max_blocks is not None

    @property
    def estimates(self) -> bool:
        """Whether blocks or whole transfers follow a timeline."""
        by_state = self.allocate is Allocation.STATE
        return by_state or self.max_blocks is not None or not self.by_depth

    @property
    def widest(self) -> int | None:
        """The most chunks of a message that may be fused; None for any number."""
        return self.slots if self.per_chunk else None


def _check(program: Program, settings: _CompileSettings, topology: Topology | None) -> None:
    """Refuses programs, and groups of transfers, that the settings or the topology don't allow.
    Errors: C3xx."""
    if settings.merges and program.transfers.by_hand.any():
        raise C309.error(
            at=program.sources.whole,
            expected="thread blocks left to the compiler",
            found="a program that requests thread blocks",
        )
    if topology is not None:
        check_links(program, topology)
    if (program.transfers.group == NONE).all():
        return
    refused = {
        f"schedule {settings.schedule.value}": not settings.by_depth,
        f"protocol {settings.protocol.value}": settings.protocol not in GROUP_PROTOCOLS,
        f"allocate {settings.allocate.value}": settings.allocate is not Allocation.CONNECTION,
        "max_blocks": settings.max_blocks is not None,
        "a slot for each chunk": settings.per_chunk,
    }
    if found := [word for word, wrong in refused.items() if wrong]:
        expected = "schedule msccl, allocate connection, Simple or Direct"
        raise C314.error(at=program.sources.whole, expected=expected, found=", ".join(found))
    if topology is not None:
        check_switches(program, topology)


def _forward_copies(program: Program, settings: _CompileSettings) -> Forwarded:
    """Reads of copies as reads of what was copied; the other copies cut for their sends."""
    forwarded = forward_copies(program)
    return cut_copies(forwarded, settings.widest) if settings.fusion else forwarded


def _order(dag: InstructionDag, settings: _CompileSettings) -> Order:
    """The order by depth; for blocks that serve all peers the eager one, as far as each message
    takes one slot."""
    found = order(dag, settings.slots, per_chunk=settings.per_chunk)
    if not settings.by_instance or settings.per_chunk:
        return found
    return found.pick(eager(dag, found, settings.slots))


def _allocate(
    dag: InstructionDag,
    ordered: Order,
    blocks: Blocks,
    links: Links,
    topology: Topology | None,
    settings: _CompileSettings,
    *,
    simulates: bool,
) -> Allocated:
    program = dag.chunks.program
    costs = HopCosts.of(program, topology, settings.protocol, per_chunk=settings.per_chunk)
    dag = dag.as_ordered(ordered)
    # In tile order one tile passes all instructions before the next one starts.
    tiles = 1 if settings.loop_order is LoopOrder.TILE else TILES
    estimator = Estimator.of(dag, links, costs, tiles)
    machine = topology or Topology.cluster(1, program.collective.ranks)
    bounds = Bounds.of(program.collective, machine)

    tile_bytes = machine.model.tile_bytes[settings.protocol] / costs.longest
    largest = int(TILES * tile_bytes * program.collective.blocks * program.collective.chunks)
    # A call of a protocol for small calls would have thousands of tiles.
    sizes = sorted({min(size, 4 * largest) for size in SIMULATED_BYTES})

    def simulate(order: Order, blocks: Blocks) -> list[Callable[[float], float]]:
        plan = _emit(dag, order, blocks, settings)
        simulator = Simulator(plan, machine, bounds=bounds)
        return [partial(simulator.time_us, size) for size in sizes]

    return allocate(
        dag,
        ordered,
        blocks,
        estimator,
        settings.allocate,
        settings.max_blocks,
        simulate if simulates else None,
        None if settings.per_chunk else settings.slots,
    )


def _emit(dag: InstructionDag, ordered: Order, blocks: Blocks, settings: _CompileSettings) -> Plan:
    protocol, slots, loop_order = settings.protocol, settings.slots, settings.loop_order
    plan = emit(dag, ordered, blocks, protocol, slots, loop_order, per_chunk=settings.per_chunk)
    return without_untouched(plan)


def without_groups(program: Program) -> Program:
    """The program whose transfers all have messages of their own."""
    none = np.full(len(program.transfers), NONE)
    return replace(program, transfers=replace(program.transfers, group=none))


def check_kind(program: object) -> None:
    """Refuses values that are not a program, for a topology if for any. Errors: C307."""
    if not isinstance(program, Program):
        remedy = "Decorate the function with @sley.program(collective), and pass the result."
        if isinstance(program, str):
            remedy = (
                "Build an algorithm of the library by its name: "
                f"sley.algorithms.build({program[:60]!r}, ranks=8)."
            )
            if "." in program:
                remedy = f"Load the file: sley.compile(sley.load({program[:60]!r}))."
        raise C307.error(
            expected="a Program",
            found=repr(program)[:60] if isinstance(program, str) else type(program).__name__,
            remedy=remedy,
        )
    if program.topology is not None and not isinstance(program.topology, Topology):
        raise C307.error(
            expected="a Topology that the program is written for, such as sley.topologies.dgx1()",
            found=repr(program.topology),
            remedy="Build one with sley.topologies or sley.Topology.from_links.",
        )
