"""The package sley-kernels over the stand-in: its kernels run where no compiler is installed, and
in place of generated code until that is compiled.

The stand-in runs the package's kernels, for CPUs; of NVRTC's code it runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sley
from fake_driver import TESTS, FakeDriver, own_cache, refused
from fake_driver.cases_executor import RANKS, arrays, ring, values
from sley.cli import main
from sley.engine.devices import Engine, Executor, LinkSet, Settings
from sley.engine.devices.cuda import CudaDevice, compiler, device, machine_code
from sley.engine.kernels import KERNELS, Kernels, Platform, Variant, prebuilt
from sley.engine.types import DATA_TYPES
from support.devices import communicators
from support.devices.device_calls import module_of

SUM = Variant(Platform.CUDA, DATA_TYPES["float32"].number, sley.ReduceOp.SUM)
EMPTY = "".join(f'extern "C" __global__ void {name}() {{}}\n' for name in KERNELS)


source = Kernels.source


def short_text(kernels: Kernels, engine: Engine, variant: Variant) -> str:
    """A text in place of a plan's, which NVRTC compiles at once."""
    return f"// {engine.value} {variant}\n{EMPTY}"


def compiled_here(text: str, arch: str) -> None:
    raise AssertionError("a call waits for the compiler")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the code of one text, beside an empty cache."""
    text = Kernels.of(ring()).source(
        Engine.INTERPRETED, Variant(Platform.CPU, SUM.dtype, SUM.reduce_op)
    )
    code = module_of(text)
    monkeypatch.setattr(Kernels, "source", short_text)
    package = tmp_path / prebuilt.PACKAGE
    package.mkdir()
    major, _ = compiler.version()
    (package / "__init__.py").write_text(f"CUDA = ({major}, 0)\nLEAST = (8, 0)\n")
    interpreted = Kernels.of(ring()).source(Engine.INTERPRETED, SUM)
    (package / prebuilt.file_of(interpreted)).write_bytes(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, prebuilt.PACKAGE, raising=False)
    monkeypatch.setenv("SLEY_CACHE_DIR", str(own_cache(tmp_path)))
    return package


@pytest.fixture
def no_compiler(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the package."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)


@pytest.fixture
def background() -> Iterator[Any]:
    """What is compiled in the background, of texts that were never asked for."""
    machine_code.background.cache_clear()
    yield machine_code.background()
    machine_code.background.cache_clear()


def sums(on: Executor, devices: list[CudaDevice]) -> bool:
    """Whether a call's kernels are the package's, which sum."""
    data = arrays(devices, [np.arange(1000) + rank for rank in range(RANKS)])
    on(data)
    found = [values(device, array) for device, array in zip(devices, data, strict=True)]
    if all((one == np.arange(1000) + rank).all() for rank, one in enumerate(found)):
        return False
    for one in found:
        assert one.tolist() == (4 * np.arange(1000) + 6).tolist()
    return True


@pytest.mark.usefixtures("whole_texts", "no_compiler")
def test_prebuilt_kernels_need_no_compiler(fake: FakeDriver) -> None:
    fake.set(devices=2)
    devices = [CudaDevice(rank % 2) for rank in range(RANKS)]
    for engine in (None, Engine.INTERPRETED):
        assert sums(Executor(ring(), devices, Settings(engine)), devices)
    # What the package lacks is compiled, and needs a compiler.
    data = arrays(devices, [np.zeros(8)] * RANKS)
    for changed in (Settings(Engine.GENERATED), Settings(Engine.INTERPRETED, threads=1024)):
        refused("K501", Executor(ring(), devices, changed), data)


@pytest.mark.usefixtures("whole_texts", "package")
@pytest.mark.parametrize(("number", "cache"), [(1, "cache"), (2, "cache"), (1, "file/cache")])
def test_the_first_call_compiles_nothing(
    fake: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    background: Any,
    number: int,
    cache: str,
) -> None:
    """Another process compiles, whose code runs in later executors, and after `reserve`; also where
    the disk keeps nothing."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path / cache))
    monkeypatch.setattr(compiler, "compile_text", compiled_here)
    fake.set(devices=2)
    devices = [CudaDevice(rank % number) for rank in range(RANKS)]
    first = Executor(ring(), devices)
    assert sums(first, devices)
    background.join()
    assert not sums(Executor(ring(), devices), devices)
    assert sums(first, devices)
    first.reserve(1000, "float32")
    assert not sums(first, devices)
    assert background.empty()


