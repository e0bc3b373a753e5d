"""Out of place: an algorithm takes the time that it takes in place."""

from __future__ import annotations

import pytest

import sley
from sley.algorithms.catalog import CATALOG, build
from sley.model.simulation import Simulator
from support.generators.sampling import each_value

COPIES_FOR_ITSELF = {"flat-gather", "flat-scatter"}
"""The root copies a chunk that it sends to nobody, so the copy is no part of a send."""

ALGORITHMS = [
    name
    for name, algorithm in CATALOG.items()
    if algorithm.has_both_places
    and not name.startswith(("nvls", "sccl"))  # for one node
    and name not in COPIES_FOR_ITSELF
]


def times_us(name: str, schedule: str, *, in_place: bool) -> list[float]:
    """How long a plan takes in the simulator, and how long its compiler expects, if it does."""
    program = build(name, nodes=2, gpus=2, in_place=in_place)
    plan = sley.compile(program, topology="2x2", schedule=schedule, verify=False)
    simulated = Simulator(plan, "2x2")("16M").time_us
    return [simulated, *([] if plan.estimate is None else [plan.estimate.time_us])]


@pytest.mark.parametrize(("name", "schedule"), each_value(ALGORITHMS, ("msccl", "hpds")))
def test_out_of_place_takes_as_long_as_in_place(name: str, schedule: str) -> None:
    apart, together = (times_us(name, schedule, in_place=place) for place in (False, True))
    assert all(a <= 1.05 * b for a, b in zip(apart, together, strict=True)), (apart, together)
