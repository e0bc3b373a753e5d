"""Several processes on one GPU, which access one another's memory by CUDA IPC."""

from __future__ import annotations

import time
from typing import Any

import pytest

import sley
from sley.devices import Engine
from support.gpu_needed import needs_gpu
from support.gpu_processes import Ranks

pytestmark = needs_gpu()

CALLS = 10
TIMEOUT_S = 3.0
PATIENCE_S = 30.0
"""By then a call with that timeout must have ended, on a GPU that processes share in turns."""


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


def check_calls(device: str, ranks: int, protocol: str, engine: str) -> None:
    with Ranks(device, ranks, protocol, engine) as processes:
        for _ in range(CALLS):
            assert processes.call() == [{"wrong": 0}] * ranks


def check_gone(device: str, how: str, timeout_s: float = TIMEOUT_S) -> None:
    """Rank 1 makes one call and is there no more; the next call of rank 0 says what waits."""
    with Ranks(device, 2, timeout_s=timeout_s) as processes:
        assert processes.call() == [{"wrong": 0}] * 2
        getattr(processes, how)(1)
        begin = time.monotonic()
        processes.start(0)
        found = processes.answer(0)
        assert time.monotonic() - begin < PATIENCE_S
        if device == "cuda" and how == "kill" and found["code"] == "K516":
            return  # the memory of the killed process is gone: CUDA leaves open what a write does
        assert found["code"] == "K508"
        assert "rank 0, block 0, step 1" in found["text"]
        assert "waits for a message from rank 1" in found["text"]
        processes.start(0)
        assert processes.answer(0)["code"] == "K511"
