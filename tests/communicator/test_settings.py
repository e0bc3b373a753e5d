"""Settings: values from the environment, and refusals."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from sley.communicator import Communicator, Copies, LocalStore, Network, Settings
from sley.communicator.ready import who_tells
from sley.communicator.stats import log_to_stderr, logger
from sley.errors import SleyError
from support.processes.threads_group import Ranks


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLEY_TIMEOUT_S": "2.5",
        "SLEY_CMA": "No",
        "SLEY_COPIES": "Streamed",
        "SLEY_NETWORK": "TCP",
        "SLEY_PLAN_DIR": "plans",
        "SLEY_PLAN_DIR_STRICT": "1",
        "SLEY_TUNER": "policy.toml",
        "SLEY_EXPLORE": "0.05",
        "SLEY_SAME_BITS": "1",
        "SLEY_REPLAN": "yes",
    }.items():
        monkeypatch.setenv(name, value)
    found = Settings.from_environment(slots=16)
    assert (found.timeout_s, found.cma, found.plan_dir, found.slots) == (2.5, False, "plans", 16)
    assert (found.copies, found.network) == (Copies.STREAMED, Network.TCP)
    assert found.plan_dir_strict
    assert found.same_bits
    assert found.replan
    assert found.agreement()["replan"] == "True"
    assert (found.tuner, found.explore) == ("policy.toml", 0.05)
    assert Settings.from_environment(copies="cached").copies is Copies.CACHED
    monkeypatch.setenv("SLEY_SAME_BITS", "Balanced")
    assert Settings.from_environment().agreement()["same_bits"] == "balanced"


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIMEOUT_S", "CMA", "COPIES", "NETWORK", "PLAN_DIR", "PLAN_DIR_STRICT", "TUNER"):
        monkeypatch.setenv(f"SLEY_{name}", "")
    assert Settings.from_environment() == Settings()


@pytest.mark.parametrize(
    "name",
    ["TIMEOUT_S", "CMA", "COPIES", "NETWORK", "PLAN_DIR_STRICT", "EXPLORE", "SAME_BITS", "REPLAN"],
)
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
        {"same_bits": "chain"},
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


def test_an_invalid_file_in_a_strict_folder_of_plans_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "own.xml").write_text("<algo")
    own = Settings(timeout_s=10, use_cache=False, plan_dir=tmp_path)
    errors: list[SleyError | None] = [None, None]
    store = LocalStore()

    def start(rank: int) -> None:
        settings = replace(own, plan_dir=tmp_path if rank else None, plan_dir_strict=True)
        try:
            Communicator(store, rank, 2, settings=settings).close()
        except SleyError as error:
            errors[rank] = error

    threads = [Thread(target=start, args=(rank,)) for rank in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    other, mine = errors
    assert mine is not None
    assert (mine.code, mine.diagnostics[0].places[0].file) == ("F401", str(tmp_path / "own.xml"))
    assert other is not None
    assert other.code == "N608"
    assert "rank 1" in str(other)
    with Ranks(2, own) as group:  # a warning only
        assert [code.code for code in group.comms[0].plans.problems] == ["F401"]


def test_the_first_of_the_ranks_with_a_problem_tells_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "own.xml").write_text("<algo")
    own = Settings(timeout_s=10, use_cache=False, plan_dir=tmp_path)
    with caplog.at_level("WARNING", "sley"), Ranks(3, own):
        pass
    (said,) = [record.getMessage() for record in caplog.records if "F401" in record.getMessage()]
    assert "all ranks: a plan can't be used, so sley's default ones run: " in said
    some = [["one"], ["other"], ["one"], []]
    assert [who_tells(some, rank) for rank in range(4)] == ["ranks 0, 2", "rank 1", "", "rank 3"]


def test_warnings_have_a_prefix_unless_the_program_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLEY_DEBUG", raising=False)
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logging.root, "handlers", [])
    log_to_stderr()
    log_to_stderr()
    logger.warning("once")
    assert capsys.readouterr().err == "sley WARNING once\n"
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    logger.warning("the program's own")
    assert not capsys.readouterr().err
    monkeypatch.setenv("SLEY_DEBUG", "WARN")
    log_to_stderr()
    log_to_stderr()
    logger.warning("asked for")
    assert capsys.readouterr().err == "sley WARNING asked for\n"
