"""Accesses: the operations of a raw plan, and the memory that each accesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sley.formats.mscclpp.raw import RawBlock, RawGpu, RawOperation, RawPlan, RawRange
from sley.formats.mscclpp.words import MOVES, SWITCH, Operand, Where
from sley.ir.words import Buffer


@dataclass(frozen=True, slots=True)
class Access:
    """A source or destination of an operation.

    ranks: the ranks whose memory it is; several for a switch.
    """

    writes: bool
    kind: Operand
    buffer: Buffer
    ranks: tuple[int, ...]
    index: int
    size: int


def operations_of(block: RawBlock) -> Iterator[tuple[RawOperation, RawOperation | None]]:
    """The operations of a block, each with the pipeline that it is in."""
    for operation in block.operations:
        yield operation, None
        for inner in operation.inner:
            yield inner, operation


def all_operations(raw: RawPlan) -> Iterator[tuple[int, int, RawOperation]]:
    """All operations, with their rank and the number of their block."""
    for rank, gpu in enumerate(raw.gpus):
        for number, block in enumerate(gpu.blocks):
            for operation, _ in operations_of(block):
                yield rank, number, operation


def accesses_of(gpu: RawGpu, rank: int, block: RawBlock, operation: RawOperation) -> list[Access]:
    """What an operation accesses, first its sources; its entries exist."""
    move = MOVES.get(operation.name)
    if move is None:
        return []
    found = []
    for operands, ranges, writes in (
        (move.sources, operation.sources, False),
        (move.destinations, operation.destinations, True),
    ):
        for number, one in enumerate(ranges):
            kind = operands.at(number)
            if kind is not None:
                buffer, ranks = _memory(gpu, rank, block, operation, one)
                found.append(Access(writes, kind, buffer, ranks, one.index, one.size))
    return found


def _memory(
    gpu: RawGpu, rank: int, block: RawBlock, operation: RawOperation, one: RawRange
) -> tuple[Buffer, tuple[int, ...]]:
    """The buffer and the ranks of a range."""
    if one.where is Where.LOCAL:
        return Buffer(one.number), (rank,)
    if one.where is Where.SWITCH:
        group = gpu.groups[block.channels[SWITCH][one.number]]
        return group.buffer, group.ranks
    remote = gpu.remote[block.buffers[operation.channel_type][one.number]]
    return remote.buffer, (remote.rank,)
