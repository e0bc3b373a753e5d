"""Successive calls, streams, CUDA graphs, and the arrays of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.engine.devices import Engine, Launching
from support.devices.device_calls import current
from support.devices.gpu_checks import OnDevice, Sums, executor
from support.devices.gpu_needed import needs_gpu
from support.devices.gpu_plans import ring

pytestmark = needs_gpu()

ENGINES = pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
PROTOCOLS = pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.name.lower())
COUNT = 5003
CAPTURED, REPLAYS = 3, 5


@ENGINES
@PROTOCOLS
def test_a_thousand_calls_are_right(protocol: Any, engine: Engine, gpu: Any) -> None:
    on, sums = executor(ring(3, protocol), gpu, engine=engine), Sums(gpu, 3, COUNT)
    stream, arrays = gpu.stream(), sums.arrays
    for _ in range(1000):
        on(arrays, streams=stream)
    gpu.synchronize(stream)
    on.synchronize()
    assert sums.wrong(1000) == 0


@PROTOCOLS
def test_a_thousand_calls_with_a_launch_for_each_rank_are_right(protocol: Any, gpu: Any) -> None:
    on = executor(ring(3, protocol), gpu, launching=Launching.BY_RANK)
    sums, streams = Sums(gpu, 3, COUNT), [gpu.stream() for _ in range(3)]
    arrays = sums.arrays
    for _ in range(1000):
        on(arrays, streams=streams)
    for stream in streams:
        gpu.synchronize(stream)
    on.synchronize()
    assert sums.wrong(1000) == 0


@ENGINES
@PROTOCOLS
def test_a_graph_repeats_calls(protocol: Any, engine: Engine, gpu: Any) -> None:
    from cuda.bindings import driver as cu

    on, sums = executor(ring(3, protocol), gpu, engine=engine), Sums(gpu, 3, COUNT)
    on.reserve(COUNT, "int32")
    stream = gpu.stream()
    raw = cu.CUstream(stream.__cuda_stream__()[1])
    with current(gpu):
        cu.cuStreamBeginCapture(raw, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        for _ in range(CAPTURED):
            on(sums.arrays, streams=stream)
        _, graph = cu.cuStreamEndCapture(raw)
        _, ready = cu.cuGraphInstantiate(graph, 0)
        for _ in range(REPLAYS):
            assert cu.cuGraphLaunch(ready, raw) == (cu.CUresult.CUDA_SUCCESS,)
    gpu.synchronize(stream)
    on.synchronize()
    assert sums.wrong(CAPTURED * REPLAYS) == 0


@ENGINES
def test_a_graph_of_torch_repeats_calls(engine: Engine, gpu: Any) -> None:
    torch = pytest.importorskip("torch")
    on = executor(ring(3), gpu, engine=engine)
    tensors = [torch.arange(COUNT, dtype=torch.int32, device="cuda:0") * (r + 1) for r in range(3)]
    on.reserve(COUNT, "int32")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            on(tensors, streams=torch.cuda.current_stream())
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    on.synchronize()
    expected = torch.arange(COUNT, dtype=torch.int64) * 6 * 3 ** (CAPTURED * REPLAYS - 1)
    expected = (expected + 2**31) % 2**32 - 2**31
    for tensor in tensors:
        assert torch.equal(tensor.cpu().to(torch.int64), expected)


def test_work_on_the_callers_stream_comes_in_order(gpu: Any) -> None:
    """Nothing runs before the gate opens; a call on another stream would sum the old data."""
    from cuda.bindings import driver as cu

    on = executor(ring(3), gpu)
    data = [OnDevice(gpu, np.zeros(COUNT, np.int32), "int32") for _ in range(3)]
    arrays = [one.array for one in data]
    on(arrays)  # so that all is built
    stream, gate = gpu.stream(), gpu.allocate_host(64)
    raw = cu.CUstream(stream.__cuda_stream__()[1])
    with current(gpu):
        flag = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value
        assert not cu.cuStreamWaitValue32(raw, gate.address, 1, flag)[0]
        for rank, one in enumerate(arrays):
            place = one.memory.address
            assert not cu.cuMemsetD32Async(place, rank + 5, COUNT, raw)[0]
    on(arrays, streams=stream)
    gate.array[:4].view(np.uint32)[0] = 1
    gpu.synchronize(stream)
    on.synchronize()
    assert [one.fetch() for one in data] == [0, 0, 0]
    assert all((one.host == 5 + 6 + 7).all() for one in data)


@ENGINES
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_tensors_of_torch_are_taken_on_its_stream(dtype: str, engine: Engine, gpu: Any) -> None:
    torch = pytest.importorskip("torch")
    on = executor(ring(4), gpu, engine=engine)
    kind = getattr(torch, dtype)
    tensors = [(torch.arange(COUNT, device="cuda:0") % 50 + r).to(kind) for r in range(4)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        on(tensors, streams=stream)
        doubled = [tensor * 2 for tensor in tensors]  # on the stream, behind the call
    stream.synchronize()
    on.synchronize()
    expected = (torch.arange(COUNT) % 50 * 4 + 6).to(kind)
    assert all(torch.equal(t.cpu(), expected) for t in tensors)
    assert all(torch.equal(t.cpu(), expected * 2) for t in doubled)


def test_tensors_of_torch_are_taken_without_a_stream(gpu: Any) -> None:
    torch = pytest.importorskip("torch")
    on = executor(ring(4), gpu)
    tensors = [torch.full((COUNT,), r + 1.0, device="cuda:0") for r in range(4)]
    on(tensors)
    assert all(bool((t == 10).all()) for t in tensors)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_arrays_of_cupy_are_taken(dtype: str, gpu: Any) -> None:
    cupy = pytest.importorskip("cupy")
    on = executor(ring(4), gpu)
    arrays = [(cupy.arange(COUNT) % 20 + r).astype(dtype) for r in range(4)]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device(0).synchronize()
    on(arrays, streams=stream)
    stream.synchronize()
    on.synchronize()
    expected = (np.arange(COUNT) % 20 * 4 + 6).astype(dtype)
    assert all((cupy.asnumpy(array) == expected).all() for array in arrays)


def test_other_libraries_take_our_arrays(gpu: Any) -> None:
    torch = pytest.importorskip("torch")
    on = executor(ring(4), gpu)
    made = on.empty("float32", COUNT)
    tensors = {rank: torch.as_tensor(array, device="cuda:0") for rank, array in made.items()}
    for rank, tensor in tensors.items():
        tensor.fill_(rank + 1.0)
    on(made)
    assert all(bool((t == 10).all()) for t in tensors.values())
