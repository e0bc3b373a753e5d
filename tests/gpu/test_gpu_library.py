"""Every algorithm of the library on one GPU, with both engines and all protocols."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Launching
from sley.engine.devices.execute import execute
from sley.engine.types import DATA_TYPES
from support.checks.float8 import TYPES, operands, results
from support.devices.gpu_checks import OnDevice, executor, wrong
from support.devices.gpu_needed import needs_gpu
from support.devices.gpu_plans import cases, compiled, counts, named, ring

pytestmark = needs_gpu()

THREADS = 256
"""Of a block: a multiprocessor holds two such blocks, so 112 blocks fit every GPU of some size."""

ENGINES = pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
PROTOCOLS = pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.name.lower())


@PROTOCOLS
@pytest.mark.parametrize("case", cases(), ids=named)
def test_every_algorithm_is_right(
    case: tuple[str, dict[str, Any]], protocol: Any, gpu: Any
) -> None:
    plan = compiled(case, protocol)
    for engine in Engine:
        on = executor(plan, gpu, engine=engine, threads=THREADS)
        assert [wrong(on, gpu, count) for count in counts(plan)] == [0, 0, 0], engine


@ENGINES
@PROTOCOLS
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 2), (2, 4)])
def test_plans_in_instruction_order_are_right(
    nodes: int, gpus: int, protocol: Any, engine: Engine, gpu: Any
) -> None:
    hm = build("hm-allreduce", nodes=nodes, gpus=gpus, in_place=True)
    plan = sley.compile(hm, schedule="hpds", allocate="state", protocol=protocol)
    on = executor(plan, gpu, engine=engine)
    assert [wrong(on, gpu, count) for count in counts(plan)] == [0, 0, 0]


@ENGINES
@PROTOCOLS
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_large_calls_are_right_at_every_alignment(
    shift: int, protocol: Any, engine: Engine, gpu: Any
) -> None:
    """4 MB a rank and some elements, with slots of the size that nobody chose."""
    plan = ring(4, protocol, instances=4)
    on = executor(plan, gpu, engine=engine, slot_bytes=None)
    assert wrong(on, gpu, 2**20 + 7, shift=shift) == 0


@PROTOCOLS
@pytest.mark.parametrize("threads", [32, 64, 96, 1024])
def test_calls_are_right_with_every_number_of_threads(
    threads: int, protocol: Any, gpu: Any
) -> None:
    for engine in Engine:
        on = executor(ring(4, protocol), gpu, engine=engine, threads=threads)
        assert wrong(on, gpu, 10007) == 0, engine


@ENGINES
@PROTOCOLS
def test_calls_are_right_with_a_launch_for_each_rank(
    protocol: Any, engine: Engine, gpu: Any
) -> None:
    on = executor(ring(4, protocol), gpu, engine=engine, launching=Launching.BY_RANK)
    assert [wrong(on, gpu, count) for count in (10007, 1)] == [0, 0]


@ENGINES
@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_every_type_and_reduction_is_right(dtype: str, engine: Engine, gpu: Any) -> None:
    on = executor(ring(3), gpu, engine=engine)
    found = {op.name: wrong(on, gpu, 2003, dtype=dtype, reduce_op=op) for op in sley.ReduceOp}
    assert found == dict.fromkeys(found, 0)


@pytest.mark.parametrize("op", ["SUM", "PRODUCT", "MIN", "AVG"])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_result_of_8_bits_is_right(dtype: str, op: str, gpu: Any) -> None:
    reduce_op = sley.ReduceOp[op]
    data = list(operands())
    for output in execute(ring(2), data, [gpu] * 2, dtype=dtype, reduce_op=reduce_op):
        np.testing.assert_array_equal(output, results(dtype, reduce_op))


@PROTOCOLS
def test_inputs_are_multiplied_once(protocol: Any, gpu: Any) -> None:
    on = executor(ring(4, protocol), gpu)
    data = [OnDevice(gpu, np.full(2003, 6e4, np.float16), "float16") for _ in range(4)]
    on([one.array for one in data], factor=0.25)  # 240,000 is no float16
    for one in data:
        assert one.fetch() == 0
        assert (one.host == 6e4).all()
