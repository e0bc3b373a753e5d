"""The 8-bit floating-point types: all 256 x 256 results of every reduction, bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.types import DATA_TYPES
from support.checks.float8 import TYPES, nearest, number, operands, results
from support.devices.device_calls import executor
from support.generators.sampling import each_value
from support.processes.rank_threads import execute

EVERY = [pytest.param(t, op, id=f"{t}-{op.name}") for t, op in product(TYPES, sley.ReduceOp)]


def pair() -> sley.Plan:
    return sley.compile(build("ring-allreduce", ranks=2, in_place=True))


@pytest.mark.parametrize("name", TYPES)
def test_numbers_and_their_bits_are_those_of_the_definition(name: str) -> None:
    kind, bits = DATA_TYPES[name], np.arange(256, dtype=np.uint8)
    numbers = kind.values(bits)
    np.testing.assert_array_equal(numbers, [number(name, k) for k in range(256)])
    assert numbers.dtype == np.float32
    finite = np.sort(numbers[np.isfinite(numbers)])
    middle = (finite[1:] + finite[:-1]) / 2  # ties
    around = [np.nextafter(middle, side, dtype=np.float32) for side in (-np.inf, np.inf)]
    far = np.array([6e4, -6e4, 1e9, np.inf, -np.inf, np.nan, -0.0, 1e-45], np.float32)
    values = np.concatenate([numbers, middle, *around, far])
    np.testing.assert_array_equal(kind.bits(values), nearest(name, values))
    largest = {"float8_e4m3fn": 448, "float8_e5m2": 57344}[name]
    np.testing.assert_array_equal(kind.values(kind.bits(far[:5])), largest * np.sign(far[:5]))


@pytest.mark.parametrize(("name", "op"), EVERY)
def test_every_result_of_the_cpu_runtime_is_right(name: str, op: sley.ReduceOp) -> None:
    for output in execute(pair(), list(operands()), dtype=name, reduce_op=op):
        np.testing.assert_array_equal(output, results(name, op))


@pytest.mark.parametrize(("name", "op"), each_value(TYPES, sley.ReduceOp))
def test_every_result_of_kernels_is_right(name: str, op: sley.ReduceOp) -> None:
    data: list[Any] = list(operands())
    executor(pair())(data, dtype=name, reduce_op=op)
    for output in data:
        np.testing.assert_array_equal(output, results(name, op))


@pytest.mark.parametrize("name", [*TYPES, "bfloat16"])
def test_arrays_of_ml_dtypes_keep_their_type(name: str) -> None:
    kind = pytest.importorskip("ml_dtypes").__dict__[name]
    data = [np.array([1, 2, 0.5], kind)] * 2
    for found in execute(pair(), data), sley.execute(pair(), data, devices="threads"):
        for output in found:
            assert output.dtype == kind
            assert output.tolist() == [2, 4, 1]
