"""Settings of an executor, validated when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from sley.engine.kernels import THREADS, Engine
from sley.engine.limits import TIMEOUT_S, check_timeout, whole
from sley.errors.runtime import R514
from sley.ir.cut import longest_chunk
from sley.ir.plan import Plan
from sley.ir.words import LoopOrder, Protocol, member

LATE_TIMEOUT_S = 600.0
"""Default time-out where ranks are in several processes."""

_SLOTS_BYTES = 24 << 20
"""Default size of all slots on a device together: receivers read them back from the L2 cache, which
has 40 MB on an A100 and 50 MB on an H100."""

_LEAST_SLOT_BYTES = 16 << 10
_LEAST_OF_LINES = 64 << 10
"""LL128's least: the threads of a block move some 30 KB of it at once, so that less would be spent
on the fixed cost of a message."""
_LEAST_OF_PULLED = 68 << 10
"""Least of plans whose messages all stay in their senders' buffers, if these can be read: nothing
is in the slots, so that they need not fit into a cache, but they bound the tiles. With 16 KiB, each
of the 480 threads that move data would have 34 bytes in flight instead of 128. Of 64 KiB, with
what `_SPARE` says."""
_MOST_BY_DEFAULT = {Protocol.LL: 64 << 10, Protocol.LL128: (128 << 10) - 256}
_MOST_OF_OTHERS = 512 << 10
"""The most, as a step of NCCL's buffers (4 MiB in eight steps, of LL 64 KiB each). On an H100 the
fixed cost of a tile was 1.5 us with LL, 2 us with LL128 and 2.5 us with Simple, of which a block
moved 14, 14 and 30 GB/s: of these slots it is two fifths of the time, a fifth and an eighth.
LL128's data don't fill powers of two anyway. What it leaves has room for the counters, which would
else take 2 MiB: GPUs share memory in such pieces."""
_SPARE = 16
"""A slot has this part, one by the number, beyond a power of two, so that chunks of a power of two
and a little more need no further tile. LL128's, of lines of 120 bytes, fit none anyway."""
_GRAINS = {Protocol.LL: (8, 16), Protocol.LL128: (120, 128)}
_GRAIN_OF_OTHERS = 16, 16
"""Data that are moved at once, and what they take in a slot, in bytes."""
_BORDERS = 2
"""The most grains that a chunk has in addition, if it is at the place of another one: each of its
three stretches ends with one that may be in part (`primitives/execute.hpp`)."""
_SLICES = 2
"""The most slices, as many as NCCL's (`ALLREDUCE_CHUNKSTEPS / ALLREDUCE_SLICESTEPS`)."""
_MOST_SLOT_BYTES = 1 << 30
_MOST_SLOTS = 1 << 30
_ALIGNMENTS = (128, 16)
_WARP, _MOST_THREADS = 32, 1024
_SMALL, _MEDIUM = 128, 256
"""Threads of blocks for short messages: more of them only wait for one another at barriers."""
_TURN_BYTES = {Protocol.LL: 32, Protocol.LL128: 60}
_TURN_OF_OTHERS = 64
"""Bytes of a message that a thread moves at once (`primitives/carry.hpp`). By the model, as many
threads as move all of it at once are the fastest. Measured on one H100, along rings of 2 to 8
ranks, 128 threads instead of 512: with LL 0.6 to 2.5 us less for messages up to 2 KiB, with LL128
0.4 to 3.3 us less up to 4 KiB; more from 4 and 8 KiB on."""
_MEDIUM_ON_ONE_DEVICE = 256 << 10
"""Bytes of a message of Simple or Direct up to which 256 threads are best if all ranks share a
device. Measured on one H100, along a ring of 4 ranks in 1 to 32 blocks: 3 to 12 % faster than 512
for calls of 256 KiB, within 3 % for 4 MiB; 7 to 21 % slower for 64 MiB, more than its L2 cache."""


