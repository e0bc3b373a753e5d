"""The compiler: the passes from a Program to a proven Plan, in order (MSCCLang 4, 5; ResCCL 4)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, TypeVar

import numpy as np

from sley.errors.compiler import C304, C307, C309
from sley.ir.dag import InstructionDag, Order
from sley.ir.plan import Estimate, Plan
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, Allocation, LoopOrder, Protocol, Schedule, is_integer
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

E = TypeVar("E", bound=Enum)


def compile(
    program: Program,
    *,
    topology: Topology | None = None,
    protocol: Protocol | str | None = None,
    slots: int | None = None,
    channels: int = 1,
    instances: int = 1,
    fusion: bool | None = None,
    per_chunk: bool = False,
    schedule: Schedule | str = Schedule.MSCCL,
    allocate: Allocation | str = Allocation.CONNECTION,
    loop_order: LoopOrder | str | None = None,
    max_blocks: int | None = None,
    costs: Costs | None = None,
    verify: bool = True,
    phase: Phase = nullcontext,
) -> Plan:
    """The plan for `program`, verified.

    topology: where given, every transfer must go over one of its links, and those that share one
        are told apart; by default the one that the program was written for, if any.
    protocol: overrides the program's (default Simple).
    slots: how many messages a connection holds at run time; the plan is ordered so that it runs
        with so many or more (default: the protocol's).
    channels: spreads transfers that ask for no channel over so many; fused chains that fit none of
        them take further ones.
    instances: cuts the whole program into so many parallel parts.
    fusion: whether receives and sends may become one instruction; by default where the schedule
        has it, which is msccl.
    per_chunk: whether a message of several chunks takes a slot for each of them, as in MSCCL's
        kernels once a chunk fills a tile; a plan for them needs it.
    schedule: msccl orders instructions by depth (MSCCLang 5.2), hpds and round-robin whole
        transfers by sub-pipelines (ResCCL 4.3, 5.3).
    allocate: connection gives every connection thread blocks of its own, state lets those that are
        never at work at the same time share one (ResCCL 4.4).
    loop_order: tile or instruction; by default instruction for hpds and round-robin, which is
        ResCCL's task level, and tile for msccl, which has no other.
    max_blocks: how many thread blocks a rank may have; where there are more, those are merged that
        are least at work at the same time.
    costs: what the timeline behind `allocate` and `max_blocks` reckons with.
    verify: False leaves the proof out, for whoever proves the plan later.
    phase: is told of each phase, for progress and times.

    Errors: C3xx for what cannot be compiled, V2xx for a program that does not do what its
    collective promises.
    """
    _check_kinds(program, topology, costs)
    _check_flags(fusion=fusion, per_chunk=per_chunk, verify=verify)
    _check_numbers(slots=slots, channels=channels, instances=instances, max_blocks=max_blocks)
    options = _Options.of(program, schedule, allocate, loop_order, fusion, max_blocks, costs)
    topology = topology or program.topology
    if topology is not None:
        check_links(program, topology)
    chosen = _protocol(protocol) or program.protocol or Protocol.SIMPLE
    slots = slots or chosen.slots
    with phase("dependencies"):
        dag = dependencies(parallelize(program, instances))
        links = used_links(dag.program, topology)
    with phase("fusion and channels"):
        forward = fuse(dag, slots if per_chunk else None) if options.fusion else None
        lowered = assign_channels(dag, forward, channels)
    with phase("order"):
        if options.schedule is Schedule.MSCCL:
            ordered = order(lowered, slots, per_chunk=per_chunk)
        else:
            ordered = pipelines(lowered, links, options.schedule)
    with phase("thread blocks"):
        ordered, blocks, estimate = _allocated(lowered, ordered, links, options)
    with phase("instructions and waits"):
        plan = emit(
            lowered,
            ordered,
            blocks,
            chosen,
            slots,
            loop_order=options.loop_order,
            per_chunk=per_chunk,
            estimate=estimate,
            topology=topology,
        )
    if verify:
        with phase("verification"):
            verify_plan(plan)
    return plan


@dataclass(frozen=True)
class _Options:
    """How to schedule and allocate: the options, checked and with their defaults."""

    schedule: Schedule
    allocation: Allocation
    loop_order: LoopOrder
    fusion: bool
    max_blocks: int | None
    costs: Costs

    @classmethod
    def of(
        cls,
        program: Program,
        schedule: Schedule | str,
        allocate: Allocation | str,
        loop_order: LoopOrder | str | None,
        fusion: bool | None,
        max_blocks: int | None,
        costs: Costs | None,
    ) -> _Options:
        """Errors: C304, C309."""
        chosen = _named(Schedule, "schedule", schedule)
        allocation = _named(Allocation, "allocate", allocate)
        depth = chosen is Schedule.MSCCL
        usual = LoopOrder.TILE if depth else LoopOrder.INSTRUCTION
        loops = usual if loop_order is None else _named(LoopOrder, "loop_order", loop_order)
        t = program.transfers
        if depth and loops is LoopOrder.INSTRUCTION:
            raise C309.error(expected="hpds or round-robin for instruction order", found="msccl")
        if fusion and not depth:
            raise C309.error(expected="whole transfers", found=f"{chosen.value} with fusion")
        reckoned = costs or Costs()
        if loops is LoopOrder.TILE:
            # A tile goes through all instructions before the next one.
            reckoned = replace(reckoned, tiles=1)
        fuses = depth if fusion is None else fusion
        options = cls(chosen, allocation, loops, fuses, max_blocks, reckoned)
        if options.merges and ((t.send_block != NONE) | (t.recv_block != NONE)).any():
            raise C309.error(
                at=program.sources.whole,
                expected="thread blocks left to the compiler",
                found="a program that gives blocks by hand",
            )
        return options

    @property
    def merges(self) -> bool:
        """Whether blocks may be merged."""
        return self.allocation is Allocation.STATE or self.max_blocks is not None


def _allocated(
    lowered: InstructionDag, ordered: Order, links: Links, options: _Options
) -> tuple[Order, Blocks, Estimate | None]:
    """The thread blocks, the order in which they list their instructions, and what to expect."""
    blocks = assign_blocks(lowered, ordered)
    if options.schedule is Schedule.MSCCL and not options.merges:
        return ordered, blocks, None
    allocated = allocate_blocks(
        lowered, ordered, blocks, links, options.costs, options.allocation, options.max_blocks
    )
    return allocated.order, allocated.blocks, allocated.estimate


def _check_kinds(program: object, topology: object, costs: object) -> None:
    """Refuses what is no program, no topology, no costs. Errors: C307."""
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
    if costs is not None and not isinstance(costs, Costs):
        raise C307.error(expected="Costs, such as sley.Costs(tiles=4)", found=repr(costs))


def _check_flags(**options: object) -> None:
    """Refuses what is no truth value where one is needed. Errors: C304."""
    for word, value in options.items():
        if value is not None and not isinstance(value, (bool, np.bool_)):
            raise C304.error(expected=f"{word} as True or False", found=f"{word}={value!r}")


def _check_numbers(**options: int | None) -> None:
    """Refuses numbers that mean nothing. Errors: C304."""
    for word, value in options.items():
        if value is not None and not (is_integer(value) and 1 <= value <= MAX_NUMBER):
            expected = f"{word} from 1 to {MAX_NUMBER}"
            raise C304.error(expected=expected, found=f"{word}={value!r}")


def _named(kind: type[E], word: str, value: E | str) -> E:
    """The member of `kind` that a value is or names. Errors: C304."""
    for member in kind:
        if value is member or (isinstance(value, str) and value == member.value):
            return member
    expected = "one of " + ", ".join(str(member.value) for member in kind)
    raise C304.error(expected=expected, found=f"{word}={value!r}")


def _protocol(protocol: Protocol | str | None) -> Protocol | None:
    """The protocol asked for, by itself or by name. Errors: C304."""
    asked = Protocol.named(protocol)
    if asked is None and protocol is not None:
        expected = "one of " + ", ".join(p.value for p in Protocol)
        raise C304.error(expected=expected, found=f"protocol={protocol!r}")
    return asked
