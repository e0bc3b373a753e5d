"""DeviceState: a plan's tables on a device, and the launches of its calls there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sley.engine.devices import tables
from sley.engine.devices.device import Bytes, Device, HostMemory, Memory, Window
from sley.engine.devices.mailboxes import Mailboxes
from sley.engine.devices.tables import BLOCK, DIVISION, REPORT, Rows
from sley.engine.devices.windows import Lanes
from sley.engine.kernels import Kernels
from sley.ir.tables import NONE, LongArray

Launches = Sequence[tuple[Sequence[int], Any]]
"""The launches of a call on a device: the ranks of each, ascending, and its stream by default."""


@dataclass(frozen=True)
class Group:
    """A launch of a call: `blocks` rows of the device's table from `first` on, and its rows of the
    divisions. stream: used by default."""

    first: int
    blocks: int
    first_division: int
    divisions: int
    stream: Any


@dataclass(frozen=True)
class DeviceState:
    """A plan on a device of this process.

    rows: BLOCK rows of the blocks that have instructions; a rank without any has one block, too,
        which only counts the call. row: int64, the plan's block of each, NONE for the latter.
    tables: the rows and the plan's other tables in the device's memory, by their names in CALL.
    reports: one for each row. groups: the launches of a call.
    """

    device: Device
    row: LongArray
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
        launches: Launches,
        kernels: Kernels,
        boxes: Mailboxes,
        addresses: dict[int, int],
        lanes: Lanes,
        windows: Sequence[Window],
    ) -> DeviceState:
        """The state of a plan. addresses: all ranks' mailboxes, on this device."""
        ranks = [rank for own, _ in launches for rank in own]
        row, rows = _rows(kernels, ranks)
        reports = device.allocate_host(len(rows) * REPORT.itemsize)
        base = np.array([addresses[int(rank)] for rank in rows["rank"]], np.int64)
        rows["cells"] = boxes.cells[rows["rank"]]
        rows["first_cell"] = base
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
            row=row,
            tables={name: _store(device, table) for name, table in parts.items()},
            reports=reports,
            groups=tuple(_group(own, stream, rows, divisions) for own, stream in launches),
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


def _rows(kernels: Kernels, ranks: list[int]) -> tuple[LongArray, Rows]:
    """The blocks that the launches of `ranks` have, rank after rank: see `DeviceState`."""
    rows = tables.blocks(kernels)
    row = np.flatnonzero(np.isin(rows["rank"], ranks) & (rows["kind"] != NONE))
    without = np.setdiff1d(ranks, rows["rank"][row])
    idle = np.zeros(len(without), BLOCK)
    idle["rank"], idle["kind"] = without, NONE
    rows = np.concatenate([rows[row], idle])
    order = np.argsort(rows["rank"], kind="stable")
    rows, row = rows[order], np.append(row, np.full(len(idle), NONE))[order]
    first, end = (np.searchsorted(rows["rank"], rows["rank"], side) for side in ("left", "right"))
    rows["cell"], rows["stride"] = np.arange(len(rows)) - first, end - first
    return row, rows


def _store(device: Device, table: np.ndarray) -> Memory:
    data: Bytes = np.frombuffer(table.tobytes(), np.uint8)
    memory = device.allocate(max(len(data), 1))
    device.write(memory, 0, data)
    return memory


def _group(ranks: Sequence[int], stream: Any, rows: Rows, divisions: Rows) -> Group:
    (first, end), (first_division, last_division) = (
        np.searchsorted(table["rank"], [ranks[0], ranks[-1] + 1]).tolist()
        for table in (rows, divisions)
    )
    return Group(first, end - first, first_division, last_division - first_division, stream)
