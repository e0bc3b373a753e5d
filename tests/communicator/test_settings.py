"""Settings: values from the environment, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from sley.communicator import Copies, Network, Settings
from sley.communicator.stats import log_to_stderr
from sley.errors import SleyError


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLEY_TIMEOUT_S": "2.5",
        "SLEY_CMA": "No",
        "SLEY_COPIES": "Streamed",
        "SLEY_NETWORK": "TCP",
        "SLEY_PLAN_DIR": "plans",
        "SLEY_TUNER": "policy.zip",
        "SLEY_EXPLORE": "0.05",
    }.items():
        monkeypatch.setenv(name, value)
    found = Settings.from_environment(slots=16)
    assert (found.timeout_s, found.cma, found.plan_dir, found.slots) == (2.5, False, "plans", 16)
    assert (found.copies, found.network) == (Copies.STREAMED, Network.TCP)
    assert (found.tuner, found.explore) == ("policy.zip", 0.05)
    assert Settings.from_environment(copies="cached").copies is Copies.CACHED


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIMEOUT_S", "CMA", "COPIES", "NETWORK", "PLAN_DIR", "TUNER", "EXPLORE"):
        monkeypatch.setenv(f"SLEY_{name}", "")
    assert Settings.from_environment() == Settings()


@pytest.mark.parametrize("name", ["TIMEOUT_S", "CMA", "COPIES", "NETWORK", "EXPLORE"])
def test_a_variable_that_means_nothing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SLEY_{name}", "fast")
    with pytest.raises(SleyError, match=f"SLEY_{name}='fast'") as caught:
        Settings.from_environment()
    assert caught.value.code == "R514"
    assert caught.value.diagnostics[0].remedy.endswith("leave it out.")


def test_an_unknown_level_of_the_log_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEY_DEBUG", "loud")
    with pytest.raises(SleyError, match="SLEY_DEBUG='loud'") as caught:
        log_to_stderr()
    assert caught.value.code == "R514"


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": 0},
        {"slots": 1},
        {"slot_bytes": 3},
        {"channels": 0},
        {"cma": "0"},
        {"use_cache": 1},
        {"copies": "fast"},
        {"network": 3},
        {"plan_dir": 3},
        {"plan_dir": ""},
        {"tuner": 3},
        {"tuner": ""},
        {"explore": 0.11},
        {"explore": -0.01},
        {"explore": float("nan")},
        {"explore": True},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SleyError) as caught:
        Settings(**wrong)
    assert caught.value.code == "R514"
