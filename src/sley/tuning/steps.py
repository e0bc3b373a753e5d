"""Steps: the time of a workload's step in the simulator, with a choice of arm for each call.

This is the reward of DynamICCL's slow loop (GC3, section 12.6), and what MSCCLang's end-to-end
results are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache

import numpy as np

from sley.compiler.choices import Choices
from sley.errors.tuning import D946
from sley.ir.tables import NONE
from sley.model.simulation import Simulator
from sley.tuning.arms import Arms
from sley.tuning.backends import Recorded
from sley.tuning.noise import Noise
from sley.tuning.policy import Decision
from sley.tuning.sweep import Sweep, sweeps
from sley.tuning.training import Training
from sley.tuning.workloads.workload import Cell, Group, Workload

Key = tuple[str, Group]
"""A collective and the ranks that call it."""

Choose = Callable[[Cell], int]
"""Chooses an arm, its number, for the calls of a cell."""


@dataclass(frozen=True)
class StepTime:
    """The time of a step.

    time_us: of all of it. compute_us: of its computations. calls_us: of its calls, one after
    another. waits_us: for which nothing was computed; the rest of calls_us is hidden.
    """

    time_us: float
    compute_us: float
    calls_us: float
    waits_us: float


def step_time(workload: Workload, time_us: Callable[[Cell], float]) -> StepTime:
    """The time of a workload's step. time_us: of a call.

    Calls run one after another in their order, as on one communicator, and also if they are of
    several, since they share links. A call that overlaps computation doesn't slow it.
    """
    now = network = calls_us = waits_us = 0.0
    end = np.zeros(len(workload))
    waits: dict[int, list[int]] = {}
    for row in np.flatnonzero(workload.overlaps).tolist():
        waits.setdefault(int(workload.waited[row]), []).append(row)
    for row, computed in enumerate(workload.compute_us.tolist()):
        now += computed
        awaited = [end[call] for call in waits.get(row, ())]
        if workload.collective[row] != NONE:
            call_us = time_us(workload.cell(row))
            issued = max([now, *awaited])
            network = end[row] = max(issued, network) + call_us
            calls_us += call_us
            if workload.waited[row] == row:
                awaited.append(network)
        until = max([now, *awaited])
        waits_us += until - now
        now = until
    return StepTime(float(now), float(workload.compute_us.sum()), calls_us, float(waits_us))


class Runs:
    """The calls of workloads on clusters, with the times of all arms at all their sizes.

    sweeps: for each collective and group.
    """

    def __init__(self, sweeps: Mapping[Key, Sweep]) -> None:
        self.sweeps = dict(sweeps)

    @classmethod
    def of(
        cls,
        workloads: Sequence[Workload],
        arms: Mapping[Key, Arms],
        *,
        executor: Executor | None = None,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> Runs:
        """Simulates the sizes of workloads. arms: for each collective and group; a group's ranks
        are those of the arms' cluster. executor: runs the sizes; by default this thread does.
        Errors: D946."""
        sizes: dict[Key, set[int]] = {}
        for workload in workloads:
            for cell in workload.cells():
                key = cell.collective, cell.group
                _check_arms(key, arms, workload)
                sizes.setdefault(key, set()).add(cell.size_bytes)
        found = sweeps(
            [(arms[key], each) for key, each in sizes.items()], executor=executor, progress=progress
        )
        return cls(dict(zip(sizes, found, strict=True)))

    def time_us(self, cell: Cell, arm: int) -> float:
        """The time of a call with an arm. Errors: D946."""
        return self._sweep(cell).true_us(self._place(cell), arm)

    def step(self, workload: Workload, choose: Choose) -> StepTime:
        """The time of a step with an arm for each cell. Errors: D946."""
        return step_time(workload, lambda cell: self.time_us(cell, choose(cell)))

    def default(self, cell: Cell) -> int:
        """NCCL's own choice."""
        return int(self._sweep(cell).default[self._place(cell)])

    def best(self, cell: Cell) -> int:
        """The oracle's choice: the fastest arm."""
        return int(self._sweep(cell).best[self._place(cell)])

    def decision(self, cell: Cell, arm: int) -> Decision:
        """The decision that is an arm."""
        return self._sweep(cell).arms.decisions[arm]

    def learned(
        self, agent: str, samples: int, *, noise: Noise | None = None, seed: int = 0
    ) -> Choose:
        """The choices of an agent, by name, after some measurements of each cell. Errors: D923."""
        found: dict[Cell, int] = {}
        for (collective, group), sweep in self.sweeps.items():
            training = Training(Recorded(sweep, noise, seed=seed), agent, seed=seed)
            training.run(samples)
            for place, size_bytes in enumerate(sweep.sizes.tolist()):
                found[Cell(collective, group, size_bytes)] = training.agent.best(place)
        return found.__getitem__

    def _sweep(self, cell: Cell) -> Sweep:
        sweep = self.sweeps.get((cell.collective, cell.group))
        if sweep is None or cell.size_bytes not in sweep.sizes:
            raise D946.error(expected="a simulated call", found=_text(cell))
        return sweep

    def _place(self, cell: Cell) -> int:
        return int(np.searchsorted(self._sweep(cell).sizes, cell.size_bytes))


def table_times(tables: Mapping[Key, Choices]) -> Callable[[Cell], float]:
    """The time of a call with the static tables of `sley.choose`, for each collective and group.
    Errors of the function: C312 for a size beyond the table, D946."""

    @cache
    def time_us(cell: Cell) -> float:
        table = tables.get((cell.collective, cell.group))
        if table is None:
            raise D946.error(expected="a call with a table", found=_text(cell))
        choice = table.at(cell.size_bytes)
        simulator = Simulator(choice.plan, table.topology, interpreter=table.interpreter)
        return simulator(cell.size_bytes).time_us

    return time_us


def _check_arms(key: Key, arms: Mapping[Key, Arms], workload: Workload) -> None:
    collective, group = key
    if key not in arms:
        known = ", ".join(f"{name} ({of.name.lower()})" for name, of in arms) or "none"
        expected = f"arms for {collective} ({group.name.lower()})"
        raise D946.error(expected=expected, found=known)
    found = arms[key].topology.ranks
    if group is Group.CLUSTER and found != workload.ranks:
        expected = f"a cluster with the {workload.ranks} ranks of {workload.name}"
        raise D946.error(expected=expected, found=f"{arms[key].topology.name} with {found}")


def _text(cell: Cell) -> str:
    return f"{cell.collective} ({cell.group.name.lower()}) of {cell.size_bytes} bytes"
