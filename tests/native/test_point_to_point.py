"""Point-to-point messages under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.native_programs import (
    SANITIZERS,
    SOURCES,
    TESTS,
    check_lost_release,
    run,
    sanitized,
)

PROGRAM = (*SOURCES["FABRIC"], *SOURCES["MESSAGES"], TESTS / "messages_traffic.cpp")


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_messages_are_right_and_clean(tmp_path: Path, sanitizers: str) -> None:
    done = run(sanitized(tmp_path, sanitizers, "point_to_point_test.cpp", PROGRAM))
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_lost_release_of_a_message_is_noticed(tmp_path: Path) -> None:
    check_lost_release(sanitized(tmp_path, "thread", "point_to_point_test.cpp", PROGRAM))
