"""Refusals: what one of several processes found wrong, told to the others in place of what they
wait for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sley.errors import Diagnostic, Place, SleyError
from sley.errors.catalog import all_rules

_MARK = b"refused:"
"""No other message begins with it: they are empty, or JSON."""


def refusal(error: SleyError) -> bytes:
    """What a process says to the others when it has to give up what all do together."""
    return _MARK + json.dumps([d.to_json() for d in error.diagnostics]).encode()


def refused(said: Sequence[bytes]) -> SleyError | None:
    """What the processes found that refuse, as an error of this one; None if nobody refuses.
    ValueError for a refusal that `refusal` didn't make."""
    found: dict[Diagnostic, None] = {}
    for message in said:
        if message.startswith(_MARK):
            found |= dict.fromkeys(_diagnostics(message[len(_MARK) :]))
    return SleyError(list(found)) if found else None


def _diagnostics(text: bytes) -> list[Diagnostic]:
    try:
        return [_diagnostic(**one) for one in json.loads(text)]
    except (KeyError, TypeError) as problem:
        raise ValueError(f"no diagnostics: {text[:40]!r}") from problem


def _diagnostic(
    *,
    code: str,
    places: Sequence[dict[str, Any]],
    expected: str,
    found: str,
    remedy: str,
    notes: Sequence[str],
    **_: object,
) -> Diagnostic:
    return all_rules()[code].diagnostic(
        at=[Place(**place) for place in places],
        expected=expected,
        found=found,
        remedy=remedy,
        notes=[*notes, "another process found this"],
    )
