"""The faults that are planted to try the tests are still faults of this code."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_has_its_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks" / "planted"), *sys.path])
    faults = import_module("faults")
    sources = faults.read_sources(ROOT)
    for fault in faults.FAULTS:
        faults.find(fault, sources)
