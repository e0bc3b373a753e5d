"""Steps of workloads: their times by hand, with choices of arms, and the dimensions of models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley import topologies
from sley.compiler import Options, choose
from sley.errors import SleyError
from sley.ir.words import Protocol
from sley.model.nccl import choice as nccl
from sley.tuning.arms import Arms, decision_of
from sley.tuning.noise import Noise
from sley.tuning.policy import Decision
from sley.tuning.steps import Runs, StepTime, step_time, table_times
from sley.tuning.workloads import Group, Steps, Workload
from sley.tuning.workloads.models import A100, inference, moe_training
from sley.tuning.workloads.workload import Cell

SMALL = topologies.cluster(2, 2)
KEY = ("allreduce", Group.CLUSTER)


def by_size(cell: Cell) -> float:
    """A call takes a microsecond for each byte."""
    return float(cell.size_bytes)


def test_calls_without_overlap_add_up() -> None:
    steps = Steps()
    steps.compute(10)
    steps.call("allreduce", 5)
    steps.compute(20)
    steps.call("alltoall", 7)
    assert step_time(steps.workload("", 4), by_size) == StepTime(42, 30, 12, 12)


def test_a_call_that_ends_before_its_wait_costs_nothing() -> None:
    steps = Steps()
    call = steps.call("allreduce", 5, overlaps=True)
    steps.compute(20)
    steps.wait(call)
    assert step_time(steps.workload("", 4), by_size) == StepTime(20, 20, 5, 0)


def test_of_a_longer_call_the_rest_is_waited_for() -> None:
    steps = Steps()
    call = steps.call("allreduce", 50, overlaps=True)
    steps.compute(20)
    steps.wait(call)
    steps.compute(1)
    assert step_time(steps.workload("", 4), by_size) == StepTime(51, 21, 50, 30)


def test_a_call_begins_after_the_one_in_progress() -> None:
    steps = Steps()
    steps.call("allreduce", 50, overlaps=True)  # 0 to 50, waited for at the end
    steps.compute(10)
    steps.call("alltoall", 5)  # 50 to 55
    steps.compute(10)
    assert step_time(steps.workload("", 4), by_size) == StepTime(65, 20, 55, 45)


def test_calls_that_nothing_waits_for_end_with_the_step() -> None:
    steps = Steps()
    steps.compute(3)
    for size_bytes in (10, 20):
        steps.call("allreduce", size_bytes, overlaps=True)
    assert step_time(steps.workload("", 4), by_size) == StepTime(33, 3, 30, 30)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 50), st.booleans()), min_size=1, max_size=8
    )
)
def test_a_step_takes_between_its_longer_part_and_the_sum(
    rows: list[tuple[int, int, bool]],
) -> None:
    steps = Steps()
    for compute, size_bytes, overlaps in rows:
        steps.compute(compute)
        steps.call("allreduce", size_bytes, overlaps=overlaps)
    found = step_time(steps.workload("", 4), by_size)
    computed, called = sum(row[0] for row in rows), sum(row[1] for row in rows)
    assert (found.compute_us, found.calls_us) == (computed, called)
    assert max(computed, called) <= found.time_us <= computed + called
    assert found.time_us == pytest.approx(found.compute_us + found.waits_us)


DECISIONS = [
    Decision(name, Options(protocol=protocol, channels=1, instances=instances))
    for name in ("ring-allreduce", "one-step-allreduce")
    for protocol in (Protocol.LL, Protocol.SIMPLE)
    for instances in (1, 4)
]


def layers(*sizes: int) -> Workload:
    steps = Steps()
    for size_bytes in sizes:
        steps.compute(10)
        steps.call("allreduce", size_bytes)
    return steps.workload("layers", 4)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return layers(1 << 12, 1 << 20, 1 << 12)


@pytest.fixture(scope="module")
def arms(workload: Workload):
    sizes = [cell.size_bytes for cell in workload.cells()]
    return Arms.among("allreduce", SMALL, DECISIONS, sizes)


@pytest.fixture(scope="module")
def runs(workload: Workload, arms) -> Runs:
    return Runs.of([workload], {KEY: arms})


def test_the_default_of_a_step_is_the_choice_of_nccl(workload, arms, runs) -> None:
    expected = 30.0
    for _, cell in workload.calls():
        arm = runs.default(cell)
        choice = nccl.default("allreduce", SMALL, cell.size_bytes)
        assert runs.decision(cell, arm) == decision_of(choice)
        expected += arms.simulator(arm)(cell.size_bytes).time_us
    assert runs.step(workload, runs.default).time_us == pytest.approx(expected)


def test_no_choice_is_faster_than_the_oracle(workload, arms, runs) -> None:
    best = runs.step(workload, runs.best).time_us
    each = [runs.step(workload, lambda _cell, arm=arm: arm).time_us for arm in range(len(arms))]
    assert best <= min(each) * (1 + 1e-9)
    assert best <= runs.step(workload, runs.default).time_us
    assert best < 0.9 * min(each)  # no arm is the best for all sizes


def test_an_agent_behind_the_gate_is_between_default_and_oracle(workload, runs) -> None:
    choice = runs.learned("random", 40, noise=Noise(0.01), seed=1)
    learned = runs.step(workload, choice).time_us
    best = runs.step(workload, runs.best).time_us
    assert best <= learned <= best * 1.05
    nothing = runs.learned("random", 1)  # the gate wants more samples than one
    assert all(nothing(cell) == runs.default(cell) for cell in workload.cells())


def test_an_executor_gives_the_same_times(workload, arms, runs) -> None:
    done: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as executor:
        found = Runs.of(
            [workload], {KEY: arms}, executor=executor, progress=lambda *at: done.append(at)
        )
    assert done == [(1, 2), (2, 2)]
    for name in ("sizes", "time_us", "is_exact", "mask", "default"):
        one, other = (getattr(each.sweeps[KEY], name) for each in (found, runs))
        assert np.array_equal(one, other), name


def test_a_static_table_has_the_times_of_its_plans(workload) -> None:
    programs = [one.program(2, 2, in_place=False) for one in DECISIONS[:1]]
    table = choose(programs, ["4K", "1M"], SMALL, protocol="LL", instances=[1, 2], channels=1)
    time_us = table_times({KEY: table})
    expected = 30 + 2 * table.at(1 << 12).begin.time_us + time_us(Cell(*KEY, 1 << 20))
    assert step_time(workload, time_us).time_us == pytest.approx(expected)
    with pytest.raises(SleyError, match="D946"):
        time_us(Cell("alltoall", Group.CLUSTER, 1 << 12))


def test_calls_without_arms_and_other_clusters_are_refused(workload, arms, runs) -> None:
    steps = Steps()
    steps.call("alltoall", 1 << 12)
    for wrong in (steps.workload("", 4), layers(1).__class__("", 8, *columns(workload))):
        with pytest.raises(SleyError, match="D946"):
            Runs.of([wrong], {KEY: arms})
    for cell in (Cell(*KEY, 5), Cell("alltoall", Group.CLUSTER, 1 << 12)):
        with pytest.raises(SleyError, match="D946"):
            runs.time_us(cell, 0)


def columns(workload: Workload) -> list[np.ndarray]:
    return [getattr(workload, name) for name in Workload.column_names()]


def test_inference_has_two_allreduces_a_layer_of_batch_times_hidden() -> None:
    workload = inference(4, layers=3, hidden=1024)
    assert workload.ranks == 8
    assert [cell for _, cell in workload.calls()] == [("allreduce", 0, 4 * 1024 * 2)] * 6
    assert not workload.overlaps.any()
    attention, network = workload.compute_us[:2]
    # Weights of 4 x hidden^2 numbers of 2 bytes on 8 GPUs, read at 0.7 of 1555 GB/s.
    assert attention == pytest.approx(4 * 1024**2 * 2 / 8 / (1555e9 * 0.7) * 1e6)
    assert network == pytest.approx(2 * attention)
    # With many rows the products need longer than reading the weights: 0.5 of 312 TFLOP/s.
    filled = inference(8, tokens=512, layers=1, hidden=1024).compute_us[0]
    assert filled == pytest.approx(2 * 4 * 1024**2 / 8 * 8 * 512 / (312e12 * 0.5) * 1e6)


def test_moe_training_has_four_alltoalls_a_layer_of_experts_and_overlapping_gradients() -> None:
    workload = moe_training(1024, tokens=256, layers=4, top=2, ranks=16, bucket_bytes=1 << 25)
    names = [cell.collective for _, cell in workload.calls()]
    assert names.count("alltoall") == 4 * 2  # every other of 4 layers
    sizes = {cell.collective: cell.size_bytes for cell in workload.cells()}
    assert sizes["alltoall"] == 256 * 2 * 1024 * 2
    # Of two layers: two attentions and a network that is no expert, 16 bits each.
    assert sizes["allreduce"] == (2 * 4 + 8) * 1024**2 * 2
    is_gradient = np.array([cell.collective == "allreduce" for _, cell in workload.calls()])
    rows = [row for row, _ in workload.calls()]
    assert workload.overlaps[rows].tolist() == is_gradient.tolist()
    assert set(workload.waited[np.array(rows)[is_gradient]].tolist()) == {len(workload) - 1}
    # Forward once, backward twice; the experts have two tokens for each.
    forward = 2 * (4 * 4 + 2 * 8 + 2 * 8 * 2) * 1024**2 * 256
    assert workload.compute_us.sum() == pytest.approx(A100.time_us(3 * forward, 0))


def test_dimensions_out_of_range_are_refused() -> None:
    for wrong in ({"batch": 0}, {"batch": 1, "layers": -1}, {"batch": 1.5}):
        with pytest.raises(SleyError, match="D945"):
            inference(**wrong)
    with pytest.raises(SleyError, match="D945"):
        moe_training(tokens=0)
