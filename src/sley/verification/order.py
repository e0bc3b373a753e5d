"""Orders: the trees in which a plan combines its inputs.

Sums of floating-point numbers depend on their order. Two results have the same bits if they are the
same tree of the same inputs, each inner node rounded to the type, up to swapping the two sides of a
node (docs/machine.md, "The order of sums"). The trees come from an abstract run, like the values
themselves; a switch combines in an order of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from sley.errors import Place, counted, span_texts
from sley.errors.selection import N658
from sley.ir.collective import Collective
from sley.ir.connections import Messages
from sley.ir.one_sided import OneSidedPlan
from sley.ir.orders import Order
from sley.ir.plan import Plan
from sley.ir.tables import NONE, LongArray
from sley.ir.words import Buffer
from sley.verification.hangs import run_of
from sley.verification.one_sided.machine import OneSidedRun
from sley.verification.one_sided.memory import Range
from sley.verification.reach import spell_ranks
from sley.verification.result import SymbolicRun
from sley.verification.values import Values

_LONGEST = 4
"""The most operands of a chain that is written with parentheses."""
_SHOWN = 8
"""The most orders in a text."""


class Trees:
    """Trees of inputs. Equal trees have equal numbers; a leaf's is below `leaves`, and a tree's is
    above those of its parts.

    parts: of each tree what it combines, ascending; none of a leaf. free: the trees with parts that
    a switch combines in any order. maker: the first instruction that made it, NONE for a leaf.
    size, least: the number of its leaves, and the least one.
    """

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self.parts: list[tuple[int, ...]] = [()] * leaves
        self.maker, self.size, self.least = [NONE] * leaves, [1] * leaves, [*range(leaves)]
        self.free: set[int] = set()
        self._number: dict[tuple[bool, tuple[int, ...]], int] = {}

    def joined(self, row: LongArray, one: LongArray, other: LongArray) -> LongArray:
        """The trees with two parts each, which the instructions `row` make."""
        pairs = np.stack([np.minimum(one, other), np.maximum(one, other)], axis=1)
        unique, first, at = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        made = [
            self.number((int(a), int(b)), int(row[k]))
            for (a, b), k in zip(unique, first, strict=True)
        ]
        return np.array(made, np.int64)[at.ravel()]

    def number(self, parts: tuple[int, ...], row: int, *, free: bool = False) -> int:
        """The number of the tree with these parts."""
        new, parts = len(self.parts), tuple(sorted(parts))
        if (found := self._number.setdefault((free, parts), new)) == new:
            self.parts.append(parts)
            self.maker.append(row)
            self.size.append(sum(self.size[part] for part in parts))
            self.least.append(min(self.least[part] for part in parts))
            if free:
                self.free.add(new)
        return found

    def within(self, tree: int) -> set[int]:
        """The tree and all in it."""
        found, left = set[int](), [tree]
        while left:
            if (one := left.pop()) not in found:
                found.add(one)
                left += self.parts[one]
        return found

    def text(self, tree: int) -> str:
        """A tree for people. A chain of more than four operands is a list, summed from the left:
        [0..7] is ((((((0+1)+2)+3)+4)+5)+6)+7. What a switch combines is in braces."""
        text = self._text(tree)
        return text[1:-1] if text.startswith("(") else text

    def _text(self, tree: int) -> str:
        # A chain goes on into the larger part, so that the others have at most half of the leaves.
        operands: list[int] = []
        while (parts := self.parts[tree]) and tree not in self.free:
            tree, *rest = sorted(parts, key=lambda one: (-self.size[one], self.least[one]))
            operands += rest[::-1]
        operands = [tree, *operands[::-1]]
        # The first two may swap sides.
        operands[:2] = sorted(operands[:2], key=lambda one: self.least[one])
        if len(operands) > _LONGEST:
            return f"[{', '.join(self._spans(operands))}]"
        text = self._operand(operands[0])
        for operand in operands[1:]:
            text = f"({text}+{self._operand(operand)})"
        return text

    def _operand(self, tree: int) -> str:
        if not self.parts[tree]:
            return str(tree)
        if tree in self.free:
            return f"{{{', '.join(map(self._text, self.parts[tree]))}}}"
        return self._text(tree)

    def _spans(self, operands: list[int]) -> Iterator[str]:
        """The operands of a chain, of leaves that ascend by one only the first and the last."""
        first = 0
        for k in range(1, len(operands) + 1):
            if k < len(operands) and operands[k] == operands[k - 1] + 1 < self.leaves:
                continue
            if k - first > 2:
                yield f"{operands[first]}..{operands[k - 1]}"
            else:
                yield from map(self._operand, operands[first:k])
            first = k


@dataclass(frozen=True, eq=False, repr=False)
class SumOrder:
    """The order of a plan's sums.

    trees: with the ranks as leaves; with the numbers of all input chunks, if a sum has several of
        one rank.
    place: int64 (sums,), the rows of `Collective.expected` that are sums.
    tree: int64 (sums,), the tree of each.
    """

    plan: Plan | OneSidedPlan
    trees: Trees
    place: LongArray
    tree: LongArray

    @classmethod
    def of(cls, plan: Plan | OneSidedPlan) -> SumOrder:
        """The order of a verified plan's sums; V203 if it hangs."""
        trees, leaf = _leaves(plan.collective)
        if isinstance(plan, Plan):
            messages = Messages.of(plan)
            run = _Sums.start(plan, messages)
            run.trees = trees
            run.memory.weight[plan.collective.input_cells(plan.layout), 0] = leaf
            run.run(run_of(plan, messages).level)
            found = run.memory.weight[plan.collective.output_cells(plan.layout), 0]
        else:
            found = _OneSidedSums(plan, trees, leaf).ends()
        place = np.flatnonzero(plan.collective.divisors > 1)
        return cls(plan, trees, place, found[place].astype(np.int64))

    @property
    def is_fixed(self) -> bool:
        """Whether no switch chooses the order of a sum."""
        trees = self.trees
        return not any(trees.free & trees.within(tree) for tree in set(self.tree.tolist()))

    @property
    def is_one(self) -> bool:
        """Whether every sum has the same order, which is fixed: bits depend neither on the place of
        an element nor on the rank."""
        return len(set(self.tree.tolist())) <= 1 and self.is_fixed

    def _tree_of(self, order: Order) -> int:
        if isinstance(order, int):
            return order
        parts = map(self._tree_of, order)
        return reduce(lambda one, other: self.trees.number((one, other), NONE), parts)

    def follows(self, order: Order) -> bool:
        """Whether every sum has this order."""
        return set(self.tree.tolist()) <= {self._tree_of(order)}

    def check(self, order: Order, origin: str) -> None:
        """Refuses a plan that doesn't follow this order. Errors: N658."""
        if not self.follows(order):
            expected = f"order of every sum: {self.trees.text(self._tree_of(order))}"
            raise N658.error(at=Place(origin), expected=expected, found=str(self).split("\n")[0])

    @property
    def is_shared(self) -> bool:
        """Whether each sum has one order on all ranks that hold it, which is fixed: all of them
        have the same bits."""
        value = self.plan.collective.expected[self.place]
        pairs = set(zip(value.tolist(), self.tree.tolist(), strict=True))
        return len(pairs) == len(set(value.tolist())) and self.is_fixed

    @cached_property
    def _counted(self) -> list[tuple[int, int]]:
        """The trees and how many sums have them, the most frequent first."""
        return Counter(self.tree.tolist()).most_common()

    def places_of(self, tree: int) -> str:
        """The sums with a tree: "out[0-3] of ranks 0-2"."""
        c = self.plan.collective
        place = self.place[self.tree == tree]
        rank = np.searchsorted(c.output_offset, place, side="right") - 1
        by_rank: dict[int, list[int]] = defaultdict(list)
        for r, index in zip(rank.tolist(), (place - c.output_offset[rank]).tolist(), strict=True):
            by_rank[r].append(index)
        alike: dict[str, list[int]] = defaultdict(list)
        for r, indexes in by_rank.items():
            alike[", ".join(span_texts(indexes))].append(r)
        return " and ".join(f"out[{text}] of {spell_ranks(r)}" for text, r in alike.items())

    def maker_of(self, tree: int) -> Place | None:
        """The place of the instruction that first makes a tree differ from the most frequent one;
        None for this one."""
        trees, usual = self.trees, self.trees.within(self._counted[0][0])
        if tree in usual:
            return None
        # Ends: a part is smaller than its tree.
        while further := [part for part in trees.parts[tree] if part not in usual]:
            tree = further[0]
        return self.plan.place(trees.maker[tree])

    def __repr__(self) -> str:
        return f"SumOrder({self.plan.name}: {str(self).splitlines()[0]})"

    def __str__(self) -> str:
        if not len(self.tree):
            return "order of sums: there are none"
        if len(self._counted) == 1:
            return f"order of every sum: {self.trees.text(int(self.tree[0]))}"
        where = "each sum has the same on all ranks"
        differs = "ranks differ: the bits of a result may differ between them"
        lines = [
            f"order of sums: {counted(len(self._counted), 'order')}; "
            + (where if self.is_shared else differs if self.is_fixed else "a switch chooses some")
        ]
        for tree, number in self._counted[:_SHOWN]:
            maker = self.maker_of(tree)
            lines.append(
                f"{counted(number, 'chunk')}, {self.places_of(tree)}: {self.trees.text(tree)}"
                + ("" if maker is None else f"; other by {maker}")
            )
        more = len(self._counted) - _SHOWN
        return "\n  ".join([*lines, *[f"and {counted(more, 'more order')}"] * (more > 0)])

    def to_json(self) -> dict[str, Any]:
        """The order as plain values."""
        return {
            "is_one": self.is_one,
            "is_shared": self.is_shared,
            "is_fixed": self.is_fixed,
            "orders": [
                {"tree": self.trees.text(tree), "chunks": number, "places": self.places_of(tree)}
                for tree, number in self._counted
            ],
        }


