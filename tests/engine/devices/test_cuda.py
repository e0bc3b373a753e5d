"""The GPU side of devices, on machines without a GPU: NVRTC's compilations, and the host's side
over a stand-in for the driver (tests/engine/devices/fake_driver)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import fake_driver
import pytest

from sley.engine.devices.cuda import compiler
from sley.engine.devices.cuda.compiler import Resources, compile_text
from sley.errors import SleyError
from support.devices.gpu_processes import check_calls
from support.devices.registered_ranks import check_registered

CASES = [
    Path(__file__).parent / "fake_driver" / f"cases_{of}.py"
    for of in (
        "device",
        "launch",
        "executor",
        "running",
        "frees",
        "waits",
        "room",
        "switches",
        "prebuilt",
        "communicator",
        "many",
    )
]

TEXT = """
struct Call { float* data; long long n; };
extern "C" __global__ void twice(const __grid_constant__ Call call) {
    __shared__ float first[32];
    first[threadIdx.x % 32] = call.data[0];
    __syncthreads();
    for (long long i = threadIdx.x; i < call.n; i += blockDim.x)
        call.data[i] *= 2 + first[(i + 1) % 32];
}
__device__ __noinline__ float apart(const float* data, int step) {
    volatile float kept[64];
    for (int i = 0; i < 64; ++i) kept[i] = data[i * step];
    return kept[step];
}
extern "C" __global__ void other(float* data, int step) { data[0] = apart(data, step); }
"""

SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) hungry(float* data) {
    float kept[128];
    #pragma unroll
    for (int i = 0; i < 128; ++i) kept[i] = data[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 128; ++i) data[(127 - i) * 1024 + threadIdx.x * 3] = kept[i];
}
"""


@pytest.fixture(scope="module")
def nvrtc() -> None:
    try:
        compiler.version()
    except SleyError as error:
        pytest.skip(f"no NVRTC: {error.diagnostics[0].found}")


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_text_becomes_machine_code_without_a_gpu(arch: str) -> None:
    compiled = compile_text(TEXT, arch)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert set(compiled.functions) == {"twice", "other", "_Z5apartPKfi"}
    twice, other = compiled.functions["twice"], compiled.functions["other"]
    assert twice.registers > 0
    assert twice.shared_bytes == 128
    assert (twice.stack_bytes, twice.spill_store_bytes, twice.spill_load_bytes) == (0, 0, 0)
    assert other.registers > 0
    assert other.shared_bytes == 0
    assert compiled.functions["_Z5apartPKfi"].registers == 0, "it is counted in its kernel's"
    assert max(f.stack_bytes for f in compiled.functions.values()) >= 256


@pytest.mark.usefixtures("nvrtc")
def test_spills_are_seen() -> None:
    hungry = compile_text(SPILLS, "sm_90").functions["hungry"]
    assert hungry.spill_store_bytes > 0
    assert hungry.spill_load_bytes > 0
    assert hungry.registers <= 32


