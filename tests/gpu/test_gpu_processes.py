"""Several processes on one GPU, which access one another's memory by file descriptors."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import sley
from sley.engine.devices import Engine
from support.devices.gpu_needed import needs_gpu
from support.devices.gpu_processes import check_calls, check_gone

pytestmark = needs_gpu()


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
