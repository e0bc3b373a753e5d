"""Tables: a plan as kernels read it, in the structures of `codegen/primitives/layout.hpp`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sley.engine.kernels import Kernels
from sley.engine.kernels.operands import Places
from sley.engine.program import Loaded
from sley.errors.runtime import R506
from sley.ir.connections import Messages
from sley.ir.cut import UNIT_BYTES, longest_chunk
from sley.ir.tables import NONE
from sley.ir.words import SENDS_SOURCE, Buffer, LoopOrder, Protocol

RANKS = 128
"""The most ranks of a call: a kernel's arguments are limited to 4 KiB."""


def _structure(*fields: tuple[str, str], **lengths: int | tuple[int, int]) -> np.dtype[np.void]:
    """A C structure. lengths: of the fields that are arrays, by name."""
    shaped = [(n, t, lengths[n]) if n in lengths else (n, t) for n, t in fields]
    return np.dtype(shaped, align=True)


def _of(kind: str, names: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in names.split()]


CELL = _structure(("ticks", "u8"), ("unused", "u8"), unused=7)
COUNTER = _structure(*_of("u8", "value last last_flagged lent unused"), lent=3, unused=2)
REPORT = _structure(
    ("status", "u8"),
    *_of("u4", "step reason"),
    ("tile", "i8"),
    *_of("u4", "target number"),
    ("ticks", "u8"),
)
PEER = _structure(*_of("u8", "published consumed slots switched"), *_of("i4", "rank messages"))
BLOCK = _structure(
    *_of("i4", "rank number kind member first_sender senders first_receiver receivers"),
    *_of("i4", "rank_sender first_step steps first_condition conditions first_home"),
    *_of("i4", "cell stride cells"),
    *_of("u8", "progress first_cell report"),
)
INSTRUCTION = _structure(
    *_of("u1", "op flags"),
    ("waits", "u2"),
    ("count", "i4"),
    *_of("u4", "src dst"),
    *_of("i4", "from from_message to to_message"),
    ("pulled", "u4"),
    *_of("i4", "first_wait divisor"),
    *_of("u2", "from_members to_members"),
)
CONDITION = _structure(("target", "i4"), ("number_held", "u4"))
DIVISION = _structure(("rank", "i4"), ("chunk", "u4"), ("divisor", "i4"))
CALL = _structure(
    *_of(
        "u8",
        "blocks peers instructions conditions divisions homes abort timeout_ns factor factor_at "
        "shifts",
    ),
    *_of("i8", "count chunk least tile slot_bytes slots_bytes"),
    *_of("i4", "tiles left_over chunks slots steps division_count slices is_even ranks"),
    ("buffers", "u8"),
    ("registered", "u2"),
    buffers=(RANKS, 3),
    registered=(RANKS, 3),
)

_MEMORY_SHIFT = 30
_VECTOR_BYTES = 16
_WORD_BYTES = 8
_LINE_BYTES, _LINE_WORDS = 128, 15

_LEAST_SLICE_BYTES = 30 << 10
"""The least bytes of a slice: what the threads of a block load of an operand at once, 480 of them
64 bytes each. Smaller ones would take as long."""

_RUNS = 3
"""The runs of a chunk that may be at the place of another one (`primitives/execute.hpp`)."""

Rows = NDArray[np.void]


@dataclass(frozen=True)
class Cut:
    """A call's cut into chunks and tiles, as kernels read it (`docs/machine.md`, "Memory").

    count: elements of a block. chunk: of the longest chunk, in whole units. least: in the whole
    units that all chunks have. tile: of a tile. tiles: of the longest chunk. slices: tiles that an
    instruction runs in a row. left_over: units of a block beyond the least. is_even: whether all
    chunks have `chunk` elements.
    """

    count: int
    chunk: int
    least: int
    tile: int
    tiles: int
    slices: int
    left_over: int
    is_even: bool


