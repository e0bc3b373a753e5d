"""The engine and the simulator under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.native_programs import SANITIZERS, SOURCES, check_lost_release, run, sanitized

ENGINE = (*SOURCES["FABRIC"], *SOURCES["ENGINE"])


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_the_engine_is_clean(tmp_path: Path, sanitizers: str) -> None:
    done = run(sanitized(tmp_path, sanitizers, "engine_test.cpp", ENGINE))
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_lost_release_of_the_engine_is_noticed(tmp_path: Path) -> None:
    check_lost_release(sanitized(tmp_path, "thread", "engine_test.cpp", ENGINE))


def test_a_connection_uses_a_slot_again_only_after_all_its_readers(tmp_path: Path) -> None:
    done = run(sanitized(tmp_path, "address,undefined", "fifo_test.cpp", ()))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_ranks_agree_on_how_calls_go(tmp_path: Path, sanitizers: str) -> None:
    done = run(sanitized(tmp_path, sanitizers, "ways_test.cpp", ()))
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_simulator_is_clean(tmp_path: Path) -> None:
    simulator, checked = SOURCES["SIMULATOR"], "-D_GLIBCXX_ASSERTIONS"
    program = sanitized(tmp_path, "address,undefined", "simulator_test.cpp", simulator, checked)
    done = run(program)
    assert done.returncode == 0, done.stderr[-4000:]
