"""The state of an executor in its devices' memory, as numbers: to look at when a call hangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sley.engine.devices.device import Device, Memory
from sley.engine.devices.device_state import DeviceState, Mailboxes
from sley.engine.devices.tables import BLOCK_MEMORY, REPORT
from sley.ir.connections import Connections
from sley.ir.plan import Plan

State = dict[str, Any]
"""Plain values, as JSON has them."""


def read_state(
    plan: Plan,
    connections: Connections,
    boxes: Mailboxes,
    mailboxes: Mapping[int, Memory],
    states: Sequence[DeviceState],
) -> State:
    """The counters and reports of this process's ranks, read while a call runs or after it.

    tiles, progress: of each rank's blocks, by number. connections: (source, destination, channel,
    messages published, messages consumed), None for a counter in another process's memory. reports:
    those of blocks that gave up, by rank and number.
    """
    devices = {rank: state.device for state in states for rank in state.ranks}
    words = {rank: _words(devices[rank], mailboxes[rank], boxes, rank) for rank in mailboxes}
    blocks = np.diff(plan.rank_block)
    of_block = BLOCK_MEMORY.itemsize // 8
    return {
        "tiles": {r: w[: blocks[r] * of_block : of_block].tolist() for r, w in words.items()},
        "progress": {
            r: w[boxes.progress[r] // 8 :][: blocks[r]].tolist() for r, w in words.items()
        },
        "connections": [
            [
                int(src),
                int(dst),
                int(connections.channel[row]),
                _counter(words, int(dst), int(boxes.published[row])),
                _counter(words, int(src), int(boxes.consumed[row])),
            ]
            for row, (src, dst) in enumerate(zip(connections.src, connections.dst, strict=True))
        ],
        "reports": [
            {
                "rank": int(plan.block_rank[block]),
                "block": int(plan.block_number[block]),
                **{name: int(report[name]) for name in REPORT.names or ()},
            }
            for state in states
            for block, report in state.stuck()
        ],
    }


def _words(device: Device, memory: Memory, boxes: Mailboxes, rank: int) -> np.ndarray[Any, Any]:
    """The mailbox of a rank before its slots."""
    mine = [*boxes.published, *boxes.consumed, boxes.progress[rank]]
    end = max((int(at) + 8 for at in mine), default=8)
    found = np.zeros(min(end, memory.size_bytes) // 8 * 8, np.uint8)
    device.read(memory, 0, found)
    return found.view(np.uint64)


def _counter(words: Mapping[int, Any], rank: int, at: int) -> int | None:
    return int(words[rank][at // 8]) if rank in words else None
