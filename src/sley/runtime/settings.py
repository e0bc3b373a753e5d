"""The settings of a job, with their defaults and limits."""

from __future__ import annotations

import math

from sley.errors.runtime import R506, R514
from sley.runtime.program import Loaded
from sley.runtime.types import DataType

SLOT_BYTES = 64 * 1024
"""Room of a slot: pieces that stay in a core's cache while they are combined and passed on."""

TIMEOUT_S = 30.0
"""How long nothing may move before a job gives up."""


def require(condition: bool, name: str, expected: str, found: object) -> None:
    """R514 unless `condition` holds for the setting called `name`."""
    if not condition:
        raise R514.error(expected=f"{name} {expected}", found=f"{name}={found}")


def check_settings(slots: int | None, slot_bytes: int, timeout_s: float) -> None:
    """R514 for settings that make no sense."""
    require(slots is None or slots >= 1, "slots", ">= 1", slots)
    require(slot_bytes >= 1, "slot_bytes", ">= 1", slot_bytes)
    require(0 < timeout_s < math.inf, "timeout_s", "> 0 and finite", timeout_s)


def check_slot(loaded: Loaded, dtype: DataType) -> None:
    """R506 where a slot cannot hold an element of every chunk of the longest message."""
    needed = loaded.max_count * dtype.size_bytes
    if loaded.wiring.slot_bytes < needed:
        raise R506.error(
            expected=f"slot_bytes >= {needed}: {loaded.max_count} chunks of {dtype.name}",
            found=f"slot_bytes={loaded.wiring.slot_bytes}",
        )
