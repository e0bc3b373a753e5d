"""How many random examples tests take that do more with each than others."""

from __future__ import annotations

from hypothesis import settings

USUAL = 120
"""Of the profile of `make test`; that of `make slow` has more."""


def examples(number: int, **options: object) -> settings:
    """Takes `number` examples where others take USUAL, and as many times more in another profile.
    options: further settings of hypothesis."""
    most = settings.default.max_examples if settings.default else USUAL
    return settings(max_examples=max(1, number * most // USUAL), **options)  # type: ignore[arg-type]
