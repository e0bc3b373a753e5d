"""Policies for the machine of the tests, and a clock for the calls that run under them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sley.communicator.selection.machine import machine_here
from sley.communicator.watch import Turns, Watch
from sley.ir.sizes import SizeRange
from sley.tuning.policy import Measured, PlanRow, Policy, Recipe, write
from support.processes.call_cases import hosts_of

RING = Recipe("ring-allreduce", options={"instances": 2})
PAIRS = Recipe("all-pairs-alltoall", options={"instances": 2})
GOOD = (Measured(1024, 1.0, 1e9),)
"""Times by which any plan is faster than the default."""


def policy_of(
    *hosts: int,
    recipe: Recipe = RING,
    collective: str = "allreduce",
    sizes: tuple[int, int | None] = (0, None),
    measured: Sequence[Measured] = GOOD,
    alternatives: Sequence[Recipe] = (),
    **machine: Any,
) -> Policy:
    """A policy of one range, for hosts with these numbers of ranks. machine: what differs from this
    machine."""
    more: Any = {"measured": tuple(measured), "alternatives": tuple(alternatives)}
    row = PlanRow(recipe, SizeRange(*sizes), collective, **more)
    here = replace(machine_here(hosts_of(*hosts)), **machine)
    return Policy((row,), machine=here, facts={"agent": "ucb"})


def policy_file(folder: Path, policy: Policy) -> str:
    """The path of a file with a policy."""
    path = str(folder / "policy.toml")
    write(policy, path)
    return path


def clock(time_us: Mapping[int, float]) -> Callable[[Watch, Sequence[float]], Turns]:
    """Replaces `Watch.decide`: calls with a plan take this time, by the plan's number."""
    decide = Watch.decide

    def decide_by_clock(watch: Watch, seconds: Sequence[float]) -> Turns:
        assert len(seconds) == len(watch.turns)
        assert all(one > 0 for one in seconds), "each turn has taken time"
        times = [time_us[number] * 1e-6 * watch.ranks for number, _ in watch.turns]
        return decide(watch, times)

    return decide_by_clock
