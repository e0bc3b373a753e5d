"""The compiled parts are loaded at their first use, not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sley
from sley.algorithms import build
from sley.engine import native
from sley.errors import SleyError

COMPILED = ("sley.engine._native", "sley.ir._graphs", "sley.model.simulation._event_loop")


def test_sley_is_imported_without_its_compiled_parts() -> None:
    missing = "; ".join(f"sys.modules[{name!r}] = None" for name in COMPILED)
    packages = "sley, sley.communicator.jobs, sley.model.simulation, sley.engine.devices, sley.cli"
    code = f"import sys; {missing}; import {packages}"
    run = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr


def test_extras_are_not_needed_for_a_proof_a_time_and_its_bound() -> None:
    extras = ("matplotlib", "numba", "scipy", "sklearn", "torch")
    missing = "; ".join(f"sys.modules[{name!r}] = None" for name in extras)
    plan = "sley.compile(sley.algorithms.ring_allreduce(8), topology='ndv4')"
    code = f"import sys; {missing}; import sley; print(sley.simulate({plan}, '1M').bound.time_us)"
    run = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr


def test_a_missing_engine_is_r512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sley.engine._native", None)
    monkeypatch.delitem(vars(native), "Segment", raising=False)  # kept by an earlier use
    with pytest.raises(SleyError) as caught:
        native.Segment.create(1)
    assert caught.value.code == "R512"


def test_a_missing_event_loop_is_r512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sley.model.simulation._event_loop", None)
    plan = sley.compile(build("ring-allreduce", ranks=2))
    with pytest.raises(SleyError) as caught:
        sley.simulate(plan, "1K", sley.topologies.ndv4())
    assert caught.value.code == "R512"


def test_an_unknown_name_of_the_engine_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="teapot"):
        native.teapot  # type: ignore[attr-defined]  # noqa: B018
