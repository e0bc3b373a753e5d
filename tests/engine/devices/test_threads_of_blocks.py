"""Blocks of several threads, as those of GPUs: one of them moves each word, and nothing is
published before all have done their part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor
from support.devices.device_calls import executor, wrong
from support.devices.fibres import FIBRES
from support.generators.sampling import each_value


def on_fibres(plan: sley.Plan, **options: Any) -> Executor:
    return executor(plan, [FIBRES] * plan.collective.ranks, **options)


@pytest.mark.parametrize(
    ("protocol", "name", "in_place", "allocate"),
    each_value(
        ["Simple", "LL", "Direct", "LL"],
        ["all-pairs-allreduce", "one-step-allreduce", "ring-allreduce", "all-pairs-alltoall"],
        [True, False],
        ["instance", "connection"],
    ),
)
def test_threads_share_the_words_of_a_message(
    protocol: str, name: str, in_place: bool, allocate: str
) -> None:
    program = build(name, ranks=3, in_place=in_place)
    plan = sley.compile(program, protocol=protocol, allocate=allocate)
    for engine in Engine:
        on = on_fibres(plan, engine=engine)
        assert [wrong(on, count) for count in (1001, 5, 333)] == [0] * 3


@pytest.mark.parametrize(
    ("protocol", "engine", "op"),
    each_value(["LL", "Simple", "Direct"], list(Engine), [sley.ReduceOp.SUM, sley.ReduceOp.AVG]),
)
def test_runs_of_more_rows_than_threads_load_at_once_are_right(
    protocol: str, engine: Engine, op: sley.ReduceOp
) -> None:
    """Of 11 messages, on arrays at any addresses."""
    ranks, most = 12, 334
    program = build("one-step-allreduce", ranks=ranks, in_place=False)
    plan = sley.compile(program, protocol=protocol, allocate="instance")
    on = on_fibres(plan, engine=engine)
    numbers = ranks * np.random.default_rng(5).integers(-99, 99, (ranks, most + 9), np.int16)
    for count, shift in ((1, 0), (100, 1), (most, 3), (64, 4)):
        data = [row[shift * rank % 8 :][:count] for rank, row in enumerate(numbers)]
        room = np.full((ranks, most + 9), 77, np.int16)
        outputs = [row[shift * (rank + 1) % 8 :][:count] for rank, row in enumerate(room)]
        on(data, outputs, reduce_op=op)
        expected = np.sum(data, axis=0, dtype=np.int16) // (ranks if op is op.AVG else 1)
        np.testing.assert_array_equal(outputs, [expected] * ranks)
        for output in outputs:
            output[:] = 77
        assert (room == 77).all(), "elements beside the outputs"
