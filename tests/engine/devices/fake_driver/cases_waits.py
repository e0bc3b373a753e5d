"""Calls of the driver that may wait for all kernels, over the stand-in, where each of them waits:
none is made while a kernel can wait for the thread that makes it. A call that hangs fails the test,
by its name."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu

import sley
from fake_driver import FakeDriver, refused
from fake_driver.cases_executor import CAPTURED, RANKS, arrays, ring, stand_in, values
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Launching, Settings
from sley.engine.devices.cuda import CudaDevice
from support.devices.device_calls import current
from support.processes.process_ranks import Meeting, together

APART = range(3)
LATE_S = 0.3
"""By then another rank has come as far as it can."""


def scattering() -> sley.Plan:
    """A plan with scratch."""
    return sley.compile(build("ring-reducescatter", ranks=len(APART), in_place=False), fusion=False)


def apart(fake: FakeDriver, device: CudaDevice, plan: sley.Plan) -> list[Executor]:
    """An executor for each rank, as if the ranks were in processes."""
    stand_in(fake, plan, Engine.INTERPRETED)
    meeting, made = Meeting(len(APART)), dict[int, Executor]()

    def make(rank: int) -> None:
        settings = Settings(Engine.INTERPRETED, slot_bytes=1024)
        exchange = meeting.exchange(rank)
        made[rank] = Executor(plan, {rank: device}, settings, exchange=exchange)

    together([lambda rank=rank: make(rank) for rank in APART])
    return [made[rank] for rank in APART]


def in_turn(call: Callable[[int], None]) -> None:
    """Calls a function for each rank, in threads; each rank comes later than the one before."""

    def later(rank: int) -> None:
        threading.Event().wait(LATE_S * rank)
        call(rank)

    together([lambda rank=rank: later(rank) for rank in APART])


@pytest.mark.parametrize("lacking", ["kernels", "scratch"])
def test_a_rank_waits_for_its_calls_before_it_makes_what_it_lacks(
    fake: FakeDriver, device: CudaDevice, lacking: str
) -> None:
    """Else the launches for which these calls wait would wait for it."""
    ons, stream = apart(fake, device, scattering()), [device.stream() for _ in APART]
    inputs, outputs = (arrays([device] * 3, [np.full(n, 2.0)] * 3) for n in (300, 100))
    larger = [arrays([device], [np.zeros(n)]) for n in (30_000, 10_000)]
    together([lambda on=on: on.reserve(100, "float32") for on in ons])

    def call(rank: int) -> None:
        ons[rank]({rank: inputs[rank]}, {rank: outputs[rank]}, streams=stream[rank])
        if rank == 0 and lacking == "kernels":
            ons[0].prepare({0: inputs[0]}, {0: outputs[0]}, reduce_op=sley.ReduceOp.MAX)
        elif rank == 0:
            ons[0].prepare({0: larger[0][0]}, {0: larger[1][0]})

    in_turn(call)
    device.synchronize(None)
    assert values(device, outputs[0]).tolist() == [6.0] * 100
    together([on.close for on in ons])


@pytest.mark.parametrize("need", ["empty", "reserve"])
def test_memory_is_allocated_when_no_rank_runs(
    fake: FakeDriver, device: CudaDevice, need: str
) -> None:
    ons, stream = apart(fake, device, scattering()), [device.stream() for _ in APART]
    inputs = arrays([device] * 3, [np.full(300, 2.0)] * 3)
    outputs = arrays([device] * 3, [np.zeros(100)] * 3)
    together([lambda on=on: on.reserve(100, "float32") for on in ons])

    def call(rank: int) -> None:
        ons[rank]({rank: inputs[rank]}, {rank: outputs[rank]}, streams=stream[rank])
        getattr(ons[rank], need)(*(("float32", 100) if need == "empty" else (100_000, "float32")))

    in_turn(call)
    assert values(device, outputs[1]).tolist() == [6.0] * 100
    together([on.close for on in ons])


@contextmanager
def half_running(fake: FakeDriver, device: CudaDevice) -> Iterator[None]:
    """While a call of four ranks runs, of which the last three wait for this thread."""
    plan, gate = ring(), device.allocate_host(8)
    stand_in(fake, plan, Engine.GENERATED)
    on = Executor(plan, [device] * RANKS, Settings(launching=Launching.BY_RANK))
    data = arrays([device] * RANKS, [np.ones(64)] * RANKS)
    streams = [device.stream() for _ in data]
    call = on.prepare(data)
    with current(device):
        for stream in streams[1:]:
            cu.cuStreamWaitValue32(cu.CUstream(stream.__cuda_stream__()[1]), gate.address, 1, 0)
    call(streams)
    try:
        yield
    finally:
        gate.array[0] = 1
    on.synchronize()
    on.close()
    assert values(device, data[0]).tolist() == [4.0] * 64


def closed(on: list[Executor]) -> None:
    on[0].close()


@pytest.mark.parametrize("end", [closed, list.clear], ids=["closed", "dropped"])
def test_memory_is_freed_when_no_other_call_runs(
    fake: FakeDriver, device: CudaDevice, end: Callable[[list[Any]], None]
) -> None:
    gc.collect()
    before = fake.used(0)
    ended = [Executor(ring(), [device] * RANKS)]
    ended[0](arrays([device] * RANKS, [np.zeros(8)] * RANKS))
    held = [device.allocate(64)]
    with half_running(fake, device):
        fake.journal()
        end(ended)
        held.clear()
        gc.collect()
        assert "cuMemFree" not in fake.journal()
    del ended
    device.synchronize(None)
    gc.collect()
    assert fake.used(0) == before


def test_a_call_is_prepared_while_another_thread_launches(
    fake: FakeDriver, device: CudaDevice
) -> None:
    """It waits for that thread, which may be in Python."""
    on = Executor(ring(), [device] * RANKS)
    call = on.prepare(data := arrays([device] * RANKS, [np.zeros(8)] * RANKS))
    other, waited = threading.Thread(target=on.prepare, args=(data,)), list[bool]()

    def launched() -> None:
        other.start()
        other.join(LATE_S)
        waited.append(other.is_alive())

    fake.at_launch(launched)
    call()
    other.join()
    assert waited == [True]


def test_nothing_is_made_between_two_launches(fake: FakeDriver, device: CudaDevice) -> None:
    plan = ring()
    stand_in(fake, plan, Engine.GENERATED)
    on = Executor(plan, [device] * RANKS, Settings(launching=Launching.BY_RANK))
    call = on.prepare(arrays([device] * RANKS, [np.ones(64)] * RANKS))
    launches = list[int]()
    others = [
        threading.Thread(target=make)
        for make in (
            lambda: device.allocate(64),
            lambda: device.native.allocate_shared(64),
            lambda: device.allocate_host(64),
            lambda: device.build(f"// {id(call)}", []),
        )
    ]

    def launched() -> None:
        for other in others:
            if launches and other.ident is None:
                other.start()
        launches.append(1)
        threading.Event().wait(LATE_S / RANKS)

    fake.at_launch(launched)
    call()
    for other in others:
        other.join()


def test_a_captured_call_has_what_it_needs_or_is_refused(
    fake: FakeDriver, device: CudaDevice
) -> None:
    on, stream = Executor(scattering(), [device] * 3), device.stream()
    small, large = (
        (arrays([device] * 3, [np.zeros(3 * n)] * 3), arrays([device] * 3, [np.zeros(n)] * 3))
        for n in (100, 10_000)
    )
    address = cu.CUstream(stream.__cuda_stream__()[1])

    def captured(data: Any) -> list[str]:
        with current(device):
            cu.cuStreamBeginCapture(address, CAPTURED)
            try:
                fake.journal()
                on(*data, streams=stream)
                return fake.journal()
            finally:
                cu.cuStreamEndCapture(address)

    assert "Make the call once before" in str(refused("K518", captured, small))
    on.reserve(100, "float32")
    assert "cuLaunchKernelEx" in captured(small)
    refused("K518", captured, large)
    on(*large)
    assert not {"cuMemAlloc", "cuModuleGetFunction"} & set(captured(large))
