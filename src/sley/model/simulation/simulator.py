"""Simulator: predicts a plan's time on a topology (docs/simulation.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, counted, without_inner_frames
from sley.errors.compiler import C307
from sley.errors.runtime import R514
from sley.errors.simulation import S705
from sley.errors.verifier import V203
from sley.ir.cost_model import LEAST_GBPS, MOST_GBPS, CostModel
from sley.ir.extension import load
from sley.ir.faults import LIMIT
from sley.ir.plan import Plan
from sley.ir.sizes import checked_size, checked_sizes, is_one_size
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray, inverse
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, is_integer
from sley.model.bounds import Bounds
from sley.model.simulation.inputs import LoopInputs, Tiling, choose_topology
from sley.model.simulation.least import LeastTime
from sley.model.simulation.result import (
    BlockTimes,
    Cause,
    LinkLoad,
    Simulation,
    TileExecutions,
    extended_us,
)

if TYPE_CHECKING:
    from sley.model.simulation._event_loop import Result

MAX_EXECUTIONS = 10**8
"""Bound on instructions times tiles: each takes some fifty bytes and half a microsecond."""

STEADY, LONG = 16, 48
"""The numbers of tiles that are simulated of a call of more than LONG. From STEADY on the time of a
call grows by the same amount with each further tile: by then every connection has filled and
emptied its slots, and the slowest of them decides."""


class Simulator:
    """A plan on a topology, ready to be simulated for many sizes.

    topology: a topology, or its name, as for `sley.topologies.find`; by default the one that the
        plan was compiled for.
    model: replaces the topology's.
    interpreter: whether an interpreter runs the plan (MSCCL's runtime), or code made for it.
    slots: messages that a connection holds; by default the plan's number.
    executions: whether the results contain every execution, and so every tile is simulated. A call
        of more than LONG tiles is otherwise extrapolated from calls of STEADY and LONG.
    bounds: the collective's lower bounds on the topology, if they have been computed already.

    The attribute `inputs` has what the event loop gets of the plan and the topology, for any size;
    `bounds` the lower bounds; `time_us` gives only the time of a call.

    Errors: S701, R514, V201, C301, C305, C307, T604.
    """

    def __init__(
        self,
        plan: Plan,
        topology: Topology | str | None = None,
        *,
        model: CostModel | None = None,
        interpreter: bool = False,
        slots: int | None = None,
        executions: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        _check_kinds(plan, model, bounds)
        for word, flag in (("interpreter", interpreter), ("executions", executions)):
            if not isinstance(flag, (bool, np.bool_)):
                raise R514.error(expected=f"{word} as True or False", found=f"{word}={flag!r}")
        chosen = choose_topology(plan, topology)
        if slots is not None and not (is_integer(slots) and plan.slots <= slots <= MAX_NUMBER):
            expected = f"slots from {plan.slots}, for which the plan was ordered, to {MAX_NUMBER}"
            raise R514.error(expected=expected, found=f"slots={slots!r}")
        if slots is not None and slots != plan.slots:  # else what is kept with the plan serves
            plan = replace(plan, slots=slots)
        self.plan = plan
        self.topology = replace(chosen, model=model) if model else chosen
        self.interpreter = bool(interpreter)
        self._keep = executions
        self.inputs = LoopInputs.of(plan, self.topology, interpreter=self.interpreter)
        self.bounds = bounds or Bounds.of(plan.collective, self.topology)
        self._steady: dict[float, list[Simulation]] = {}
        self._steady_us: dict[tuple[float, int], float] = {}

    def __call__(self, size: int | str) -> Simulation:
        """One call of this size, as nccl-tests counts it: a number of bytes, or a text such as
        "64M". Errors: R512, S702, V203, S705."""
        size_bytes = checked_size(size)
        cut = Tiling.of(self.plan, self.topology.model, size_bytes)
        if self._keep or cut.tiles <= LONG:
            return self._run(size_bytes, cut)
        if cut.tile_bytes not in self._steady:
            self._steady[cut.tile_bytes] = [
                self._run(size_bytes, cut.of_full(tiles)) for tiles in (STEADY, LONG)
            ]
        few, many = self._steady[cut.tile_bytes]
        many = replace(many, size_bytes=size_bytes, bound=self.bounds.at(size_bytes))
        return many.extended(few, *self._further(cut), cut.tiles)

    def _further(self, cut: Tiling) -> tuple[float, float]:
        """How many groups of LONG - STEADY tiles follow the LONG ones, and a group's least time.
        What comes behind a slow link may have become shorter from STEADY to LONG tiles; that can't
        go on below the link's own time."""
        c, more = self.plan.collective, LONG - STEADY
        further = (cut.tiles - 1 + cut.last_bytes / cut.tile_bytes - LONG) / more
        return further, self.least.us_per_byte * more * cut.tile_bytes * c.blocks * c.chunks

    @cached_property
    def least(self) -> LeastTime:
        """The lower bound of the times."""
        efficiency = self.topology.model.wire_efficiency[self.plan.protocol]
        return LeastTime.of(self.plan, self.inputs, efficiency)

    def time_us(self, size: int | str, until_us: float = math.inf) -> float:
        """The time of one call of this size in microseconds, or infinity where it is longer than
        `until_us`: the simulation ends there. Errors: R512, S702, V203, S705."""
        size_bytes = checked_size(size)
        cut = Tiling.of(self.plan, self.topology.model, size_bytes)
        if self._keep or cut.tiles <= LONG:
            return self._time_us(cut, until_us)
        further, least_us = self._further(cut)
        few_us = self._steady_time_us(cut, STEADY, until_us - further * least_us)
        if few_us == math.inf:
            return few_us
        # If LONG tiles take longer, the tiles behind them end too late.
        most_us = (until_us + further * few_us) / (1 + further) * (1 + 1e-9)
        many_us = self._steady_time_us(cut, LONG, min(most_us, until_us))
        if many_us == math.inf:
            return many_us
        time_us = extended_us(few_us, many_us, further, least_us)
        return time_us if time_us <= until_us else math.inf

    def _steady_time_us(self, cut: Tiling, tiles: int, until_us: float) -> float:
        """The time of so many full tiles, which serves several sizes, or infinity."""
        key = cut.tile_bytes, tiles
        if key not in self._steady_us:
            time_us = self._time_us(cut.of_full(tiles), until_us)
            if time_us == math.inf:
                return time_us
            self._steady_us[key] = time_us
        return self._steady_us[key]

    def _time_us(self, cut: Tiling, until_us: float) -> float:
        found = self._loop(cut, until_us, records=False)
        return self._end_us(found) if found.is_whole else math.inf

    def _loop(self, cut: Tiling, until_us: float = math.inf, *, records: bool = True) -> Result:
        """The run of all of these tiles. records: as for the event loop. Errors: V203, S705."""
        plan = self.plan
        refuse_many(plan.name, cut.tiles, len(plan.instructions))
        on_wire = cut.on_wire(self.topology.model.wire_efficiency[plan.protocol])
        simulate = load("sley.model.simulation._event_loop").simulate
        found: Result = simulate(self.inputs, [on_wire], plan.slots, until_us, records)
        refuse_stuck(plan, found.stuck)
        return found

    def _end_us(self, found: Result) -> float:
        return float(found.end_us.max(initial=self.inputs.launch_us))

    def _run(self, size_bytes: int, cut: Tiling) -> Simulation:
        """The simulation of all of these tiles. Errors: V203, S705."""
        plan, model = self.plan, self.topology.model
        found = self._loop(cut)
        blocks = BlockTimes(**{n: getattr(found, n) for n in BlockTimes.column_names()})
        executions, critical = _executions(found, cut.tiles, keep=self._keep)
        return Simulation(
            plan=plan,
            topology=self.topology,
            model=model,
            size_bytes=size_bytes,
            tiles=cut.tiles,
            tile_bytes=cut.tile_bytes,
            interpreter=self.interpreter,
            launch_us=self.inputs.launch_us,
            startup_us=self.topology.startup_us,
            time_us=self._end_us(found),
            bound=self.bounds.at(size_bytes),
            blocks=blocks,
            links=_loads(found, len(self.topology.links)),
            critical=critical,
            executions=executions,
        )

    def with_rates(self, factor: float) -> Simulator:
        """The same plan on a topology whose links and memories have `factor` times their rates."""
        links = self.topology.links
        memory = min(max(self.topology.model.memory_GBps * factor, LEAST_GBPS), MOST_GBPS)
        model = replace(self.topology.model, memory_GBps=memory)
        links = replace(links, GBps=np.clip(links.GBps * factor, LEAST_GBPS, MOST_GBPS))
        return Simulator(
            self.plan,
            replace(self.topology, links=links, model=model),
            interpreter=self.interpreter,
            bounds=self.bounds,
        )


def refuse_many(name: str, tiles: int, instructions: int) -> None:
    """Refuses more executions than MAX_EXECUTIONS. Errors: S705."""
    if tiles * instructions > MAX_EXECUTIONS:
        raise S705.error(
            at=Place(detail=name),
            expected=f"at most {MAX_EXECUTIONS} executions",
            found=f"{tiles * instructions}: {counted(tiles, 'tile')} of "
            f"{counted(instructions, 'instruction')}",
        )


def refuse_stuck(plan: Plan, stuck: IntArray) -> None:
    """Refuses instructions at which blocks are stuck. Errors: V203."""
    if len(stuck):
        raise V203.error(
            at=Place(detail=plan.name),
            expected="blocks that run to their end",
            found=f"{counted(len(stuck), 'block')} stuck",
            notes=[f"stuck at {plan.label(int(row))}" for row in stuck[:LIMIT]],
            remedy="Verify the plan first: sley.verify(plan) shows where it hangs.",
        )


def _check_kinds(plan: object, model: object, bounds: object) -> None:
    """Validates the types of a plan, model and bounds. Errors: C307."""
    for word, value, kind in (
        ("a Plan, such as sley.compile returns", plan, Plan),
        ("a CostModel", model, CostModel),
        ("Bounds", bounds, Bounds),
    ):
        if not isinstance(value, kind) and (value is not None or kind is Plan):
            raise C307.error(
                expected=word,
                found=repr(value)[:80],
                remedy="sley.compile makes a plan of a program."
                if kind is Plan
                else "Give one, or leave it out if there is a default.",
            )


# A text is a sequence of texts, but one size.
@overload
def simulate(  # type: ignore[overload-overlap]
    plan: Plan,
    sizes: int | str,
    topology: Topology | str | None = ...,
    *,
    model: CostModel | None = ...,
    interpreter: bool = ...,
    slots: int | None = ...,
    executions: bool = ...,
) -> Simulation: ...


@overload
def simulate(
    plan: Plan,
    sizes: Sequence[int | str],
    topology: Topology | str | None = ...,
    *,
    model: CostModel | None = ...,
    interpreter: bool = ...,
    slots: int | None = ...,
    executions: bool = ...,
) -> list[Simulation]: ...


@without_inner_frames
def simulate(
    plan: Plan,
    sizes: int | str | Sequence[int | str],
    topology: Topology | str | None = None,
    *,
    model: CostModel | None = None,
    interpreter: bool = False,
    slots: int | None = None,
    executions: bool = False,
) -> Simulation | list[Simulation]:
    """Simulates a call of a plan on a topology, or a call of each of several sizes.

    sizes: a size as nccl-tests counts it, a number of bytes or a text such as "64M"; or several,
        for a list of simulations.
    topology, model, interpreter, slots, executions: as for `Simulator`.
    Errors: S701, S702, R514, V201, V202, V203, C301, C305, C307, T604.
    """
    simulator = Simulator(
        plan, topology, model=model, interpreter=interpreter, slots=slots, executions=executions
    )
    found = [simulator(size) for size in checked_sizes(sizes)]
    return found[0] if is_one_size(sizes) else found


def _executions(
    found: Result, tiles: int, *, keep: bool
) -> tuple[TileExecutions | None, TileExecutions]:
    """All executions if `keep`, and the critical ones."""
    critical = _critical(found, tiles)
    if not keep:
        return None, critical
    end, after = found.execution_end_us, found.execution_after
    order = np.lexsort((np.arange(len(end)), end))
    before = np.where(after[order] == NONE, NONE, inverse(order)[after[order]])
    cause = found.execution_cause[order]
    return _rows(found, tiles, order, end[order], cause, before), critical


def _critical(found: Result, tiles: int) -> TileExecutions:
    """The critical path: the executions that determine the time, first to last. Each ends when the
    next one's wait for it is over."""
    end, start = found.execution_end_us, found.execution_start_us
    rows: list[int] = []
    ends: list[float] = []
    causes: list[int] = []
    seen: set[tuple[int, bool]] = set()
    row = int(end.argmax()) if len(end) else NONE
    until = float(end[row]) if len(end) else 0.0
    # Backwards from the last end. Ends: no execution is visited twice by one of its two waits.
    while row != NONE:
        until = min(until, float(end[row]))
        cause, after = int(found.execution_cause[row]), int(found.execution_after[row])
        waited = cause == Cause.WAIT
        released = float(end[after] if waited else found.execution_cause_us[row])
        # An execution of several parts may wait again after it has sent what the next one needed,
        # or wait for an earlier part of its own. Then its wait before its first part counts.
        early = released > until or (row, False) in seen
        if early:
            cause = int(found.execution_first_cause[row])
            after = int(found.execution_first_after[row])
            released = float(start[row])
        if (row, early) in seen:
            break
        seen.add((row, early))
        rows.append(row)
        ends.append(until)
        causes.append(cause)
        row, until = after, min(until, released)
    way = np.array(rows[::-1], np.int64)
    before = np.arange(-1, len(way) - 1)
    return _rows(found, tiles, way, np.array(ends[::-1]), np.array(causes[::-1], np.int8), before)


def _rows(
    found: Result,
    tiles: int,
    rows: LongArray,
    end_us: FloatArray,
    cause: NDArray[np.int8],
    after: LongArray,
) -> TileExecutions:
    return TileExecutions(
        instruction=(rows // tiles).astype(np.int32),
        tile=(rows % tiles).astype(np.int32),
        turn_us=found.execution_turn_us[rows],
        start_us=np.minimum(found.execution_start_us[rows], end_us),
        end_us=end_us,
        cause=np.where(after == NONE, Cause.LAUNCH, cause),
        after=after,
        moving_us=found.execution_moving_us[rows],
    )


def _loads(found: Result, links: int) -> LinkLoad:
    """The load of links over time, without trailing empty bins."""
    load = found.load_bytes.reshape(-1, links)
    used = np.flatnonzero(load.any(axis=1)) if links else np.zeros(0, int)
    load = load[: int(used[-1]) + 1 if len(used) else 0]
    return LinkLoad(found.moved_bytes, found.bin_us, load / (found.bin_us * 1e3))
