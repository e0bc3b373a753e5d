"""The engine and the simulator under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

import pytest

from support.devices.native_programs import (
    ALL_SANITIZERS,
    EVERY_SANITIZER,
    check_lost_release,
    check_test,
)

ADDRESSES = ("address", pytest.param(ALL_SANITIZERS, marks=pytest.mark.slow))


@pytest.mark.parametrize("sanitizers", EVERY_SANITIZER)
@pytest.mark.parametrize("test", ["devices", "engine", "meeting", "processes", "ways"])
def test_the_engine_is_clean(sanitizers: str, test: str) -> None:
    """`devices`: streams of threads, and calls in order. `meeting`: ranks find one another.
    `processes`: they meet all, or none. `ways`: ranks agree on how calls go."""
    check_test(sanitizers, test)


def test_a_lost_release_of_the_engine_is_noticed() -> None:
    check_lost_release("engine")


@pytest.mark.parametrize("sanitizers", ADDRESSES)
@pytest.mark.parametrize("test", ["crowd", "fifo", "simulator"])
def test_what_one_thread_does_is_clean(sanitizers: str, test: str) -> None:
    """`fifo`: a connection uses a slot again only after all its readers. `crowd`: a waiting rank
    leaves its core to ranks alone."""
    check_test(sanitizers, test)
