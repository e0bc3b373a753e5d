"""One rank: memory that is written and read back, a copy, and a division without communication."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import sley
from first_contact.lines import Lines, run_step, step_parser
from sley.engine import native
from sley.engine.devices import Engine, Executor, Settings
from sley.engine.devices.cuda import CudaDevice
from sley.engine.kernels import KERNELS
from sley.engine.types import DATA_TYPES
from support.devices.gpu_checks import OnDevice
from support.inputs.prefix_sums import prefix_sums

COUNT = 1003


@sley.program(sley.AllGather(ranks=1, chunks=1))
def copy(p: Any) -> None:
    p.chunk(0, "in", 0).copy(0, "out", 0)


def _memory(device: CudaDevice) -> Mapping[str, Any]:
    written = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
    memory, found = device.allocate(len(written)), np.empty_like(written)
    zeroed = np.empty_like(written)
    device.read(memory, 0, zeroed)
    device.write(memory, 0, written)
    device.read(memory, 0, found)
    return {"wrong": int(np.count_nonzero(found != written) + np.count_nonzero(zeroed))}


def _copied(device: CudaDevice, engine: Engine, timeout_s: float) -> Mapping[str, Any]:
    on = Executor(sley.compile(copy), [device], Settings(engine=engine, timeout_s=timeout_s))
    source = OnDevice(device, np.arange(COUNT, dtype=np.float32), "float32", shift=1)
    target = OnDevice(device, np.zeros(COUNT, np.float32), "float32")
    on([source.array], [target.array])
    outside = target.fetch()
    wrong = int(np.count_nonzero(target.host != np.arange(COUNT)))
    return {"wrong": outside + wrong, "state": on.read_state()} if wrong else {"wrong": outside}


def _divided(device: CudaDevice, timeout_s: float) -> Mapping[str, Any]:
    """The kernel that divides alone: it divides what the second of three ranks has by 2."""
    on = Executor(sley.compile(prefix_sums(3)), [device] * 3, Settings(timeout_s=timeout_s))
    data = [OnDevice(device, np.full(COUNT, 6.0 + r, np.float32), "float32") for r in range(3)]
    (own,), stream = on.links.on_devices[0], device.stream()
    kind, op = DATA_TYPES["float32"], sley.ReduceOp.AVG
    (program,) = on.programs.of(0, kind, op, scales=False, wait=on.links.wait)
    place, links = (own, program[KERNELS[1]], 0, 0, 0), on.links
    order, index = links.order, links.memory.index
    alone = native.PlanCall(order, index, [place], on.settings.most_threads, False, ())
    addresses = [device.view(one.array, what="data").address for one in data]
    alone.lay_out(4, COUNT, [(rank, at, 4 * COUNT, 0, 0) for rank, at in enumerate(addresses)])
    alone.start([device.stream_address(stream)], True)
    device.synchronize(stream)
    outside = sum(one.fetch() for one in data)
    expected = (6, 3.5, 8)
    wrong = sum(np.count_nonzero(d.host != e) for d, e in zip(data, expected, strict=True))
    return {"wrong": outside + int(wrong)}


def step(lines: Lines, timeout_s: float) -> bool:
    device = CudaDevice.open(0)
    good = [lines.attempt({"what": "memory"}, lambda: _memory(device))]
    for engine in Engine:
        label = {"what": "copy", "engine": engine.value}
        good.append(lines.attempt(label, partial(_copied, device, engine, timeout_s)))
    good.append(lines.attempt({"what": "division"}, lambda: _divided(device, timeout_s)))
    return all(good)


if __name__ == "__main__":
    options = step_parser(__doc__).parse_args()
    run_step("copies", options.lines, lambda lines: step(lines, options.timeout_s))
