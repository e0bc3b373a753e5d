"""The words of MSCCL XML: how it spells operations and buffers, and what its collectives mean."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sley.ir import collectives
from sley.ir.collective import Collective
from sley.ir.words import Buffer, Op

OPERATIONS: Mapping[str, Op] = MappingProxyType(
    {
        "nop": Op.NOP,
        "s": Op.SEND,
        "r": Op.RECV,
        "cpy": Op.COPY,
        "re": Op.REDUCE,
        "rrc": Op.RECV_REDUCE_COPY,
        "rcs": Op.RECV_COPY_SEND,
        "rrs": Op.RECV_REDUCE_SEND,
        "rrcs": Op.RECV_REDUCE_COPY_SEND,
    }
)
OPERATION_WORDS: Mapping[Op, str] = MappingProxyType({op: w for w, op in OPERATIONS.items()})

BUFFERS: Mapping[str, Buffer] = MappingProxyType(
    {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}
)
BUFFER_WORDS: Mapping[Buffer, str] = MappingProxyType({b: w for w, b in BUFFERS.items()})

COLLECTIVE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: name
            for name in (
                "allreduce",
                "allgather",
                "alltoall",
                "broadcast",
                "gather",
                "reduce",
                "reducescatter",
                "scatter",
            )
        },
        "reduce_scatter": "reducescatter",
    }
)
"""sley's name of each collective that a file can name, by the spellings of all runtimes."""

CUSTOM = "custom"
"""What msccl calls collectives that have no name of their own."""

OF_ALL_RANKS = frozenset({"allgather", "alltoall", "reducescatter"})
"""Collectives whose call, and nchunksperloop, count the parts of all ranks together."""

ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
"""Collectives about one rank, the root; MSCCL XML doesn't name it."""


def standard_collective(
    name: str, ranks: int, chunks: int, root: int, in_place: bool
) -> Collective | None:
    """The standard collective of sley's name `name`; None where no file can name it."""
    match name:
        case "allreduce":
            return collectives.AllReduce(ranks, chunks, in_place)
        case "allgather":
            return collectives.AllGather(ranks, chunks, in_place)
        case "alltoall":
            return collectives.AllToAll(ranks, chunks, in_place)
        case "reducescatter":
            return collectives.ReduceScatter(ranks, chunks, in_place)
        case "broadcast":
            return collectives.Broadcast(ranks, chunks, root, in_place)
        case "gather":
            return collectives.Gather(ranks, chunks, root, in_place)
        case "reduce":
            return collectives.Reduce(ranks, chunks, root, in_place)
        case "scatter":
            return collectives.Scatter(ranks, chunks, root, in_place)
        case _:
            return None


def chunks_per_loop(collective: Collective) -> int:
    """`nchunksperloop` of a collective: how many chunks a call's whole element count has."""
    parts = collective.ranks if collective.name in OF_ALL_RANKS else 1
    return collective.chunks * parts
