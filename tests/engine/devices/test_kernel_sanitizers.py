"""Kernels on threads under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sley
from support.devices.sanitized import START

TESTS = Path(__file__).parents[2]
SANITIZED = TESTS / "support" / "devices" / "sanitized.py"
ADDRESSES = "ll:runs:generated,ll128:tiles:interpreted,simple:switches:generated"
EVERYTHING = [
    f"{protocol.name.lower()}:{plans}"
    for protocol in sley.Protocol
    for plans in ("tiles", "tasks", "library", "links")
] + ["direct:holds", "simple:switches", "ll:runs", "simple:runs", "direct:runs"]
BROKEN = [
    "simple:tiles:generated",
    "ll128:tiles:interpreted",
    "direct:holds:generated",
    "ll:tasks:interpreted",
    "simple:switches:generated",
]
THREADS = ",".join([*BROKEN, "ll:runs:interpreted", "direct:tiles:interpreted", "ll:links"])
"""Every protocol, both engines and every kind of plan, with few texts to compile."""
FLAGS = {  # -O0, because with these checks optimising takes longer than it saves
    "tsan": ("-O0", "-fsanitize=thread", "-DSLEY_RELEASE_MAY_BREAK"),
    "asan": ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=100",
    "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves much to the end of the process
}


@cache
def library(name: str) -> str:
    """The run-time library of a sanitizer; skips where it isn't there, or doesn't work."""
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None:
        pytest.skip("no C++ compiler")
    file = f"lib{name}.so"
    found = subprocess.run(
        [compiler, f"-print-file-name={file}"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"the compiler has no {file}")
    probe = [sys.executable, "-c", "import numpy"]
    environment = os.environ | OPTIONS | {"LD_PRELOAD": found}
    if subprocess.run(probe, capture_output=True, env=environment).returncode:
        pytest.skip(f"Python does not start with {file}")
    return found


def run(preloaded: str, cases: str, **options: str) -> tuple[int, str]:
    """The exit code of the program for `cases`, and what it says."""
    environment = os.environ | OPTIONS | options
    environment["LD_PRELOAD"] = library(preloaded)
    environment["PYTHONPATH"] = str(TESTS)
    command = [sys.executable, SANITIZED, cases, "-g1", *FLAGS[preloaded]]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    return done.returncode, done.stderr


def slowly(cases: list[str]) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize("cases", [THREADS, *slowly(EVERYTHING)])
def test_kernels_have_no_data_race(cases: str) -> None:
    code, said = run("tsan", cases)
    assert code == 0, said[-4000:]


def test_a_lost_release_of_a_kernel_is_noticed() -> None:
    """With relaxed stores for what is published, the thread sanitizer must object: for messages in
    slots, behind the flag of a line, where they lie; and for finished steps, on which alone the
    memory of a plan with LL depends, as its words carry their own flags."""
    broken = {"SLEY_BREAK_RELEASE": "1", "TSAN_OPTIONS": "halt_on_error=0"}
    code, said = run("tsan", ",".join(BROKEN), **broken)
    assert code != 0
    _, *parts = f"\n{said}".split(f"\n{START}")
    assert [part.split("\n")[0] for part in parts] == BROKEN
    for part in parts:
        assert "WARNING: ThreadSanitizer: data race" in part


@pytest.mark.parametrize("cases", [ADDRESSES, *slowly(EVERYTHING)])
def test_kernels_keep_to_their_memory_and_do_nothing_undefined(cases: str) -> None:
    code, said = run("asan", cases)
    assert code == 0, said[-4000:]
