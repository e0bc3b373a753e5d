"""Running: plans on processes of this machine, proven before they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from sley import runtime
from sley.ir.plan import Plan
from sley.runtime import Measurement
from sley.verify import verify

__all__ = ["execute", "run"]


def run(
    plan: Plan, sizes_bytes: Sequence[int], *, proven: bool = False, **settings: Any
) -> list[Measurement]:
    """Proves a plan and runs it over sizes, timed and checked: `sley.runtime.run`, which says what
    the settings mean. proven: leaves the proof out, for a plan that has one. Errors: V2xx, R5xx."""
    if not proven:
        verify(plan)
    return runtime.run(plan, sizes_bytes, **settings)


def execute(
    plan: Plan, inputs: Sequence[NDArray[Any]], *, proven: bool = False, **settings: Any
) -> list[NDArray[Any]]:
    """Proves a plan and runs it once on arrays: `sley.runtime.execute`, which says what the
    settings mean. proven: leaves the proof out, for a plan that has one. Errors: V2xx, R5xx."""
    if not proven:
        verify(plan)
    return runtime.execute(plan, inputs, **settings)
