"""Calls that multiply inputs by a factor: bit for bit what multiplied inputs give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.types import DATA_TYPES
from sley.verification.scales import Scales
from support.devices.device_calls import executor, threads
from support.generators.sampling import each_value
from support.processes.rank_threads import execute

RANKS, COUNT = 3, 1003
FACTORS = {"int32": 7, "uint64": 3, "float8_e5m2": 0.375}


def numbers(dtype: str) -> list[Any]:
    kind, random = DATA_TYPES[dtype], np.random.default_rng(len(dtype))
    rows = [random.normal(size=COUNT) * 100 for _ in range(RANKS)]
    return [kind.bits(row.astype(np.float32 if kind.is_bits else kind.array)) for row in rows]


def multiplied(array: Any, dtype: str, factor: float) -> Any:
    """Rounded to the type; the factor, too."""
    kind = DATA_TYPES[dtype]
    wide = np.float32 if kind.is_bits or dtype == "float16" else kind.array
    one = kind.bits(np.array([factor]).astype(np.float32 if kind.is_bits else kind.array))
    product = kind.values(array).astype(wide) * kind.values(one).astype(wide)
    return kind.bits(product if kind.is_bits else product.astype(kind.array))


def plan_of(name: str, protocol: sley.Protocol, in_place: bool, **options: Any) -> sley.Plan:
    program = build(name, ranks=RANKS, in_place=in_place)
    return sley.compile(program, protocol=protocol, **options)


def check(plan: sley.Plan, dtype: str, in_memory: bool = False) -> None:
    data, factor = numbers(dtype), FACTORS.get(dtype, 1 / RANKS)
    with np.errstate(all="ignore"):
        products = [multiplied(array, dtype, factor) for array in data]
        expected = execute(plan, products, dtype=dtype)
    outputs = None if plan.collective.in_place else [np.zeros_like(array) for array in data]
    kept = [array.copy() for array in data]
    given: Any = factor
    if in_memory:
        kind = DATA_TYPES[dtype]
        given = kind.bits(np.array([factor]).astype(np.float32 if kind.is_bits else kind.array))
    executor(plan)(data, outputs, dtype=dtype, factor=given)
    values = DATA_TYPES[dtype].values
    for got, promised in zip(outputs or data, expected, strict=True):
        np.testing.assert_array_equal(values(got), values(promised))
    if outputs:
        np.testing.assert_array_equal(data, kept)


@pytest.mark.parametrize(
    ("protocol", "name", "in_place", "dtype"),
    each_value(
        list(sley.Protocol),
        ["ring-allreduce", "all-pairs-allreduce", "one-step-allreduce"],
        [False, True],
        ["float16", "float32", "bfloat16", "float8_e5m2", "int32", "uint64", "float64"],
    ),
)
def test_inputs_are_multiplied_once(
    protocol: sley.Protocol, name: str, in_place: bool, dtype: str
) -> None:
    check(plan_of(name, protocol, in_place, allocate="instance"), dtype)


@pytest.mark.parametrize("protocol", [sley.Protocol.SIMPLE, sley.Protocol.DIRECT])
def test_inputs_of_groups_are_multiplied_once(protocol: sley.Protocol) -> None:
    check(plan_of("nvls-allreduce", protocol, in_place=True), "int32")


def test_both_operands_of_a_local_reduction_are_multiplied() -> None:
    sums = {
        (r, i): [(r, 0), (r, 1)] if i == 0 else [(1 - r, 1)] for r in range(2) for i in range(2)
    }
    promise = sley.Custom("local", 2, 2, 2, lambda r, i: sums[r, i], in_place=True)

    @sley.program(promise)
    def local(p: sley.lang.ChunkProgram) -> None:
        for rank in range(2):
            p.chunk(rank, "in", 1).copy(1 - rank, "scratch", 0)
        for rank in range(2):
            p.chunk(rank, "in", 0).reduce(p.chunk(rank, "in", 1))
            p.chunk(rank, "scratch", 0).copy(rank, "in", 1)

    plan = sley.compile(local)
    data = [np.arange(8, dtype=np.int32) + 10 * rank for rank in range(2)]
    expected = execute(plan, [3 * array for array in data])
    executor(plan)(data, factor=3)
    np.testing.assert_array_equal(data, expected)


def test_a_factor_is_read_in_the_memory_of_a_device() -> None:
    for dtype in ("float16", "float8_e5m2"):
        check(plan_of("ring-allreduce", sley.Protocol.SIMPLE, in_place=True), dtype, in_memory=True)


def test_an_average_by_a_factor_does_not_overflow() -> None:
    plan = plan_of("ring-allreduce", sley.Protocol.LL, in_place=True)
    on, large = executor(plan), [np.full(5, 6e4, np.float16) for _ in range(RANKS)]
    on(averaged := [array.copy() for array in large], factor=1 / RANKS)
    assert all((array == np.float16(60000)).all() for array in averaged)
    on(large, reduce_op=sley.ReduceOp.AVG)
    assert np.isinf(large).all()


def test_factors_that_will_not_do_are_refused() -> None:
    plan = plan_of("ring-allreduce", sley.Protocol.SIMPLE, in_place=True)
    on, data = executor(plan), [np.zeros(6, np.int32) for _ in range(RANKS)]
    for code, options in (
        ("R503", {"factor": 2, "reduce_op": "max"}),
        ("R503", {"factor": np.zeros(2, np.int32)}),
        ("R503", {"factor": np.zeros(1, np.int64)}),
        *(
            ("R514", {"factor": factor})
            for factor in (0.5, "3", [3], float("inf"), float("nan"), 2**31)
        ),
    ):
        with pytest.raises(sley.SleyError) as caught:
            on(data, **options)
        assert caught.value.code == code
        assert "1-D" not in caught.value.diagnostics[0].remedy
    on(data, factor=np.float32(3))
    apart = executor(plan, [threads(), threads(1), threads(2)])
    with pytest.raises(sley.SleyError, match="3 devices"):
        apart(data, factor=np.zeros(1, np.int32))
    gather = executor(plan_of("ring-allgather", sley.Protocol.SIMPLE, in_place=True))
    with pytest.raises(sley.SleyError, match="a sum, for a factor"):
        gather(data, factor=2)


def test_marks_that_leave_inputs_out_are_refused_by_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, of = plan_of("ring-allreduce", sley.Protocol.SIMPLE, True), Scales.of
    data = numbers("int32")

    def unmarked(alone: sley.Plan) -> Scales:
        found = of(alone)
        return Scales(np.zeros_like(found.source), found.destination)

    on = executor(plan)
    monkeypatch.setattr(Scales, "of", unmarked)
    with pytest.raises(sley.SleyError) as caught:
        on(data, factor=7)
    assert caught.value.code == "V222"
    assert [array.tolist() for array in data] == [array.tolist() for array in numbers("int32")]
