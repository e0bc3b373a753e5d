"""benchmarks/replanning.py: the tables of given times."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_calls_that_were_cut_short_are_told_by_place_and_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    benchmark: Any = importlib.import_module("replanning")
    whole = "-" * benchmark.STREAM_CALLS
    both, one = "--XX" + whole[4:], "---X" + whole[4:]
    of_ranks = [
        [{"cut": 0, "rank": 0, "codes": both, "nic": "eth1", "recovery_s": 1.5}],
        [{"cut": 0, "rank": 1, "codes": one}],
    ]
    table = benchmark.report_cuts(of_ranks)
    assert "out of place, those that had not finished it; in place, all ranks" in table
    assert "median 1.50 s" in table
