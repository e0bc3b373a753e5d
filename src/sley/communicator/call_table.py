"""CallTable: the plans of all calls of a communicator on devices, each plan once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TypeAlias

from sley.communicator.selection.kinds import CALLS
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.ready_plans import ReadyPlan
from sley.engine.types import DataType
from sley.ir.plan import Plan
from sley.ir.sizes import SizeRange
from sley.ir.words import ReduceOp

Key: TypeAlias = tuple[str, bool, int]
"""A kind of calls: its name, whether in place, and the root, or 0."""


@dataclass(frozen=True)
class CallTable:
    """rows: for each kind of calls its plans, by size."""

    rows: Mapping[Key, Sequence[tuple[SizeRange, ReadyPlan]]]

    @classmethod
    def of(
        cls, plans: Plans, ranks: int, places: Callable[[str], Iterable[bool | None]]
    ) -> CallTable:
        """The table of all kinds of calls. places: of each kind, as of `Plans.places`. Errors: as
        of `Plans.table`."""
        return cls(
            {
                (kind, bool(in_place), root): plans.table(kind, in_place=in_place, root=root)
                for kind, row in CALLS.items()
                if not row.varies
                for root in (range(ranks) if row.roles else [0])
                for in_place in places(kind)
            }
        )

    @cached_property
    def ready(self) -> list[ReadyPlan]:
        """All rows' plans, row after row."""
        return [ready for rows in self.rows.values() for _, ready in rows]

    @cached_property
    def plans(self) -> list[Plan]:
        """The plans, each once, by their numbers."""
        return list({ready.digest: ready.plan for ready in self.ready}.values())

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        """The number of each plan, by its digest."""
        digests = dict.fromkeys(ready.digest for ready in self.ready)
        return {own: number for number, own in enumerate(digests)}

    @property
    def largest_bytes(self) -> list[int | None]:
        """The size of the largest call of each plan; None for any size."""
        found: dict[bytes, int | None] = {}
        for sizes, ready in (row for rows in self.rows.values() for row in rows):
            end, before = sizes.end_bytes, found.get(ready.digest, 0)
            found[ready.digest] = None if end is None or before is None else max(end, before)
        return list(found.values())

    def ranges(self, key: Key) -> tuple[list[int], list[int]]:
        """The ends of a row's ranges but the last, and the number of each one's plan."""
        rows = self.rows[key]
        ends = [sizes.end_bytes for sizes, _ in rows if sizes.end_bytes is not None]
        return ends, [self.numbers[ready.digest] for _, ready in rows]


def programs_of(
    kind: str, types: Sequence[DataType], ops: Sequence[ReduceOp]
) -> list[tuple[DataType, ReduceOp]]:
    """The types and operations of the kernels that run a kind's calls of some types."""
    if CALLS[kind].reduces:
        return list(product(types, ops))
    return [(moved, ReduceOp.SUM) for moved in dict.fromkeys(own.moved for own in types)]
