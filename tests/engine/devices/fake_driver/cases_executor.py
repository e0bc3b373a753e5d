"""Executors on CudaDevices over the stand-in, which runs the same plan's kernels for CPUs.

This tests everything except the GPU: the driver's interface loads kernels and launches them, and
the arguments of the launch go to a kernel that uses them. One text goes through NVRTC as it is;
in all other tests empty kernels take its place (conftest.py), as test_cubins.py compiles them all.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu

import sley
from fake_driver import FakeDriver, array_on, refused
from sley.engine.devices import Engine, Executor, Launching, LinkSet, Settings
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.cuda.arrays import CudaArray
from sley.engine.devices.tables import structure
from sley.engine.kernels import KERNELS, Kernels, Platform, Variant
from sley.engine.types import DATA_TYPES
from support.devices.device_calls import current, threads
from support.processes.process_ranks import Meeting, together

RANKS = 4
CAPTURED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL


def stand_in(
    fake: FakeDriver,
    plan: sley.Plan,
    engine: Engine,
    op: sley.ReduceOp = sley.ReduceOp.SUM,
    *,
    switches: bool = False,
) -> None:
    """Run the plan's kernels for CPUs where its kernels for GPUs are launched."""
    variant = Variant(Platform.CPU, DATA_TYPES["float32"].number, op)
    text = Kernels.of(plan, switches=switches).source(engine, variant)
    for name, address in threads().build(text, KERNELS).items():
        fake.kernel(name, structure("Call").itemsize, address)


def arrays(devices: list[CudaDevice], values: list[Any]) -> list[CudaArray]:
    """float32 arrays on devices."""
    found = []
    for device, value in zip(devices, values, strict=True):
        data = np.asarray(value, np.float32)
        memory = device.allocate(data.nbytes)
        device.write(memory, 0, data.view(np.uint8))
        found.append(CudaArray(memory, "float32", len(data)))
    return found


def values(device: CudaDevice, array: CudaArray) -> Any:
    data = np.empty(array.__cuda_array_interface__["shape"], np.float32)
    device.read(array.memory, 0, data.view(np.uint8))
    return data


def ring(ranks: int = RANKS, **options: Any) -> sley.Plan:
    return sley.compile(sley.algorithms.ring_allreduce(ranks, in_place=True), **options)


@pytest.mark.parametrize(
    ("protocol", "engine"),
    [
        (protocol, Engine.INTERPRETED if protocol is sley.Protocol.LL else Engine.GENERATED)
        for protocol in sley.Protocol
    ],
)
def test_a_plan_runs_on_one_device(
    fake: FakeDriver, device: CudaDevice, protocol: sley.Protocol, engine: Engine
) -> None:
    plan = ring(protocol=protocol)
    stand_in(fake, plan, engine)
    executor = Executor(plan, [device] * RANKS, Settings(engine=engine, slot_bytes=1024))
    data = arrays([device] * RANKS, [np.arange(1003) + rank for rank in range(RANKS)])
    for _ in range(3):
        executor(data)
    expected = 16 * (4 * np.arange(1003) + 6)
    for array in data:
        np.testing.assert_array_equal(values(device, array), expected)


@pytest.mark.usefixtures("whole_texts")
def test_ranks_on_several_devices_and_streams_are_right(fake: FakeDriver) -> None:
    fake.set(devices=2)
    devices = [CudaDevice.open(rank % 2) for rank in range(RANKS)]
    plan = ring()
    stand_in(fake, plan, Engine.GENERATED, sley.ReduceOp.AVG)
    for launching, launches in ((Launching.TOGETHER, 2), (Launching.BY_RANK, RANKS)):
        executor = Executor(plan, devices, Settings(launching=launching))
        data = arrays(devices, [np.full(100, rank) for rank in range(RANKS)])
        streams = [devices[k % 2].stream() for k in range(launches)]
        if launching is Launching.BY_RANK:
            streams = [devices[rank].stream() for rank in (0, 2, 1, 3)]
        executor(data, reduce_op=sley.ReduceOp.AVG, streams=streams)
        for device in set(devices):
            device.synchronize(None)
        executor.synchronize()
        for device, array in zip(devices, data, strict=True):
            np.testing.assert_array_equal(values(device, array), 1.5)


