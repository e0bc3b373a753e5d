"""Conditions: the circumstances under which a proof holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Condition:
    """A circumstance under which a proof holds.

    about: what it concerns: "place", "root", "counts", "sizes", "slots", "slot sizes", "input",
        "chunks", "allocations", "hosts", "calls", "buffers" or "version".
    text: the circumstance in words, such as "in place" or "2 slots a connection or more".
    """

    about: str
    text: str

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, str]:
        """The condition as plain values, for ``--json``."""
        return {"about": self.about, "text": self.text}


INPUT_KEPT = Condition("input", "the input is kept")
"""What a proof promises of the input, rather than a circumstance."""
