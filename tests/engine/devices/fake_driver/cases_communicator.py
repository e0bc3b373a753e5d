"""A communicator whose ranks are threads with GPUs, over the stand-in: which driver's functions its
calls use, and what waits for them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu

import sley
from fake_driver import FakeDriver, array_on, refused
from fake_driver.cases_executor import CAPTURED, arrays, values
from sley.algorithms import build
from sley.communicator import DeviceCommunicator
from sley.communicator import Settings as CallSettings
from sley.communicator.on_devices import Registration
from sley.communicator.selection.kinds import CALLS
from sley.engine.devices import Engine, Settings
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.tables import structure
from sley.engine.kernels import KERNELS, Platform, Variant
from sley.engine.kernels.prebuilt import CODE
from sley.engine.types import DATA_TYPES
from sley.formats.files import save
from support.devices import communicators
from support.devices.communicators import TIMEOUT_S
from support.devices.device_calls import current, threads
from support.processes.process_ranks import together


def opened(devices: Sequence[CudaDevice], **options: Any) -> list[DeviceCommunicator]:
    kernels = Settings(Engine.INTERPRETED, slot_bytes=4096, timeout_s=TIMEOUT_S)
    return communicators.opened(devices, kernels=kernels, types=["float32"], **options)


def stand_in(
    fake: FakeDriver,
    comm: DeviceCommunicator,
    elements: int,
    kind: str = "all_reduce",
    *,
    in_place: bool = False,
) -> None:
    """Runs the kernels for CPUs of a call's plan where those for GPUs are launched. elements: of
    the largest buffer."""
    assert comm._core is not None
    number = comm._core.calls.plan_of(list(CALLS).index(kind), in_place, 0, 4 * elements)
    variant = Variant(Platform.CPU, DATA_TYPES["float32"].number, sley.ReduceOp.SUM)
    text = comm._core.links.kernels[number].source(Engine.INTERPRETED, variant)
    for name, address in threads().build(text, KERNELS).items():
        fake.kernel(name, structure("Call").itemsize, address)


def on_all(comms: Sequence[DeviceCommunicator], call: Callable[[int], Any]) -> None:
    together([lambda rank=comm.rank: call(rank) for comm in comms])


@pytest.mark.parametrize("gpus", [1, 2])
def test_calls_of_all_sizes_are_right(fake: FakeDriver, gpus: int) -> None:
    """Of ranks that share a GPU, and of ranks with one each; and have threads by their sizes."""
    fake.set(devices=gpus)
    devices = [CudaDevice.open(rank % gpus) for rank in range(2)]
    comms, launched = opened(devices), list[str]()
    for elements in (1, 700, 2000 * gpus, 300_000):
        stand_in(fake, comms[0], elements)
        data = arrays(devices, [np.full(elements, rank + 1.0) for rank in range(2)])
        fake.journal()
        on_all(comms, lambda rank, data=data: comms[rank].all_reduce(data[rank]))
        for device, array in zip(devices, data, strict=True):
            assert set(values(device, array).tolist()) == {3.0}
        runs = (entry for entry in fake.journal() if entry.startswith("launch sley_run"))
        launched += {entry.partition(" block ")[2].split()[0] for entry in runs}
    assert launched == ["128", "128", "256", "512"]
    on_all(comms, lambda rank: comms[rank].close())


def test_a_call_asks_little_of_the_driver(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the plan changes: all that needs the driver is shared. Nor does it ask Python."""
    comms = opened([device] * 2)
    monkeypatch.setattr(CudaDevice, "view", None)
    streams = [device.stream() for _ in comms]
    sizes = (100, 100_000)
    data = [arrays([device] * 2, [np.ones(size)] * 2) for size in sizes]
    for number in (0, 1, 0, 1):
        stand_in(fake, comms[0], sizes[number])
        for comm, stream, array in zip(comms, streams, data[number], strict=True):
            comm.all_reduce(array, stream=stream)
            made = fake.journal()
        device.synchronize(None)
    # First the array's device is looked up, since no library tells it.
    assert [entry for entry in made if not entry.startswith("launch ")] == [
        "cuCtxPushCurrent",
        "cuPointerGetAttributes",
        "cuCtxPopCurrent",
        "cuCtxPushCurrent",
        "cuStreamGetCaptureInfo",
        "cuStreamGetId",
        "cuLaunchKernelEx",
        "cuEventRecordWithFlags",
        "cuCtxPopCurrent",
    ]
    assert set(values(device, data[1][0]).tolist()) == {4.0}
    on_all(comms, lambda rank: comms[rank].close())


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_to_all"])
def test_what_a_call_lacks_is_loaded_when_no_rank_runs(
    fake: FakeDriver, device: CudaDevice, kind: str
) -> None:
    """Each rank comes later than the one before it, whose kernel already waits for it. It lacks a
    kernel, or, in place, scratch and then more scratch."""
    comms = opened([device] * 3)
    streams = [device.stream() for _ in comms]
    sizes = (7500, 15_000)  # which have one plan
    data = [arrays([device] * 3, [np.full(size, 2.0)] * 3) for size in sizes]
    parts = [arrays([device] * 3, [np.zeros(size // 3)] * 3) for size in sizes]
    is_moved = kind == "all_to_all"
    stand_in(fake, comms[0], sizes[0], kind, in_place=is_moved)

    def call(rank: int) -> None:
        threading.Event().wait(0.2 * rank)
        for number, op in ((0, "sum"), (0, "max"), (1, "sum")):
            out, more = (data, ()) if is_moved else (parts, (op,))
            arguments = data[number][rank], out[number][rank], *more
            getattr(comms[rank], kind)(*arguments, stream=streams[rank])
        comms[rank].synchronize()

    on_all(comms, call)
    for array in (*data[0], *data[1]) if is_moved else (*parts[0], *parts[1]):
        assert set(values(device, array).tolist()) == {2.0 if is_moved else 6.0}
    on_all(comms, lambda rank: comms[rank].close())


def test_captured_calls_take_their_turn(fake: FakeDriver, device: CudaDevice) -> None:
    comms = opened([device] * 2)
    streams = [device.stream() for _ in comms]
    data = arrays([device] * 2, [np.ones(64)] * 2)
    stand_in(fake, comms[0], 64)
    graphs = []
    for comm, stream, array in zip(comms, streams, data, strict=True):
        address = cu.CUstream(stream.__cuda_stream__()[1])
        with current(device):
            cu.cuStreamBeginCapture(address, CAPTURED)
            refused("K518", comm.all_reduce, array, op="max", stream=stream)
            comm.all_reduce(array, stream=stream)
            comm.all_reduce(array, stream=stream)
            _, graph = cu.cuStreamEndCapture(address)
            graphs.append((cu.cuGraphInstantiate(graph, 0)[1], address))
    with current(device):
        for graph, address in graphs * 3:
            cu.cuGraphLaunch(graph, address)
    on_all(comms, lambda rank: comms[rank].all_reduce(data[rank]))
    assert values(device, data[0]).tolist() == [2.0**7] * 64
    on_all(comms, lambda rank: comms[rank].close())


def test_arrays_and_streams_of_another_gpu_are_refused(fake: FakeDriver) -> None:
    fake.set(devices=2)
    devices = [CudaDevice.open(rank) for rank in range(2)]
    comms = opened(devices)
    stand_in(fake, comms[0], 64)
    data = arrays(devices, [np.ones(64)] * 2)
    for stream in (None, devices[0].stream()):
        refused("K504", comms[0].all_reduce, data[1], stream=stream)
    refused("K517", comms[0].all_reduce, data[0], stream=devices[1].stream())
    on_all(comms, lambda rank: comms[rank].all_reduce(data[rank]))
    assert values(devices[1], data[1]).tolist() == [2.0] * 64
    on_all(comms, lambda rank: comms[rank].close())


@pytest.mark.parametrize(
    ("gpus", "pooled", "readers"), [(1, 0, (1,)), (2, 0, (1,)), (1, 1, (1,)), (2, 1, ())]
)
def test_threads_read_registered_memory_at_its_address(
    fake: FakeDriver, gpus: int, pooled: int, readers: tuple[int, ...]
) -> None:
    """No process opens its own handles. Between GPUs, nobody reads memory of a pool. The second
    array is in an allocation that is registered already."""
    fake.set(devices=gpus, pooled=pooled, native_atomics=0)
    devices = [CudaDevice.open(rank % gpus) for rank in range(2)]
    comms = opened(devices)
    size = 200_000
    stand_in(fake, comms[0], size)
    whole = arrays(devices, [np.zeros(size + 9)] * 2)
    data = [
        array_on(array.memory, (size,), data=(array.memory.address + 12, False)) for array in whole
    ]
    fake.journal()
    found: list[list[Registration]] = [[], []]
    for given in (data, whole):
        on_all(
            comms, lambda rank, given=given: found[rank].append(comms[rank].register(given[rank]))
        )
    assert "cuIpcOpenMemHandle" not in fake.journal()
    assert [each.readers for each in found[0]] == [readers] * 2
    for ended in range(3):
        for device, array in zip(devices, whole, strict=True):
            device.write(array.memory, 0, np.ones(size + 9, np.float32).view(np.uint8))
        on_all(comms, lambda rank: comms[rank].all_reduce(data[rank]))
        for device, array in zip(devices, whole, strict=True):
            sums = values(device, array)
            assert set(sums[3:-6].tolist()) == {2.0}
            assert {*sums[:3], *sums[-6:]} == {1.0}
        if ended < 2:
            on_all(comms, lambda rank, k=ended: comms[rank].deregister(found[rank][k]))
    on_all(comms, lambda rank: comms[rank].close())


def test_memory_is_not_registered_in_a_capture(fake: FakeDriver, device: CudaDevice) -> None:
    comms, stream = opened([device] * 2), device.stream()
    data = arrays([device] * 2, [np.ones(64)] * 2)
    stand_in(fake, comms[0], 64)
    address = cu.CUstream(stream.__cuda_stream__()[1])
    with current(device):
        cu.cuStreamBeginCapture(address, CAPTURED)
        for comm, array in zip(comms, data, strict=True):
            comm.all_reduce(array, stream=stream)
    on_all(comms, lambda rank: refused("K518", comms[rank].register, data[rank]))
    with current(device):
        cu.cuStreamEndCapture(address)
    on_all(comms, lambda rank: comms[rank].register(data[rank]))
    on_all(comms, lambda rank: comms[rank].close())


def test_graphs_and_calls_of_two_communicators_take_their_turns(
    fake: FakeDriver, device: CudaDevice
) -> None:
    """Each has two pairs of arrays, and puts the sum of one into the other: where two calls change
    places, the results are others. Calls and graphs are on any of a rank's streams."""
    pairs = [opened([device] * 2) for _ in range(2)]
    stand_in(fake, pairs[0][0], 64)
    streams = [[device.stream() for _ in range(2)] for _ in range(2)]
    data = [[arrays([device] * 2, [np.full(64, 1.0 + r)] * 2) for r in range(2)] for _ in pairs]
    wanted = [[[1.0, 2.0], [1.0, 2.0]] for _ in pairs]
    random = Random(3)

    def make(steps: Sequence[tuple[int, int]], rank: int, stream: Any) -> None:
        for number, way in steps:
            own = data[number][rank]
            pairs[number][rank].all_reduce(own[way], own[1 - way], stream=stream)

    def captured(steps: Sequence[tuple[int, int]], rank: int) -> Any:
        address = cu.CUstream(streams[rank][0].__cuda_stream__()[1])
        cu.cuStreamBeginCapture(address, CAPTURED)
        make(steps, rank, streams[rank][0])
        return cu.cuGraphInstantiate(cu.cuStreamEndCapture(address)[1], 0)[1]

    drawn = [
        [(random.randrange(2), random.randrange(2)) for _ in range(random.randint(1, 3))]
        for _ in range(6)
    ]
    with current(device):
        graphs = [[captured(steps, rank) for rank in range(2)] for steps in drawn[:3]]
        for _ in range(30):
            number = random.randrange(len(drawn))
            for rank in range(2):
                stream = random.choice(streams[rank])
                if number < len(graphs):
                    address = cu.CUstream(stream.__cuda_stream__()[1])
                    cu.cuGraphLaunch(graphs[number][rank], address)
                else:
                    make(drawn[number], rank, stream)
            for k, way in drawn[number]:
                wanted[k][1 - way] = [sum(wanted[k][way])] * 2
    for comms in pairs:
        on_all(comms, lambda rank, comms=comms: comms[rank].synchronize())
    for number, comms in enumerate(pairs):
        for rank in range(2):
            found = [set(values(device, array).tolist()) for array in data[number][rank]]
            assert found == [{of[rank]} for of in wanted[number]]
        on_all(comms, lambda rank, comms=comms: comms[rank].close())


def test_a_package_for_other_gpus_is_refused_if_it_must_be_right(
    fake: FakeDriver, tmp_path: Path
) -> None:
    """On all ranks; else it is told, and the interpreter runs."""
    fake.set(devices=2)
    devices = [CudaDevice.open(rank) for rank in range(2)]
    save(sley.compile(build("ring-allreduce", ranks=2, in_place=True)), tmp_path / "own.plan")
    (tmp_path / CODE / "sm_80").mkdir(parents=True)
    comms = opened(devices, settings=CallSettings(plan_dir=tmp_path))
    assert comms[0].plans.find("all_reduce", 64, in_place=True).origin == "registered"
    on_all(comms, lambda rank: comms[rank].close())
    settings = CallSettings(plan_dir=tmp_path, plan_dir_strict=True)
    refused("K502", opened, devices, settings=settings)


def test_ranks_whose_blocks_do_not_fit_together_are_refused(fake: FakeDriver) -> None:
    fake.set(multiprocessors=2, blocks_each=1)

    def make() -> None:
        opened([CudaDevice(0)] * 3)

    assert "3 blocks of 3 ranks" in str(refused("K506", make))


def test_more_ranks_than_queues_are_refused(fake: FakeDriver, device: CudaDevice) -> None:
    assert "at most 8 ranks" in str(refused("K506", opened, [device] * 9))


def test_closing_gives_all_memory_back(fake: FakeDriver, device: CudaDevice) -> None:
    gc.collect()
    device.synchronize(None)
    before = fake.used(0)
    comms = opened([device] * 2)
    assert fake.used(0) > before
    on_all(comms, lambda rank: comms[rank].close())
    assert fake.used(0) == before