def test_the_words_of_older_assemblers_are_understood() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_80'
ptxas info    : Function properties for f
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, 384 bytes smem, 368 bytes cmem[0]
"""
    assert compiler._resources(log) == {"f": Resources(32, 8, 12, 24, 384)}


@pytest.mark.usefixtures("nvrtc")
def test_text_that_does_not_compile_is_refused_with_the_compilers_words() -> None:
    with pytest.raises(SleyError) as caught:
        compile_text(TEXT.replace("call.n;", "call.m;"), "sm_90")
    assert caught.value.code == "K503"
    assert "kernels.cu(7)" in str(caught.value)
    assert 'has no member "m"' in str(caught.value)
    assert "1 error\n" in str(caught.value)


@pytest.mark.usefixtures("nvrtc")
def test_assembly_that_does_not_assemble_is_refused_with_the_assemblers_words() -> None:
    with pytest.raises(SleyError) as caught:
        compile_text('extern "C" __global__ void f() { asm("no.such.thing;"); }', "sm_90")
    assert caught.value.code == "K503"
    assert "Unknown modifier" in str(caught.value)
    assert "3 errors" in str(caught.value)


@pytest.mark.usefixtures("nvrtc")
def test_a_kind_of_gpu_that_the_compiler_does_not_know_is_refused() -> None:
    with pytest.raises(SleyError) as caught:
        compile_text(TEXT, "sm_35")
    assert caught.value.code == "K502"
    assert "sm_35" in str(caught.value)
    assert "Name one of sm_" in str(caught.value)


def test_without_the_packages_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(SleyError) as caught:
        compile_text(TEXT, "sm_90")
    assert caught.value.code == "K501"
    assert 'pip install "sley[cuda]"' in str(caught.value)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("builtins", [True, False])
def test_without_the_compiler_the_message_says_what_to_install(
    builtins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda.bindings import nvrtc

    failed = nvrtc.nvrtcResult.NVRTC_ERROR_BUILTIN_OPERATION_FAILURE

    def missing(*arguments: object) -> tuple[nvrtc.nvrtcResult]:
        if builtins:
            return (failed,)
        raise RuntimeError("libnvrtc.so.13 is not there")

    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram" if builtins else "nvrtcVersion", missing)
    with pytest.raises(SleyError) as caught:
        _ = compile_text(TEXT, "sm_90") if builtins else compiler.version()
    assert caught.value.code == "K501"
    assert "nvidia-cuda-nvrtc" in str(caught.value)
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (failed,))
    with pytest.raises(SleyError, match="BUILTIN_OPERATION_FAILURE"):
        compiler.version()


def test_without_a_driver_the_message_says_so() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a driver")
    code = "from sley.engine.devices.cuda import CudaDevice; CudaDevice.open(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "K501 no-cuda" in done.stderr
    assert "libcuda.so.1" in done.stderr
    assert "nvidia-smi" in done.stderr


def test_a_program_does_not_wait_for_the_background_at_its_end(tmp_path: Path) -> None:
    compiler, started = tmp_path / "python", tmp_path / "started"
    compiler.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/part\nmv {tmp_path}/part {started}\nexec sleep 60\n"
    )
    compiler.chmod(0o700)
    code = f"""
import sys
from pathlib import Path
from sley.engine.devices.cuda.machine_code import compile_later
sys.executable = {str(compiler)!r}
compile_later("a text", "sm_90")
while not Path({str(started)!r}).exists():
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    os.kill(int(started.read_text()), signal.SIGKILL)  # fails if it has ended
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_package_is_imported_without_cuda() -> None:
    code = "import sys, sley, sley.engine.devices.cuda; sys.exit('cuda' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture
def stand_in(nvrtc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that this one starts have the stand-in, and kernels for CPUs."""
    for name, value in fake_driver.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    rehearsal = fake_driver.TESTS / "support" / "rehearsal"
    monkeypatch.setenv("PYTHONPATH", str(rehearsal), prepend=":")


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("protocol", ["SIMPLE", "DIRECT"])
def test_processes_that_see_one_gpu_each_get_right_results(protocol: str) -> None:
    check_calls("cuda", 2, protocol, "interpreted", one_each=True)


@pytest.mark.usefixtures("stand_in")
def test_processes_read_memory_that_callers_registered(tmp_path: Path) -> None:
    """Of all kinds but a pool's: messages from that go through slots, in graphs, too."""
    readers = check_registered(
        "cuda:0", ["mapped", "allocated", "pooled"], 3, tmp_path, one_each=True
    )
    assert readers == [[1, 2], [0, 2], []]


@pytest.mark.slow
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("case", "number"),
    [("room", ("SLEY_ROUNDS", "10000")), ("many", ("SLEY_MANY", "200"))],
)
def test_long_cases_over_the_stand_in_pass(
    case: str, number: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*number)
    (file,) = (path for path in CASES if path.stem == f"cases_{case}")
    assert set(fake_driver.outcomes([file], tmp_path).values()) == {""}


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("part", [0, 1])
def test_cases_over_a_stand_in_for_the_driver_pass(part: int, tmp_path: Path) -> None:
    """In parts, which run beside one another."""
    files = CASES[part::2]
    outcomes = fake_driver.outcomes(files, tmp_path)
    assert {case for path in files for case in fake_driver.cases(path)} - outcomes.keys() == set()
    assert {case: problem for case, problem in outcomes.items() if problem} == {}
