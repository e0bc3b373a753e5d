"""Layout: the structures that a kernel is handed, as `codegen/primitives/layout.hpp` has them."""

from __future__ import annotations

import numpy as np

RANKS = 128
"""The most ranks of a call: a kernel's arguments have 4 KiB."""


def _structure(*fields: tuple[str, str], shapes: dict[str, int] | None = None) -> np.dtype[np.void]:
    shaped = [
        (n, t, (shapes or {}).get(n, 1)) if n in (shapes or {}) else (n, t) for n, t in fields
    ]
    return np.dtype(shaped, align=True)


def _of(kind: str, names: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in names.split()]


BLOCK_MEMORY = _structure(("tiles", "u8"), ("unused", "u8"), shapes={"unused": 7})
REPORT = _structure(
    ("status", "u8"), ("step", "u4"), ("reason", "u4"), ("tile", "i8"), *_of("u4", "target number")
)
PEER = _structure(*_of("u8", "published consumed slots"), *_of("i4", "rank messages"))
BLOCK = _structure(
    *_of("i4", "rank number kind member first_sender senders first_receiver receivers"),
    *_of("i4", "rank_sender first_step steps first_condition conditions unused"),
    *_of("u8", "progress memory report"),
)
INSTRUCTION = _structure(
    *_of("u1", "op posts"),
    ("waits", "u2"),
    ("count", "i4"),
    *_of("u4", "src dst"),
    *_of("i4", "from from_message to to_message"),
    ("pulled", "u4"),
    ("first_wait", "i4"),
    ("unused", "i4"),
    shapes={"unused": 2},
)
CONDITION = _structure(("target", "i4"), ("number_held", "u4"))
DIVISION = _structure(("rank", "i4"), ("chunk", "u4"), ("divisor", "i4"))
CALL = _structure(
    *_of("u8", "blocks peers instructions conditions divisions abort timeout_ns"),
    *_of("i8", "chunk tile slot_bytes"),
    *_of("i4", "full_tiles left_over chunks slots steps division_count tile_major unused"),
    ("buffers", "u8"),
    shapes={"buffers": 3 * RANKS},
)
