"""Refusals: what one of several processes found wrong, told to the others in place of what they
wait for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sley.errors import Diagnostic, SleyError
from sley.errors.remote import diagnostic_from_json

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
            for value in json.loads(message[len(_MARK) :]):
                one = diagnostic_from_json(value)
                found[replace(one, notes=(*one.notes, "another process found this"))] = None
    return SleyError(list(found)) if found else None
