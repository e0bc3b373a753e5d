"""The parts of a call, by a program in CUDA C++: launches, loads, fences, and messages."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from first_contact.lines import Lines, run_step, step_parser

SOURCE = Path(__file__).with_name("parts.cu")


def step(lines: Lines) -> bool:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        lines.write(left_out="no nvcc")
        return True
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "parts")
        flags = ["-O3", "-std=c++17", "-arch=native"]
        for command in ([nvcc, *flags, str(SOURCE), "-o", made], [made]):
            lines.write(begins={"command": command})
            done = subprocess.run(command, capture_output=True, text=True)
            for line in done.stdout.splitlines():
                lines.write(**json.loads(line))
            if done.returncode:
                lines.write(failure=done.stderr[-1000:] or f"ended with {done.returncode}")
                return False
    return True


if __name__ == "__main__":
    options = step_parser(__doc__).parse_args()
    run_step("parts", options.lines, step)
