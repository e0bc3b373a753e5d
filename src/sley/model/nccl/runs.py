"""Runs of NCCL: simulations of what NCCL chooses for calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from sley.ir.plan import Plan
from sley.ir.topology import Topology
from sley.model.bounds import Bounds
from sley.model.nccl import choice as nccl
from sley.model.simulation import Simulation, Simulator

PlanOf = Callable[[str, nccl.CollectiveChoice, Topology], Plan]
"""Makes the plan for a choice of NCCL's for a collective on a machine: `compiler.nccl_plan`."""


class NcclRuns:
    """Simulations of calls on a cluster, each by the algorithm, the protocol and the channels that
    NCCL's tuner chooses.

    topology: the cluster. plan_of: makes the plans. searched: the cluster as NCCL searches it, if
    `topology` counts several network cards as one.
    """

    COLLECTIVES: ClassVar = (
        *("allreduce", "allgather", "reducescatter", "broadcast", "reduce"),
        "alltoall",
    )
    """Those that run as one algorithm, or as sends and receives of all ranks."""

    def __init__(
        self,
        topology: Topology,
        plan_of: PlanOf,
        searched: Topology | None = None,
        *,
        executions: bool = False,
    ) -> None:
        self.topology, self._plan_of, self._searched = topology, plan_of, searched or topology
        self._executions = executions
        self._plans: dict[nccl.CollectiveChoice, tuple[Plan, Bounds]] = {}
        self._simulators: dict[nccl.CollectiveChoice, Simulator] = {}

    def choice(self, collective: str, size_bytes: int) -> nccl.CollectiveChoice:
        """What NCCL runs by its tuner's rows. Errors: D931."""
        return nccl.default(collective, self._searched, size_bytes)

    def __call__(
        self, collective: str, size_bytes: int, topology: Topology | None = None
    ) -> Simulation:
        """The simulation of a call. topology: the cluster with other rates and times; NCCL chooses
        as on its own. Errors: D931, those of `plan_of`."""
        choice = self.choice(collective, size_bytes)
        if topology is not None:
            return self._simulator(choice, collective, topology)(size_bytes)
        key = replace(choice, channels=0, predicted_us=None)
        if key not in self._simulators:
            self._simulators[key] = self._simulator(choice, collective, self.topology)
        return self._simulators[key](size_bytes)

    def _simulator(
        self, choice: nccl.CollectiveChoice, collective: str, topology: Topology
    ) -> Simulator:
        # Choices that differ only in how their plan runs share it.
        key = replace(choice, channels=0, predicted_us=None, tile=1.0, block_shares=(1.0, 1.0))
        if key not in self._plans:
            plan = self._plan_of(collective, choice, self.topology)
            self._plans[key] = plan, Bounds.of(plan.collective, self.topology)
        plan, bounds = self._plans[key]
        cluster = nccl.as_run(topology, choice.tile, choice.block_shares, streams=choice.streams)
        return Simulator(plan, cluster, bounds=bounds, executions=self._executions)
