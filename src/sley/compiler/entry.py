"""compile: from a Program to a proven Plan."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, TypeVar

from sley.compiler.options import AUTO, Auto, Options, check_flags, named, protocol_named
from sley.compiler.pipeline import Phase, build, check_kinds
from sley.compiler.search import choose
from sley.errors.compiler import C309, C310
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Allocation, LoopOrder, Protocol, Schedule
from sley.passes.timeline import Costs

T = TypeVar("T")


def compile(
    program: Program,
    *,
    topology: Topology | None = None,
    protocol: Protocol | str | None = None,
    slots: int | None = None,
    channels: int | None = None,
    instances: int | None = None,
    fusion: bool | None = None,
    per_chunk: bool = False,
    schedule: Schedule | Auto | str = Schedule.MSCCL,
    allocate: Allocation | str | None = None,
    loop_order: LoopOrder | str | None = None,
    max_blocks: int | None = None,
    costs: Costs | None = None,
    size_bytes: int | str | None = None,
    verify: bool = True,
    phase: Phase = nullcontext,
) -> Plan:
    """The plan for `program`, verified.

    topology: where given, every transfer must go over one of its links, and those that share one
        are told apart; by default the one that the program was written for, if any.
    protocol: overrides the program's (default Simple).
    slots: how many messages a connection holds at run time; the plan is ordered so that it runs
        with so many or more (default: the protocol's).
    channels: spreads transfers that ask for no channel over so many (default 1); fused chains that
        fit none of them take further ones.
    instances: cuts the whole program into so many parallel parts (default 1).
    fusion: whether receives and sends may become one instruction; by default where the schedule
        has it, which is msccl.
    per_chunk: whether a message of several chunks takes a slot for each of them, as in MSCCL's
        kernels once a chunk fills a tile; a plan for them needs it.
    schedule: msccl orders instructions by depth (MSCCLang 5.2), hpds and round-robin whole
        transfers by sub-pipelines (ResCCL 4.3, 5.3). auto takes what the simulator finds fastest
        for `size_bytes` on the topology, of schedule, protocol, allocation, channels and
        instances; those that are given are kept (`choose`).
    allocate: connection (the default) gives every connection thread blocks of its own, state lets
        those that are never at work at the same time share one (ResCCL 4.4).
    loop_order: tile or instruction; by default instruction for hpds and round-robin, which is
        ResCCL's task level, and tile for msccl, which has no other.
    max_blocks: how many thread blocks a rank may have; where there are more, those are merged that
        are least at work at the same time.
    costs: what the timeline behind `allocate` and `max_blocks` reckons with.
    size_bytes: for schedule auto: the size that it is chosen for, as nccl-tests counts it.
    verify: False leaves the proof out, for whoever proves the plan later.
    phase: is told of each phase, for progress and times.

    Errors: C3xx for what cannot be compiled, V2xx for a program that does not do what its
    collective promises, S702 for what is no size.
    """
    check_kinds(program, topology)
    check_flags(verify=verify)
    rest: dict[str, Any] = {
        "slots": slots,
        "fusion": fusion,
        "per_chunk": per_chunk,
        "loop_order": loop_order,
        "max_blocks": max_blocks,
        "costs": costs,
    }
    if isinstance(schedule, str) and schedule == AUTO:
        if size_bytes is None:
            raise C310.error(expected="size_bytes with schedule='auto'", found="none")
        with phase("choosing"):
            choices = choose(
                program,
                size_bytes,
                topology,
                protocols=_only(protocol),
                allocations=_only(allocate),
                channels=_only(channels),
                instances=_only(instances),
                **rest,
            )
        return choices.ranges[0].plan
    if size_bytes is not None:
        raise C309.error(
            expected="size_bytes with schedule='auto'",
            found=f"size_bytes={size_bytes!r} with schedule={schedule!r}",
            remedy="Ask for schedule='auto', or leave the size out: other plans are for all sizes.",
        )
    options = Options(
        protocol=protocol_named(protocol),
        schedule=named(Schedule, "schedule", schedule),
        allocate=named(Allocation, "allocate", allocate or Allocation.CONNECTION),
        channels=1 if channels is None else channels,
        instances=1 if instances is None else instances,
        **rest,
    )
    return build(program, options, topology=topology, verify=verify, phase=phase)


def _only(value: T | None) -> list[T] | None:
    """What is to be tried of an option: the value given, or whatever there is."""
    return None if value is None else [value]
