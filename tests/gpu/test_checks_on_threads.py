"""The checks of tests/gpu, run on threads: they fail on wrong results, and pass right ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import sley
from sley.engine.devices import Engine, ThreadsDevice
from support.devices import gpu_small_calls
from support.devices.device_calls import threads
from support.devices.gpu_checks import (
    Call,
    OnDevice,
    Sums,
    check_hang,
    check_memory,
    executor,
    wrong,
)
from support.devices.gpu_plans import cases, compiled, counts, ring
from support.devices.gpu_processes import check_calls, check_gone

SLOW = partial(pytest.param, marks=pytest.mark.slow)
ENGINES = pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)


@pytest.fixture(scope="module")
def device() -> ThreadsDevice:
    return threads()


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("ring-allreduce", Engine.GENERATED),
        ("all-pairs-alltoall", Engine.INTERPRETED),
        ("binomial-broadcast", Engine.GENERATED),
    ],
)
def test_the_check_of_the_library_passes_on_threads(
    name: str, engine: Engine, device: ThreadsDevice
) -> None:
    for case in [c for c in cases() if c[0] == name][1:3]:
        plan = compiled(case, sley.Protocol.SIMPLE)
        on = executor(plan, device, engine=engine)
        assert [wrong(on, device, count) for count in counts(plan)] == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_check_of_types_passes_on_threads(dtype: str, device: ThreadsDevice) -> None:
    on = executor(ring(3), device, engine=Engine.INTERPRETED)
    assert wrong(on, device, 2003, dtype=dtype) == 0


def test_wrong_results_are_found(device: ThreadsDevice) -> None:
    call = Call.of(ring(3), device, 1003)
    call.start(executor(ring(3), device))
    assert call.wrong() == 0
    first = call.arrays[1][0]
    first.array[500] += 1
    assert call.wrong() == 1
    outside = np.full(3, 1, np.uint8)
    device.write(first.memory, first.memory.size_bytes - 3, outside)
    assert call.wrong() == 4


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_arrays_lie_where_they_should(shift: int, device: ThreadsDevice) -> None:
    one = OnDevice(device, np.arange(7, dtype=np.int32), "int32", shift)
    assert one.array.ctypes.data == one.memory.address + 512 + 4 * shift
    one.array[:] *= 2
    assert one.fetch() == 0
    assert one.host.tolist() == [0, 2, 4, 6, 8, 10, 12]


@ENGINES
def test_the_check_of_calls_in_a_row_finds_wrong_sums(
    engine: Engine, device: ThreadsDevice
) -> None:
    on, sums = executor(ring(3), device, engine=engine), Sums(device, 3, 1003)
    arrays: list[Any] = sums.arrays
    for _ in range(20):
        on(arrays)
    assert sums.wrong(20) == 0
    assert sums.wrong(19) > 0
    arrays[2][7] += 1
    assert sums.wrong(20) == 1


@ENGINES
def test_the_check_of_hangs_passes_on_threads(engine: Engine, device: ThreadsDevice) -> None:
    check_hang(device, engine)


def test_the_check_of_memory_passes_on_threads(device: ThreadsDevice) -> None:
    check_memory(device, 1 << 30)


@pytest.mark.parametrize("protocol", [SLOW("SIMPLE"), "DIRECT"])
def test_the_check_of_processes_passes_on_threads(protocol: str) -> None:
    check_calls("threads", 2, protocol, "generated")


@pytest.mark.parametrize("how", ["kill", SLOW("stop")])
def test_the_check_of_a_rank_that_is_gone_passes_on_threads(how: str) -> None:
    check_gone("threads", how, timeout_s=1.0)


def test_the_small_calls_pass_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_small_calls.py", "threads"])
    assert gpu_small_calls.main() == 0
