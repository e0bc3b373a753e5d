"""The compiler: the passes from a Program to a proven Plan, in order (MSCCLang 4 and 5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from sley.errors.compiler import C304, C307
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, Protocol, is_integer
from sley.passes.blocks import assign_blocks
from sley.passes.channels import assign_channels
from sley.passes.dependencies import dependencies
from sley.passes.emit import emit
from sley.passes.fuse import fuse
from sley.passes.links import check_links
from sley.passes.order import order
from sley.passes.parallelize import parallelize
from sley.verify import verify as verify_plan

Phase: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Called with the name of each phase; what it returns is entered for as long as the phase lasts."""


def compile(
    program: Program,
    *,
    topology: Topology | None = None,
    protocol: Protocol | str | None = None,
    slots: int | None = None,
    channels: int = 1,
    instances: int = 1,
    fusion: bool = True,
    per_chunk: bool = False,
    verify: bool = True,
    phase: Phase = nullcontext,
) -> Plan:
    """The plan for `program`, verified.

    topology: where given, every transfer must go over one of its links.
    protocol: overrides the program's (default Simple).
    slots: how many messages a connection holds at run time; the plan is ordered so that it runs
        with so many or more (default: the protocol's).
    channels: spreads transfers that ask for no channel over so many; fused chains that fit none of
        them take further ones.
    instances: cuts the whole program into so many parallel parts.
    fusion: whether receives and sends may become one instruction.
    per_chunk: whether a message of several chunks takes a slot for each of them, as in MSCCL's
        kernels once a chunk fills a tile; a plan for them needs it.
    verify: False leaves the proof out, for whoever proves the plan later.
    phase: is told of each phase, for progress and times.

    Errors: C3xx for what cannot be compiled, V2xx for a program that does not do what its
    collective promises.
    """
    _check_kinds(program, topology)
    _check_options(slots=slots, channels=channels, instances=instances)
    if topology is not None:
        check_links(program, topology)
    chosen = _protocol(protocol) or program.protocol or Protocol.SIMPLE
    slots = slots or chosen.slots
    with phase("dependencies"):
        dag = dependencies(parallelize(program, instances))
    with phase("fusion and channels"):
        forward = fuse(dag, slots if per_chunk else None) if fusion else None
        lowered = assign_channels(dag, forward, channels)
    with phase("order"):
        ordered = order(lowered, slots, per_chunk=per_chunk)
    with phase("thread blocks"):
        blocks = assign_blocks(lowered, ordered)
    with phase("instructions and waits"):
        plan = emit(lowered, ordered, blocks, chosen, slots, per_chunk=per_chunk)
    if verify:
        with phase("verification"):
            verify_plan(plan)
    return plan


def _check_kinds(program: object, topology: object) -> None:
    """Refuses what is no program or no topology. Errors: C307."""
    if not isinstance(program, Program):
        raise C307.error(
            expected="a Program",
            found=type(program).__name__,
            remedy="Decorate the function with @sley.program(collective), and pass what becomes "
            "of it.",
        )
    if topology is not None and not isinstance(topology, Topology):
        raise C307.error(
            expected="a Topology, such as sley.topologies.dgx1()",
            found=repr(topology),
            remedy="Build one with sley.topologies or sley.Topology.from_links.",
        )


def _check_options(**options: int | None) -> None:
    """Refuses numbers that mean nothing. Errors: C304."""
    for word, value in options.items():
        if value is not None and not (is_integer(value) and 1 <= value <= MAX_NUMBER):
            expected = f"{word} from 1 to {MAX_NUMBER}"
            raise C304.error(expected=expected, found=f"{word}={value!r}")


def _protocol(protocol: Protocol | str | None) -> Protocol | None:
    """The protocol asked for, by itself or by name. Errors: C304."""
    asked = Protocol.named(protocol)
    if asked is None and protocol is not None:
        expected = "one of " + ", ".join(p.value for p in Protocol)
        raise C304.error(expected=expected, found=f"protocol={protocol!r}")
    return asked
