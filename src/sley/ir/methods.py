"""Methods: bases of the values whose methods belong to packages above this one.

`sley.methods` defines them and adds them to these classes, which are empty until then: at the first
use of a name of `sley`, or of a method. Only type checkers follow the first import below.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sley.methods import (
        BlockPlanMethods,
        PlanMethods,
        ProgramMethods,
        SimulationMethods,
        TopologyMethods,
    )
else:

    @cache
    def _attach() -> None:
        from sley.methods import attach

        attach()

    class _Late:
        """A value whose methods are added at the first use of one."""

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):  # which Python looks for itself, such as __deepcopy__
                _attach()
            return super().__getattribute__(name)

        def __dir__(self) -> list[str]:
            _attach()
            return super().__dir__()

    class BlockPlanMethods(_Late):
        """Methods of plans of all kinds."""

    class PlanMethods(_Late):
        """Methods of a Plan."""

    class ProgramMethods(_Late):
        """Methods of a Program."""

    class TopologyMethods(_Late):
        """Methods of a Topology."""

    class SimulationMethods(_Late):
        """Methods of a Simulation."""


__all__ = [
    "BlockPlanMethods",
    "PlanMethods",
    "ProgramMethods",
    "SimulationMethods",
    "TopologyMethods",
]
