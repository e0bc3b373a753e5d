"""Methods: bases of the values whose methods belong to packages above this one.

`sley.methods` defines them and adds them to these classes, which are empty until then. Only type
checkers follow the import below, so this package depends on none of those packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sley.methods import (
        BlockPlanMethods,
        PlanMethods,
        ProgramMethods,
        SimulationMethods,
        TopologyMethods,
    )
else:

    class BlockPlanMethods:
        """Methods of plans of all kinds."""

    class PlanMethods:
        """Methods of a Plan."""

    class ProgramMethods:
        """Methods of a Program."""

    class TopologyMethods:
        """Methods of a Topology."""

    class SimulationMethods:
        """Methods of a Simulation."""


__all__ = [
    "BlockPlanMethods",
    "PlanMethods",
    "ProgramMethods",
    "SimulationMethods",
    "TopologyMethods",
]
