"""The processes that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch.distributed")

from support.processes.forked import preload_torch
from support.processes.rank_pool import RankPool


@pytest.fixture(autouse=True, scope="session")
def _torch_is_preloaded() -> None:
    preload_torch()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[RankPool]:
    """Four processes, ranks of a group with the backend "sley"."""
    pool = RankPool(4)
    yield pool
    pool.stop()
