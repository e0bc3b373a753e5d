"""Tables: a plan as kernels read it, in the structures of `kernels/primitives/layout.hpp`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.engine import native
from sley.engine.kernels import Kernels
from sley.engine.kernels.operands import Places
from sley.ir.connections import Messages
from sley.ir.tables import NONE
from sley.ir.words import SENDS_SOURCE, Buffer

_MEMORY_SHIFT = 30

Rows = NDArray[np.void]


@cache
def structure(name: str) -> np.dtype[np.void]:
    """A structure of `layout.hpp`, by its name there."""
    found: np.dtype[np.void] = np.dtype(native.structure(name))
    return found


def symbol(segment: Any, offset: Any) -> Any:
    """An address in tables, for which each device puts its own: a segment and an offset in it
    (`native/devices/plan_tables.hpp`). 0 is no address."""
    return (segment + 1) << native.OFFSET_BITS | offset


def blocks(kernels: Kernels) -> Rows:
    """Block rows of all blocks with instructions, rank after rank; a rank without any has one
    block, too, which only counts the call. The caller fills in the addresses, and the cells."""
    plan, o, kind = kernels.plan, kernels.operands, kernels.kinds.kind
    every = np.zeros(len(kind) + plan.collective.ranks, structure("Block"))
    rows, idle = every[: len(kind)], every[len(kind) :]
    rows["rank"], rows["number"] = plan.block_rank, plan.block_number
    rows["kind"], rows["member"] = kind, kernels.kinds.member
    rows["first_sender"], rows["senders"] = o.sends.offset[:-1], np.diff(o.sends.offset)
    rows["first_receiver"] = len(o.connections) + o.receives.offset[:-1]
    rows["receivers"] = np.diff(o.receives.offset)
    rows["rank_sender"] = o.sends.offset[plan.rank_block[plan.block_rank]]
    rows["first_step"], rows["steps"] = plan.block_offset[:-1], np.diff(plan.block_offset)
    first = o.conditions.offset[plan.block_offset]
    rows["first_condition"], rows["conditions"] = first[:-1], np.diff(first)
    rows["first_home"] = o.homes.offset[plan.block_rank]
    idle["rank"], idle["kind"] = np.arange(len(idle)), NONE
    busy = kind != NONE
    needed = np.append(busy, np.isin(idle["rank"], rows["rank"][busy], invert=True))
    order = np.flatnonzero(needed)
    order = order[np.argsort(every["rank"][order], kind="stable")]
    # As bytes: NumPy leaves what no field names undefined in a copy by fields.
    found: Rows = every.view(np.void(every.itemsize).dtype)[order].view(every.dtype)
    rank = found["rank"]
    first, end = (np.searchsorted(rank, rank, side) for side in ("left", "right"))
    found["cell"], found["stride"] = np.arange(len(rank)) - first, end - first
    return found


def instructions(kernels: Kernels) -> Rows:
    """Instruction rows, for the interpreter."""
    o, t = kernels.operands, kernels.plan.instructions
    rows = np.zeros(len(t), structure("Instruction"))
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
    rows["divisor"], rows["run"] = o.averages.by_instruction, o.runs.length
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
    for bit, marks in enumerate((o.runs.first, o.runs.second, o.runs.kept), 5):
        flags |= marks.astype(np.uint8) << bit
    return flags


def conditions(kernels: Kernels) -> Rows:
    """Condition rows, for the interpreter."""
    c = kernels.operands.conditions
    rows = np.zeros(len(c.target), structure("Condition"))
    rows["target"] = c.target
    rows["number_held"] = c.number.astype(np.uint32) | c.held.astype(np.uint32) << 31
    return rows


def divisions(kernels: Kernels) -> Rows:
    """Division rows: the output chunks that AVG divides at the end of a call, rank after rank."""
    c = kernels.plan.collective
    divisor = kernels.operands.averages.at_end
    at = np.flatnonzero(divisor > 1)
    rank = np.searchsorted(c.output_offset, at, "right") - 1
    memory, base = (Buffer.INPUT, c.output_base[rank]) if c.in_place else (Buffer.OUTPUT, 0)
    rows = np.zeros(len(at), structure("Division"))
    rows["rank"], rows["divisor"] = rank, divisor[at]
    chunk = at - c.output_offset[rank] + base
    rows["chunk"] = chunk.astype(np.uint32) | np.uint32(memory << _MEMORY_SHIFT)
    return rows


def _bits(places: Places) -> NDArray[np.uint32]:
    memory = places.memory.astype(np.uint32)
    return memory << np.uint32(_MEMORY_SHIFT) | places.chunk.astype(np.uint32)