def cut(loaded: Loaded, item_bytes: int, count: int, slices: int) -> Cut:
    """The cut of a call of `count` elements a block, of `item_bytes` each; R506 if a slot is
    smaller than the smallest tile.

    slices: tiles in a row, in tile order. Chunks that are smaller than so many tiles are cut into
        so many smaller ones, down to `_LEAST_SLICE_BYTES`."""
    chunks, unit = loaded.plan.collective.chunks, UNIT_BYTES // item_bytes
    units, left_over = divmod(-(-count // unit), chunks)
    chunk, tile = longest_chunk(chunks, count, item_bytes), tile_elements(loaded, item_bytes)
    if tile == 0:
        least = _least_bytes(loaded) * (_RUNS if loaded.homes.misplaced else 1)
        raise R506.error(
            expected=f"slot_bytes >= {loaded.max_count * least}: {least} for each of "
            f"{loaded.max_count} chunks of a message",
            found=f"slot_bytes={loaded.wiring.slot_bytes}",
        )
    if loaded.plan.loop_order is LoopOrder.TILE:
        part = -(-chunk // (slices * unit)) * unit
        least = max(_LEAST_SLICE_BYTES // (loaded.max_count * UNIT_BYTES), 1) * unit
        tile = min(tile, max(part, least))
    tiles = -(-chunk // tile)
    return Cut(
        count=count,
        chunk=chunk,
        least=units * unit,
        tile=tile,
        tiles=tiles,
        slices=slices if loaded.plan.loop_order is LoopOrder.TILE else tiles,
        left_over=left_over,
        is_even=chunk * chunks == count,
    )


def tile_elements(loaded: Loaded, item_bytes: int) -> int:
    """Elements of a tile: the most for which the longest message fits into a slot; 0 if none does.

    A message of Simple takes whole vectors; LL takes 16 bytes for 8 of data, LL128 lines of 128
    bytes for 120. So does each of the runs of a chunk that may be at the place of another one.
    """
    room = loaded.wiring.slot_bytes // loaded.max_count
    if loaded.homes.misplaced:
        room = max(room - (_RUNS - 1) * _least_bytes(loaded), 0)
    match loaded.plan.protocol:
        case Protocol.LL:
            data_bytes = room // _VECTOR_BYTES * _WORD_BYTES
        case Protocol.LL128:
            data_bytes = room // _LINE_BYTES * _LINE_WORDS * _WORD_BYTES
        case _:
            data_bytes = room // _VECTOR_BYTES * _VECTOR_BYTES
    return data_bytes // item_bytes


def _least_bytes(loaded: Loaded) -> int:
    """The least bytes of data in a slot."""
    return _LINE_BYTES if loaded.plan.protocol is Protocol.LL128 else _VECTOR_BYTES


def blocks(kernels: Kernels) -> Rows:
    """BLOCK rows of all blocks; the caller fills in the addresses, and the numbers of a launch."""
    plan, o = kernels.plan, kernels.operands
    rows = np.zeros(len(plan.block_rank), BLOCK)
    rows["rank"], rows["number"] = plan.block_rank, plan.block_number
    rows["kind"], rows["member"] = kernels.kinds.kind, kernels.kinds.member
    rows["first_sender"], rows["senders"] = o.sends.offset[:-1], np.diff(o.sends.offset)
    rows["first_receiver"] = len(o.connections) + o.receives.offset[:-1]
    rows["receivers"] = np.diff(o.receives.offset)
    rows["rank_sender"] = o.sends.offset[plan.rank_block[plan.block_rank]]
    rows["first_step"], rows["steps"] = plan.block_offset[:-1], np.diff(plan.block_offset)
    first = o.conditions.offset[plan.block_offset]
    rows["first_condition"], rows["conditions"] = first[:-1], np.diff(first)
    rows["first_home"] = o.homes.offset[plan.block_rank]
    return rows


def instructions(kernels: Kernels) -> Rows:
    """INSTRUCTION rows, for the interpreter."""
    o, t = kernels.operands, kernels.plan.instructions
    rows = np.zeros(len(t), INSTRUCTION)
    rows["op"], rows["flags"], rows["count"] = t.op, _flags(kernels), t.count
    rows["waits"] = np.diff(o.conditions.offset)
    rows["first_wait"] = o.conditions.offset[:-1]
    rows["src"], rows["dst"], rows["pulled"] = (_bits(p) for p in (o.src, o.dst, o.pulled))
    receives, sends = o.receives.peer != NONE, o.sends.peer != NONE
    rows["from"] = np.where(receives, o.receives.peer, 0)
    rows["from_message"] = np.where(receives, o.receives.message, 0)
    rows["to"] = np.where(sends, o.sends.peer, 0)
    message = np.where(sends, o.sends.message, 0)
    rows["to_message"] = np.where(o.stays, -1 - message, message)
    rows["divisor"] = o.averages.by_instruction
    rows["from_members"] = np.where(sends | receives, np.maximum(o.receives.members, 1), 0)
    rows["to_members"] = np.where(sends | receives, np.maximum(o.sends.members, 1), 0)
    return rows


def _flags(kernels: Kernels) -> NDArray[np.uint8]:
    """The flags of the interpreter's instructions, in the order of `InstructionFlag`."""
    o, t = kernels.operands, kernels.plan.instructions
    flags = o.posts.astype(np.uint8)
    if o.scales is not None:
        sent = Messages.of(kernels.plan).send_of
        in_slot = o.scales.source & SENDS_SOURCE[t.op]
        taken = (sent != NONE) & in_slot[np.maximum(sent, 0)]
        for bit, marks in enumerate((o.scales.source, o.scales.destination, in_slot, taken), 1):
            flags |= marks.astype(np.uint8) << bit
    return flags


def conditions(kernels: Kernels) -> Rows:
    """CONDITION rows, for the interpreter."""
    c = kernels.operands.conditions
    rows = np.zeros(len(c.target), CONDITION)
    rows["target"] = c.target
    rows["number_held"] = c.number.astype(np.uint32) | c.held.astype(np.uint32) << 31
    return rows


def divisions(kernels: Kernels, ranks: list[int]) -> Rows:
    """DIVISION rows: the output chunks of `ranks` that AVG divides at the end of a call."""
    c = kernels.plan.collective
    memory = Buffer.INPUT if c.in_place else Buffer.OUTPUT
    parts = [np.zeros(0, DIVISION)]
    for rank in ranks:
        first, last = c.output_offset[rank], c.output_offset[rank + 1]
        divisor = kernels.operands.averages.at_end[first:last]
        at = np.flatnonzero(divisor > 1)
        rows = np.zeros(len(at), DIVISION)
        base = int(c.output_base[rank]) if c.in_place else 0
        rows["rank"], rows["divisor"] = rank, divisor[at]
        rows["chunk"] = (at + base).astype(np.uint32) | np.uint32(memory << _MEMORY_SHIFT)
        parts.append(rows)
    return np.concatenate(parts)


def _bits(places: Places) -> NDArray[np.uint32]:
    memory = places.memory.astype(np.uint32)
    return memory << np.uint32(_MEMORY_SHIFT) | places.chunk.astype(np.uint32)
