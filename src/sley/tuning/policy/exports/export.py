"""Export: a text for another runtime, with remarks."""

from __future__ import annotations

from dataclasses import dataclass

from sley.tuning.policy.nccl_names import NcclRange
from sley.tuning.policy.policy import Policy


@dataclass(frozen=True)
class Export:
    """A policy as the text of a file.

    remarks: what the file can't express, and ranges that are left out, a sentence each.
    """

    text: str
    remarks: tuple[str, ...] = ()


def title(policy: Policy) -> str:
    """The policy's machine and agent in words of ASCII on one line, for a comment."""
    words = f"trained for {policy.machine}" + (f" by {policy.agent}" if policy.agent else "")
    plain = words.encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() and c not in "*/\\" else " " for c in plain)[:120]


def tile_remarks(ranges: tuple[NcclRange, ...], what: str) -> list[str]:
    """A remark on each range that has a tile of its own, which a file can't express."""
    return [
        f"{one.label}: {what} no share of the tile, so tile={one.choice.tile:g} is ignored"
        for one in ranges
        if one.choice.tile != 1
    ]
