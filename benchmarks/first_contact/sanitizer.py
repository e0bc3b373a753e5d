"""The small calls under compute-sanitizer's tools, as far as the time reaches."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from first_contact.lines import Lines, run_step, step_parser

TOOLS = ("memcheck", "synccheck", "racecheck")
DEVICES = Path(__file__).resolve().parents[2] / "tests" / "support" / "devices"
SCRIPT = DEVICES / "gpu_small_calls.py"
FOUND = 86
"""The sanitizer's exit code when it has found something."""


def _checked(sanitizer: str, tool: str, until: float) -> Mapping[str, Any]:
    left_s = until - time.monotonic()
    if left_s <= 0:
        return {"left_out": "the time is over"}
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, SCRIPT]
    # To a file: after a time-out the program that the tool runs would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [*map(str, command)], stdout=output, stderr=subprocess.STDOUT, timeout=left_s
        )
        output.seek(0)
        words = output.read()
    if "Device not supported" in words:
        return {"left_out": "compute-sanitizer doesn't support this device"}
    wrong = int(done.returncode != 0)
    return {"wrong": wrong, "code": done.returncode, "last": words[-2000 * wrong - 200 :]}


def step(lines: Lines, limit_s: float) -> bool:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        lines.write(left_out="no compute-sanitizer on the PATH")
        return True
    until = time.monotonic() + limit_s
    good = [
        lines.attempt({"tool": tool}, partial(_checked, sanitizer, tool, until)) for tool in TOOLS
    ]
    return all(good)


if __name__ == "__main__":
    parser = step_parser(__doc__)
    parser.add_argument("--limit-s", type=float, required=True)
    options = parser.parse_args()
    run_step("sanitizer", options.lines, lambda lines: step(lines, options.limit_s))
