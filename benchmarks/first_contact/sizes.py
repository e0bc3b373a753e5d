"""An AllReduce of eight ranks over sizes, types and protocols: checked, then timed."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from functools import partial
from typing import Any

import kernels_plans as plans
from kernels_runs import Call, Data
from kernels_timing import CudaTimer

from first_contact.lines import Lines, run_step, step_parser
from sley.devices.cuda import CudaDevice
from sley.engine.types import DATA_TYPES
from sley.ir.words import Protocol

RANKS, BLOCKS = 8, 16
SIZES = (1 << 10, 1 << 20, 64 << 20)
SHIFTS = (0, 3)
"""Elements beyond the size: counts that fill vectors, and counts that don't."""

TYPES = ("float32", "bfloat16")
CALLS = 5


def _timed(call: Call, size_bytes: int) -> Mapping[str, Any]:
    words = call.prepare(size_bytes)
    if words:
        return {"wrong": words, "state": call.executor.read_state()}
    us = min(call.time_us(size_bytes, CALLS) for _ in range(2))
    busbw = 2 * (RANKS - 1) / RANKS * size_bytes / us * 1e-3
    return {"wrong": 0, "us": round(us, 2), "busbw_GBps": round(busbw, 2)}


def step(lines: Lines, protocols: list[Protocol], most_bytes: int, timeout_s: float) -> bool:
    device = CudaDevice.open(0)
    timer, good = CudaTimer(device), []
    sizes = [size for size in SIZES if size <= most_bytes]
    for dtype in TYPES:
        item = DATA_TYPES[dtype].size_bytes
        data = Data(device, RANKS, max(sizes) + max(SHIFTS) * item, dtype)
        for algorithm in (plans.RING, plans.ALL_PAIRS):
            for protocol in protocols:
                case = plans.case(algorithm, RANKS, protocol, BLOCKS)
                label = {"algorithm": algorithm, "protocol": protocol.name, "dtype": dtype}
                call = Call(case, data, timer, timeout_s=timeout_s)
                for size in sizes:
                    for shift in SHIFTS:
                        more = {"size_bytes": size + shift * item, "blocks": BLOCKS}
                        work = partial(_timed, call, size + shift * item)
                        good.append(lines.attempt(label | more, work))
                        if not good[-1]:
                            break  # the executor may have failed
                    else:
                        continue
                    break
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
