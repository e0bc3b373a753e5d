"""Several processes on one GPU, which access one another's memory by CUDA IPC."""

from __future__ import annotations

from typing import Any

import pytest

import sley
from sley.devices import Engine
from support.gpu_needed import needs_gpu
from support.gpu_processes import check_calls, check_gone

pytestmark = needs_gpu()


@pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
@pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.name.lower())
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.usefixtures("gpu")
def test_ranks_in_processes_get_right_results(ranks: int, protocol: Any, engine: Engine) -> None:
    check_calls("cuda", ranks, protocol.name, engine.value)


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.usefixtures("gpu")
def test_a_rank_that_is_gone_is_noticed(how: str) -> None:
    check_gone("cuda", how)
