"""CudaDevice over the stand-in: opening, programs, memory, and other devices and processes.

These run in a separate process; tests/engine/devices/test_cuda.py starts it and reports each case.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fake_driver import TEXT, UNKNOWN, FakeDriver, refused
from sley.cli import main
from sley.engine.devices.cuda import CudaDevice, compiler, driver
from sley.engine.devices.device import Memory
from sley.engine.devices.device_ranks import DeviceRanks
from support.processes.process_ranks import Meeting, together

# Opening


def test_devices_have_a_name_an_identity_and_an_architecture(device: CudaDevice) -> None:
    assert device.name == "Stand-in (device 0)"
    assert device.platform == "cuda"
    assert device.arch == "sm_90"
    assert str(device.uuid) == "11111111-1111-1111-1111-111111111111"
    assert CudaDevice.open(0) is device
    assert CudaDevice.count() == 2
    assert CudaDevice(0) == device
    assert len({CudaDevice(0), device}) == 1
    assert CudaDevice.open(1) != device


@pytest.mark.parametrize("ordinal", [-1, 2])
def test_a_device_that_is_not_there_is_refused(fake: FakeDriver, ordinal: int) -> None:
    error = refused("K510", CudaDevice.open, ordinal)
    assert "from 0 to 1" in str(error)


@pytest.mark.parametrize(
    ("error", "found"),
    [(0, "between all GPUs"), (217, "not from 0 to 1, 1 to 0")],  # PEER_ACCESS_UNSUPPORTED
)
def test_the_doctor_describes_the_gpus(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, found: str
) -> None:
    monkeypatch.setattr(CudaDevice, "open", CudaDevice)
    fake.fail("cuCtxEnablePeerAccess", error)
    command = ["doctor", str(tmp_path), "--target", "sley", "--ranks", "2"]
    lines = " ".join(CliRunner().invoke(main, command).output.split())
    for words in (
        "driver for CUDA ",
        "cuda:1 Stand-in (device 1), compute capability 9.0, no prebuilt kernels",
        f"peer access {found}",
        "N653",
    ):
        assert words in lines, lines


@pytest.mark.parametrize(("number", "code"), [(100, "K510"), (3, "K501"), (803, "K501")])
def test_a_driver_that_does_not_start_is_an_error(fake: FakeDriver, number: int, code: str) -> None:
    fake.fail("cuInit", number)
    refused(code, CudaDevice, 0)


def test_a_machine_without_devices_is_an_error(fake: FakeDriver) -> None:
    fake.set(devices=0)
    refused("K510", CudaDevice, 0)


def test_a_driver_older_than_the_compiler_is_refused(fake: FakeDriver) -> None:
    major, _ = compiler.version()
    fake.set(driver_version=(major - 1) * 1000 + 80)
    error = refused("K502", CudaDevice, 0)
    assert f"CUDA {major - 1}.8" in str(error)
    assert driver.NEEDED[major] in str(error)
    fake.set(driver_version=major * 1000)
    CudaDevice(0)


@pytest.mark.parametrize("capability", [35, 990])
def test_a_gpu_that_the_compiler_does_not_know_is_refused(
    fake: FakeDriver, capability: int
) -> None:
    fake.set(capability=capability)
    error = refused("K502", CudaDevice, 0)
    assert f"{capability // 10}.{capability % 10}" in str(error)


@pytest.mark.parametrize(
    ("capability", "arch"), [(86, "sm_86"), (85, "sm_80"), (95, "sm_90"), (100, "sm_100")]
)
def test_a_gpu_gets_the_newest_code_that_it_runs(
    fake: FakeDriver, capability: int, arch: str
) -> None:
    fake.set(capability=capability)
    assert CudaDevice(0).arch == arch


def test_missing_packages_are_told_with_what_to_install(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert 'pip install "sley[cuda]"' in str(refused("K501", CudaDevice, 0))
    assert 'pip install "sley[cuda]"' in str(refused("K501", compiler.version))


def test_an_entry_point_that_an_old_driver_lacks_is_named(
    fake: FakeDriver, device: CudaDevice
) -> None:
    fake.fail("cuMulticastGetGranularity", UNKNOWN)
    error = refused("K502", device.window, [device], 1)
    assert "cuMulticastGetGranularity" in str(error)


# Programs


def test_a_text_is_compiled_once_on_disk_and_loaded_once(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT + "// compiled once"
    device.build(text, ["twice"])
    again = device.build(text, ["twice"])
    assert list(again) == ["twice"]
    assert fake.journal().count("cuModuleLoadData") == 1

    def compile_text(text: str, arch: str) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "compile_text", compile_text)
    CudaDevice(0).build(text, ["twice"])
    assert fake.journal().count("cuModuleLoadData") == 1
    with pytest.raises(AssertionError, match="compiled again"):
        device.build(text + "// another", ["twice"])


def test_each_kind_of_gpu_has_code_of_its_own(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path))  # where nothing is compiled yet
    compiled = []

    def compile_text(text: str, arch: str) -> compiler.Compiled:
        compiled.append(arch)
        return compiler.Compiled(b"code for " + arch.encode(), b"", {})

    monkeypatch.setattr(compiler, "compile_text", compile_text)
    for capability in (80, 90, 80):
        fake.set(capability=capability)
        CudaDevice(0).build(TEXT + "// for each kind", ["twice"])
    assert compiled == ["sm_80", "sm_90"]


def test_a_text_that_does_not_compile_is_refused(device: CudaDevice) -> None:
    error = refused("K503", device.build, "__global__ void f() { undeclared = 1; }", ["f"])
    assert any("undeclared" in note for note in error.diagnostics[0].notes)


def test_a_kernel_that_the_text_lacks_is_named(device: CudaDevice) -> None:
    assert "missing" in str(refused("K503", device.build, TEXT, ["twice", "missing"]))


@pytest.mark.parametrize(("number", "code"), [(209, "K502"), (200, "K502"), (2, "K507")])
def test_code_that_does_not_load_is_an_error(
    fake: FakeDriver, device: CudaDevice, number: int, code: str
) -> None:
    fake.fail("cuModuleLoadData", number)
    refused(code, device.build, TEXT + f"// {number}", ["twice"])


def test_capacity_is_occupancy_times_multiprocessors(fake: FakeDriver, device: CudaDevice) -> None:
    fake.set(blocks_each=7)
    assert device.capacity(device.build(TEXT, ["twice"]), "twice", 256) == 28


# Memory


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 1 << 20])
def test_memory_is_zeroed_aligned_and_goes_with_its_owner(
    fake: FakeDriver, device: CudaDevice, size_bytes: int
) -> None:
    before = fake.used(0)
    memory = device.allocate(size_bytes)
    assert memory.address % 256 == 0
    assert memory.size_bytes == size_bytes
    found = np.ones(size_bytes, np.uint8)
    device.read(memory, 0, found)
    assert not found.any()
    part = replace(memory, size_bytes=0)
    del memory
    assert fake.used(0) > before
    del part
    assert fake.used(0) == before


def test_host_memory_is_zeroed_and_goes_with_its_last_array(
    fake: FakeDriver, device: CudaDevice
) -> None:
    before = fake.used(-1)
    memory = device.allocate_host(100)
    assert memory.array.shape == (100,)
    assert memory.array.dtype == np.uint8
    assert memory.address == memory.array.ctypes.data
    assert not memory.array.any()
    last = memory.array[50:].view(np.int16)
    del memory
    gc.collect()
    last[:] = 7
    assert fake.used(-1) > before
    del last
    gc.collect()
    assert fake.used(-1) == before


@given(st.integers(0, 300), st.binary(max_size=300))
def test_written_bytes_are_read_back(offset: int, data: bytes) -> None:
    device = CudaDevice.open(0)
    memory = device.allocate(600)
    device.write(memory, offset, np.frombuffer(data, np.uint8))
    found = np.empty(600, np.uint8)
    device.read(memory, 0, found)
    assert found.tobytes() == bytes(offset) + data + bytes(600 - offset - len(data))


def test_parts_with_gaps_are_written_without_them(device: CudaDevice) -> None:
    memory = device.allocate(4)
    device.write(memory, 0, np.arange(8, dtype=np.uint8)[::2])
    found = np.empty(4, np.uint8)
    device.read(memory, 0, found)
    assert found.tolist() == [0, 2, 4, 6]


def test_too_little_memory_is_told(fake: FakeDriver, device: CudaDevice) -> None:
    fake.set(memory_bytes=1 << 20)
    assert "Stand-in" in str(refused("K507", device.allocate, 1 << 21))
    assert "host" in str(refused("K507", device.allocate_host, 1 << 21))
    device.allocate(1 << 10)


def test_memory_that_cannot_be_zeroed_is_given_back(fake: FakeDriver, device: CudaDevice) -> None:
    before = fake.used(0)
    fake.fail("cuMemsetD8Async", 1)
    refused("K516", device.allocate, 64)
    gc.collect()
    assert fake.used(0) == before


def test_memory_of_a_failed_device_goes_in_silence(fake: FakeDriver, device: CudaDevice) -> None:
    memory = device.allocate(64)
    fake.fail("cuCtxPushCurrent", 700)
    del memory
    assert "cuMemFree" not in fake.journal()


# Devices that reach one another, and processes


def test_reaching_another_device_enables_access_once(fake: FakeDriver, device: CudaDevice) -> None:
    device.reach(device)
    assert fake.journal() == []
    one, other = CudaDevice(0), CudaDevice(1)
    for _ in range(2):
        one.reach(other)
    assert fake.journal().count("cuCtxEnablePeerAccess") == 1


def test_devices_that_cannot_reach_one_another_are_refused(
    fake: FakeDriver, device: CudaDevice
) -> None:
    device, other = CudaDevice(0), CudaDevice(1)
    fake.set(peer_access=0)
    assert "device 1" in str(refused("K509", other.reach, device))
    fake.set(peer_access=1)
    fake.fail("cuCtxEnablePeerAccess", 711)
    refused("K509", other.reach, device)
    refused("K509", device.reach, SimpleNamespace(name="threads"))


IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from sley.engine.devices.cuda import CudaDevice
device = CudaDevice.open(int(sys.argv[1])).native
memory, found = device.attach(int(sys.argv[2]), 4), np.empty(4, np.uint8)
device.read(found, memory.address)
device.write(memory.address, found[::-1].copy())
print(bytes(found).hex())
"""


