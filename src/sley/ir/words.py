"""The small vocabularies of the IRs: buffers, operations, protocols, loop orders, reductions."""

from __future__ import annotations

from enum import Enum, IntEnum

import numpy as np

from sley.ir.tables import BoolArray


class Buffer(IntEnum):
    """A rank's memory by name (MSCCLang 3.1). In place, INPUT and OUTPUT are the same memory."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2

    @property
    def word(self) -> str:
        """Its name in programs."""
        return ("in", "out", "scratch")[self]

    def chunks(self, index: int, count: int) -> str:
        """Chunks for messages: "in[3]", "scratch[0:4]"."""
        return f"{self.word}[{index if count == 1 else f'{index}:{index + count}'}]"


class TransferKind(IntEnum):
    """What a transfer does at its destination: overwrite it, or reduce into it."""

    COPY = 0
    REDUCE = 1


class Op(IntEnum):
    """What an instruction does (MSCCLang 4.2); `docs/machine.md` says it precisely."""

    NOP = 0
    SEND = 1
    RECV = 2
    COPY = 3
    REDUCE = 4
    RECV_REDUCE_COPY = 5
    RECV_COPY_SEND = 6
    RECV_REDUCE_SEND = 7
    RECV_REDUCE_COPY_SEND = 8


MAX_NUMBER = 4096
"""Bound on slots, channels, thread blocks and instances, and on the parts of a chunk: what is
beyond it is a slip."""


def is_integer(value: object) -> bool:
    """Whether a value is a whole number of Python or NumPy, and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy, and no truth value."""
    return is_integer(value) or isinstance(value, (float, np.floating))


def _flags(*ops: Op) -> BoolArray:
    flags = np.zeros(len(Op), bool)
    flags[list(ops)] = True
    flags.flags.writeable = False
    return flags


SENDS = _flags(Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
"""SENDS[op]: whether the operation puts a message on its send connection."""

RECEIVES = _flags(
    Op.RECV,
    Op.RECV_REDUCE_COPY,
    Op.RECV_COPY_SEND,
    Op.RECV_REDUCE_SEND,
    Op.RECV_REDUCE_COPY_SEND,
)
"""RECEIVES[op]: whether the operation takes a message from its receive connection."""

REDUCES = _flags(Op.REDUCE, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
"""REDUCES[op]: whether the operation combines two operands."""

READS_SOURCE = _flags(
    Op.SEND,
    Op.COPY,
    Op.REDUCE,
    Op.RECV_REDUCE_COPY,
    Op.RECV_REDUCE_SEND,
    Op.RECV_REDUCE_COPY_SEND,
)
"""READS_SOURCE[op]: whether the operation reads (src_buffer, src_index)."""

WRITES_DESTINATION = _flags(
    Op.RECV,
    Op.COPY,
    Op.REDUCE,
    Op.RECV_REDUCE_COPY,
    Op.RECV_COPY_SEND,
    Op.RECV_REDUCE_COPY_SEND,
)
"""WRITES_DESTINATION[op]: whether the operation writes (dst_buffer, dst_index)."""


class Protocol(Enum):
    """How a connection carries a message (MSCCLang 6.1): SIMPLE, LL and LL128 copy it through a
    slot; with DIRECT, which MSCCLang 7.5 leaves as future work, the receiver reads it where it lies
    at the sender (docs/machine.md).

    `slots` is how many messages a connection holds in MSCCL's runtime: a Simple tile takes 4 of
    its 8 FIFO steps, an LL or LL128 tile takes one. DIRECT has Simple's, for what is staged.
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


class LoopOrder(Enum):
    """Which loop is outside: TILE runs all instructions for a tile before the next tile (MSCCL's
    interpreter), INSTRUCTION runs all tiles of an instruction before the next instruction
    (ResCCL's task level)."""

    TILE = "tile"
    INSTRUCTION = "instruction"


class Schedule(Enum):
    """How transfers are ordered: MSCCL by depth (MSCCLang 5.2), HPDS (ResCCL 4.3) and ROUND_ROBIN
    (ResCCL 5.3) by sub-pipelines of whole transfers; AUTO is whichever of these the simulator finds
    fastest."""

    MSCCL = "msccl"
    HPDS = "hpds"
    ROUND_ROBIN = "round-robin"
    AUTO = "auto"


class Allocation(Enum):
    """How thread blocks are allocated: CONNECTION gives each connection its own, STATE lets those
    of a rank that are never active at the same time share one (ResCCL 4.4)."""

    CONNECTION = "connection"
    STATE = "state"


class ReduceOp(IntEnum):
    """How two operands combine. AVERAGE sums and divides the finished result once."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AVERAGE = 4
