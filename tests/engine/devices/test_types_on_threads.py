"""Every element type and reduction: bit for bit the results of the CPU runtime."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine
from sley.engine.types import DATA_TYPES
from support.devices.device_calls import executor
from support.generators.sampling import each_value
from support.processes.rank_threads import execute

PROTOCOLS = list(sley.Protocol)
RANKS, COUNT = 3, 1003


def every_type() -> list[Any]:
    """Every type, with the reductions and the protocols in turn: a compiler takes half a second for
    each."""
    return [
        pytest.param(dtype, op, protocol, id=f"{dtype}-{op.name}")
        for dtype, op, protocol in zip(DATA_TYPES, cycle(sley.ReduceOp), cycle(PROTOCOLS))
    ]


def numbers(dtype: str) -> list[Any]:
    """Any bits at all: infinities, NaNs, subnormal and negative numbers are among them."""
    kind, random = DATA_TYPES[dtype].array, np.random.default_rng(len(dtype))
    rows = [random.integers(0, 256, COUNT * kind.itemsize, np.uint8) for _ in range(RANKS)]
    arrays = [row.view(kind).copy() for row in rows]
    if kind.kind == "f":  # random bits of large types are huge or tiny; sums of like ones round
        for array in arrays:
            array[::2] = random.normal(size=len(array[::2]))
    return arrays


def check(
    dtype: str,
    op: sley.ReduceOp,
    protocol: sley.Protocol,
    engine: Engine,
) -> None:
    ring = build("ring-allreduce", ranks=RANKS, in_place=True)
    plan = sley.compile(ring, protocol=protocol)
    data = numbers(dtype)
    with np.errstate(all="ignore"):
        expected = execute(plan, data, dtype=dtype, reduce_op=op)
    executor(plan, engine=engine)(data, dtype=dtype, reduce_op=op)
    values = DATA_TYPES[dtype].values
    for got, promised in zip(data, expected, strict=True):
        # Of NaNs only that they are: machine.md says nothing about their bits.
        np.testing.assert_array_equal(values(got), values(promised))


@pytest.mark.parametrize(("dtype", "op", "protocol"), every_type())
def test_every_type_gives_what_the_engine_gives(
    dtype: str, op: sley.ReduceOp, protocol: sley.Protocol
) -> None:
    check(dtype, op, protocol, Engine.INTERPRETED)


@pytest.mark.slow
@pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name.lower())
@pytest.mark.parametrize("op", sley.ReduceOp, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_every_type_gives_what_the_engine_gives_with_every_protocol(
    dtype: str, op: sley.ReduceOp, protocol: sley.Protocol, engine: Engine
) -> None:
    check(dtype, op, protocol, engine)


@pytest.mark.parametrize(
    ("protocol", "dtype"), each_value(PROTOCOLS, ["float16", "bfloat16", "float64"])
)
def test_a_local_reduction_reads_and_combines_like_a_message(
    protocol: sley.Protocol, dtype: str
) -> None:
    """reduce and copy, which a ring hasn't: all-pairs out of place over scratch."""
    plan = sley.compile(build("all-pairs-allreduce", ranks=3, in_place=False), protocol=protocol)
    data = numbers(dtype)
    outputs = [np.zeros_like(a) for a in data]
    with np.errstate(all="ignore"):
        expected = execute(plan, data, dtype=dtype)
    on = executor(plan, engine=Engine.INTERPRETED)
    on(data, outputs, dtype=dtype)
    values = DATA_TYPES[dtype].values
    for got, promised in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(values(got), values(promised))


def test_bits_are_bfloat16_only_if_the_caller_says_so() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True))
    on = executor(plan)
    data = [np.full(4, 0x3F80, np.uint16) for _ in range(2)]
    with pytest.raises(sley.SleyError, match="uint16") as caught:
        on(data)
    assert caught.value.code == "R504"
    with pytest.raises(sley.SleyError, match="float32"):
        on(data, dtype="float32")
    on(data, dtype="bfloat16")
    np.testing.assert_array_equal(DATA_TYPES["bfloat16"].values(data[0]), 2.0)
