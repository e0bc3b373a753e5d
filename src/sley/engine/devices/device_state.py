"""DeviceState: a device with an executor's tables on it, and the mailboxes of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sley.engine.devices import tables
from sley.engine.devices.device import Bytes, Device, HostMemory, Memory, Window
from sley.engine.devices.settings import Launching
from sley.engine.devices.tables import BLOCK, BLOCK_MEMORY, DIVISION, PEER, REPORT, Rows
from sley.engine.devices.windows import Lanes
from sley.engine.kernels import Kernels
from sley.engine.kernels.operands import Operands
from sley.ir.connections import Connections
from sley.ir.plan import Plan
from sley.ir.tables import NONE, LongArray

_COUNTER_STRIDE = 64  # a cache line for each counter that another rank writes
_SLOT_ALIGNMENT = 256


@dataclass(frozen=True)
class Mailboxes:
    """The layout of the ranks' mailboxes: byte offsets, each within the mailbox of its owner.

    A rank's mailbox persists between calls: the state of its blocks, the counters that other ranks
    write, and the slots of the connections that it receives on. A connection's `published` counter
    and slots are in the receiver's mailbox, its `consumed` counter in the sender's, so that each
    end polls memory of its own device. Slots of groups are in windows instead.

    memory: int64 (blocks,), state of each block. progress: int64 (ranks,), progress of a rank's
    blocks, by number. consumed: int64 (connections,), in the sender's mailbox. published, slots:
    int64 (connections,), in the receiver's. size: int64 (ranks,), bytes of the whole mailbox.
    """

    memory: LongArray
    progress: LongArray
    consumed: LongArray
    published: LongArray
    slots: LongArray
    size: LongArray

    @classmethod
    def of(
        cls, plan: Plan, connections: Connections, slots: int, slot_bytes: int, lanes: Lanes
    ) -> Mailboxes:
        """The layout for a plan; the same in every process."""
        ranks, c = plan.collective.ranks, connections
        count = np.diff(plan.rank_block)
        memory = plan.block_number.astype(np.int64) * BLOCK_MEMORY.itemsize
        progress = count * BLOCK_MEMORY.itemsize
        counters = _align(progress + count * 8, _COUNTER_STRIDE)
        out, into = (np.bincount(end, minlength=ranks) for end in (c.src, c.dst))
        consumed = counters[c.src] + _number(c.src) * _COUNTER_STRIDE
        published = counters[c.dst] + (out[c.dst] + _number(c.dst)) * _COUNTER_STRIDE
        first = _align(counters + (out + into) * _COUNTER_STRIDE, _SLOT_ALIGNMENT)
        room = -(-slots * slot_bytes // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT
        inside = np.flatnonzero(lanes.team == NONE)
        owner = c.dst[inside]
        slot = np.zeros(len(c), np.int64)
        slot[inside] = first[owner] + _number(owner) * room
        size = first + np.bincount(owner, minlength=ranks) * room
        return cls(memory, progress, consumed, published, slot, size)

    def peers(
        self,
        operands: Operands,
        addresses: Mapping[int, int],
        device_ranks: set[int],
        lanes: Lanes,
        windows: Sequence[Window],
    ) -> Rows:
        """PEER rows, senders by block and then receivers by block, for the ranks of a device.

        addresses: each rank's mailbox, on the device.
        """
        c = operands.connections
        rows = np.zeros(2 * len(c), PEER)
        in_window, switched = lanes.addresses(windows)
        for start, ends, own, other in (
            (0, operands.sends, c.src, c.dst),
            (len(c), operands.receives, c.dst, c.src),
        ):
            order = ends.order
            shared = np.bincount(ends.bundle, minlength=len(c))[ends.bundle] > 1
            here = np.flatnonzero([int(rank) in device_ranks for rank in own[order]])
            at, connection = start + here, order[here]
            src = np.array([addresses[int(rank)] for rank in c.src[connection]], np.int64)
            dst = np.array([addresses[int(rank)] for rank in c.dst[connection]], np.int64)
            rows["consumed"][at] = src + self.consumed[connection]
            rows["published"][at] = dst + self.published[connection]
            in_mailbox = dst + self.slots[connection]
            has_lane = lanes.team[connection] != NONE
            rows["slots"][at] = np.where(has_lane, in_window[connection], in_mailbox)
            rows["switched"][at] = np.where(shared[connection], switched[connection], 0)
            rows["rank"][at] = other[connection]
            rows["messages"][at] = c.sends[connection]
        return rows


@dataclass(frozen=True)
class Group:
    """A launch of a call: `blocks` rows of the device's table from `first` on, and its rows of the
    divisions. together: whether the launch is cooperative, so that all its blocks are resident at
    once; concurrent launches are not, since the driver may serialise cooperative launches.
    """

    first: int
    blocks: int
    first_division: int
    divisions: int
    together: bool
    stream: Any


@dataclass(frozen=True)
class DeviceState:
    """A device of this process and its ranks.

    rows: BLOCK rows of the blocks that have instructions. row: int64, the plan's block of each.
    tables: the rows and the plan's other tables in the device's memory, by their names in CALL.
    reports: one for each row. groups: the launches of a call.
    """

    device: Device
    ranks: list[int]
    row: np.ndarray
    tables: dict[str, Memory]
    reports: HostMemory
    groups: tuple[Group, ...]

    @property
    def blocks(self) -> int:
        """The number of blocks that run at once."""
        return len(self.row)

    @classmethod
    def of(
        cls,
        device: Device,
        ranks: list[int],
        kernels: Kernels,
        boxes: Mailboxes,
        addresses: dict[int, int],
        lanes: Lanes,
        windows: Sequence[Window],
        launching: Launching,
    ) -> DeviceState:
        """The state of the `ranks` of a device, ascending. addresses: all ranks' mailboxes, on
        this device."""
        rows = tables.blocks(kernels)
        here = np.isin(rows["rank"], ranks) & (rows["kind"] != NONE)
        row = np.flatnonzero(here)
        rows = rows[row]
        reports = device.allocate_host(max(len(rows), 1) * REPORT.itemsize)
        base = np.array([addresses[int(rank)] for rank in rows["rank"]], np.int64)
        rows["memory"] = base + boxes.memory[row]
        rows["progress"] = base + boxes.progress[rows["rank"]]
        rows["report"] = reports.address + np.arange(len(rows)) * REPORT.itemsize
        divisions = tables.divisions(kernels, ranks)
        parts = {
            "blocks": rows,
            "peers": boxes.peers(kernels.operands, addresses, set(ranks), lanes, windows),
            "instructions": tables.instructions(kernels),
            "conditions": tables.conditions(kernels),
            "divisions": divisions,
            "homes": kernels.operands.homes.scratch,
        }
        return cls(
            device=device,
            ranks=ranks,
            row=row,
            tables={name: _store(device, table) for name, table in parts.items()},
            reports=reports,
            groups=_groups(device, ranks, rows, divisions, launching),
        )

    def stuck(self) -> list[tuple[int, Rows]]:
        """The plan's blocks that have given up, with their REPORT rows."""
        reports = self.reports.array.view(REPORT)[: self.blocks]
        return [(int(self.row[at]), reports[at]) for at in np.flatnonzero(reports["status"])]

    def addresses(self, group: Group) -> dict[str, int]:
        """The addresses of the tables, for a launch."""
        found = {name: memory.address for name, memory in self.tables.items()}
        found["blocks"] += group.first * BLOCK.itemsize
        found["divisions"] += group.first_division * DIVISION.itemsize
        return found


