"""Point-to-point messages under the thread, address and undefined-behaviour sanitizers."""

from __future__ import annotations

import pytest

from support.devices.native_programs import ALL_SANITIZERS, check_lost_release, check_test


@pytest.mark.parametrize(
    ("sanitizers", "worlds"),
    [
        ("thread", 3),
        *(pytest.param(name, 16, marks=pytest.mark.slow) for name in ("thread", ALL_SANITIZERS)),
    ],
)
def test_messages_are_right_and_clean(sanitizers: str, worlds: int) -> None:
    """Addresses only in slow runs, as the tests of the engine and the network check those too."""
    check_test(sanitizers, "messages", "1", str(worlds))


def test_a_lost_release_of_a_message_is_noticed() -> None:
    check_lost_release("messages")
