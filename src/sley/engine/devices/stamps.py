"""Stamps: when the blocks of an executor's last call did what, as they noted it themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sley.engine import native
from sley.engine.devices.links import LinkSet
from sley.engine.devices.tables import Rows, blocks, structure
from sley.errors.runtime import R514
from sley.ir.tables import NONE
from sley.ir.words import RECEIVES
from sley.model.simulation.result import BlockTimes, Cause, LinkLoad, Simulation, TileExecutions

_OF_CALL = 2
"""The first rows of each block, which are of its call."""


class Stamps:
    """The memory on each device into which the blocks of a plan write stamps (`layout::Stamp`).

    size_bytes: of the last call, as for simulations; 0 before the first one.
    """

    def __init__(self, links: LinkSet, number: int) -> None:
        self._kernels, own = links.kernels[number], links.on_devices[number]
        self.size_bytes = 0
        row_bytes = native.STAMP_ROWS * structure("Stamp").itemsize
        self._on = {
            device: (
                device.allocate(plan.blocks * row_bytes),
                [r for ranks, _ in on for r in ranks],
            )
            for (device, on), plan in zip(links.launches.items(), own, strict=True)
        }

    @property
    def addresses(self) -> list[int]:
        """Of the memory on each device."""
        return [memory.address for memory, _ in self._on.values()]

    def timeline(self, simulation: Simulation) -> Simulation:
        """See `Executor.timeline`."""
        plan = self._kernels.plan
        if simulation.plan.instructions != plan.instructions:
            raise R514.error(expected=f"a simulation of {plan.name}", found=simulation.plan.name)
        if self.size_bytes == 0:
            raise R514.error(expected="a call with the executor first", found="none")
        if simulation.size_bytes != self.size_bytes:
            raise R514.error(
                expected=f"a simulation of the last call's {self.size_bytes} bytes",
                found=f"{simulation.size_bytes} bytes",
            )
        every = [block for device in self._on for block in self._read(device)]
        zero = min(begin_ns for _, begin_ns, _, _ in every)
        times = np.zeros((len(plan.block_rank), len(BlockTimes.column_names())))
        begins_us, parts = [], []
        for block, begin_ns, stamps, per_us in every:
            call, rows = stamps[0], stamps[_OF_CALL : _OF_CALL + stamps[0]["step"]]
            turn, start, end, read, exits = (
                (begin_ns - zero) * 1e-3 + (at.astype(np.int64) - int(call["turn"])) / per_us
                for at in (rows["turn"], rows["start"], rows["end"], call["start"], call["end"])
            )
            begins_us.append(float(read))
            if block == NONE:
                continue
            instruction = plan.block_offset[block] + rows["step"]
            cause = self._causes(instruction)
            moving, waited = end - start, start - turn
            sums = [moving.sum(), *(waited[cause == c].sum() for c in _WAITED)]
            times[block] = [exits, *sums, exits - read - sum(sums)]
            parts.append((instruction, rows["tile"], turn, start, end, cause, moving))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        made = _executions(columns, plan.block[columns[0]])
        last = plan.block[made.instruction] == times[:, 0].argmax()
        links = simulation.links
        return replace(
            simulation,
            tiles=int(made.tile.max(initial=0)) + 1,
            launch_us=min(begins_us),
            startup_us=0.0,
            time_us=float(times[:, 0].max()),
            blocks=BlockTimes(*times.T),
            links=LinkLoad(0 * links.moved_bytes, links.bin_us, links.load_GBps[:0]),
            critical=_part(made, last),
            executions=made,
            measured=True,
        )

    def _read(self, device: Any) -> list[tuple[int, int, Rows, float]]:
        """Of each block on a device: its number in the plan, or NONE for one without instructions;
        when it began, in ns; its stamps; and the cycles of a us."""
        memory, ranks = self._on[device]
        found = np.zeros(memory.size_bytes, np.uint8)
        device.read(memory, 0, found)
        stamps = found.view(structure("Stamp")).reshape(-1, native.STAMP_ROWS)
        rows, plan = blocks(self._kernels), self._kernels.plan
        own = np.concatenate([np.flatnonzero(rows["rank"] == rank) for rank in ranks])
        cycles, ns = ((stamps[:, n]["end"] - stamps[:, n]["turn"]).sum() for n in range(_OF_CALL))
        per_us = float(cycles) * 1e3 / max(float(ns), 1.0)
        numbers = np.where(
            rows["kind"] == NONE, NONE, plan.rank_block[rows["rank"]] + rows["number"]
        )[own]
        begins = stamps[:, 1]["turn"].tolist()
        return list(zip(numbers.tolist(), begins, stamps, [per_us] * len(own), strict=True))

    def _causes(self, instruction: Any) -> Any:
        """What each of a block's executions may have waited for."""
        o, heads = self._kernels.operands, np.flatnonzero(self._kernels.operands.runs.length)
        takes = np.zeros(len(o.runs.length), bool)
        takes[heads] = np.logical_or.reduceat(RECEIVES[self._kernels.plan.instructions.op], heads)
        waits = np.diff(o.conditions.offset)[instruction] > 0
        other = np.where(waits, Cause.WAIT, Cause.SLOT)
        cause = np.where(takes[instruction], Cause.MESSAGE, other)
        return cause.astype(np.int8)


_WAITED = Cause.WAIT, Cause.MESSAGE, Cause.SLOT


def _executions(columns: list[Any], block: Any) -> TileExecutions:
    """Executions in the order of their ends."""
    order = np.lexsort((np.arange(len(block)), columns[4]))
    instruction, tile, turn, start, end, cause, moving = (column[order] for column in columns)
    last: dict[int, int] = {}
    after = np.full(len(order), NONE, np.int64)
    for row, at in enumerate(block[order].tolist()):
        after[row] = last.get(at, NONE)
        last[at] = row
    cause[after == NONE] = Cause.LAUNCH
    rows = instruction.astype(np.int32), tile.astype(np.int32)
    return TileExecutions(*rows, turn, start, end, cause, after, moving)


def _part(every: TileExecutions, which: Any) -> TileExecutions:
    return TileExecutions(*(getattr(every, name)[which] for name in every.column_names()))
