"""Texts of values at Python's prompt: one line, without digits that mean nothing."""

from __future__ import annotations

import re
from functools import cache

import sley
from sley.communicator.selection.ready_plans import ReadyPlan
from sley.communicator.stats import CallStats
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.sizes import SizeRange
from sley.model.bounds import bound

RING = sley.algorithms.ring_allreduce(8)
PLAN = sley.compile(RING, topology="ndv4", schedule="hpds")


@cache
def choices() -> sley.Choices:
    return sley.choose(RING, ["1K", "64M"], "ndv4", instances=[1, 8], channels=1, schedule="msccl")


def values() -> dict[str, object]:
    """Values by the beginnings of their texts."""
    found = choices()
    return {
        "Plan(": PLAN,
        "Program(": RING,
        "Topology(": PLAN.topology,
        "Simulation(": sley.simulate(PLAN, "1M"),
        "Proof(ring-allreduce is a correct allreduce on 8 ranks; no race; no hang with 2": (
            sley.verify(PLAN)
        ),
        "Bound(1M: 8.0 us, 131.43 GB/s, by 14 times the size": bound(PLAN.collective, "ndv4", "1M"),
        "Estimate(time_us=": PLAN.estimate,
        "Choices(1K to 64M on ndv4: ": found,
        "Choice(1K to ": found.ranges[0],
        "Prediction(1K: ": found.ranges[0].begin,
        "RunnerUp(ring-allreduce, Options(": found.ranges[0].runner_up,
        "Measurement(4K of float32, sum: ": sley.run(
            sley.compile(sley.algorithms.ring_allreduce(2)), "4K", iterations=1, warmup=0
        )[0],
        "ReadyPlan(allreduce(8 ranks, 8 chunks, out of place), 1K to 4K: ring-allreduce, ": (
            ReadyPlan(PLAN, PlanRow(Recipe("ring"), SizeRange(1024, 4096)), "compiled", b"", 1 / 3)
        ),
        "CallStats(world rank 1, allreduce, all sizes: ring, LL, user, 3 calls, 0.3 us each": (
            CallStats(
                *("world", 1, "allreduce", "ring", "user", "LL", True, 0, None, 3, 9, 1 / 3, 2 / 3),
                *(0, 0, 0),
            )
        ),
    }


def test_the_text_of_a_value_is_one_line_without_long_numbers() -> None:
    for begin, value in values().items():
        text = repr(value)
        assert text.startswith(begin)
        assert "\n" not in text
        assert len(text) < 250
        assert not re.search(r"\d\.\d{5}", text)
        assert not re.search(r"<\w+\.\w+: ", text)


def test_choices_show_the_table_of_the_command_line() -> None:
    lines = choices().show().splitlines()
    assert lines[0] == "# allreduce on ndv4, code generated for each plan"
    assert "50 / 91 % below 1M" in lines[2]
    assert lines[3].split()[:3] == ["from", "to", "algorithm"]
    rows = lines[4 : 4 + len(choices().ranges)]
    assert rows[-1].split()[1] == "64M"
    assert all(line.startswith("# files for ") for line in lines[4 + len(rows) :])
    assert "# files for executor, rccl, msccl" in "\n".join(lines)
