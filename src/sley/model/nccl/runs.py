"""Runs of NCCL: simulations of what NCCL chooses for calls."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from sley.compiler import compile
from sley.errors import SleyError
from sley.errors.tuning import D932
from sley.ir.plan import Plan
from sley.ir.topology import Topology
from sley.model.bounds import Bounds
from sley.model.nccl import choice as nccl
from sley.model.simulation import Simulation, Simulator
from sley.tuning.arms import as_run, decision_of
from sley.tuning.policy import Decision


class NcclRuns:
    """Simulations of a collective on a cluster, at each size by the algorithm, the protocol and the
    channels that NCCL's tuner chooses; in place, unless NCCL sends and receives.

    topology: the cluster. searched: the cluster as NCCL searches it, if `topology` counts several
    network cards as one.
    """

    COLLECTIVES: ClassVar = ("allreduce", "allgather", "reducescatter", "alltoall")
    """Those that run as one algorithm, or as sends and receives of all ranks."""

    def __init__(
        self,
        collective: str,
        topology: Topology,
        searched: Topology | None = None,
        *,
        executions: bool = False,
    ) -> None:
        self.collective, self.topology = collective, topology
        self._searched, self._executions = searched or topology, executions
        self._plans: dict[Decision, tuple[Plan, Bounds]] = {}

    def choice(self, size_bytes: int) -> nccl.Choice:
        """What NCCL runs by its tuner's rows. Errors: D931."""
        return nccl.default(self.collective, self._searched, size_bytes)

    def __call__(self, size_bytes: int, topology: Topology | None = None) -> Simulation:
        """The simulation of a size. topology: the cluster with other rates and times; NCCL chooses
        as on its own. Errors: D931; D932 for a machine on which the choice has no plan."""
        choice = self.choice(size_bytes)
        plan, bounds = self._plan(replace(decision_of(choice), tile=1.0))
        cluster = as_run(topology or self.topology, choice.tile, choice.block_shares)
        return Simulator(plan, cluster, bounds=bounds, executions=self._executions)(size_bytes)

    def _plan(self, decision: Decision) -> tuple[Plan, Bounds]:
        if decision not in self._plans:
            cluster = self.topology
            grid = cluster.nodes, cluster.ranks // cluster.nodes
            try:
                program = decision.program(*grid, in_place=self.collective != "alltoall")
                plan = compile(program, decision.options, topology=cluster, verify=False)
            except SleyError as error:
                raise D932.error(
                    expected=f"a machine that runs {decision.algorithm}, NCCL's choice",
                    found=f"{cluster.name}: {error.diagnostics[0].found}",
                ) from error
            self._plans[decision] = plan, Bounds.of(plan.collective, cluster)
        return self._plans[decision]
