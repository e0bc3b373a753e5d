"""Ready plans: proven plans that calls may use, and what a plan must be for that.

This imports neither the compiler nor a format: a job, which brings its plans, starts four times as
fast without them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sley.communicator.selection.kinds import kinds_of
from sley.errors import Diagnostic, Place, counted
from sley.errors.formats import F454
from sley.errors.selection import N651, N652
from sley.ir.orders import Order
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.plan_table import PlanRow
from sley.ir.tables import NONE


@dataclass(frozen=True)
class Capacity:
    """What a plan must fit: the number of ranks, the slots and channels of connections (None: any
    number), and the order of sums (None: any order)."""

    ranks: int
    slots: int | None = None
    channels: int | None = None
    order: Order | None = None


@dataclass(frozen=True, eq=False)
class ReadyPlan:
    """A proven plan that is ready to run, and the row of a table that it is for.

    origin: "compiled", "disk" (from the cache), "registered" by the user or "given" with the call.
    digest: 16 bytes, equal on all ranks that chose the same plan and tile.
    ready_ms: how long compiling or loading took.
    tuned: the row of the tuner's policy, if that chose the plan.
    """

    plan: Plan
    row: PlanRow
    origin: str
    digest: bytes
    ready_ms: float
    tuned: PlanRow | None = None

    @classmethod
    def of(cls, plan: Plan, row: PlanRow, origin: str, started_s: float) -> ReadyPlan:
        """started_s: when the work on it began, by `time.perf_counter`."""
        own = digest(plan)
        return cls(plan, row, origin, own, (time.perf_counter() - started_s) * 1e3)

    def __str__(self) -> str:
        return f"{self.row.recipe.name}, {self.plan.collective}, {self.row.sizes}"

    def __repr__(self) -> str:
        return (
            f"ReadyPlan({self.plan.collective}, {self.row.sizes}: {self.plan.name}, "
            f"{self.plan.protocol.value}, {self.origin}, ready after {self.ready_ms:.1f} ms)"
        )

    def is_for(self, kind: str, *, in_place: bool, root: int) -> bool:
        """Whether it can run such calls, of some size."""
        c = self.plan.collective
        return kind in kinds_of(c) and c.in_place == in_place and c.root in (NONE, root)


@dataclass(frozen=True)
class PlanFolder:
    """The plans of a folder that fit, its problems, and its plans for other groups, in words."""

    plans: tuple[ReadyPlan, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    others: tuple[str, ...] = ()


def check_input(plan: Plan, origin: str) -> None:
    """Refuses a plan out of place that writes to its input. Errors: F454."""
    if plan.input_writes.size and not plan.collective.in_place:
        raise F454.error(
            at=[Place(origin), plan.place(plan.input_writes[0]).labelled("the first write")],
            expected="a plan that leaves its input as it is",
            found=f"{counted(len(plan.input_writes), 'write')} to it",
            remedy="Copy the chunk to the output or to scratch first, and reduce there; or "
            "give the collective in_place=True, for calls in place. `comm.run` accepts the "
            "plan as it is.",
        )


def check_capacity(plan: Plan, capacity: Capacity, origin: str) -> None:
    """Refuses a plan that needs more slots or channels than connections have. Errors: N652."""
    for word, needed, available in (
        ("slots", plan.slots, capacity.slots),
        ("channels", plan.channels, capacity.channels),
    ):
        if available is not None and needed > available:
            raise N652.error(
                at=Place(origin),
                expected=f"at most {available} {word}, as the connections have",
                found=f"{needed} {word}",
            )


def check_order(plan: Plan, capacity: Capacity, origin: str) -> None:
    """Refuses a proven plan whose sums have another order than the communicator's. Errors: N658."""
    if capacity.order is None:
        return
    from sley.verification import SumOrder

    SumOrder.of(plan).check(capacity.order, origin)


def prove(plan: Plan, capacity: Capacity, origin: str, *, is_proven: bool = False) -> None:
    """Proves a plan, unless the caller has, and checks that it fits. Errors: N651, N652, V2xx."""
    if plan.collective.ranks != capacity.ranks:
        raise N651.error(
            at=Place(origin),
            expected=f"a collective on {capacity.ranks} ranks",
            found=str(plan.collective),
        )
    if not is_proven:
        from sley.verification import verify

        verify(plan)
    check_capacity(plan, capacity, origin)
