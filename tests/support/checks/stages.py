"""The results of the passes of one compilation, from the compiler's phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import sley
from sley.compiler import compile_in_phases
from sley.ir.dag import Blocks, ChunkDag, InstructionDag, Order
from sley.ir.faults import Fault
from sley.ir.program import Program
from support.checks.invariants import (
    block_faults,
    chunk_faults,
    instruction_faults,
    order_faults,
    program_faults,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Stages:
    """The values of one compilation, up to the plan. order, blocks: from the last pass that makes
    them. values: the result of every pass, by its name."""

    dag: ChunkDag
    lowered: InstructionDag
    order: Order
    blocks: Blocks
    plan: sley.Plan
    values: dict[str, Any]

    @classmethod
    def of(cls, program: Program, **options: Any) -> Stages:
        """options: those of `sley.compile`. The plan is not verified."""
        values: dict[str, Any] = {}

        def phase(name: str, work: Callable[[], T], /) -> T:
            values[name] = made = work()
            return made

        topology = options.pop("topology", None)
        plan = compile_in_phases(
            program, sley.Options(**options), phase, topology=topology, verify=False
        )
        last = values.get("allocate")
        order = (
            values["order" if "order" in values else "pipelines"] if last is None else last.order
        )
        blocks = values["blocks"] if last is None else last.blocks
        lowered = values.get("copy sends", values["channels"])
        return cls(values["dependencies"], lowered, order, blocks, plan, values)

    def faults(self) -> list[Fault]:
        """The faults of the first value that has any."""
        slots, per_chunk = self.plan.slots, self.plan.per_chunk
        return (
            program_faults(self.dag.program)
            or chunk_faults(self.dag)
            or instruction_faults(self.lowered)
            or order_faults(self.lowered, self.order, slots, per_chunk=per_chunk)
            or block_faults(self.lowered, self.order, self.blocks)
        )
