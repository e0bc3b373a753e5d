"""Compares this commit with another: compilation, simulation and the CPU runtime, in one run.

    python benchmarks/against.py OTHER [--rounds N] [--only compile,scale,simulate,cpu] [--json]

OTHER: another checkout of sley, with an environment (`make .venv/.dev` there). Each round runs
every case once with each checkout's own interpreter and benchmarks. The checkout that runs first
alternates, so that other load on the machine affects both. A row has the medians, and new / old;
above 1 this checkout is slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from common import machine

HERE = Path(__file__).resolve().parents[1]
COMPILE = ("all-pairs-allreduce-32", "ring-allreduce-256", "hierarchical-allreduce-128x8")
SCALE_GPUS = ("256",)
SIMULATE = ("hm-64", "ring-32-sweep")
CPU = ("--engines", "sley,sley-symmetric,sley-torch", "--repeat", "5", "--seconds", "0.05")

Seconds: TypeAlias = dict[str, float]
"""The times of a case, by the name of the row."""


def run(tree: Path, script: str, *arguments: str) -> str:
    """The output of a checkout's benchmark. Raises SystemExit with its errors if it fails."""
    command = [str(tree / ".venv/bin/python"), str(tree / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tree)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def compile_times(tree: Path) -> Seconds:
    """The times of the passes and the verifier, for cases of compile.py."""
    rows = {name: json.loads(run(tree, "compile.py", "--measure", name)) for name in COMPILE}
    return {
        f"compile {name}, {part}": row[part]
        for name, row in rows.items()
        for part in ("passes", "verify")
    }


def scale_times(tree: Path) -> Seconds:
    """The times of the phases of scale.py."""
    found: Seconds = {}
    for gpus in SCALE_GPUS:
        row = json.loads(run(tree, "scale.py", "--measure", gpus))
        found |= {f"scale {gpus} GPUs, {phase}": s for phase, s in row["seconds"].items()}
    return found


def simulate_times(tree: Path) -> Seconds:
    """The times to prepare and to simulate, for cases of simulate.py."""
    rows = {name: json.loads(run(tree, "simulate.py", "--measure", name)) for name in SIMULATE}
    return {
        f"simulate {name}, {part}": row["seconds"][part]
        for name, row in rows.items()
        for part in ("prepare", "simulate")
    }


def cpu_times(tree: Path) -> Seconds:
    """The median times of sley's engines in the cells of cpu_peers."""
    with tempfile.TemporaryDirectory() as folder:
        run(tree, "cpu_peers", *CPU, "--output", folder)
        (path,) = Path(folder).glob("*.json")
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return {
        f"{r['engine']} {r['collective']}, {r['ranks']} ranks, {r['size_bytes']} bytes": s
        for r in rows
        if (s := r.get("median_ms", 0.0) / 1e3)
    }


PARTS: dict[str, Callable[[Path], Seconds]] = {
    "compile": compile_times,
    "scale": scale_times,
    "simulate": simulate_times,
    "cpu": cpu_times,
}


def compare(parts: list[str], other: Path, rounds: int) -> Iterator[tuple[str, float, float]]:
    """(row, old seconds, new seconds) of each row: medians over the rounds."""
    for part in parts:
        old: dict[str, list[float]] = defaultdict(list)
        new: dict[str, list[float]] = defaultdict(list)
        for number in range(rounds):
            sides = [(other, old), (HERE, new)]
            for tree, times in sides if number % 2 == 0 else reversed(sides):
                for name, seconds in PARTS[part](tree).items():
                    times[name].append(seconds)
        for name in old:
            if name in new:
                yield name, statistics.median(old[name]), statistics.median(new[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, help="another checkout, with its .venv")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case (default 5)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, of " + ",".join(PARTS))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"{', '.join(unknown)}: none of {', '.join(PARTS)}")
    facts = machine.facts()
    if not options.json:
        print(machine.text(facts))
        print(f"medians of {options.rounds} rounds: {options.other}, this checkout, new / old")
    rows: list[dict[str, Any]] = []
    for name, old, new in compare(parts, options.other.resolve(), options.rounds):
        rows.append({"case": name, "old_s": old, "new_s": new, "ratio": new / old})
        if not options.json:
            print(f"{name:60}{old:12.6f} s{new:12.6f} s{new / old:8.2f}", flush=True)
    if options.json:
        print(json.dumps({"machine": facts, "other": str(options.other), "rows": rows}, indent=1))
    else:
        print(f"median of new / old over {len(rows)} rows: ", end="")
        print(f"{statistics.median(row['ratio'] for row in rows):.3f}")


if __name__ == "__main__":
    main()