def _leaves(c: Collective) -> tuple[Trees, LongArray]:
    """The trees, and the leaf of each input chunk."""
    owner = np.repeat(np.arange(c.ranks), c.input_chunks)
    value = np.repeat(np.arange(len(c.values.offset) - 1), np.diff(c.values.offset))
    of_value = value * c.ranks + owner[c.values.target]
    if len(np.unique(of_value)) == len(of_value):
        return Trees(c.ranks), owner
    return Trees(len(owner)), np.arange(len(owner))


class _Sums(SymbolicRun):
    """A run in which the first lane of a value is the number of its tree. trees: set before it."""

    trees: Trees

    def combined(self, row: LongArray, one: Values, other: Values, member: int = 0) -> Values:
        found = one + other
        found.weight[:, 0] = _joined(self.trees, row, one, other, member)
        return found


class _OneSidedSums(OneSidedRun):
    """The same for one-sided plans."""

    def __init__(self, plan: OneSidedPlan, trees: Trees, leaf: LongArray) -> None:
        super().__init__(plan)
        self._trees = trees
        self._found = np.zeros(len(plan.collective.expected), np.int64)
        for inputs in self._inputs:
            inputs.weight[:, 0] = leaf

    def ends(self) -> LongArray:
        """int64 (output chunks of all ranks,): the trees at the end of the first call."""
        self.perform()
        return self._found

    def _compare(self, rank: int, call: int) -> None:
        c = self._plan.collective
        if call == 0:
            first, end = c.output_offset[rank : rank + 2]
            cells = self._plan.layout.cell(rank, Buffer.OUTPUT, np.arange(end - first))
            self._found[first:end] = self._memory.values.weight[cells, 0]

    def _sum(self, row: int, sources: list[Range], values: list[Values]) -> Values:
        # MSCCL++ adds up packets before the other operand (execution_kernel.hpp).
        by_kind = sorted(range(len(values)), key=lambda k: not sources[k].packet)
        found, *others = (values[k] for k in by_kind)
        for member, other in enumerate(others, 1):
            rows = np.full(len(found.number), row)
            joined = _joined(self._trees, rows, found, other, member * sources[0].switched)
            found = found + other
            found.weight[:, 0] = joined
        return found


def _joined(trees: Trees, row: LongArray, one: Values, other: Values, member: int) -> LongArray:
    """The trees of two values together; with `member`, of what a switch has combined and the next
    one."""
    parts = one.weight[:, 0].astype(np.int64), other.weight[:, 0].astype(np.int64)
    if not member:
        return trees.joined(row, *parts)
    return np.array(
        [
            trees.number((*(trees.parts[a] if member > 1 else (a,)), b), int(k), free=True)
            for a, b, k in zip(*(part.tolist() for part in parts), row, strict=True)
        ],
        np.int64,
    )
