"""The stubs through which mypy knows the extension modules match these modules."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from nanobind.stubgen import StubGen

from support.checks.golden import Golden

SOURCE = Path(__file__).resolve().parents[2] / "src"


def stub_of(name: str) -> str:
    module = importlib.import_module(name)
    stubs = StubGen(module)
    stubs.put(module)
    text: str = stubs.get()
    return text


@pytest.mark.parametrize(
    "name", ["sley.engine._native", "sley.ir._graphs", "sley.model.simulation._event_loop"]
)
def test_the_stub_is_up_to_date(name: str, request: pytest.FixtureRequest) -> None:
    """--update-golden writes it."""
    *folders, module = name.split(".")
    golden = Golden(SOURCE.joinpath(*folders), request.config.getoption("--update-golden"))
    golden(f"{module}.pyi", stub_of(name))
