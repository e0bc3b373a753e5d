"""Long-lived ranks: correct results and no leaks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sley.communicator import Settings
from support.processes import rank_processes
from support.processes.soak import Soaked, soak

RANKS = 8
LONG_S = float(os.environ.get("SLEY_SOAK_S", "600"))
SHARED = Path("/dev/shm")


@pytest.mark.parametrize(
    ("seconds", "slack_bytes"),  # much of what a process grows by at first is its modules
    [
        pytest.param(0.8, 64 << 20, id="seconds"),
        pytest.param(LONG_S, 16 << 20, id="long", marks=pytest.mark.slow),
    ],
)
def test_random_calls_on_random_groups_are_right_and_leave_nothing(
    seconds: float, slack_bytes: int, tmp_path: Path
) -> None:
    settings = Settings(timeout_s=60, use_cache=False)
    seed = 2025 if seconds < 60 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    ranks = rank_processes.start(RANKS, soak, str(tmp_path), seconds, seed, settings=settings)
    pids = ranks.pids
    ends = ranks.ends(within_s=2 * seconds + 120)
    assert all(isinstance(end.value, Soaked) for end in ends), ends
    # Segments of memory have the number of their process; other tests have segments, too.
    assert not [path for pid in pids for path in SHARED.glob(f"sley-{pid}-*")]
    print(f"{sum(end.value.calls for end in ends)} calls, {ends[0].value.groups} groups")
    for end in ends:
        early, late = end.value.holding[len(end.value.holding) // 4], end.value.holding[-1]
        print(early, late)
        assert late.descriptors <= early.descriptors
        assert late.threads <= early.threads
        assert late.own_bytes < early.own_bytes + slack_bytes
