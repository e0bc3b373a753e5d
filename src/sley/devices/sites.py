"""Sites: a device with what an executor keeps on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sley.codegen import Kernels
from sley.devices import tables
from sley.devices.device import Bytes, Device, HostMemory, Memory
from sley.devices.layout import BLOCK, DIVISION, REPORT
from sley.devices.mailboxes import Mailboxes
from sley.devices.settings import Launching
from sley.devices.tables import Rows
from sley.engine.program import Loaded
from sley.ir.tables import NONE


@dataclass(frozen=True)
class Group:
    """A launch of a call: `blocks` rows of the site's table from `first` on, and as many rows of
    its divisions. together: whether the device must hold all blocks at once, and is told so;
    launches side by side aren't, since the driver may run such launches one after the other.
    """

    first: int
    blocks: int
    first_division: int
    divisions: int
    together: bool
    stream: Any


@dataclass(frozen=True)
class Site:
    """A device of this process and its ranks.

    rows: BLOCK rows of the blocks that have instructions, and row: int64, which of the plan's
    blocks they are. tables: the rows and the plan's other tables in the device's memory, by the
    names that a call has for them. reports: of each of the rows. groups: the launches of a call.
    """

    device: Device
    ranks: list[int]
    row: np.ndarray
    tables: dict[str, Memory]
    reports: HostMemory
    groups: tuple[Group, ...]

    @property
    def blocks(self) -> int:
        """How many blocks are at work at once."""
        return len(self.row)

    @classmethod
    def of(
        cls,
        device: Device,
        ranks: list[int],
        kernels: Kernels,
        loaded: Loaded,
        boxes: Mailboxes,
        addresses: dict[int, int],
        launching: Launching,
    ) -> Site:
        """The site of `ranks`, ascending; addresses: of all ranks' mailboxes, as it sees them."""
        rows = tables.blocks(kernels)
        here = np.isin(rows["rank"], ranks) & (rows["kind"] != NONE)
        row = np.flatnonzero(here)
        rows = rows[row]
        reports = device.allocate_host(max(len(rows), 1) * REPORT.itemsize)
        base = np.array([addresses[int(rank)] for rank in rows["rank"]], np.int64)
        rows["memory"] = base + boxes.memory[row]
        rows["progress"] = base + boxes.progress[rows["rank"]]
        rows["report"] = reports.address + np.arange(len(rows)) * REPORT.itemsize
        divisions = tables.divisions(loaded, ranks)
        parts = {
            "blocks": rows,
            "peers": boxes.peers(kernels.operands.connections, addresses, set(ranks)),
            "instructions": tables.instructions(kernels),
            "conditions": tables.conditions(kernels),
            "divisions": divisions,
        }
        return cls(
            device=device,
            ranks=ranks,
            row=row,
            tables={name: _stored(device, table) for name, table in parts.items()},
            reports=reports,
            groups=_groups(device, ranks, rows, divisions, launching),
        )

    def addresses(self, group: Group) -> dict[str, int]:
        """The addresses of the tables, for a launch."""
        found = {name: memory.address for name, memory in self.tables.items()}
        found["blocks"] += group.first * BLOCK.itemsize
        found["divisions"] += group.first_division * DIVISION.itemsize
        return found


def _stored(device: Device, table: Rows) -> Memory:
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
