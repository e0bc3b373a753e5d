"""Jobs and measurements: many calls, sizes, the conventions of the table, and the check itself."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import sley
from sley.communicator import Settings
from sley.communicator.jobs import Job, run
from sley.communicator.jobs.commands import BenchCall, CountWrong, Load, Setup, Time, Turn
from sley.communicator.jobs.worker import Worker
from sley.communicator.stats import CallStats
from sley.engine.check import CheckedBuffers, GuardedBuffer, Pattern, Promise
from sley.engine.measure import Measurement, Sweep
from sley.engine.program import buffer_sizes
from sley.engine.types import DATA_TYPES
from sley.ir.collectives import (
    AllReduce,
    AllToAll,
    Broadcast,
    Custom,
    Gather,
    ReduceScatter,
    bus_factor,
)
from sley.ir.plan import Plan
from sley.ir.words import LoopOrder, Op, ReduceOp
from support.generators.sampling import sampled
from support.inputs import small_plans
from support.machines.meaning import BITWISE
from support.processes.job_calls import call

FLOAT32 = DATA_TYPES["float32"]


def test_two_hundred_calls_back_to_back_are_right() -> None:
    with Job([small_plans.ring_allreduce(3, fused=True)], Settings(slot_bytes=256)) as job:
        for count in range(200):
            inputs = [np.full(count, 10 * r + count, np.int32) for r in range(3)]
            outputs = call(job, inputs, count)
            np.testing.assert_array_equal(outputs[count % 3], sum(inputs))


def test_iterations_need_no_barrier() -> None:
    with Job([small_plans.scratch_allreduce(4, width=3)], Settings(slot_bytes=64)) as job:
        assert job.plans[0].time_us(100, Sweep([], warmup=3, iterations=200)) > 0
        assert job.plans[0].count_wrong(100, Sweep([])) == 0


def test_a_table_has_a_row_for_each_size() -> None:
    seen: list[Measurement] = []
    plan = small_plans.direct_allgather(3, in_place=True)
    table = run(plan, Sweep([0, 100, 4096], iterations=2, warmup=1), progress=seen.append)
    assert table == seen
    assert [m.size_bytes for m in table] == [0, 96, 4092]
    assert [m.count for m in table] == [0, 8, 341]
    assert all(m.wrong == 0 and m.time_us >= 0 and m.root == -1 for m in table)
    m = table[2]
    assert m.algbw_GBps == pytest.approx(m.size_bytes / m.time_us / 1e3)
    assert m.busbw_GBps == pytest.approx(m.algbw_GBps * 2 / 3)
    assert run(plan, Sweep([96], iterations=1, warmup=0, check=False))[0].wrong == -1


def test_bus_factors_and_sizes_are_those_of_nccl_tests() -> None:
    assert bus_factor(AllReduce(8)) == 2 * 7 / 8
    assert {bus_factor(c) for c in (ReduceScatter(8), AllToAll(8), Gather(8))} == {7 / 8}
    assert bus_factor(Broadcast(8)) == bus_factor(Custom("own", 8, 1, 1, lambda r, i: None)) == 1
    for collective, blocks in (
        (AllReduce(4, chunks=8), 1),
        (ReduceScatter(4, chunks=2), 4),
        (AllToAll(4), 4),
        (Broadcast(4, chunks=2), 1),
        (Custom("own", 2, [1, 5], [2, 0], lambda r, i: None), 5),
    ):
        assert collective.blocks == blocks


@pytest.fixture(scope="module")
def fused_ring() -> Iterator[Job]:
    with Job([small_plans.ring_allreduce(2, fused=True)], Settings(slot_bytes=512)) as job:
        yield job


@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_the_check_agrees_with_the_engine(dtype: str, fused_ring: Job) -> None:
    for op, count in product(ReduceOp, (0, 1, 9001)):
        assert fused_ring.plans[0].count_wrong(count, Sweep([], dtype, op)) == 0, (op, count)


def test_the_check_agrees_with_the_engine_on_other_collectives() -> None:
    plans = (
        small_plans.direct_allgather(3, in_place=False, chunks=2),
        small_plans.direct_allgather(3, in_place=True, chunks=2),
        small_plans.scratch_allreduce(3, width=4),
    )
    both = [replace(plan, loop_order=order) for plan, order in product(plans, LoopOrder)]
    with Job(both, Settings(slots=8)) as job:
        for one, count in product(job.plans, (0, 1, 7, 1000)):
            assert one.count_wrong(count, Sweep([])) == 0


def two_of_three(*, in_place: bool) -> Plan:
    """An AllReduce of which rank 2 takes no part."""
    hand = small_plans.Hand()
    buffer = small_plans.IN if in_place else small_plans.OUT
    for rank in range(3):
        if not in_place:
            hand.add(rank, 0, Op.COPY, (small_plans.IN, 0), (small_plans.OUT, 0))
        if rank < 2:
            hand.add(rank, 0, Op.SEND, (small_plans.IN, 0), to=1 - rank)
            hand.add(rank, 0, Op.RECV_REDUCE_COPY, (buffer, 0), (buffer, 0), of=1 - rank)
    return hand.plan(AllReduce(3, in_place=in_place))


def test_the_check_sees_a_missing_contribution() -> None:
    with Job([two_of_three(in_place=False), two_of_three(in_place=True)]) as job:
        for plan, op in product(job.plans, ReduceOp):
            assert plan.count_wrong(1000, Sweep([], reduce_op=op)) > 600, op


def test_the_check_sees_a_permutation_and_a_hole() -> None:
    hand = small_plans.Hand()
    hand.add(0, 0, Op.COPY, (small_plans.IN, 0), (small_plans.OUT, 1))
    hand.add(0, 0, Op.COPY, (small_plans.IN, 1), (small_plans.OUT, 0))
    same = Custom("same", 1, 3, 3, lambda rank, index: [(rank, index)])
    turned = Custom("turned", 1, 3, 3, lambda rank, index: [(0, 1 - index)] if index < 2 else None)
    with Job([hand.plan(same), hand.plan(turned)]) as job:
        assert job.plans[0].count_wrong(1000, Sweep([])) > 2900
        assert job.plans[1].count_wrong(1000, Sweep([])) == 0


def test_writes_outside_a_buffer_are_counted() -> None:
    buffer = GuardedBuffer(10, FLOAT32)
    buffer.array[:] = 0
    assert buffer.count_overwritten() == 0
    around = np.lib.stride_tricks.as_strided(buffer.array, (12,))
    around[10] = 1.0
    assert buffer.count_overwritten() == 4
    plan = small_plans.scratch_allreduce(1)
    sizes = buffer_sizes(plan, 0, 5)
    pattern = Pattern.make(FLOAT32, ReduceOp.SUM, 1)
    checked = CheckedBuffers(0, Promise.of(plan, 0), sizes, 5, pattern, False)
    checked.fill()
    source, target = (b.array for b in checked.memory)
    target[:] = source
    assert checked.count_wrong() == 0
    np.lib.stride_tricks.as_strided(target, (7,))[6] = 0
    assert checked.count_wrong() == 1


@pytest.mark.parametrize(
    ("dtype", "op", "width"),
    sampled(
        product(
            ["float16", "bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2"],
            [op for op in ReduceOp if op not in BITWISE],
            [1, 3, 100, 256, 1000],
        ),
        lambda dtype, op, width: [(dtype, op), width],
    ),
)
def test_the_pattern_is_exact_for_many_operands(dtype: str, op: ReduceOp, width: int) -> None:
    """Combined in either direction, with the type's own rounding, the result is the same."""
    kind = DATA_TYPES[dtype]
    pattern = Pattern.make(kind, op, width)
    ranks = np.arange(width)
    step = {ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
    combine = step.get(op, np.add)
    for order in (ranks, ranks[::-1]):
        result = pattern.values(int(order[0]), np.arange(500))
        with np.errstate(over="ignore"):
            for rank in order[1:]:
                result = combine(result, pattern.values(int(rank), np.arange(500)))
                result = kind.values(kind.bits(result))
        if op is not ReduceOp.AVG:
            with np.errstate(over="ignore"):
                expected = pattern.combine(ranks, np.zeros(width, np.int64), 500)
            np.testing.assert_array_equal(kind.bits(result), expected)
    assert len(np.unique(pattern.table)) > 1


def test_the_callers_main_module_is_not_run_again() -> None:
    script = (
        "print('once', flush=True)\n"
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np; from support.inputs import small_plans\n"
        "from sley.communicator.jobs import execute\n"
        "print(execute(small_plans.ring_allreduce(2, fused=True), [np.ones(4)] * 2)[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "once\n[2. 2. 2. 2.]\n"


def job_in_threads(plan: Plan, folder: Path, commands: Sequence[object]) -> list[list[CallStats]]:
    """The statistics of each rank's communicator after the commands."""
    with ThreadPoolExecutor(plan.ranks) as threads:
        each = [Setup(r, plan.ranks, str(folder), Settings(timeout_s=20), 20.0) for r in range(2)]
        ranks = list(threads.map(Worker, each))
        for command in (Load(0, pickle.dumps(plan)), *commands):
            list(threads.map(partial(Worker.do, command=command, fd=None), ranks))
        found = [rank._comm.stats() for rank in ranks]
        list(threads.map(lambda rank: rank.close(), ranks))
    return found


def test_the_calls_of_a_job_are_calls_of_a_communicator(tmp_path: Path) -> None:
    plan = small_plans.ring_allreduce(2, fused=True)
    one = BenchCall(0, 1000, "float32", ReduceOp.SUM)
    commands = [CountWrong(one), Time(one, [Turn(0, 12, 20)])]
    for (row,) in job_in_threads(plan, tmp_path, commands):
        assert (row.kind, row.plan, row.origin, row.calls) == ("run", plan.name, "user", 33)


def test_a_plan_may_need_more_than_a_communicator_has_by_default() -> None:
    default = Settings()
    hand = small_plans.Hand()
    for channel in range(default.channels + 2):
        for rank in range(2):
            out, sent = (small_plans.OUT, channel), (small_plans.IN, channel)
            hand.add(rank, channel, Op.COPY, sent, out)
            hand.add(rank, channel, Op.SEND, sent, to=1 - rank, channel=channel)
            hand.add(rank, channel, Op.RECV_REDUCE_COPY, out, out, of=1 - rank, channel=channel)
    plan = hand.plan(AllReduce(2, chunks=default.channels + 2))
    plan = replace(plan, slots=default.slots + 1)
    assert run(plan, Sweep([4096], iterations=1, warmup=0))[0].wrong == 0


def test_a_collective_of_varying_counts_is_measured_and_checked() -> None:
    plan = sley.compile(sley.algorithms.build("all-pairs-alltoallv", ranks=3))
    rows = run(plan, Sweep([0, 30_000], iterations=2, warmup=1))
    assert [row.wrong for row in rows] == [0, 0]


def test_one_rank_is_a_job() -> None:
    hand = small_plans.Hand()
    hand.add(0, 0, Op.COPY, (small_plans.IN, 0), (small_plans.OUT, 0))
    rows = run(hand.plan(AllReduce(1)), Sweep([0, 4096], iterations=2, warmup=0))
    assert [row.wrong for row in rows] == [0, 0]
