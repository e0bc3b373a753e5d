"""Switches: groups whose messages kernels move through a switch (docs/kernels.md, "Switches").

The connections of a group form a *bundle*: their messages have one number, and lie at one offset of
the memories of the group's *team*, its ranks and the one at the other end.
"""

from __future__ import annotations

import numpy as np

from sley.errors import counted
from sley.ir.connections import Connections, Ends
from sley.ir.plan import Plan
from sley.ir.tables import IntArray
from sley.ir.words import Protocol, ReduceOp

_SUMS = {
    0: ("add.acc::f32.v4.f16x2", 16),  # float16
    1: ("add.acc::f32.v4.bf16x2", 16),  # bfloat16
    2: ("add.v4.f32", 16),  # float32
    3: ("add.f64", 8),  # float64
    6: ("add.u32", 4),  # int32
    7: ("add.u64", 8),  # int64
    9: ("add.u32", 4),  # uint32
    10: ("add.u64", 8),  # uint64
}
_BITS = {ReduceOp.BOR: ("or.b64", 8), ReduceOp.BXOR: ("xor.b64", 8)}
"""The operations of `multimem.ld_reduce` (PTX ISA, sm_90 and newer), and the bytes of each; sums
by the type's number, as in `primitives/elements.hpp`. The switch also takes the memory of the rank
that reads, which is zero there. So these are the operations for which a zero makes no difference:
MIN, MAX and BAND aren't among them. The switch has no PRODUCT, and no sums of 8 and 16 bits."""


def reduction(dtype: int, reduce_op: ReduceOp) -> tuple[str, int]:
    """The switch's operation for a reduction, in PTX, and the bytes that one takes; ("", 0) if it
    has none. dtype: a number of `sley.engine.DATA_TYPES`."""
    if reduce_op in (ReduceOp.SUM, ReduceOp.AVG):
        return _SUMS.get(dtype, ("", 0))
    return _BITS.get(reduce_op, ("", 0))


def bundles(ends: Ends, connections: int) -> IntArray:
    """int32 (connections,): at one end, the first of the connections that instructions use together
    with each."""
    first = np.arange(connections, dtype=np.int32)
    first[ends.connection] = _first(ends)
    return first


def _first(ends: Ends) -> IntArray:
    """int32 (uses,): the first connection of the instruction of each use."""
    instructions = int(ends.instruction.max(initial=-1)) + 1
    return ends.first_of_each(instructions)[ends.instruction]


def teams(plan: Plan) -> list[tuple[int, ...]]:
    """The teams of a plan: for each group with its other end the ranks, ascending."""
    c = Connections.of(plan)
    found = set()
    for ends, own, others in ((c.sending, c.src, c.dst), (c.receiving, c.dst, c.src)):
        first = bundles(ends, len(c))
        for k in np.flatnonzero(np.bincount(first, minlength=len(c)) > 1).tolist():
            found.add(tuple(sorted({int(own[k]), *others[first == k].tolist()})))
    return sorted(found)


def single_messages(plan: Plan) -> str:
    """Why kernels must move the messages of a plan's groups one by one; empty if a switch can."""
    if plan.protocol is not Protocol.SIMPLE:
        return f"protocol {plan.protocol.value} leaves messages in the sender's buffer"
    c = Connections.of(plan)
    sizes = []
    for ends in (c.sending, c.receiving):
        first, uses = bundles(ends, len(c)), np.bincount(ends.connection, minlength=len(c))
        mixed = (first[ends.connection] != _first(ends)).any() or (uses != uses[first]).any()
        if mixed:
            return "a connection has messages of several groups, or of a group and others"
        sizes.append(np.bincount(first, minlength=len(c))[first])
    both = np.flatnonzero((sizes[0] > 1) & (sizes[1] > 1))
    return f"{counted(len(both), 'connection')} between two groups" if len(both) else ""
