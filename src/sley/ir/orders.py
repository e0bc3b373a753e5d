"""Orders: the trees in which the data of ranks are summed.

Any two sums of the same tree have the same bits (`verification.order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

Order: TypeAlias = "int | Sequence[Order]"
"""A rank, or parts that are summed from the left."""

BALANCED: Literal["balanced"] = "balanced"

SameBits: TypeAlias = bool | Literal["balanced"]
"""Whether all sums have one order: False, True for `Hosts.members`, or BALANCED for `balanced`."""


def balanced(first: int, end: int) -> Order:
    """The balanced tree of ranks first to end - 1: the first part has the largest power of two of
    ranks that leaves the other some. So if each rank's term is the balanced sum of 2^k terms, the
    total is the balanced sum of all terms, on any number of ranks."""
    if end - first == 1:
        return first
    middle = first + (1 << (end - first - 1).bit_length() - 1)
    return balanced(first, middle), balanced(middle, end)


def wanted_order(same_bits: SameBits, hosts: Sequence[Sequence[int]]) -> Order | None:
    """The order that `same_bits` wants for the ranks of these hosts; None: any."""
    if same_bits == BALANCED:
        return balanced(0, sum(map(len, hosts)))
    return hosts if same_bits else None
