"""Every algorithm of the library, compiled and run on threads, with checked results."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sley
from sley.algorithms import CATALOG, build
from sley.communicator.jobs import run
from sley.engine.check import CheckedBuffers, Pattern, Promise
from sley.engine.measure import Sweep
from sley.engine.program import buffer_sizes
from sley.engine.types import DATA_TYPES
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from support.generators.sampling import each_value
from support.processes.rank_threads import Limits, execute


def wrong(plan: Plan, count: int, dtype: str, op: ReduceOp, slots: int, slot_bytes: int) -> int:
    """How many elements of the outputs of one call are not what the collective promises."""
    c = plan.collective
    buffers = []
    for rank in range(c.ranks):
        promise, sizes = Promise.of(plan, rank), buffer_sizes(plan, rank, count)
        pattern = Pattern.make(DATA_TYPES[dtype], op, promise.width)
        buffers.append(CheckedBuffers(rank, promise, sizes, count, pattern, c.in_place))
        buffers[rank].fill()
    outputs = execute(
        plan,
        [b.memory[0].array for b in buffers],
        Limits(slots=slots, slot_bytes=slot_bytes),
        dtype=dtype,
        count=count,
        reduce_op=op,
    )
    for buffer, output in zip(buffers, outputs, strict=True):
        buffer.output[:] = output
    return sum(buffer.count_wrong() for buffer in buffers)


def compiled(name: str, in_place: bool) -> Plan:
    """The algorithm on a few ranks; skips where it has no such form."""
    words = CATALOG[name].required
    sizes = {"ranks": 4} if "ranks" in words else {w: 2 for w in ("nodes", "gpus") if w in words}
    try:
        return sley.compile(build(name, **sizes, in_place=in_place))
    except sley.SleyError as error:
        if error.code.startswith("L"):
            pytest.skip(f"{name} says {error.code}")
        raise


@pytest.mark.parametrize(("name", "in_place"), each_value(CATALOG, [False, True]))
def test_an_algorithm_keeps_its_promise(name: str, in_place: bool) -> None:
    plan = compiled(name, in_place)
    longest = int(plan.instructions.count.max())
    for count, slot_bytes, slots in ((0, 64, 8), (1, 64, 8), (97, 64, plan.slots), (5000, 4096, 8)):
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            assert wrong(plan, count, "float32", op, slots, slot_bytes * longest) == 0


def test_a_plan_that_breaks_its_promise_is_seen() -> None:
    plan = compiled("ring-allreduce", False)
    turned = plan.collective.expected[::-1].copy()
    other = replace(plan, collective=replace(plan.collective, expected=turned))
    assert wrong(plan, 4000, "int32", ReduceOp.SUM, 2, 4096) == 0
    assert wrong(other, 4000, "int32", ReduceOp.SUM, 2, 4096) > 15000


def test_a_compiled_plan_is_right_on_processes() -> None:
    table = run(
        compiled("hierarchical-allreduce", True), Sweep([4096, 100_000], iterations=3, warmup=1)
    )
    assert [m.wrong for m in table] == [0, 0]
