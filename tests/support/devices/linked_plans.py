"""Plans over one set of links, and links at any number of ticks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import sley
from sley.engine.devices import Device, Executor, LinkSet, Settings
from sley.engine.devices.device import Memory
from sley.engine.devices.tables import structure
from sley.ir.tables import NONE
from support.devices.device_calls import TIMEOUT_S, small_slots, threads

EPOCH = 1 << 31
"""The numbers after which flags of LL are overwritten."""
_OLD = 0x0DD0DD


def linked(
    plans: Sequence[sley.Plan], device: Device | None = None, **options: Any
) -> list[Executor]:
    """Executors of plans over links of their own, with small slots."""
    slot_bytes = 3 * max(map(small_slots, plans))  # chunks at the places of others have three parts
    options = {"engine": "interpreted", "timeout_s": TIMEOUT_S, "slot_bytes": slot_bytes} | options
    links = LinkSet(plans, [device or threads()] * plans[0].collective.ranks, Settings(**options))
    return [Executor(plan, links) for plan in plans]


def skip_to(links: LinkSet, ticks: int, *, old_words: bool = True) -> None:
    """Brings links to where many calls without LL would: to these ticks. Beyond 2^32 the slots of
    LL may have old words with the flags of the messages that come next: of those behind `ticks`,
    and of those behind the next border of an epoch."""
    for rank, cells in enumerate(links.boxes.cells.tolist()):
        rows = np.zeros(cells, structure("Cell"))
        rows["ticks"] = ticks
        links.ranks.devices[rank].write(links.mailboxes[rank], 0, rows.view(np.uint8))
    if not old_words or ticks < 3 * EPOCH:
        return
    for device, memory, at, slot_bytes in _slots_of_ll(links):
        words = np.arange(links.slots_bytes[sley.Protocol.LL] // 16)
        begin = np.where(words // 8 % 2, ticks, -(-ticks // EPOCH) * EPOCH)
        flags = begin + 1 + words * 16 // slot_bytes
        old = np.full((len(words), 4), _OLD, np.uint32)
        old[:, 1::2] = (flags % (1 << 32)).astype(np.uint32)[:, None]
        device.write(memory, at, old.view(np.uint8).ravel())


def old_words(links: LinkSet) -> int:
    """The number of words that `skip_to` has written and nobody has overwritten."""
    found = 0
    for device, memory, at, _ in _slots_of_ll(links):
        words = np.empty(links.slots_bytes[sley.Protocol.LL] // 4, np.uint32)
        device.read(memory, at, words.view(np.uint8))
        found += int((words == _OLD).sum())
    return found


def _slots_of_ll(links: LinkSet) -> Iterator[tuple[Device, Memory, int, int]]:
    """The slots of LL of each connection of each plan: the receiver's device, its memory, the
    offset of the slots, and the bytes of each."""
    for kernels, loaded in zip(links.kernels, links.loaded, strict=True):
        if kernels.plan.protocol is sley.Protocol.LL:
            c = kernels.operands.connections
            slots = links.boxes.slots[sley.Protocol.LL][links.boxes.rows(c)]
            assert (slots != NONE).all()
            for rank, at in zip(c.dst.tolist(), slots.tolist(), strict=True):
                memory, slot_bytes = links.mailboxes[rank], loaded.wiring.slot_bytes
                yield links.ranks.devices[rank], memory, at, slot_bytes


def used_slots(links: LinkSet, number: int = 0) -> set[tuple[int, int]]:
    """The connections of a plan to ranks of this process, by source and destination, in whose
    slots, not of LL, there is something."""
    found, c = set(), links.kernels[number].operands.connections
    at = links.boxes.slots[sley.Protocol.SIMPLE][links.boxes.rows(c)]
    slots = np.empty(links.slots_bytes[sley.Protocol.SIMPLE], np.uint8)
    for src, dst, first in zip(c.src.tolist(), c.dst.tolist(), at.tolist(), strict=True):
        if dst in links.mailboxes:
            links.ranks.devices[dst].read(links.mailboxes[dst], first, slots)
            if slots.any():
                found.add((src, dst))
    return found
