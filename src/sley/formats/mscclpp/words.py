"""Words: the names of operations, buffers and channels in execution plans, and their operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType

from sley.ir.words import Buffer, Protocol

BUFFERS: Mapping[str, Buffer] = MappingProxyType({buffer.word[0]: buffer for buffer in Buffer})

PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {p.value: p for p in (Protocol.SIMPLE, Protocol.LL)}
)

MEMORY, PORT, SWITCH = "memory", "port", "switch"
CHANNEL_TYPES = (MEMORY, PORT, SWITCH)

CUSTOM = "custom"
"""The name of collectives without a meaning of their own."""


class Where(Enum):
    """The memory of an operand: the block's own GPU, a remote buffer, or all GPUs of a switch."""

    LOCAL = "type"
    REMOTE = "buffer_id"
    SWITCH = "switch_channel_id"


INNER_RANGES = "Give all inner ranges num_chunks chunks; move other operations out of the pipeline."
"""The remedy for operations that a pipeline can't execute in units."""


@dataclass(frozen=True)
class Operands:
    """The operands of an operation on one side.

    first: the operands that it must have. further: all others, or None if there are none.
    """

    first: tuple[Operand, ...] = ()
    further: Operand | None = None

    def at(self, number: int) -> Operand | None:
        """The kind of an operand; None if the operation does not use it."""
        return self.first[number] if number < len(self.first) else self.further

    def __iter__(self) -> Iterator[Operand]:
        """Each kind of operand."""
        yield from self.first
        if self.further is not None:
            yield self.further

    def __str__(self) -> str:
        words = [one.value for one in self.first]
        if self.further is not None:
            words.append(f"any number of {self.further.value}")
        return ", then ".join(words) if words else "none"


class Operand(Enum):
    """A kind of operand: its memory, and whether it holds packets."""

    LOCAL = "a local buffer"
    REMOTE = "a remote buffer"
    LOCAL_PACKETS = "a local buffer with packets"
    REMOTE_PACKETS = "a remote buffer with packets"
    SWITCH = "a switch channel"
    SWITCH_PACKETS = "a switch channel with packets"

    @cached_property
    def where(self) -> Where:
        return Where[self.name.removesuffix("_PACKETS")]

    @cached_property
    def packet(self) -> bool:
        return self.name.endswith("_PACKETS")


@dataclass(frozen=True)
class Move:
    """An operation that moves data.

    sources, destinations: its operands.
    paired: whether every pair of a source and a destination is a move; otherwise all of them are
        one, and several sources are added up.
    channels: the types of channel on which the executor performs it; none if it needs no channel.
    """

    sources: Operands
    destinations: Operands
    paired: bool = False
    channels: tuple[str, ...] = ()


PUT, PUT_SIGNAL, PUT_SIGNAL_FLUSH, GET = "put", "pws", "pwsf", "get"
COPY, REDUCE, REDUCE_SEND = "copy", "re", "res"
PUT_PACKETS, SEND_PACKETS, UNPACK = "ppkt", "rppkt", "upkt"
REDUCE_PACKETS, REDUCE_SEND_PACKETS = "repkt", "respkt"
GROUP_REDUCE_STORE, GROUP_STORE, GROUP_STORE_PACKETS = "glres", "gstore", "gstorepkt"

_L, _R, _S = Operand.LOCAL, Operand.REMOTE, Operand.SWITCH
_LP, _RP, _SP = Operand.LOCAL_PACKETS, Operand.REMOTE_PACKETS, Operand.SWITCH_PACKETS
_PUT = Move(Operands((), _L), Operands((), _R), paired=True, channels=(MEMORY, PORT))

MOVES: Mapping[str, Move] = MappingProxyType(
    {
        PUT: _PUT,
        PUT_SIGNAL: _PUT,
        PUT_SIGNAL_FLUSH: _PUT,
        GET: Move(Operands((), _R), Operands((), _L), paired=True, channels=(MEMORY,)),
        COPY: Move(Operands((_L,)), Operands((_L,))),
        REDUCE: Move(Operands((_L,), _L), Operands((_L,))),
        REDUCE_SEND: Move(Operands((_L,), _L), Operands((_L,), _R), channels=(MEMORY,)),
        "rre": Move(Operands((_L,), _R), Operands((_L,)), channels=(MEMORY,)),
        "rres": Move(Operands((_L,), _R), Operands((_L,), _R), channels=(MEMORY,)),
        PUT_PACKETS: Move(
            Operands((), _L), Operands((), _RP), paired=True, channels=(MEMORY, PORT)
        ),
        SEND_PACKETS: Move(Operands((_LP,)), Operands((), _RP), channels=(MEMORY, PORT)),
        REDUCE_PACKETS: Move(Operands((_L,), _LP), Operands((_L,))),
        REDUCE_SEND_PACKETS: Move(Operands((_L,), _LP), Operands((_L,), _RP), channels=(MEMORY,)),
        "recpkt": Move(Operands((_L,), _LP), Operands((_L, _LP))),
        "recspkt": Move(Operands((_L,), _LP), Operands((_L, _LP), _RP), channels=(MEMORY,)),
        UNPACK: Move(Operands((_LP,)), Operands((_L,))),
        "cpkt": Move(Operands((_L,)), Operands((_LP,))),
        GROUP_REDUCE_STORE: Move(Operands((_S,)), Operands((_S,))),
        GROUP_STORE: Move(Operands((_L,)), Operands((_S,))),
        GROUP_STORE_PACKETS: Move(Operands((_LP,)), Operands((_SP,))),
    }
)
"""The operations that move data (MSCCL++, by reading)."""

REDUCTIONS = frozenset(
    (
        *(REDUCE, REDUCE_SEND, REDUCE_PACKETS, REDUCE_SEND_PACKETS),
        *("rre", "rres", "recpkt", "recspkt", GROUP_REDUCE_STORE),
    )
)
"""The operations that add up."""

SIGNAL, RELAXED_SIGNAL = SIGNALS = ("signal", "rlxsignal")
WAIT, RELAXED_WAIT = WAITS = ("wait", "rlxwait")
RELAXED = (RELAXED_SIGNAL, RELAXED_WAIT)
ACQUIRE, RELEASE = "sem_acquire", "sem_release"
NOP, BARRIER, FLUSH, PIPELINE = "nop", "barrier", "flush", "pipeline"

NAMES = frozenset((*MOVES, *SIGNALS, *WAITS, ACQUIRE, RELEASE, NOP, BARRIER, FLUSH, PIPELINE))
"""All operations that the parser of any version knows."""

MOVE_KEYS = ("src_buff", "dst_buff", "channel_ids", "tbg_info")
BARRIER_KEYS = ("barrier_id", "num_threadblocks")
SEMAPHORE_KEYS = ("semaphore_ids",)
PIPELINE_KEYS = ("iter_context", "ops")
KEY_GROUPS = (MOVE_KEYS, BARRIER_KEYS, SEMAPHORE_KEYS, PIPELINE_KEYS)
"""Keys whose values the executor stores in the same memory, group by group."""

COMMON_KEYS = ("name", "channel_type", "reduce_op")


def keys_of(name: str) -> tuple[str, ...]:
    """The group of keys that an operation reads."""
    own = {BARRIER: BARRIER_KEYS, PIPELINE: PIPELINE_KEYS}
    return own.get(name, SEMAPHORE_KEYS if name in (ACQUIRE, RELEASE) else MOVE_KEYS)


COLLECTIVES = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather",
    "scatter", "alltonext",
)  # fmt: skip
"""Collectives with one meaning. MSCCL++'s "sendrecv" exchanges the data of two ranks, sley's sends
them one way."""
