"""Sizes as text."""

from __future__ import annotations

import pytest

from sley.ir.sizes import size_in_bytes, size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (1000, "1000"), (2**16, "64K"), (1_024_000, "1000K"), (3 << 30, "3G")],
)
def test_a_size_has_the_largest_unit_that_divides_it(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
    assert size_in_bytes(text) == (size_bytes or None)


@pytest.mark.parametrize("text", ["64M", "64m", "64MB", "64 MiB", "64mB"])
def test_a_text_of_bytes_is_a_size(text: str) -> None:
    assert size_in_bytes(text) == 64 << 20
    assert size_in_bytes(text.rstrip("B") + "b") is None  # bits


def test_a_size_that_is_round_in_bytes_stays_so() -> None:
    assert size_text(100_000_000_000) == "100000000000"  # not 97656250K
