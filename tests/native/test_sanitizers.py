"""The engine and the simulator under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.native_sources import NATIVE, PRIMITIVES, SOURCES

HERE = Path(__file__).parent
ENGINE = (*SOURCES["FABRIC"], *SOURCES["ENGINE"])


def compiler() -> str:
    """The system's C++ compiler; skips where there is none."""
    found = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def build(
    folder: Path,
    sanitizers: str,
    *options: str,
    test: str = "engine_test.cpp",
    of: tuple[Path, ...] = ENGINE,
) -> Path:
    """The program of a test and some sources, built with `sanitizers`; skips where their run-time
    library is missing."""
    cxx = compiler()
    flags = ["-std=c++17", "-pthread", "-g", "-O1", f"-fsanitize={sanitizers}"]
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    program = folder / "program"
    if subprocess.run([cxx, *flags, probe, "-o", program], capture_output=True).returncode:
        pytest.skip(f"no run-time library for -fsanitize={sanitizers}")
    if subprocess.run([program], capture_output=True).returncode:
        pytest.skip(f"programs with -fsanitize={sanitizers} do not start here")
    command = [cxx, *flags, "-fno-sanitize-recover=all", *options, f"-I{NATIVE}", f"-I{PRIMITIVES}"]
    command += map(str, [HERE / test, *of])
    built = subprocess.run([*command, "-o", program], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run([program], capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_the_engine_is_clean(tmp_path: Path, sanitizers: str) -> None:
    done = run(build(tmp_path, sanitizers))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_ranks_agree_on_how_calls_go(tmp_path: Path, sanitizers: str) -> None:
    done = run(build(tmp_path, sanitizers, test="ways_test.cpp", of=()))
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_simulator_is_clean(tmp_path: Path) -> None:
    checked = "-D_GLIBCXX_ASSERTIONS"
    simulator = SOURCES["SIMULATOR"]
    program = build(tmp_path, "address,undefined", checked, test="simulator_test.cpp", of=simulator)
    done = run(program)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_lost_release_is_noticed(tmp_path: Path) -> None:
    """With relaxed stores for the counters of fifo.hpp the thread sanitizer must object."""
    done = run(build(tmp_path, "thread", "-DSLEY_BREAK_RELEASE"))
    assert done.returncode != 0
    assert "data race" in done.stderr
