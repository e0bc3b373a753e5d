"""An AllReduce of eight ranks over sizes, types and protocols: checked, then timed."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import kernels_plans as plans
from kernels_runs import Call, Data
from kernels_timing import CudaTimer

from first_contact.lines import Lines, run_step, step_parser
from sley.engine.devices.cuda import CudaDevice
from sley.engine.types import DATA_TYPES
from sley.ir.words import Protocol

RANKS, BLOCKS = 8, 16
SIZES = (1 << 10, 1 << 20, 64 << 20)
SHIFTS = (0, 3)
"""Elements beyond the size: counts that fill vectors, and counts that don't."""

SENT = (Protocol.SIMPLE, Protocol.LL, Protocol.LL128)
"""Protocols that leave nothing to be read in the caller's arrays."""

TYPES = ("float32", "bfloat16")
CALLS = 5


def timed(call: Call, size_bytes: int, ranks: int = RANKS) -> Mapping[str, Any]:
    """What is wrong with a call, or its time."""
    words = call.prepare(size_bytes)
    if words:
        return {"wrong": words, "state": call.executor.read_state()}
    us = min(call.time_us(size_bytes, CALLS) for _ in range(2))
    busbw = 2 * (ranks - 1) / ranks * size_bytes / us * 1e-3
    return {"wrong": 0, "us": round(us, 2), "busbw_GBps": round(busbw, 2)}


def _runs(lines: Lines, call: Call, label: Mapping[str, Any], sizes_bytes: Sequence[int]) -> bool:
    """A call over sizes, until it fails: its executor may be of no use then."""
    for size_bytes in sizes_bytes:
        more = {"size_bytes": size_bytes, "blocks": BLOCKS}
        if not lines.attempt({**label, **more}, partial(timed, call, size_bytes)):
            return False
    return True


def step(lines: Lines, protocols: list[Protocol], most_bytes: int, timeout_s: float) -> bool:
    device = CudaDevice.open(0)
    timer, good = CudaTimer(device), []
    sizes = [size for size in SIZES if size <= most_bytes]
    for dtype in TYPES:
        item = DATA_TYPES[dtype].size_bytes
        every = [size + shift * item for size in sizes for shift in SHIFTS]
        data = Data(device, RANKS, max(every), dtype)
        for algorithm in (plans.RING, plans.ALL_PAIRS):
            for protocol in protocols:
                case = plans.case(algorithm, RANKS, protocol, BLOCKS)
                label = {"algorithm": algorithm, "protocol": protocol.name, "dtype": dtype}
                call = Call(case, data, timer, timeout_s=timeout_s)
                good.append(_runs(lines, call, label, every))
                if dtype == TYPES[0] and algorithm == plans.RING and protocol in SENT:
                    # What fences for several devices cost, beside the same call without them.
                    wide = Call(case, data, timer, timeout_s=timeout_s, is_wide=True)
                    good.append(_runs(lines, wide, {**label, "scope": "sys"}, sizes))
        del data
        gc.collect()
    return all(good)


if __name__ == "__main__":
    parser = step_parser(__doc__)
    parser.add_argument("--protocols", default=",".join(Protocol.__members__))
    parser.add_argument("--most-bytes", type=int, default=max(SIZES))
    options = parser.parse_args()
    chosen = [Protocol[name] for name in options.protocols.split(",")]
    run_step(
        "sizes",
        options.lines,
        lambda lines: step(lines, chosen, options.most_bytes, options.timeout_s),
    )
