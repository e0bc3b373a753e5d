"""Settings of an executor, checked before anything is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from sley.codegen import Engine
from sley.engine.limits import TIMEOUT_S, check_settings, whole
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


class Launching(Enum):
    """TOGETHER starts all ranks of a device with one launch, BY_RANK each with one of its own, on a
    stream of its own. CUDA has 8 queues for its streams unless CUDA_DEVICE_MAX_CONNECTIONS says
    otherwise before it starts; with more ranks by launch, some would wait for others in a queue."""

    TOGETHER = "together"
    BY_RANK = "by-rank"


@dataclass(frozen=True)
class Settings:
    """How a plan runs on devices.

    engine: generated code, or the interpreter.
    slots, slot_bytes: messages that a connection holds (the plan's own number without; the next
        power of two), and the room of each, down to a multiple of 128 (without: what 24 MiB give
        each connection, from 16 to 512 KiB; at most 1 GiB).
    threads: of a block, on a GPU: whole warps of 32, up to 1,024.
    timeout_s: how long an instruction may wait before the call gives up.
    launching: one launch for all ranks of a device, or one for each.

    engine and launching may be given by their words. Errors: R514.
    """

    engine: Engine = Engine.GENERATED
    slots: int | None = None
    slot_bytes: int | None = None
    threads: int = THREADS
    timeout_s: float = TIMEOUT_S
    launching: Launching = Launching.TOGETHER

    def __post_init__(self) -> None:
        slot_bytes = 1 if self.slot_bytes is None else self.slot_bytes
        check_settings(self.slots, slot_bytes, self.timeout_s)
        # Lengths within a message have 32 bits in kernels.
        _at_most(slot_bytes, _MOST_SLOT_BYTES, "slot_bytes")
        _check_warps(self.threads)
        object.__setattr__(self, "engine", member(Engine, self.engine, "engine", R514))
        object.__setattr__(self, "launching", member(Launching, self.launching, "launching", R514))

    def slots_of(self, plan_slots: int, connections: int) -> tuple[int, int]:
        """How many slots each connection of a plan gets, and bytes from one to the next.

        plan_slots: the plan's own number. Errors: R514.
        """
        asked = max(plan_slots if self.slots is None else int(self.slots), 1)
        _at_most(asked, _MOST_SLOTS, "slots")
        slot_bytes = _room(connections * asked) if self.slot_bytes is None else self.slot_bytes
        is_enough = asked >= plan_slots
        return 1 << (asked - 1).bit_length() if is_enough else asked, _align(slot_bytes)


def _at_most(number: int, most: int, name: str) -> None:
    if number > most:
        raise R514.error(expected=f"{name} to be at most {most:,}", found=f"{name}={number:,}")


def _align(slot_bytes: int) -> int:
    """Down to whole lines of 128 bytes, which LL128 writes at once, else to whole vectors of 16.
    Less than a vector holds no piece at all, and every call says so."""
    return next((slot_bytes // a * a for a in _ALIGNMENTS if slot_bytes >= a), slot_bytes)


def _room(slots: int) -> int:
    """Bytes of a slot where nobody says: a power of two."""
    least, most = _SLOT_BYTES
    share = _SLOTS_BYTES // max(slots, 1)
    return int(np.clip(1 << (share.bit_length() - 1 if share else 0), least, most))


def _check_warps(threads: int) -> None:
    number = whole(threads, "threads", _WARP)
    if number % _WARP or number > _MOST_THREADS:
        raise R514.error(
            expected=f"threads to be a multiple of {_WARP} up to {_MOST_THREADS}",
            found=f"threads={threads!r}",
        )
