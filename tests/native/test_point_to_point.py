"""Point-to-point messages under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_sanitizers import HERE, build, run

from support.native_sources import SOURCES

PROGRAM = (*SOURCES["FABRIC"], *SOURCES["MESSAGES"], HERE / "messages_traffic.cpp")


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_messages_are_right_and_clean(tmp_path: Path, sanitizers: str) -> None:
    done = run(build(tmp_path, sanitizers, test="point_to_point_test.cpp", of=PROGRAM))
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_lost_release_is_noticed(tmp_path: Path) -> None:
    """With relaxed stores for the counters of fifo.hpp the thread sanitizer must object."""
    broken = "-DSLEY_BREAK_RELEASE"
    done = run(build(tmp_path, "thread", broken, test="point_to_point_test.cpp", of=PROGRAM))
    assert done.returncode != 0
    assert "data race" in done.stderr