def test_a_call_asks_little_of_the_driver(fake: FakeDriver, device: CudaDevice) -> None:
    """Also where the plan changes: all that needs the driver is the links'."""
    plans = [ring(), ring(instances=2)]
    stand_in(fake, plans[0], Engine.INTERPRETED)
    links = LinkSet(plans, [device] * RANKS, Settings(Engine.INTERPRETED))
    executors = [Executor(plan, links) for plan in plans]
    data = arrays([device] * RANKS, [np.ones(64)] * RANKS)
    stream = device.stream()
    calls = [executor.prepare(data) for executor in executors]
    for call in calls:
        call(stream)
    device.synchronize(stream)
    fake.journal()
    for call in calls:
        call(stream)
        assert [entry for entry in fake.journal() if not entry.startswith("launch ")] == [
            "cuCtxPushCurrent",
            "cuStreamGetCaptureInfo",
            "cuStreamGetId",
            "cuLaunchKernelEx",
            "cuEventRecordWithFlags",
            "cuCtxPopCurrent",
        ]
    device.synchronize(stream)
    assert {float(value) for array in data for value in values(device, array)} == {RANKS**4}


def test_a_call_that_was_given_up_is_not_launched(fake: FakeDriver, device: CudaDevice) -> None:
    plan = ring()
    executor = Executor(plan, [device] * RANKS)
    call = executor.prepare(arrays([device] * RANKS, [np.ones(64)] * RANKS))
    stream = device.stream()
    call(stream)
    assert "cuLaunchKernelEx" in fake.journal()
    executor.links.abort.array[0] = 1
    call(stream)
    assert "cuLaunchKernelEx" not in fake.journal()


def test_too_many_blocks_are_refused_before_the_launch(
    fake: FakeDriver, device: CudaDevice
) -> None:
    plan = ring()
    fake.set(multiprocessors=1, blocks_each=1)
    error = refused(
        "K506", Executor(plan, [device] * RANKS), arrays([device] * RANKS, [[0.0] * 8] * RANKS)
    )
    assert "4 blocks" in str(error)


def test_a_stuck_call_names_its_instructions(fake: FakeDriver, device: CudaDevice) -> None:
    plan = ring()
    stand_in(fake, plan, Engine.GENERATED)
    executor = Executor(
        plan, [device] * RANKS, Settings(timeout_s=0.3, launching=Launching.BY_RANK)
    )
    data = arrays([device] * RANKS, [np.zeros(64)] * RANKS)
    stream = device.stream()  # one after the other: the first waits for ranks that never start
    executor(data, streams=[stream] * RANKS)
    device.synchronize(stream)
    error = refused("K508", executor.synchronize)
    assert "rings.py" in str(error)
    assert "waits for a message from rank 3 on channel 0" in str(error)
    refused("R508", executor, data)


def test_calls_on_two_streams_run_one_after_the_other(fake: FakeDriver, device: CudaDevice) -> None:
    plan = ring()
    stand_in(fake, plan, Engine.GENERATED)
    on = Executor(plan, [device] * RANKS, Settings(slot_bytes=1024))
    calls = [arrays([device] * RANKS, [np.full(900, k + 1)] * RANKS) for k in range(2)]
    streams = [device.stream() for _ in range(2)]
    on(calls[0])
    fake.journal()
    for k in range(40):
        on(calls[k % 2], streams=streams[k % 2])
    made = fake.journal()
    assert made.count("cuLaunchKernelEx") == made.count("cuEventRecordWithFlags") == 40
    assert made.count("cuStreamWaitEvent") == 39, "behind the first call there is no other"
    on(calls[0])
    on.synchronize()
    assert values(device, calls[0][0]).tolist() == [4.0**22] * 900
    assert values(device, calls[1][0]).tolist() == [2 * 4.0**20] * 900


@pytest.mark.parametrize(("protocol", "ranks", "rounds"), [("simple", 4, 12), ("direct", 16, 6)])
def test_graphs_and_calls_on_several_streams_run_one_after_the_other(
    fake: FakeDriver, device: CudaDevice, protocol: str, ranks: int, rounds: int
) -> None:
    """All sum the same arrays, in place, but for calls on others between them. The memories of 16
    ranks don't fit into a launch's argument."""
    fake.set(blocks_each=4)
    plan = ring(ranks, protocol=protocol)
    stand_in(fake, plan, Engine.GENERATED)
    on = Executor(plan, [device] * ranks, Settings(slot_bytes=1024, timeout_s=60))
    data, others = (arrays([device] * ranks, [np.full(900, 1)] * ranks) for _ in range(2))
    call, streams, graphs = on.prepare(data), [device.stream() for _ in range(3)], []
    other = on.prepare(others)
    addresses = [cu.CUstream(stream.__cuda_stream__()[1]) for stream in streams]
    for k in range(2):
        with current(device):
            cu.cuStreamBeginCapture(addresses[k], CAPTURED)
            fake.journal()
            for _ in range(2):
                call(streams[k])
            made = fake.journal()
            _, graph = cu.cuStreamEndCapture(addresses[k])
            graphs.append(cu.cuGraphInstantiate(graph, 0)[1])
        # Of the calls, an event for what is outside the graph, and one for what is inside.
        assert made.count("cuStreamWaitEvent") == 2
        assert made.count("cuEventRecordWithFlags") == 4
    for _ in range(rounds):
        for k in range(2):
            with current(device):
                cu.cuGraphLaunch(graphs[k], addresses[k])
            other(streams[2])
        call(streams[2])
    for stream in streams:
        device.synchronize(stream)
    on.synchronize()
    assert np.array_equal(values(device, data[0]), np.full(900, float(ranks) ** (5 * rounds), "f4"))
    assert np.array_equal(
        values(device, others[-1]), np.full(900, float(ranks) ** (2 * rounds), "f4")
    )


