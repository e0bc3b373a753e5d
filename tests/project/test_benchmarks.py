"""Every benchmark loads, and runs at its smallest size where that takes seconds."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sley

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py"))


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks are scripts, which find their neighbours."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


def run(script: str, *arguments: str) -> str:
    """The output of a benchmark, which must succeed."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if "add_argument(" in (BENCHMARKS / s).read_text()]
)
def test_a_benchmark_loads_and_reads_its_options(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if script == "tensor_parallel.py":
        pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_a_file_of_results_has_a_line_for_each_row(tmp_path: Path) -> None:
    results = {"machine": {"cores": 2}, "rows": [{"ms": [0.5, 1.25]}, {"ms": []}], "seconds": 3.0}
    path = importlib.import_module("common.results").save(results, tmp_path, "a")
    text = path.read_text()
    assert json.loads(text) == results
    assert text.splitlines()[2:5] == ['"rows": [', ' {"ms": [0.5, 1.25]},', ' {"ms": []}']


@pytest.mark.parametrize(
    ("script", "arguments", "found"),
    [
        ("compile.py", ["--case", "nine-diamonds", "--runs", "1"], "nine-diamonds"),
        ("scale.py", ["--gpus", "16", "--runs", "1"], "us a transfer"),
        pytest.param(
            *("simulate.py", ["--case", "hm-64", "--runs", "1"], "hm-64"), marks=pytest.mark.slow
        ),
        ("step_model.py", [], "NCCL"),
    ],
)
def test_a_benchmark_runs_at_its_smallest_size(
    script: str, arguments: list[str], found: str
) -> None:
    assert found in run(script, *arguments)


def test_blocks_of_a_plan_are_compared(tmp_path: Path) -> None:
    plan = sley.compile(sley.algorithms.build("all-pairs-allreduce", ranks=4, in_place=True))
    sley.save(plan, tmp_path / "plan.xml")
    assert "state" in run("blocks.py", str(tmp_path / "plan.xml"))


def test_work_that_grows_by_more_than_a_tenth_is_named() -> None:
    compare: Any = importlib.import_module("work").compare
    recorded = {"ring": {"compile": {"lines": 100, "bytes": 100}}}
    found = {"ring": {"compile": {"lines": 111, "bytes": 109}}}
    rows, grown = compare(found, recorded, same=True)
    assert grown == ["ring, compile: 111 lines, recorded 100"]
    assert "1.11" in rows[0]
    assert compare(found, recorded, same=False) == (rows, [])
    assert compare({"new": found["ring"]}, recorded, same=True)[1], "a case without a record"


def test_a_loop_over_rows_and_an_array_are_counted() -> None:
    counter = importlib.import_module("work").Counter()

    def loop(program: sley.Program) -> int:
        return int(counter.run(lambda: sley.compile(program, verify=False))[1]["lines"])

    small, large = (sley.algorithms.build("ring-allreduce", ranks=n) for n in (8, 16))
    loop(small)
    assert loop(large) > loop(small)
    counts = counter.run(lambda: np.ones(1000))[1]
    assert counts["lines"] == 0
    assert 8000 <= counts["bytes"] < 8100
