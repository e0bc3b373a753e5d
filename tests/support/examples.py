"""Examples: the numbers of random examples that tests take."""

from __future__ import annotations

from hypothesis import settings

USUAL = 120
"""Of the profile of `make test`."""

SLOW = 5000
"""Of the profile of `make slow`."""

_TIMES = 16
"""`make slow` takes as many times more of the tests that give their number."""


def examples(number: int, **options: object) -> settings:
    """Takes `number` examples in place of USUAL, and _TIMES as many with `make slow`. options:
    further settings of hypothesis."""
    is_slow = settings.default is not None and settings.default.max_examples == SLOW
    return settings(max_examples=number * (_TIMES if is_slow else 1), **options)  # type: ignore[arg-type]
