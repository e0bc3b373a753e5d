"""simulate: how long a plan takes on a topology, and why (docs/simulation.md)."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sley.bounds import Bounds
from sley.errors import Place, counted
from sley.errors.runtime import R512
from sley.errors.simulation import S701, S702, S703, S704
from sley.ir.cost_model import CostModel
from sley.ir.plan import Plan
from sley.ir.sizes import size_in_bytes
from sley.ir.tables import NONE, FloatArray
from sley.ir.topology import Topology
from sley.ir.words import is_integer
from sley.simulate.inputs import Tiling, columns
from sley.simulate.result import BlockTimes, Cause, Executions, LinkLoad, Simulation

_STUCK_SHOWN = 8


class Simulator:
    """A plan on a topology, to be simulated for one size after another.

    topology: by default the one that the plan was compiled for.
    model: instead of the topology's.
    interpreter: whether an interpreter runs the plan (MSCCL's runtime), or code made for it.
    slots: how many messages a connection holds; by default the plan's.
    executions: whether every execution is kept in the results.
    bounds: of the collective on the topology, where somebody has worked them out already.

    Errors: S701, S704, C301, C305.
    """

    def __init__(
        self,
        plan: Plan,
        topology: Topology | None = None,
        *,
        model: CostModel | None = None,
        interpreter: bool = False,
        slots: int | None = None,
        executions: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        chosen = topology or plan.topology
        if chosen is None:
            raise S701.error(at=Place(detail=plan.name), expected="a topology", found="none")
        if slots is not None and not (is_integer(slots) and slots >= plan.slots):
            expected = f"slots from {plan.slots}, for which the plan was ordered"
            raise S704.error(expected=expected, found=f"slots={slots!r}")
        self.plan = plan = replace(plan, slots=slots or plan.slots)
        self.topology = replace(chosen, model=model) if model else chosen
        self.interpreter = bool(interpreter)
        self._keep = executions
        self._columns = columns(
            plan, self.topology, self.topology.model, interpreter=self.interpreter
        )
        self._bounds = bounds or Bounds.of(plan.collective, self.topology)

    def __call__(self, size_bytes: int | str) -> Simulation:
        """One call of `size_bytes`, as nccl-tests counts them: bytes, or a text such as "64M".
        Errors: S702, S703."""
        size = size_in_bytes(size_bytes)
        if size is None:
            raise S702.error(expected="a positive number of bytes", found=repr(size_bytes))
        plan, model = self.plan, self.topology.model
        cut = Tiling.of(plan, model, size)
        efficiency = model.wire_efficiency[plan.protocol]
        found = _native().simulate(
            **self._columns,
            tiles=cut.tiles,
            tile_bytes=cut.tile_bytes / efficiency,
            last_tile_bytes=cut.last_bytes / efficiency,
            slots=plan.slots,
        )
        self._check_finished(found["stuck"])
        blocks = BlockTimes(**{n: found[n] for n in BlockTimes.column_names()})
        executions, critical = _executions(found, cut.tiles, keep=self._keep)
        return Simulation(
            plan=plan,
            topology=self.topology,
            model=model,
            size_bytes=size,
            tiles=cut.tiles,
            tile_bytes=cut.tile_bytes,
            interpreter=self.interpreter,
            launch_us=model.launch_us[plan.protocol],
            time_us=float(blocks.end_us.max(initial=model.launch_us[plan.protocol])),
            bound=self._bounds.at(size),
            blocks=blocks,
            links=_loads(found, len(self.topology.links)),
            critical=critical,
            executions=executions,
        )

    def _check_finished(self, stuck: np.ndarray) -> None:
        if len(stuck):
            shown = [self.plan.label(int(i)) for i in stuck[:_STUCK_SHOWN]]
            raise S703.error(
                at=Place(detail=self.plan.name),
                expected="blocks that come to their end",
                found=f"{counted(len(stuck), 'block')} stuck",
                notes=[f"stuck at {label}" for label in shown],
            )


def simulate(
    plan: Plan,
    size_bytes: int | str,
    topology: Topology | None = None,
    *,
    model: CostModel | None = None,
    interpreter: bool = False,
    slots: int | None = None,
    executions: bool = False,
) -> Simulation:
    """One call of a plan on a topology: `Simulator` says what the settings mean; it is faster for
    many sizes. Errors: S701 to S704, C301, C305."""
    simulator = Simulator(
        plan,
        topology,
        model=model,
        interpreter=interpreter,
        slots=slots,
        executions=executions,
    )
    return simulator(size_bytes)


def _executions(
    found: dict[str, Any], tiles: int, *, keep: bool
) -> tuple[Executions | None, Executions]:
    """All executions if they are to be kept, and the critical ones."""
    end, after = found["execution_end_us"], found["execution_after"]
    way = _critical(end, after)
    critical = _rows(found, tiles, np.array(way, np.int64), np.arange(-1, len(way) - 1))
    if not keep:
        return None, critical
    order = np.lexsort((np.arange(len(end)), end))
    place = np.empty(len(end), np.int64)
    place[order] = np.arange(len(end))
    before = np.where(after[order] == NONE, NONE, place[after[order]])
    return _rows(found, tiles, order, before), critical


def _critical(end: FloatArray, after: np.ndarray) -> list[int]:
    """The executions that decide the time, first to last."""
    way: list[int] = []
    seen: set[int] = set()
    row = int(end.argmax()) if len(end) else NONE
    # Parts of one message may wait for one another's slots, so an execution could come up twice.
    while row != NONE and row not in seen:
        way.append(row)
        seen.add(row)
        row = int(after[row])
    return way[::-1]


def _rows(found: dict[str, Any], tiles: int, rows: np.ndarray, after: np.ndarray) -> Executions:
    cause = found["execution_cause"][rows]
    return Executions(
        instruction=rows // tiles,
        tile=rows % tiles,
        turn_us=found["execution_turn_us"][rows],
        start_us=found["execution_start_us"][rows],
        end_us=found["execution_end_us"][rows],
        cause=np.where(after == NONE, Cause.LAUNCH, cause),
        after=after,
    )


def _loads(found: dict[str, Any], links: int) -> LinkLoad:
    """The load of links over time, without the bins that nothing has reached."""
    load = found["load_bytes"].reshape(-1, links)
    used = np.flatnonzero(load.any(axis=1)) if links else np.zeros(0, int)
    load = load[: int(used[-1]) + 1 if len(used) else 0]
    return LinkLoad(found["moved_bytes"], found["bin_us"], load / (found["bin_us"] * 1e3))


@cache
def _native() -> Any:
    """The event loop; R512 where it cannot be loaded."""
    try:
        return importlib.import_module("sley.simulate._native")
    except ImportError as error:
        raise R512.error(expected="the module sley.simulate._native", found=str(error)) from error
