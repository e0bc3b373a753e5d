"""A call as a rank asks for it, and the record of it that other ranks see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sley.engine.types import DATA_TYPES, DataType
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.selection.kinds import BARRIER, KINDS, ROOTED

OWN: Final = "run"
"""A call that brings its own plan."""

_NAMES = (*KINDS, OWN)
_NUMBER = {kind: number for number, kind in enumerate(_NAMES)}

_BYTE, _ROOT, _DIGEST = 8, 20, 24
"""Bits of the parts of a record's word."""

_TYPE_NAMES = tuple(DATA_TYPES)

REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
"""The kinds of calls that combine elements; of those with their own plan, the plan says it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call of one rank.

    kind: one of `calls.KINDS`, or `OWN` for a call with a plan. input, output: addresses, with
        their bytes; a rank that has none (the input of a scatter, but for the root) gives 0 bytes.
        In place they overlap as the collective's definition says. count: elements of one block: of
        the whole buffer for all_reduce, broadcast and reduce, of one rank's part for the others.
    """

    kind: str
    input: int
    input_bytes: int
    output: int
    output_bytes: int
    count: int
    dtype: DataType
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    plan: Plan | None = None


def record_of(kind: str, dtype: DataType, op: ReduceOp, root: int, digest: bytes) -> int:
    """A word of 64 bits that is the same on all ranks if they call the same: kind, type, operation
    and root, readable for messages, and a part of the plan's digest."""
    word = _NUMBER[kind]
    word = word << _BYTE | dtype.number
    word = word << 4 | int(op)
    word = word << _ROOT | root
    return word << _DIGEST | int.from_bytes(digest[: _DIGEST // 8], "little")


def differ_in_plan(what: int, other: int) -> bool:
    """Whether two records are equal but for the plan."""
    return what != other and what >> _DIGEST == other >> _DIGEST


def describe_record(what: int, count: int) -> str:
    """A call in words, from its record. Calls that differ only in their plan read the same."""
    rest = what >> _DIGEST
    rest, root = rest >> _ROOT, rest & ((1 << _ROOT) - 1)
    rest, op = rest >> 4, rest & 15
    number, dtype = rest >> _BYTE, rest & ((1 << _BYTE) - 1)
    kind = _NAMES[number] if number < len(_NAMES) else f"call {number}"
    name = _TYPE_NAMES[dtype] if dtype < len(_TYPE_NAMES) else f"type {dtype}"
    reduction = ReduceOp(op).name if op in ReduceOp.__members__.values() else f"operation {op}"
    if kind == BARRIER:
        return kind
    words = [f"{kind} of {count} x {name}"]
    if kind in REDUCING or kind == OWN:
        words.append(reduction)
    if kind in ROOTED:
        words.append(f"root {root}")
    return ", ".join(words)