def test_a_stream_of_another_device_is_refused_before_anything_starts(fake: FakeDriver) -> None:
    fake.set(devices=2)
    devices = [CudaDevice.open(rank % 2) for rank in range(RANKS)]
    on = Executor(ring(), devices)
    data = arrays(devices, [np.zeros(8)] * RANKS)
    on.prepare(data)
    fake.journal()
    for streams in ([devices[0].stream()] * 2, [devices[0].stream(), "x"]):
        refused("K517", on, data, streams=streams)
        assert "cuLaunchKernelEx" not in fake.journal()


def test_closing_gives_all_memory_back(fake: FakeDriver, device: CudaDevice) -> None:
    gc.collect()
    plan, before = ring(), fake.used(0)
    stand_in(fake, plan, Engine.GENERATED)
    data = arrays([device] * RANKS, [np.zeros(64)] * RANKS)
    arrays_bytes = fake.used(0) - before
    on = Executor(plan, [device] * RANKS)
    call = on.prepare(data)
    call()
    on.close()
    assert fake.used(0) - before == arrays_bytes
    refused("R508", call)


def test_arrays_that_no_kernel_reads_are_refused(device: CudaDevice) -> None:
    on = Executor(ring(), [device] * RANKS)
    data = arrays([device] * RANKS, [np.zeros(8)] * RANKS)
    memory = device.allocate(64)
    odd = array_on(memory, (8,), data=(memory.address + 2, False))
    refused("K519", on, [*data[:3], odd])
    refused("R504", on, [*data[:3], array_on(memory, (8,), typestr=">f4")])


def test_processes_whose_devices_are_apart_are_refused_in_all(fake: FakeDriver) -> None:
    fake.set(devices=2, peer_access=0)
    devices, meeting = [CudaDevice(0), CudaDevice(1)], Meeting(2)
    plan = sley.compile(sley.algorithms.ring_allreduce(2, in_place=True))

    def make(rank: int) -> None:
        refused("K509", Executor, plan, {rank: devices[rank]}, exchange=meeting.exchange(rank))

    together([lambda: make(0), lambda: make(1)])


def test_lines_between_devices_without_native_atomics_are_refused(fake: FakeDriver) -> None:
    fake.set(devices=2, native_atomics=0)
    two = [CudaDevice.open(rank % 2) for rank in range(RANKS)]
    error = str(refused("K523", Executor, ring(protocol="ll128"), two))
    assert "(device 0) to Stand-in (device 1)" in error
    Executor(ring(protocol="ll"), two)
    Executor(ring(protocol="ll128"), two[:1] * RANKS)
    fake.set(native_atomics=1)
    Executor(ring(protocol="ll128"), two)


def test_memory_that_the_other_device_cannot_read_is_copied_to_it(fake: FakeDriver) -> None:
    fake.set(devices=2)
    two, plan = [CudaDevice.open(rank % 2) for rank in range(RANKS)], ring(protocol="direct")
    stand_in(fake, plan, Engine.INTERPRETED)
    on = Executor(plan, two, Settings(Engine.INTERPRETED))
    data = arrays(two, [[1.0] * 8] * RANKS)
    fake.set(pooled=1)
    data[3:] = arrays(two[3:], [[2.0] * 8])
    lent = [on.links.memory.index.number(r, a.memory.address, 32) for r, a in enumerate(data)]
    assert lent == [1, 1, 1, 0]
    on(data)
    assert [values(d, a).tolist() for d, a in zip(two, data, strict=True)] == [[5.0] * 8] * RANKS
    fake.set(pool_access=1)
    assert on.links.memory.index.number(3, data[3].memory.address, 32) == 1


def test_more_launches_than_queues_are_refused(device: CudaDevice) -> None:
    def made(ranks: int, launching: Launching = Launching.BY_RANK) -> Executor:
        plan = sley.compile(sley.algorithms.ring_allreduce(ranks, in_place=True))
        return Executor(plan, [device] * ranks, Settings(launching=launching))

    made(8)
    assert "at most 8 ranks" in str(refused("K506", made, 9))
    made(9, Launching.TOGETHER)
