"""The faults that are planted to try the tests are still faults of this code."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks" / "planted"), *sys.path])
    return import_module("faults")


def test_every_fault_has_its_text_once(faults: Any) -> None:
    sources = faults.read_sources(ROOT)
    for fault in faults.FAULTS:
        faults.find(fault, sources)


def test_every_fault_names_folders_of_tests(faults: Any) -> None:
    named = {name for fault in faults.FAULTS for name in fault.tests}
    assert {name for name in named if not (ROOT / "tests" / name).is_dir()} == set()
