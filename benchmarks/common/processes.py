"""Separate processes: each measurement has its own peak memory, and imports sley anew."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"


def peak_MB() -> float:  # noqa: N802 - the unit's own spelling
    """The peak memory of this process."""
    # Linux counts kilobytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def run_apart(
    script: str, *arguments: str, timeout_s: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a separate process, which finds this checkout's sley. Raises
    subprocess.TimeoutExpired."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, script, *arguments],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def measure_apart(script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The measurements of a script in a separate process. Raises SystemExit with its errors if it
    fails."""
    done = run_apart(script, "--measure", *arguments, **environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
