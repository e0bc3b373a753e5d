"""A tuner's policy under PyTorch: groups use it, asynchronously too, and other groups refuse it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from sley.communicator import Settings
from sley.communicator.watch import FIRST_CALLS, PAIRS, TRIAL_CALLS, WARM_CALLS, Watch
from sley.tuning.policy import Measured
from support.inputs.policies import clock, policy_file, policy_of
from support.processes.rank_pool import RankPool

CALLS = 150


def check_group(path: str) -> None:
    settings = Settings(tuner=path, use_cache=False)
    group = dist.new_group(timeout=timedelta(seconds=60), pg_options=settings)
    with patch.object(Watch, "decide", clock({0: 20.0, 1: 10.0})):
        tensors = [torch.full((1000,), float(turn)) for turn in range(CALLS)]
        works = [
            dist.all_reduce(one, group=group, async_op=turn % 2 == 0)
            for turn, one in enumerate(tensors)
        ]
        for work in works[::2]:
            work.wait()
    assert all((one == 4 * turn).all() for turn, one in enumerate(tensors))
    endpoint = group._endpoint
    calls = [change.call for change in endpoint.plans.changes]
    assert calls == [WARM_CALLS + FIRST_CALLS + TRIAL_CALLS]
    origins = {row.origin: row.calls for row in endpoint.stats() if row.kind == "all_reduce"}
    policy = WARM_CALLS + FIRST_CALLS + PAIRS
    assert origins == {"policy": policy, "default": CALLS - policy}
    dist.destroy_process_group(group)


def test_a_group_uses_the_policy_and_reverts_it(four_ranks: RankPool, tmp_path: Path) -> None:
    promised = (Measured(4000, 1.0, 10.0),)
    four_ranks.run(check_group, policy_file(tmp_path, policy_of(4, measured=promised)))


def check_pairs(path: str) -> None:
    settings = Settings(tuner=path, use_cache=False)
    groups = [dist.new_group(pair, pg_options=settings) for pair in ([0, 1], [2, 3])]
    group = groups[dist.get_rank() // 2]
    dist.all_reduce(ones := torch.ones(1000), group=group)
    assert (ones == 2).all()
    assert [problem.code for problem in group._endpoint.plans.problems] == ["D903"]
    dist.destroy_process_group(group)


def test_a_group_of_other_ranks_keeps_the_default(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(check_pairs, policy_file(tmp_path, policy_of(4)))
