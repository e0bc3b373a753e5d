"""A plan as a program of the engine: facts about the whole plan."""

from __future__ import annotations

import pytest

import sley
from sley.engine.program import gains_attached, needs_all
from sley.ir.collective import Collective

ALL: dict[str, Collective] = {
    "allreduce": sley.AllReduce(4, 4),
    "allreduce in place": sley.AllReduce(4, 4, in_place=True),
    "allgather": sley.AllGather(4, 2),
    "reducescatter": sley.ReduceScatter(4),
    "alltoall": sley.AllToAll(4, 3),
    "one rank": sley.AllToAll(1),
}
NOT_ALL: dict[str, Collective] = {
    "broadcast": sley.Broadcast(4),
    "reduce": sley.Reduce(4),
    "gather": sley.Gather(4),
    "scatter": sley.Scatter(4),
    "alltonext": sley.AllToNext(4),
    "nothing asked of rank 3": sley.Custom(
        "own", 4, 1, 1, lambda rank, index: None if rank == 3 else [(r, 0) for r in range(4)]
    ),
}


@pytest.mark.parametrize("name", ALL)
def test_ranks_of_these_collectives_need_all_others(name: str) -> None:
    assert needs_all(ALL[name])


@pytest.mark.parametrize("name", NOT_ALL)
def test_some_ranks_of_these_collectives_do_not_need_all_others(name: str) -> None:
    assert not needs_all(NOT_ALL[name])


@pytest.mark.parametrize(
    ("collective", "gains"),
    [
        (sley.Scatter(4), True),
        (sley.Gather(4), False),
        (sley.Broadcast(4, in_place=True), False),
        (sley.AllGather(4, in_place=True), True),  # every rank sends on what it takes
    ],
    ids=str,
)
def test_copies_by_the_kernel_spare_the_busiest_rank_work_elsewhere(
    collective: Collective, gains: bool
) -> None:
    name = f"flat-{collective.name}" if not collective.name.startswith("all") else "ring-allgather"
    plan = sley.compile(sley.algorithms.build(name, 4, in_place=collective.in_place))
    assert gains_attached(plan) is gains
