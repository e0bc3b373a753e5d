"""The pipeline: the passes from a Program to a Plan, in order (MSCCLang 4, 5; ResCCL 4)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

from sley.compiler.options import Options
from sley.errors.compiler import C307, C309
from sley.ir.dag import InstructionDag, Order
from sley.ir.plan import Estimate, Plan
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import Allocation, LoopOrder, Protocol, Schedule
from sley.passes.allocate import allocate as allocate_blocks
from sley.passes.blocks import Blocks, assign_blocks
from sley.passes.channels import assign_channels
from sley.passes.dependencies import dependencies
from sley.passes.emit import emit
from sley.passes.fuse import fuse
from sley.passes.links import Links, check_links, used_links
from sley.passes.order import order
from sley.passes.parallelize import parallelize
from sley.passes.pipelines import pipelines
from sley.passes.timeline import Costs
from sley.verify import verify as verify_plan

Phase: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Called with the name of each phase; what it returns is entered for as long as the phase lasts."""


def build(
    program: Program,
    options: Options,
    *,
    topology: Topology | None = None,
    verify: bool = True,
    phase: Phase = nullcontext,
) -> Plan:
    """The plan for `program` with these options; `compile` says what they mean.

    Errors: C3xx for what cannot be compiled, V2xx for what `verify` refuses.
    """
    check_kinds(program, topology)
    settings = _Settings.of(program, options)
    topology = topology or program.topology
    if topology is not None:
        check_links(program, topology)
    chosen = options.protocol or program.protocol or Protocol.SIMPLE
    slots = options.slots or chosen.slots
    per_chunk = options.per_chunk
    with phase("dependencies"):
        dag = dependencies(parallelize(program, options.instances))
        links = used_links(dag.program, topology)
    with phase("fusion and channels"):
        forward = fuse(dag, slots if per_chunk else None) if settings.fusion else None
        lowered = assign_channels(dag, forward, options.channels)
    with phase("order"):
        if settings.schedule is Schedule.MSCCL:
            ordered = order(lowered, slots, per_chunk=per_chunk)
        else:
            ordered = pipelines(lowered, links, settings.schedule)
    with phase("thread blocks"):
        ordered, blocks, estimate = _allocated(lowered, ordered, links, settings)
    with phase("instructions and waits"):
        plan = emit(
            lowered,
            ordered,
            blocks,
            chosen,
            slots,
            loop_order=settings.loop_order,
            per_chunk=per_chunk,
            estimate=estimate,
            topology=topology,
        )
    if verify:
        with phase("verification"):
            verify_plan(plan)
    return plan


@dataclass(frozen=True)
class _Settings:
    """How to schedule and allocate: the options with their defaults, fitting one another."""

    schedule: Schedule
    allocation: Allocation
    loop_order: LoopOrder
    fusion: bool
    max_blocks: int | None
    costs: Costs

    @classmethod
    def of(cls, program: Program, options: Options) -> _Settings:
        """Errors: C309."""
        depth = options.schedule is Schedule.MSCCL
        loops = options.loop_order or (LoopOrder.TILE if depth else LoopOrder.INSTRUCTION)
        if depth and loops is LoopOrder.INSTRUCTION:
            raise C309.error(expected="hpds or round-robin for instruction order", found="msccl")
        if options.fusion and not depth:
            raise C309.error(
                expected="whole transfers", found=f"{options.schedule.value} with fusion"
            )
        reckoned = options.costs or Costs()
        if loops is LoopOrder.TILE:
            # A tile goes through all instructions before the next one.
            reckoned = replace(reckoned, tiles=1)
        fuses = depth if options.fusion is None else options.fusion
        settings = cls(
            options.schedule, options.allocate, loops, fuses, options.max_blocks, reckoned
        )
        if settings.merges and gives_blocks(program):
            raise C309.error(
                at=program.sources.whole,
                expected="thread blocks left to the compiler",
                found="a program that gives blocks by hand",
            )
        return settings

    @property
    def merges(self) -> bool:
        """Whether blocks may be merged."""
        return self.allocation is Allocation.STATE or self.max_blocks is not None


def gives_blocks(program: Program) -> bool:
    """Whether a program gives thread blocks by hand."""
    t = program.transfers
    return bool(((t.send_block != NONE) | (t.recv_block != NONE)).any())


def _allocated(
    lowered: InstructionDag, ordered: Order, links: Links, settings: _Settings
) -> tuple[Order, Blocks, Estimate | None]:
    """The thread blocks, the order in which they list their instructions, and what to expect."""
    blocks = assign_blocks(lowered, ordered)
    if settings.schedule is Schedule.MSCCL and not settings.merges:
        return ordered, blocks, None
    allocated = allocate_blocks(
        lowered, ordered, blocks, links, settings.costs, settings.allocation, settings.max_blocks
    )
    return allocated.order, allocated.blocks, allocated.estimate


def check_kinds(program: object, topology: object) -> None:
    """Refuses what is no program, and no topology. Errors: C307."""
    if not isinstance(program, Program):
        raise C307.error(
            expected="a Program",
            found=type(program).__name__,
            remedy="Decorate the function with @sley.program(collective), and pass what becomes "
            "of it.",
        )
    for cluster in (topology, program.topology):
        if cluster is not None and not isinstance(cluster, Topology):
            raise C307.error(
                expected="a Topology, such as sley.topologies.dgx1()",
                found=repr(cluster),
                remedy="Build one with sley.topologies or sley.Topology.from_links.",
            )
