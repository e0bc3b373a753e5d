"""The state of links in their devices' memory, as numbers: to look at when a call hangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sley.engine.devices.device import Device, Memory
from sley.engine.devices.links import LinkSet
from sley.engine.devices.mailboxes import Mailboxes
from sley.engine.devices.tables import structure

State = dict[str, Any]
"""Plain values, as JSON has them."""


def read_state(links: LinkSet, number: int) -> State:
    """The counters and reports of this process's ranks, read while a call of plan `number` runs or
    after it. All numbers count on over the calls of all plans.

    ticks: in each rank's cells, the number before the next call. progress: of each rank's blocks,
    by number. connections: (source, destination, channel, last message published, last message
    consumed), None for a counter in another process's memory. reports: those of the plan's blocks
    that gave up, by rank and number.
    """
    connections, boxes = links.kernels[number].operands.connections, links.boxes
    words = {
        rank: _words(links.ranks.devices[rank], memory, boxes, rank)
        for rank, memory in links.mailboxes.items()
    }
    cells, of_cell, rows = boxes.cells, structure("Cell").itemsize // 8, boxes.rows(connections)
    return {
        "ticks": {r: w[: cells[r] * of_cell : of_cell].tolist() for r, w in words.items()},
        "progress": {r: w[boxes.progress[r] // 8 :][: cells[r]].tolist() for r, w in words.items()},
        "connections": [
            [
                int(src),
                int(dst),
                int(connections.channel[row]),
                _counter(words, int(dst), int(boxes.published[rows[row]])),
                _counter(words, int(src), int(boxes.consumed[rows[row]])),
            ]
            for row, (src, dst) in enumerate(zip(connections.src, connections.dst, strict=True))
        ],
        "reports": [report for plan in links.on_devices[number] for report in plan.stuck()],
    }


def _words(device: Device, memory: Memory, boxes: Mailboxes, rank: int) -> np.ndarray[Any, Any]:
    """The mailbox of a rank before its slots."""
    mine = [*boxes.published, *boxes.consumed, boxes.progress[rank] + 8 * boxes.cells[rank]]
    end = max(int(at) + 8 for at in mine)
    found = np.zeros(min(end, memory.size_bytes) // 8 * 8, np.uint8)
    device.read(memory, 0, found)
    return found.view(np.uint64)


def _counter(words: Mapping[int, Any], rank: int, at: int) -> int | None:
    return int(words[rank][at // 8]) if rank in words else None