def _store(device: Device, table: np.ndarray) -> Memory:
    data: Bytes = np.frombuffer(table.tobytes(), np.uint8)
    memory = device.allocate(max(len(data), 1))
    device.write(memory, 0, data)
    return memory


def _groups(
    device: Device, ranks: list[int], rows: Rows, divisions: Rows, launching: Launching
) -> tuple[Group, ...]:
    if launching is Launching.TOGETHER:
        every = Group(0, len(rows), 0, len(divisions), True, device.default_stream())
        return (every,) if every.blocks else ()
    blocks, parts = (np.searchsorted(t["rank"], [*ranks, ranks[-1] + 1]) for t in (rows, divisions))
    return tuple(
        Group(
            int(blocks[k]),
            int(blocks[k + 1] - blocks[k]),
            int(parts[k]),
            int(parts[k + 1] - parts[k]),
            False,
            device.stream(),
        )
        for k in range(len(ranks))
        if blocks[k + 1] > blocks[k]
    )


def _align(size: LongArray, alignment: int) -> LongArray:
    return -(-size // alignment) * alignment


def _number(owner: np.ndarray) -> LongArray:
    """Each row's number among the rows of its owner."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    number = np.empty(len(owner), np.int64)
    number[order] = np.arange(len(owner)) - np.searchsorted(ordered, ordered)
    return number
