"""The comparison with another commit: medians of alternating runs, on simulated checkouts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def against(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("against")


def test_a_row_holds_the_medians_of_both_checkouts(
    against: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = {tmp_path: iter([1.0, 9.0, 2.0]), against.HERE: iter([3.0, 4.0, 8.0])}
    order: list[Path] = []

    def measure(tree: Path) -> dict[str, float]:
        order.append(tree)
        return {"case": next(times[tree]), f"only in {tree.name}": 1.0}

    monkeypatch.setitem(against.PARTS, "made up", measure)
    assert list(against.compare(["made up"], tmp_path, 3)) == [("case", 2.0, 4.0)]
    here = against.HERE
    assert order == [tmp_path, here, here, tmp_path, tmp_path, here], "who is first must alternate"


def test_a_benchmark_that_fails_ends_the_comparison_with_its_error(
    against: Any, tmp_path: Path
) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/compile.py").write_text("raise SystemExit('no such case')")
    with pytest.raises(SystemExit, match="no such case"):
        against.run(tmp_path, "compile.py")
