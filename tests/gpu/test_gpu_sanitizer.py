"""Kernels under NVIDIA's compute-sanitizer, if it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.devices.gpu_needed import needs_gpu

pytestmark = needs_gpu()

TESTS = Path(__file__).parents[1]
SMALL_CALLS = TESTS / "support" / "devices" / "gpu_small_calls.py"
TIMEOUT_S = 280
FOUND = 86
"""What the sanitizer ends with when it has found something."""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.usefixtures("gpu")
def test_compute_sanitizer_finds_nothing(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the PATH")
    script = [sys.executable, str(SMALL_CALLS)]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), *script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer doesn't support this device")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
