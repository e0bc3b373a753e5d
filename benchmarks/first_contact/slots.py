"""Slots of several sizes and numbers: an AllReduce of two ranks with 16 blocks each, as a
communicator's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import kernels_plans as plans
from kernels_runs import Call, Data
from kernels_timing import CudaTimer

from first_contact.lines import Lines, run_step, step_parser
from sley.engine.devices import Engine
from sley.engine.devices.cuda import CudaDevice
from sley.ir.words import Protocol

RANKS, BLOCKS = 2, 16
SIZES = (256 << 10, 1 << 20, 4 << 20, 64 << 20)

SLOTS = {
    Protocol.SIMPLE: {2: (64, 128, 256, 512), 1: (256, 512)},
    Protocol.LL: {4: (16, 32, 64, 128), 8: (32, 64, 128)},
    Protocol.LL128: {4: (64, 128, 256), 8: (64, 128)},
}
"""For each number of slots of a plan, which slices double, KiB of a slot."""

CALLS = 5


def timed(call: Call, size_bytes: int) -> Mapping[str, Any]:
    """What is wrong with a call, or its time."""
    count = size_bytes // 4
    if words := call.prepare(count):
        return {"wrong": words, "state": call.executor.read_state()}
    us = min(call.time_us(count, CALLS) for _ in range(2))
    busbw = 2 * (RANKS - 1) / RANKS * size_bytes / us * 1e-3
    return {"wrong": 0, "us": round(us, 2), "busbw_GBps": round(busbw, 2)}


def step(lines: Lines, most_bytes: int, timeout_s: float) -> bool:
    device, good = CudaDevice.open(0), []
    sizes = [size for size in SIZES if size <= most_bytes]
    timer, data = CudaTimer(device), Data(device, RANKS, max(sizes), "float32")
    for protocol, numbers in SLOTS.items():
        for slots, kib in ((slots, kib) for slots, every in numbers.items() for kib in every):
            case = plans.case(plans.RING, RANKS, protocol, BLOCKS, slots)
            call = Call(
                case,
                data,
                timer,
                engine=Engine.INTERPRETED,
                slot_bytes=kib << 10,
                timeout_s=timeout_s,
                is_wide=True,
            )
            label = {"protocol": protocol.name, "slots": slots, "slot_kib": kib}
            for size in sizes:
                work = partial(timed, call, size)
                good.append(lines.attempt({**label, "size_bytes": size}, work))
    return all(good)


if __name__ == "__main__":
    parser = step_parser(__doc__)
    parser.add_argument("--most-bytes", type=int, default=max(SIZES))
    options = parser.parse_args()
    limits = options.most_bytes, options.timeout_s
    run_step("slots", options.lines, lambda lines: step(lines, *limits))