@pytest.mark.parametrize("variables", [{}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_memory_is_shared_between_processes(device: CudaDevice, variables: dict[str, str]) -> None:
    native = device.native
    memory = native.allocate_shared(64)
    native.write(memory.address, np.arange(64, dtype=np.uint8))
    descriptor = native.export_memory(memory)
    seen = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, "0" if variables else "1", str(descriptor)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=60,
        pass_fds=[descriptor],
    )
    assert (seen.stdout, seen.stderr) == ("00010203\n", "")
    found = np.empty(6, np.uint8)
    native.read(found, memory.address)
    assert found.tolist() == [3, 2, 1, 0, 4, 5]
    os.close(descriptor)
    refused("K514", native.attach, descriptor, 64)


def test_memory_that_cannot_be_shared_is_refused(fake: FakeDriver, device: CudaDevice) -> None:
    refused("K514", device.native.export_memory, device.native.allocate(64))
    memory = device.native.allocate_shared(64)
    fake.fail("cuMemExportToShareableHandle", 801)
    refused("K514", device.native.export_memory, memory)
    fake.fail("cuMemCreate", 801)
    refused("K514", device.native.allocate_shared, 64)


def test_shared_memory_of_a_device_out_of_reach_is_refused(fake: FakeDriver) -> None:
    """As in a process that sees only a GPU without peer access to another process's."""
    one, other = CudaDevice(0).native, CudaDevice(1).native
    memory = one.allocate_shared(64)
    descriptor = one.export_memory(memory)
    fake.set(peer_access=0)
    before = fake.used(-1), fake.used(0), fake.used(1)
    refused("K509", other.attach, descriptor, 64)
    assert (fake.used(-1), fake.used(0), fake.used(1)) == before
    fake.set(peer_access=1)
    assert other.attach(descriptor, 64).address
    os.close(descriptor)


def test_shared_memory_has_no_block_with_other_memory(fake: FakeDriver, device: CudaDevice) -> None:
    """Descriptors are of whole allocations, with everything in them."""
    for size_bytes, taken in ((1, 2 << 20), (100, 2 << 20), ((2 << 20) + 1, 4 << 20)):
        before = fake.used(0)
        memory = device.native.allocate_shared(size_bytes)
        assert fake.used(0) - before == taken
        del memory


def test_lines_are_whole_where_the_link_has_native_atomics(
    fake: FakeDriver, device: CudaDevice
) -> None:
    other = CudaDevice.open(1)
    assert not device.carries_lines(bytes(16)), "of a link that this process can't see"
    for atomics in (True, False):
        fake.set(native_atomics=int(atomics))
        assert device.carries_lines(other.identity) == atomics
        assert device.carries_lines(device.identity)


def test_memory_that_peer_access_does_not_cover_is_not_lent(
    fake: FakeDriver, device: CudaDevice
) -> None:
    other, plain = CudaDevice.open(1).native, device.allocate(64)
    fake.set(pooled=1)
    pooled = device.allocate(64)
    assert device.native.lends(plain.address, other)
    assert not device.native.lends(pooled.address, other)
    fake.set(pool_access=1)
    assert device.native.lends(pooled.address, other), "its pool lets the device in"


def test_processes_share_memory_of_the_host_and_of_devices(fake: FakeDriver) -> None:
    meeting, found = Meeting(2), dict[int, Any]()

    def process(rank: int) -> None:
        device = CudaDevice.open(rank)
        ranks = DeviceRanks(2, {rank: device}, meeting.exchange(rank), has_lines=True)
        host, memory = ranks.allocate_host(64), ranks.allocate([64, 128])
        host.array[rank] = rank + 1
        seen = Memory(memory.seen[rank][1 - rank], 64, None)
        device.write(seen, rank, np.array([rank + 5], np.uint8))
        ranks.meet()
        own = np.empty(2, np.uint8)
        device.read(memory.memories[rank], 0, own)
        found[rank] = host.array[:3].tolist(), own.tolist()
        ranks.meet()

    together([lambda rank=rank: process(rank) for rank in range(2)])
    assert found == {0: ([1, 2, 0], [0, 6]), 1: ([1, 2, 0], [5, 0])}
    assert fake.journal().count("cuMemHostUnregister") == 2
    fake.fail("cuMemHostRegister", 801)
    together([lambda rank=rank: refused("K514", process, rank) for rank in range(2)])
