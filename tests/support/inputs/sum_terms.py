"""Terms of sums: the bits of a sum of them show the order in which they were added."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any, TypeAlias

import numpy as np

from sley.engine.types import DATA_TYPES
from sley.ir.orders import BALANCED, SameBits
from sley.ir.words import ReduceOp

Tree: TypeAlias = "int | frozenset[Tree]"
"""A rank, or the two sides of a sum."""

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
ELEMENTS = 251
"""Elements of one period: a prime, so that tiles and parts begin anywhere in it."""


def chained(parts: Sequence[Tree]) -> Tree:
    """The sum of these from the left."""
    return reduce(lambda one, other: frozenset([one, other]), parts)


def paired(parts: Sequence[Tree]) -> Tree:
    """Their sum, in which neighbours are added until one part is left."""
    while len(parts) > 1:
        pairs = (parts[at : at + 2] for at in range(0, len(parts), 2))
        parts = [frozenset(pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return parts[0]


def tree_of(hosts: Sequence[Sequence[int]], same_bits: SameBits = True) -> Tree:
    """The tree that `same_bits` promises."""
    if same_bits == BALANCED:
        return paired(range(sum(map(len, hosts))))
    return chained([chained(members) for members in hosts])


def random_tree(random: np.random.Generator, ranks: int) -> Tree:
    parts: list[Tree] = [*range(ranks)]
    while len(parts) > 1:
        one, other = (parts.pop(int(random.integers(len(parts)))) for _ in range(2))
        parts.append(frozenset([one, other]))
    return parts[0]


@cache
def terms(dtype: str, ranks: int) -> Any:
    """(ranks, ELEMENTS): what each rank gives, as bits of the type."""
    random = np.random.default_rng(ranks)
    values = random.standard_normal((ranks, ELEMENTS)) * 2.0 ** random.integers(-2, 4, ELEMENTS)
    kind = DATA_TYPES[dtype]
    return kind.bits(values.astype(np.float32)).astype(kind.array)


def total(dtype: str, ranks: int, tree: Tree, op: ReduceOp = ReduceOp.SUM) -> Any:
    """(ELEMENTS,): the sum of the terms, or their average, as bits of the type."""
    kind = DATA_TYPES[dtype]

    def sum_of(one: Tree) -> Any:
        if isinstance(one, int):
            return terms(dtype, ranks)[one]
        left, right = (kind.values(sum_of(side)) for side in one)
        return kind.bits(left + right)

    found = sum_of(tree)
    if op is ReduceOp.AVG:
        values = kind.values(found)
        found = kind.bits(values / values.dtype.type(ranks))
    return found.astype(kind.array)
