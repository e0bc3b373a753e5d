"""Conditions: the circumstances under which a proof holds, and whether a call meets all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import lcm

import numpy as np

from sley.ir.collective import Collective
from sley.ir.words import Buffer


@dataclass(frozen=True)
class Choice:
    """A demand: a property of the call has one of some values.

    of: the property: "place" (whether the call is in place), "root", "reduction" or "element bits".
    values: the values.
    """

    of: str
    values: frozenset[object]

    @classmethod
    def one_of(cls, of: str, *values: object) -> Choice:
        """The demand for one of these values."""
        return cls(of, frozenset(values))


@dataclass(frozen=True)
class ChunkBytes:
    """A demand: a chunk has a number of bytes above 0.

    multiple: the number is a multiple of it.
    least, most: the number is in this range, both included; None for no limit.
    """

    multiple: int = 1
    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Offset:
    """A demand: on some ranks a buffer of the caller begins at one offset of its allocation.

    buffer: input or output.
    ranks: the ranks, at least one.
    zero: whether the offset is 0, the start of the allocation.
    """

    buffer: Buffer
    ranks: tuple[int, ...]
    zero: bool = False


@dataclass(frozen=True)
class Condition:
    """A circumstance under which a proof holds.

    about: what it concerns: "place", "root", "counts", "sizes", "slots", "slot sizes", "input",
        "chunks", "allocations", "hosts", "calls", "buffers" or "version".
    text: the circumstance in words, such as "in place" or "2 slots a connection or more".
    demand: what `text` says, as values, if another condition could contradict it. None for a
        condition that a call, or the same call again and again, meets on large enough hardware,
        whatever the other conditions are.
    """

    about: str
    text: str
    demand: Choice | ChunkBytes | Offset | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, str]:
        """The condition as plain values, for ``--json``."""
        return {"about": self.about, "text": self.text}


INPUT_KEPT = Condition("input", "calls don't change their input")
"""What a proof promises of the input, rather than a circumstance."""


def place_condition(in_place: bool) -> Condition:
    """Where the output of a call is."""
    text = "in place" if in_place else "out of place"
    return Condition("place", text, Choice.one_of("place", in_place))


def contradiction(conditions: Sequence[Condition], collective: Collective) -> list[Condition]:
    """Some of the conditions of a proof that no call of the collective meets together, but any of
    them without the others; empty if a call meets all conditions."""
    if _are_met(conditions, collective):
        return []
    found = list(conditions)
    for one in conditions:
        rest = [other for other in found if other is not one]
        if not _are_met(rest, collective):
            found = rest
    return found


def _are_met(conditions: Iterable[Condition], collective: Collective) -> bool:
    """Whether any call meets all these conditions."""
    demands = [one.demand for one in conditions]
    allowed: dict[str, frozenset[object]] = {}
    multiple, least, most = 1, 1, []
    for demand in demands:
        if isinstance(demand, Choice):
            allowed[demand.of] = allowed.get(demand.of, demand.values) & demand.values
        elif isinstance(demand, ChunkBytes):
            multiple, least = lcm(multiple, demand.multiple), max(least, demand.least)
            most += [] if demand.most is None else [demand.most]
    smallest = -(-least // multiple) * multiple
    if not all(allowed.values()) or any(smallest > limit for limit in most):
        return False
    # Out of place, all buffers may be at the start of allocations of their own.
    offsets = [demand for demand in demands if isinstance(demand, Offset)]
    return False in allowed.get("place", {False}) or _fit_in_place(offsets, collective)


def _fit_in_place(offsets: Sequence[Offset], collective: Collective) -> bool:
    """Whether the ranks' data can begin at offsets of their allocations that meet all demands, if
    input and output are parts of the data."""
    base = {Buffer.INPUT: collective.input_base, Buffer.OUTPUT: collective.output_base}
    # The least offset of each rank's data, in chunks. It grows along chains of demands, none of
    # which is longer than their number, or without end.
    begin = np.zeros(collective.ranks, np.int64)
    for _ in range(len(offsets) + 1):
        before = begin.copy()
        for one in offsets:
            ranks, of_data = list(one.ranks), base[one.buffer][list(one.ranks)]
            begin[ranks] = (begin[ranks] + of_data).max() - of_data
        if (begin == before).all():
            break
    else:
        return False
    return not any(
        (begin[list(one.ranks)] + base[one.buffer][list(one.ranks)]).any()
        for one in offsets
        if one.zero
    )
