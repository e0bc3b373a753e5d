"""Settings of an executor, checked before anything is made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.codegen import Engine
from sley.devices.sites import Launching
from sley.engine.limits import check_settings, whole
from sley.errors.runtime import R514
from sley.ir.choices import member

THREADS = 512
"""Threads of a block on a GPU."""

_SLOTS_BYTES = 24 << 20
"""What the slots of all connections take together, unless told otherwise: they are read back from
the L2 cache, which has 40 MB on an A100 and 50 MB on an H100."""

_SLOT_BYTES = (16 << 10, 512 << 10)
_MOST_SLOT_BYTES = 1 << 30
_MOST_SLOTS = 1 << 30
_ALIGNMENTS = (128, 16)
_WARP, _MOST_THREADS = 32, 1024


@dataclass(frozen=True)
class Settings:
    """What an executor was told, with its own choices where it was told nothing.

    slot_bytes: from one slot to the next.
    """

    engine: Engine
    launching: Launching
    slots: int
    slot_bytes: int
    threads: int
    timeout_s: float

    @classmethod
    def of(
        cls,
        plan_slots: int,
        connections: int,
        *,
        engine: Engine | str,
        launching: Launching | str,
        slots: int | None,
        slot_bytes: int | None,
        threads: int,
        timeout_s: float,
    ) -> Settings:
        """The settings of an executor on a plan with so many connections, of `plan_slots` slots
        each. R514 for those that make no sense."""
        check_settings(slots, 1 if slot_bytes is None else slot_bytes, timeout_s)
        asked = max(plan_slots if slots is None else slots, 1)
        if slot_bytes is None:
            slot_bytes = _room(connections * asked)
        _at_most(asked, _MOST_SLOTS, "slots")
        # Lengths within a message have 32 bits in kernels.
        _at_most(slot_bytes, _MOST_SLOT_BYTES, "slot_bytes")
        is_enough = asked >= plan_slots
        return cls(
            engine=member(Engine, engine, "engine", R514),
            launching=member(Launching, launching, "launching", R514),
            slots=1 << (asked - 1).bit_length() if is_enough else asked,
            slot_bytes=_aligned(slot_bytes),
            threads=_whole_warps(threads),
            timeout_s=timeout_s,
        )


def _at_most(number: int, most: int, name: str) -> None:
    if number > most:
        raise R514.error(expected=f"{name} to be at most {most:,}", found=f"{name}={number:,}")


def _aligned(slot_bytes: int) -> int:
    """Down to whole lines of 128 bytes, which LL128 writes at once, else to whole vectors of 16.
    Less than a vector holds no piece at all, and every call says so."""
    return next((slot_bytes // a * a for a in _ALIGNMENTS if slot_bytes >= a), slot_bytes)


def _room(slots: int) -> int:
    """Bytes of a slot where nobody says: a power of two."""
    least, most = _SLOT_BYTES
    share = _SLOTS_BYTES // max(slots, 1)
    return int(np.clip(1 << (share.bit_length() - 1 if share else 0), least, most))


def _whole_warps(threads: int) -> int:
    number = whole(threads, "threads", _WARP)
    if number % _WARP or number > _MOST_THREADS:
        raise R514.error(
            expected=f"threads to be a multiple of {_WARP} up to {_MOST_THREADS}",
            found=f"threads={threads!r}",
        )
    return number