class Launching(Enum):
    """TOGETHER starts all ranks of a device with one launch, BY_RANK starts each rank with its own
    launch on its own stream. CUDA maps its streams onto 8 queues, or as many as
    CUDA_DEVICE_MAX_CONNECTIONS says before CUDA starts, at most 32. More ranks on a device are
    refused (K506), since a rank could wait in a queue behind another. A caller that gives streams
    must see to it that no two of them share a queue."""

    TOGETHER = "together"
    BY_RANK = "by-rank"


@dataclass(frozen=True)
class Settings:
    """How a plan runs on devices.

    engine: generated code, or the interpreter; by default generated code, or, as long as that isn't
        compiled, the interpreter, if its kernels are prebuilt or links have several plans, which
        share it. GPUs' generated code is then compiled in the background, for later executors.
        Ranks need not have the same.
    slots: messages that a connection holds, rounded up to a power of two; by default the plan's, or
        twice as many where that makes slices (`slices_of`).
    slot_bytes: size of a slot, rounded down to a multiple of 128, at most 1 GiB; by default an
        equal share of 24 MiB on each device, from 16 to 512 KiB (LL: 16 to 64, LL128: 64 to 128,
        Direct: from 64 if no message is in a slot), and, but for LL128, a sixteenth more.
    threads: per block, on a GPU: a multiple of 32 (a warp), up to 1,024; by default 128, 256 or
        512, by the length of a call's messages (`threads_of`). The last warp publishes, the others
        move data; a single one does both. Ranks need not have the same.
    timeout_s: how long an instruction may wait before the call fails; by default 30 s, and with
        ranks in several processes 10 minutes, as in PyTorch: there a rank may be late, by a
        checkpoint or a slow loader.
    launching: one launch for all ranks of a device, or one for each.
    stamps: whether blocks note when they do what, for `Executor.timeline`: by kernels of their own,
        which are a little slower.

    engine and launching may be given as words. Errors: R514.
    """

    engine: Engine | None = None
    slots: int | None = None
    slot_bytes: int | None = None
    threads: int | None = None
    timeout_s: float | None = None
    launching: Launching = Launching.TOGETHER
    stamps: bool = False

    def __post_init__(self) -> None:
        if self.slots is not None:
            whole(self.slots, "slots", 1, _MOST_SLOTS)
        if self.slot_bytes is not None:  # kernels count the bytes of a message in 32 bits
            whole(self.slot_bytes, "slot_bytes", 1, _MOST_SLOT_BYTES)
        if self.timeout_s is not None:
            check_timeout(self.timeout_s)
        if (
            self.threads is not None
            and whole(self.threads, "threads", _WARP, _MOST_THREADS) % _WARP
        ):
            raise R514.error(
                expected=f"threads to be a multiple of {_WARP}", found=f"threads={self.threads!r}"
            )
        if self.engine is not None:
            object.__setattr__(self, "engine", member(Engine, self.engine, "engine", R514))
        object.__setattr__(self, "launching", member(Launching, self.launching, "launching", R514))

    def timeout_of(self, *, is_one_process: bool) -> float:
        """Seconds that an instruction may wait."""
        if self.timeout_s is not None:
            return self.timeout_s
        return TIMEOUT_S if is_one_process else LATE_TIMEOUT_S

    @property
    def most_threads(self) -> int:
        """The most threads of a block."""
        return self.threads or THREADS

    def threads_of(self, protocol: Protocol, *, is_one_device: bool) -> tuple[int, int, int]:
        """Threads of a block: the bytes of a call's longest message up to which there are 128, and
        up to which 256; and how many there are for longer ones."""
        if self.threads is not None:
            return 0, 0, self.threads
        turn = _TURN_BYTES.get(protocol, _TURN_OF_OTHERS)
        small, medium = (turn * (threads - _WARP) for threads in (_SMALL, _MEDIUM))
        if is_one_device and protocol not in _TURN_BYTES:
            small, medium = 0, _MEDIUM_ON_ONE_DEVICE
        return small, medium, THREADS

    def threads_for(self, protocol: Protocol, message_bytes: float, *, is_one_device: bool) -> int:
        """Threads of a block in a call whose longest message has so many bytes."""
        small, medium, most = self.threads_of(protocol, is_one_device=is_one_device)
        if message_bytes <= small:
            return _SMALL
        return _MEDIUM if message_bytes <= medium else most

    def slots_of(
        self,
        plan: Plan,
        received: int,
        largest_bytes: int | None = None,
        *,
        is_pulled: bool = False,
    ) -> tuple[int, int]:
        """The number of slots of each connection of a plan, and the bytes from one to the next.

        received: the most connections on which the ranks of one device receive. largest_bytes: the
        size of its largest call; its messages, then, each fit into one slot, or into the default.
        is_pulled: whether all messages are read in their senders' buffers. Errors: R514.
        """
        slots = whole(max(self._slots(plan), 1), "slots", 1, _MOST_SLOTS)
        if slots >= plan.slots:  # fewer are refused, by their number
            slots = 1 << (slots - 1).bit_length()
        slot_bytes = self.slot_bytes
        if slot_bytes is None:
            slot_bytes = _room(received * slots, plan.protocol)
            if is_pulled:
                slot_bytes = max(slot_bytes, _LEAST_OF_PULLED)
            if largest_bytes is not None:
                slot_bytes = min(slot_bytes, _longest_message(plan, largest_bytes))
        return slots, _align(slot_bytes)

    def slices_of(self, plan: Plan) -> int:
        """Tiles that an instruction of a plan in tile order moves in a row. The receiver's next
        instruction begins with the first of them while the last one is under way. A connection has
        the plan's slots for each, so that the plan hangs nowhere where it didn't."""
        return min(max(self._slots(plan) // max(plan.slots, 1), 1), _SLICES)

    def _slots(self, plan: Plan) -> int:
        """Slots, before they are rounded up. Words of LL and LL128 are taken as they come, without
        slices, and in instruction order all tiles are in a row."""
        if self.slots is not None:
            return int(self.slots)
        is_flagged = plan.protocol in (Protocol.LL, Protocol.LL128)
        is_sliced = plan.loop_order is LoopOrder.TILE and not is_flagged
        return plan.slots * _SLICES if is_sliced else plan.slots


def _align(slot_bytes: int) -> int:
    """`slot_bytes` rounded down to lines of 128 bytes, which LL128 writes at once, else to vectors
    of 16. A slot smaller than a vector holds no piece; every call then raises R506."""
    return next((slot_bytes // a * a for a in _ALIGNMENTS if slot_bytes >= a), slot_bytes)


def _room(slots: int, protocol: Protocol) -> int:
    """Default bytes of a slot, if a device has so many: a power of two and a little more."""
    least = _LEAST_OF_LINES if protocol is Protocol.LL128 else _LEAST_SLOT_BYTES
    most = _MOST_BY_DEFAULT.get(protocol, _MOST_OF_OTHERS)
    share = _SLOTS_BYTES // max(slots, 1)
    room = int(np.clip(1 << (share.bit_length() - 1 if share else 0), least, most))
    return room if protocol is Protocol.LL128 else room + room // _SPARE


def _longest_message(plan: Plan, largest_bytes: int) -> int:
    """Bytes in a slot of the longest message of calls up to a size, in whole lines."""
    c = plan.collective
    data, taken = _GRAINS.get(plan.protocol, _GRAIN_OF_OTHERS)
    chunk = longest_chunk(c.chunks, -(-largest_bytes // c.blocks), 1)
    count = plan.instructions.count[np.concatenate([plan.sends, plan.receives])].max(initial=1)
    line = max(_ALIGNMENTS)
    return -(-int(count) * (-(-chunk // data) + _BORDERS) * taken // line) * line
