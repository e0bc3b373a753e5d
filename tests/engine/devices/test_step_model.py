"""The estimate of a step's time: of what the machine code does, and as the page shows it."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Settings

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "benchmarks"))
program, one_gpu = import_module("step_model"), import_module("one_gpu")
sys.path.pop()

COPIES, STEPS, SWITCHED = program.COPIES, program.STEPS, program.SWITCHED
Latencies, data_bytes = program.Latencies, program.data_bytes
estimated_model = program.estimated_model

MACHINE_CODE = ROOT / "tests" / "engine" / "devices" / "golden" / "machine-code.txt"


def counted(kernels: str, name: str = "recv_reduce_copy_send") -> list[int]:
    """Fences, acquires, barriers and bytes in flight of a step in the table of machine code."""
    start = [kernels, "float32", "generated", name]
    lines = [line.split() for line in MACHINE_CODE.read_text().splitlines()]
    (row,) = [line for line in lines if line[:4] == start]
    return [int(number) for number in row[4:8]]


@pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.value)
def test_the_model_has_the_fences_of_the_machine_code(protocol: sley.Protocol) -> None:
    fences, _, barriers, in_flight = counted(protocol.value)
    step = STEPS[protocol]
    assert step.fences == fences
    assert step.barriers <= barriers
    assert step.batch_bytes * step.operands <= in_flight
    *_, in_flight = counted(protocol.value, "recv")
    assert step.batch_bytes <= COPIES[protocol].batch_bytes <= in_flight


def test_the_model_has_the_fences_of_a_step_through_the_switch() -> None:
    fences, _, barriers, in_flight = counted("Switch")
    assert SWITCHED.fences + SWITCHED.idle_fences == fences
    assert SWITCHED.barriers <= barriers
    assert SWITCHED.batch_bytes <= in_flight
    latencies = Latencies(fence_us=1, idle_fence_us=0.5, cache_us=0, barrier_us=0, hop_us=0)
    assert SWITCHED.fixed_us(latencies) == 2


def test_the_page_shows_the_tables_that_the_program_prints() -> None:
    page = (ROOT / "docs" / "kernels.md").read_text()
    assert program.table() in page
    assert program.slices_table() in page
    assert program.switch_table() in page


def test_the_page_shows_the_errors_of_the_model_of_one_gpu() -> None:
    table = one_gpu.errors_table(one_gpu.measured(), one_gpu.ONE_H100)
    assert table in (ROOT / "docs" / "kernels.md").read_text()


def test_the_numbers_of_one_gpu_are_fitted_in_a_row_and_given_back() -> None:
    """A fit to what the model itself predicts finds its numbers again."""
    gpu = replace(one_gpu.ONE_H100, memory_GBps=3000.0)
    setting = one_gpu.Setting("", "ring", sley.Protocol.LL, 2, 1, 128)
    exact = {setting: dict(zip((1024, 4096), setting.times_us((1024, 4096), gpu), strict=True))}
    assert one_gpu._from_flat(one_gpu._flat(gpu)) == gpu
    (ratio,) = one_gpu.ratios(exact, gpu).values()
    assert (ratio == 1).all()


def test_a_step_takes_its_hop_and_a_turn_for_each_batch() -> None:
    latencies = Latencies(memory_us=0.5, cache_us=0.25, fence_us=1, barrier_us=0.125, hop_us=0.5)
    step = replace(STEPS[sley.Protocol.SIMPLE], batch_bytes=64, threads=480)
    assert step.fixed_us(latencies) == 1 + 0.25 + 2 * 0.125 + 0.5
    turn = max(0.5, 480 * 64 * 2 / latencies.load_GBps / 1e3)
    assert step.time_us(480 * 64 + 1, latencies) == pytest.approx(2 + 2 * turn)
    assert step.rate_GBps(latencies) == pytest.approx(480 * 64 / turn / 1e3)
    # Of few slices the way of one counts, of many the block's own work.
    assert step.time_us(2 * 480 * 64, latencies, slices=2) == pytest.approx(2 + turn)
    assert step.time_us(40 * 480 * 64, latencies, slices=2) == pytest.approx(40 * turn + 4 * 0.125)


@pytest.mark.parametrize(("protocol", "slot_kib"), [("Simple", 512), ("LL", 64), ("LL128", 127.75)])
def test_the_simulator_takes_the_rates_of_the_model(protocol: str, slot_kib: float) -> None:
    topology = sley.topologies.dgx_h100()
    ring = build("ring-allreduce", ranks=8, in_place=True)
    plan = sley.compile(ring, protocol=protocol, topology=topology)
    model = estimated_model(plan, topology.model)
    step = STEPS[plan.protocol]
    assert model.nvlink_block_GBps == step.rate_GBps(Latencies())
    assert model.nvlink_latency_us[plan.protocol] == step.fixed_us(Latencies())
    slices = 2 if protocol == "Simple" else 1
    assert model.slices[plan.protocol] == slices
    assert model.tile_bytes[plan.protocol] == slices * data_bytes(
        int(1024 * slot_kib), plan.protocol
    )
    small = sley.simulate(plan, "1K", topology, model=model)
    hops = 2 * 7
    least = small.launch_us + hops * step.fixed_us(Latencies())
    assert least <= small.time_us <= 1.3 * least
    large = sley.simulate(plan, "256M", topology, model=model)
    wire = model.wire_efficiency[plan.protocol]
    assert 0.5 < large.busbw_GBps / (model.nvlink_block_GBps * wire) <= 1


def test_the_rate_is_that_of_the_threads_and_of_what_they_do() -> None:
    topology = sley.topologies.dgx_h100()

    def rate(name: str, threads: int) -> float:
        plan = sley.compile(build(name, ranks=8, in_place=True), topology=topology)
        settings = Settings(threads=threads)
        return estimated_model(plan, topology.model, settings=settings).nvlink_block_GBps

    default, small, large = (rate("ring-allreduce", threads) for threads in (512, 64, 1024))
    assert small == pytest.approx(default * 32 / 480)
    assert large == pytest.approx(default * 992 / 2 / 480)
    assert rate("ring-allgather", 512) > 1.5 * default
