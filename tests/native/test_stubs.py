"""The stubs through which mypy knows the extension modules match these modules."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from nanobind.stubgen import StubGen

from support.golden import Golden

SOURCE = Path(__file__).resolve().parents[2] / "src"


def stub_of(name: str) -> str:
    """The stub of a module, in which classes of sley are imported by name: `sley.simulate` is also
    a function of `sley`."""
    module = importlib.import_module(name)
    stubs = StubGen(module)
    stubs.put(module)
    text: str = stubs.get()
    for other in re.findall(r"^import (sley\.[\w.]+)$", text, re.MULTILINE):
        classes = sorted(set(re.findall(rf"{re.escape(other)}\.(\w+)", text)))
        text = text.replace(f"import {other}\n", f"from {other} import {', '.join(classes)}\n")
        text = text.replace(f"{other}.", "")
    return text


@pytest.mark.parametrize(
    "name", ["sley.engine._native", "sley.ir._graphs", "sley.simulate._event_loop"]
)
def test_the_stub_is_up_to_date(name: str, request: pytest.FixtureRequest) -> None:
    """--update-golden writes it."""
    *folders, module = name.split(".")
    golden = Golden(SOURCE.joinpath(*folders), request.config.getoption("--update-golden"))
    golden(f"{module}.pyi", stub_of(name))
