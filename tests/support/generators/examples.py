"""Examples: the numbers of random examples that tests take."""

from __future__ import annotations

from hypothesis import settings

USUAL = 15
"""The number of examples in `make test`."""

SLOW = 5000
"""The number of examples in `make slow`."""

_TIMES = 64
"""The factor of `make slow` for tests that give their number of examples."""


def examples(number: int, **options: object) -> settings:
    """Settings with `number` examples instead of USUAL, and _TIMES as many in `make slow`. options:
    further settings of hypothesis."""
    is_slow = settings.default is not None and settings.default.max_examples == SLOW
    return settings(max_examples=number * (_TIMES if is_slow else 1), **options)  # type: ignore[arg-type]
