"""Size of certificates, and time and memory of writing and checking them, by plan.

    python benchmarks/certificates.py [--large]

Each plan is compiled and proven here, so that only the certificate's own time counts as writing.
`sley-check` runs in a process of its own: its time and peak memory are those of the whole process.
Times are processor seconds of one run. --large adds AllReduce (HM) on 1,024 GPUs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import machine
from common.processes import SOURCE

CHECK = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
import sley_check
status = sley_check.command()
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(sum(os.times()[:2]), int(peak) / 1024)
sys.exit(status)
"""
HPDS = {"schedule": "hpds", "allocate": "state"}
PLANS: tuple[tuple[str, dict[str, int], dict[str, Any]], ...] = (
    ("ring-allreduce", {"ranks": 8}, {"instances": 4}),
    ("all-pairs-allreduce", {"ranks": 8}, {"protocol": "Direct"}),
    ("three-step-alltoall", {"nodes": 8, "gpus": 8}, {}),
    ("hm-allreduce", {"nodes": 8, "gpus": 8}, {}),
    ("hm-allreduce", {"nodes": 8, "gpus": 8}, HPDS),
    ("hm-allreduce", {"nodes": 32, "gpus": 8}, {}),
    ("hm-allreduce", {"nodes": 32, "gpus": 8}, HPDS),
)
LARGE = ("hm-allreduce", {"nodes": 128, "gpus": 8}, {})


def measure(folder: Path, name: str, size: dict[str, int], options: dict[str, Any]) -> list[str]:
    """A row of the table."""
    import sley
    from sley.verification.certificate import certificate

    plan = sley.compile(sley.load(name, **size), **options)
    proof = sley.verify(plan)
    start = time.process_time()
    content = certificate([proof])
    writing = time.process_time() - start
    file, witness = folder / "a.plan", folder / "a.certificate"
    sley.save(plan, file)
    witness.write_bytes(content)
    command = [sys.executable, "-I", "-c", CHECK, str(SOURCE), str(file), str(witness)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    checking, peak = map(float, done.stdout.split("\n")[-2].split())
    grid = "x".join(str(n) for n in size.values())
    words = " ".join(str(value) for value in options.values())
    return [
        f"{name} {grid} {words}".strip(),
        f"{len(plan.instructions):,}",
        f"{file.stat().st_size / 1e6:.2f}",
        f"{len(content) / 1e3:.1f}",
        f"{writing:.2f}",
        f"{checking:.2f}",
        f"{peak:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--large", action="store_true", help="with 1,024 GPUs")
    given = parser.parse_args()
    print(machine.text(machine.facts()))
    head = ["plan", "instructions", "file MB", "cert. KB", "write s", "check s", "check MB"]
    form = "{:<38}" + "{:>13}" * 6
    print(form.format(*head))
    with tempfile.TemporaryDirectory() as folder:
        for row in (*PLANS, *[LARGE] * given.large):
            print(form.format(*measure(Path(folder), *row)), flush=True)


if __name__ == "__main__":
    main()