@pytest.mark.usefixtures("whole_texts", "background")
@pytest.mark.parametrize("gpus", [1, 2])
def test_opening_a_communicator_compiles_nothing(
    fake: FakeDriver, package: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    """With all texts of the package, in place of which stands the code of one."""
    (file,) = package.glob("*.fatbin")
    code = file.read_bytes()
    monkeypatch.syspath_prepend(TESTS.parent / ".ci")
    monkeypatch.setattr(Kernels, "source", source)
    texts = set(import_module("prebuild").texts())
    monkeypatch.setattr(device, "prebuilt", lambda text: code if text in texts else None)
    monkeypatch.setattr(compiler, "compile_text", compiled_here)
    monkeypatch.setattr(sys, "executable", "")
    fake.set(devices=gpus)
    devices = [CudaDevice(rank % gpus) for rank in range(2)]
    comms = communicators.opened(devices, kernels=Settings())
    communicators.on_all(comms, lambda comm: comm.close())


@pytest.mark.usefixtures("whole_texts")
def test_plans_without_prebuilt_kernels_share_the_interpreter(
    fake: FakeDriver, package: Path, monkeypatch: pytest.MonkeyPatch, background: Any
) -> None:
    """What is compiled while they wait serves all of them; later ones have their own code."""
    (file,) = package.glob("*.fatbin")
    found, code = list[str](), file.read_bytes()
    file.unlink()

    def compile_text(text: str, arch: str) -> compiler.Compiled:
        found.append(text.split()[1])
        return compiler.Compiled(code, b"", {})

    monkeypatch.setattr(compiler, "compile_text", compile_text)
    devices = [CudaDevice(0)] * RANKS
    links = LinkSet([ring(), ring(instances=2)], devices)
    assert all(sums(Executor(plan, links), devices) for plan in links.plans)
    assert found == ["interpreted"]
    background.join()
    assert not sums(Executor(ring(), links), devices)
    assert found == ["interpreted"]


@pytest.mark.usefixtures("whole_texts", "package")
@pytest.mark.parametrize("script", ["", "exit 1", "echo noise; echo noise >&2; kill -9 $$"])
def test_a_compiler_that_fails_disturbs_nothing(
    fake: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    background: Any,
    script: str,
) -> None:
    """Nor a program without a Python that it could start."""
    path = tmp_path / "python"
    if script:
        path.write_text(f"#!/bin/sh\necho >> {tmp_path}/started\n{script}\n")
        path.chmod(0o700)
    devices = [CudaDevice(0)] * RANKS
    monkeypatch.setattr(sys, "executable", str(path))
    for _ in range(2):
        on = Executor(ring(), devices)
        assert sums(on, devices)
        background.join()
        on.reserve(1000, "float32")
        assert sums(on, devices)
    background.join()
    assert not script or (tmp_path / "started").read_text() == "\n", "once for each text"
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("whole_texts", "package")
def test_code_for_other_gpus_is_left_alone(
    fake: FakeDriver, package: Path, monkeypatch: pytest.MonkeyPatch, background: Any
) -> None:
    """In the cache and in the package, where the driver refuses it."""
    monkeypatch.setattr(
        compiler,
        "compile_text",
        lambda text, arch: compiler.Compiled(arch.encode() + bytes(1), b"", {}),
    )
    monkeypatch.setattr(sys, "executable", "")
    device = CudaDevice(0)
    own, other = device.arch, "sm_80"
    assert own != other
    variant = Variant(Platform.CUDA, SUM.dtype, SUM.reduce_op, one_gpu=True)
    generated = Kernels.of(ring()).source(Engine.GENERATED, variant)
    machine_code.compiled(generated, other)
    assert sums(Executor(ring(), [device] * RANKS), [device] * RANKS)
    (file,) = package.glob("*.fatbin")
    file.write_bytes(b"library 8 7\nnothing" + bytes(1))  # the stand-in refuses it
    device = CudaDevice(0)
    assert not sums(Executor(ring(), [device] * RANKS), [device] * RANKS)
    assert machine_code.is_compiled(generated, own)


@pytest.mark.usefixtures("whole_texts", "no_compiler")
def test_code_for_other_gpus_alone_is_refused(fake: FakeDriver, package: Path) -> None:
    (file,) = package.glob("*.fatbin")
    file.write_bytes(b"library 8 7\nnothing" + bytes(1))
    devices = [CudaDevice(0)] * RANKS
    refused("K501", Executor(ring(), devices), arrays(devices, [np.zeros(8)] * RANKS))


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("older", [{"capability": 75}, {"driver_version": 12080}])
def test_code_that_a_machine_does_not_run_is_left_alone(
    fake: FakeDriver, older: dict[str, int]
) -> None:
    CudaDevice(0)
    fake.set(**older)
    refused("K501", CudaDevice, 0)


@pytest.mark.usefixtures("fake")
def test_the_doctor_knows_kernels_of_another_version(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaDevice, "open", CudaDevice)  # not the one that other cases opened

    def said() -> str:
        command = ["doctor", str(package), "--target", "sley", "--ranks", "2"]
        return CliRunner().invoke(main, command).output

    assert "9.0, prebuilt kernels\n" in said()
    next(package.glob("*.fatbin")).unlink()
    assert "prebuilt kernels of another version" in said()


@pytest.mark.usefixtures("whole_texts", "no_compiler")
def test_a_folder_of_plans_has_code_of_its_own(
    fake: FakeDriver, package: Path, tmp_path: Path
) -> None:
    (file,) = package.glob("*.fatbin")
    device = CudaDevice(0)
    variant = Variant(Platform.CUDA, SUM.dtype, SUM.reduce_op, one_gpu=True)
    generated = Kernels.of(ring()).source(Engine.GENERATED, variant)

    def folder(arch: str, code: bytes) -> Path:
        made = tmp_path / f"plans-{arch}" / prebuilt.CODE / arch
        made.mkdir(parents=True)
        name = prebuilt.file_of(generated, ".cubin")
        (made / name).write_bytes(code)
        digests = prebuilt.digests_of(arch, {name: code}, 12)
        (made / prebuilt.DIGESTS).write_text(digests)
        return made.parent.parent

    code = file.read_bytes()
    file.unlink()
    data = arrays([device] * RANKS, [np.zeros(8)] * RANKS)
    for other in ("sm_80", "sm_100"):
        problem = device.read_code(folder(other, code))
        assert problem is not None
        assert problem.code == "K502"
        assert other in problem.found
        refused("K501", Executor(ring(), [device] * RANKS), data)
    assert device.read_code(folder("sm_90", code)) is None
    assert sums(Executor(ring(), [device] * RANKS), [device] * RANKS)
    assert device.read_code(tmp_path) is None, "it has no code"
