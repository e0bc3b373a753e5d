"""Words: the enumerations of the IR, such as buffers, operations, protocols and reductions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from typing import TypeVar

import numpy as np

from sley.errors import Place, Rule
from sley.ir.tables import BoolArray


class Buffer(IntEnum):
    """A buffer of a rank (MSCCLang 3.1). In place, INPUT and OUTPUT are the same memory."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2

    @property
    def word(self) -> str:
        """Its name in programs."""
        return ("in", "out", "scratch")[self]

    def chunks(self, index: int, count: int) -> str:
        """Chunks for messages: "in[3]", "scratch[0:4]"."""
        return self.word + chunk_range(index, count)


def chunk_range(index: int, count: int) -> str:
    """`count` chunks from `index` on, for messages: "[3]", "[0:4]"."""
    return f"[{index if count == 1 else f'{index}:{index + count}'}]"


class TransferKind(IntEnum):
    """How a transfer changes its destination: overwrites it, or reduces into it."""

    COPY = 0
    REDUCE = 1


class Op(IntEnum):
    """The operation of an instruction (MSCCLang 4.2), defined in `docs/machine.md`."""

    NOP = 0
    SEND = 1
    RECV = 2
    COPY = 3
    REDUCE = 4
    RECV_REDUCE_COPY = 5
    RECV_COPY_SEND = 6
    RECV_REDUCE_SEND = 7
    RECV_REDUCE_COPY_SEND = 8
    COPY_SEND = 9


MAX_NUMBER = 4096
"""Bound on slots, channels, thread blocks and instances, and on the parts of a chunk: a larger
number is a mistake."""


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, but not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy in the range of a float, not a bool."""
    if is_integer(value):
        return int(value).bit_length() < 1024  # type: ignore[call-overload,no-any-return]
    return isinstance(value, (float, np.floating))


def _flags(ops: Iterable[Op]) -> BoolArray:
    flags = np.zeros(len(Op), bool)
    flags[list(ops)] = True
    flags.flags.writeable = False
    return flags


# The name of an operation lists what it does.
SENDS = _flags(op for op in Op if "SEND" in op.name)
"""SENDS[op]: whether the operation sends a message."""

RECEIVES = _flags(op for op in Op if "RECV" in op.name)
"""RECEIVES[op]: whether the operation receives a message."""

REDUCES = _flags(op for op in Op if "REDUCE" in op.name)
"""REDUCES[op]: whether the operation combines two operands."""

READS_SOURCE = _flags({*Op} - {Op.NOP, Op.RECV, Op.RECV_COPY_SEND})
"""READS_SOURCE[op]: whether the operation reads (src_buffer, src_index)."""

WRITES_DESTINATION = _flags({*Op} - {Op.NOP, Op.SEND, Op.RECV_REDUCE_SEND})
"""WRITES_DESTINATION[op]: whether the operation writes (dst_buffer, dst_index)."""

SENDS_SOURCE = _flags(op for op in Op if SENDS[op] and not RECEIVES[op])
"""SENDS_SOURCE[op]: whether the operation sends its source; the others send their result."""


class Protocol(Enum):
    """How a connection carries a message (MSCCLang 6.1): SIMPLE, LL and LL128 copy it through a
    slot; with DIRECT, which MSCCLang 7.5 leaves as future work, the receiver reads it from the
    sender's buffer (docs/machine.md).

    `slots` is the number of messages that a connection holds in MSCCL's runtime: a Simple tile
    takes 4 of its 8 FIFO steps, an LL or LL128 tile takes one. DIRECT has Simple's number, for
    staged messages.
    """

    SIMPLE = "Simple"
    LL = "LL"
    LL128 = "LL128"
    DIRECT = "Direct"

    @property
    def slots(self) -> int:
        return 2 if self in (Protocol.SIMPLE, Protocol.DIRECT) else 8


FIFO_PROTOCOLS = (Protocol.SIMPLE, Protocol.LL, Protocol.LL128)
"""The protocols that copy every message through a slot; those of NCCL and MSCCL."""


GROUP_PROTOCOLS = (Protocol.SIMPLE, Protocol.DIRECT)
"""The protocols whose messages a switch combines and copies: the others carry flags in the data."""


class LoopOrder(Enum):
    """The outer loop of a block: TILE runs all instructions for a tile before the next tile
    (MSCCL's interpreter), INSTRUCTION runs all tiles of an instruction before the next instruction
    (ResCCL's task level)."""

    TILE = "tile"
    INSTRUCTION = "instruction"


class Schedule(Enum):
    """How transfers are ordered: MSCCL by depth (MSCCLang 5.2), HPDS (ResCCL 4.3) and ROUND_ROBIN
    (ResCCL 5.3) by sub-pipelines of whole transfers; AUTO is the fastest of these by simulation."""

    MSCCL = "msccl"
    HPDS = "hpds"
    ROUND_ROBIN = "round-robin"
    AUTO = "auto"


class Allocation(Enum):
    """How thread blocks are allocated: CONNECTION gives each connection its own, STATE merges those
    of a rank that are never active at the same time (ResCCL 4.4), INSTANCE gives each parallel part
    of a rank one for all of its peers."""

    CONNECTION = "connection"
    STATE = "state"
    INSTANCE = "instance"


class ReduceOp(IntEnum):
    """How two operands combine; functions also take the names in lower case. AVG sums, and
    divides the final result once. BAND, BOR and BXOR combine the bits of elements of any type."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AVG = 4
    BAND = 5
    BOR = 6
    BXOR = 7


E = TypeVar("E", bound=Enum)


def member(
    kind: type[E], value: object, name: str, rule: Rule, *, at: Place | Sequence[Place] = ()
) -> E:
    """The member of `kind` that `value` is, or names by the member's value, in upper or lower case.

    name: the setting's name, for the message. Errors: `rule`, at the place `at`.
    """
    word = value.lower() if isinstance(value, str) else None
    for one in kind:
        if value is one or word == one.value.lower():
            return one
    raise rule.error(
        at=at,
        expected=f"{name} to be one of {', '.join(repr(one.value) for one in kind)}",
        found=f"{name}={value!r}",
        remedy="Give one of these words, or leave it out.",
    )
