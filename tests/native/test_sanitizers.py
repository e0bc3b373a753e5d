"""The engine and the simulator under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

import pytest

from support.devices.native_programs import (
    ALL_SANITIZERS,
    EVERY_SANITIZER,
    SOURCES,
    check_lost_release,
    run,
    sanitized,
)

ENGINE = (*SOURCES["FABRIC"], *SOURCES["ENGINE"])


@pytest.mark.parametrize("sanitizers", EVERY_SANITIZER)
def test_the_engine_is_clean(sanitizers: str) -> None:
    done = run(sanitized(sanitizers, "engine_test.cpp", ENGINE))
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_lost_release_of_the_engine_is_noticed() -> None:
    check_lost_release(sanitized("thread", "engine_test.cpp", ENGINE))


def test_a_connection_uses_a_slot_again_only_after_all_its_readers() -> None:
    done = run(sanitized(ALL_SANITIZERS, "fifo_test.cpp", SOURCES["FABRIC"]))
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_waiting_rank_leaves_its_core_to_ranks_alone() -> None:
    done = run(sanitized(ALL_SANITIZERS, "crowd_test.cpp", ()))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("sanitizers", EVERY_SANITIZER)
def test_ranks_agree_on_how_calls_go(sanitizers: str) -> None:
    done = run(sanitized(sanitizers, "ways_test.cpp", ()))
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_simulator_is_clean() -> None:
    simulator, checked = SOURCES["SIMULATOR"], "-D_GLIBCXX_ASSERTIONS"
    program = sanitized(ALL_SANITIZERS, "simulator_test.cpp", simulator, checked)
    done = run(program)
    assert done.returncode == 0, done.stderr[-4000:]
