"""Mailboxes: the memory of each rank that persists between calls, whatever plans the calls run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sley.engine.devices.tables import Rows, structure, symbol
from sley.engine.devices.windows import Lanes
from sley.engine.kernels.operands import Operands
from sley.ir.connections import Connections
from sley.ir.plan import Plan
from sley.ir.tables import NONE, LongArray
from sley.ir.words import Protocol

_ALIGNMENT = 256
_WORD_BYTES = 8


def kind_of_slots(plan: Plan) -> Protocol:
    """The protocol as which a plan has slots. Those of LL and LL128 are apart: data of another
    protocol could look like their flags."""
    return Protocol.SIMPLE if plan.protocol is Protocol.DIRECT else plan.protocol


@dataclass(frozen=True)
class Mailboxes:
    """The layout of the ranks' mailboxes: byte offsets, each within the mailbox of its owner.

    A rank's mailbox has its cells at the begin, the progress of its blocks, the counters that other
    ranks write, and the slots of the connections that it receives on. A connection's `published`
    counter and slots are in the receiver's mailbox, its `consumed` counter in the sender's, so that
    each end polls memory of its own device. Slots of groups are in windows instead.

    keys: int64 (connections,), the keys of the connections of all plans, ascending.
    cells: int64 (ranks,), the number of a rank's cells, and of its blocks in any plan.
    progress: int64 (ranks,), progress of a rank's blocks, by number.
    consumed: int64 (connections,), in the sender's mailbox. published: in the receiver's.
    slots: for each kind, int64 (connections,), in the receiver's mailbox; NONE without.
    size: int64 (ranks,), bytes of the whole mailbox.
    """

    keys: LongArray
    cells: LongArray
    progress: LongArray
    consumed: LongArray
    published: LongArray
    slots: dict[Protocol, LongArray]
    size: LongArray

    @classmethod
    def of(
        cls, every: Sequence[Operands], lanes: Sequence[Lanes], slots_bytes: dict[Protocol, int]
    ) -> Mailboxes:
        """The layout for several plans; the same in every process. slots_bytes: of all slots of a
        connection, for each kind."""
        keys = np.unique(np.concatenate([o.connections.keys for o in every]))
        dst = np.empty(len(keys), np.int32)
        src = np.empty_like(dst)
        inside = {kind: np.zeros(len(keys), bool) for kind in slots_bytes}
        for o, lane in zip(every, lanes, strict=True):
            at = np.searchsorted(keys, o.connections.keys)
            src[at], dst[at] = o.connections.src, o.connections.dst
            inside[kind_of_slots(o.plan)][at] |= lane.team == NONE
        # A rank without blocks has one in each launch, too.
        cells = np.max([np.diff(o.plan.rank_block) for o in every], axis=0).clip(1)
        progress = cells * structure("Cell").itemsize
        of_counter = structure("Counter").itemsize
        size = _align(progress + cells * _WORD_BYTES, of_counter)
        consumed, published = (_append(size, rank, of_counter) for rank in (src, dst))
        slots = {}
        for kind, own in inside.items():
            size[:] = _align(size, _ALIGNMENT)
            slots[kind] = np.full(len(keys), NONE, np.int64)
            room = -(-slots_bytes[kind] // _ALIGNMENT) * _ALIGNMENT
            slots[kind][own] = _append(size, dst[own], room)
        return cls(keys, cells, progress, consumed, published, slots, size)

    def rows(self, connections: Connections) -> LongArray:
        """The places of a plan's connections among those of all plans."""
        return np.searchsorted(self.keys, connections.keys)

    def peers(self, operands: Operands, lanes: Lanes) -> Rows:
        """Peer rows of a plan, senders by block and then receivers by block."""
        c = operands.connections
        every, all_links = np.zeros(2 * len(c), structure("Peer")), self.rows(c)
        own_slots = self.slots[kind_of_slots(operands.plan)]
        in_window, switched = lanes.symbols(operands.plan.collective.ranks)
        for rows, ends, other in (
            (every[: len(c)], operands.sends, c.dst),
            (every[len(c) :], operands.receives, c.src),
        ):
            order = ends.order
            src, dst, link = c.src[order], c.dst[order], all_links[order]
            shared = np.bincount(ends.bundle, minlength=len(c))[ends.bundle] > 1
            rows["consumed"] = symbol(src.astype(np.int64), self.consumed[link])
            rows["published"] = symbol(dst.astype(np.int64), self.published[link])
            in_mailbox = symbol(dst.astype(np.int64), own_slots[link])
            rows["slots"] = np.where(lanes.team[order] != NONE, in_window[order], in_mailbox)
            rows["switched"] = np.where(shared, switched, 0)[order]
            rows["rank"], rows["messages"] = other[order], c.sends[order]
        return every


def _align(size: LongArray, alignment: int) -> LongArray:
    return -(-size // alignment) * alignment


def _append(size: LongArray, owner: np.ndarray, each: int) -> LongArray:
    """Appends a piece of `each` bytes to the memory of each owner, of `size` bytes; returns the
    pieces' offsets."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    at = np.empty(len(owner), np.int64)
    at[order] = np.arange(len(owner)) - np.searchsorted(ordered, ordered)
    at *= each
    at += size[owner]
    size += np.bincount(owner, minlength=len(size)) * each
    return at
