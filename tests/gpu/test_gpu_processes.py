"""Several processes on one GPU, which access one another's memory."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

import sley
from sley.engine.devices import Engine
from support.devices.gpu_needed import needs_gpu
from support.devices.gpu_processes import check_calls, check_gone
from support.devices.registered_ranks import check_registered

pytestmark = needs_gpu()

CALLS = 20
"""Of processes that take turns on the GPU: one takes some 0.2 s."""

CASES = [(2, *pair) for pair in product(sley.Protocol, Engine)]
CASES += [
    (4, sley.Protocol.SIMPLE, Engine.GENERATED),
    (4, sley.Protocol.DIRECT, Engine.INTERPRETED),
]
"""Ranks, protocol, engine. Four ranks take 10 s."""


@pytest.mark.parametrize(
    ("ranks", "protocol", "engine"),
    [pytest.param(n, p, e, id=f"{n}-{p.name.lower()}-{e.value}") for n, p, e in CASES],
)
@pytest.mark.usefixtures("gpu")
def test_ranks_in_processes_get_right_results(ranks: int, protocol: Any, engine: Engine) -> None:
    check_calls("cuda", ranks, protocol.name, engine.value)


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.usefixtures("gpu")
def test_a_rank_that_is_gone_is_noticed(how: str) -> None:
    check_gone("cuda", how)


@pytest.mark.usefixtures("gpu")
def test_ranks_read_memory_that_callers_registered(tmp_path: Path) -> None:
    """At another place in the memory of each rank, with Direct, and in replays of a graph."""
    torch = pytest.importorskip("torch")
    first = "torch" if torch.version.cuda else "allocated"
    readers = check_registered("cuda:0", [first, "mapped", "pooled"], CALLS, tmp_path)
    assert readers == [[1, 2], [0, 2], []]
