"""Two ranks of one block: each protocol with each engine, time lines, and a hang on purpose.

A call that fails tells the counters and reports in the device's memory. So does a kernel that never
ends, which a thread of this process notices; the process then ends at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

import sley
from first_contact.lines import LOST, Lines, run_step, step_parser
from sley.engine.devices import Engine, Executor, Settings
from sley.engine.devices.cuda import CudaDevice
from sley.errors import SleyError
from sley.ir.words import Op
from sley.model.simulation import Simulation
from sley.report.simulation import simulation_lines
from support.devices.gpu_plans import hanging, ring

COUNT = 64
PATIENCE = 2.0
"""Timeouts of a call after which its kernel is taken for one that never ends."""


class Cell:
    """A plan on one device, and a call on it. is_wide: whether fences order memory for the whole
    system, as for several devices, instead of for one device. stamps: see `Settings`."""

    def __init__(
        self,
        plan: sley.Plan,
        engine: Engine,
        timeout_s: float,
        *,
        is_wide: bool = False,
        stamps: bool = False,
    ) -> None:
        self._device = CudaDevice.open(0)
        self._ranks = plan.collective.ranks
        self.on = Executor(
            plan,
            dict.fromkeys(range(self._ranks), self._device),
            Settings(
                engine=engine, threads=64, timeout_s=timeout_s, slot_bytes=1024, stamps=stamps
            ),
            exchange=(lambda message: [message]) if is_wide else None,
        )
        self._arrays = self.on.empty("int32", COUNT)

    def build(self) -> None:
        """Compiles the kernels, which takes a while."""
        self.on.prepare(self._arrays)

    def call(self) -> Mapping[str, Any]:
        """Makes a call, and counts the wrong sums."""
        for rank, array in self._arrays.items():
            values = np.arange(COUNT, dtype=np.int32) + rank
            self._device.write(array.memory, 0, values.view(np.uint8))
        self.on(self._arrays)
        expected = np.arange(COUNT) * self._ranks + sum(range(self._ranks))
        found = np.empty((self._ranks, COUNT), np.int32)
        for row, array in zip(found, self._arrays.values(), strict=True):
            self._device.read(array.memory, 0, row.view(np.uint8))
        wrong = int(np.count_nonzero(found != expected))
        return {"wrong": wrong, **({"sums": found[:, :8].tolist()} if wrong else {})}

    def state(self) -> Mapping[str, Any]:
        return {"state": self.on.read_state()}


def _called(
    lines: Lines, label: Mapping[str, Any], cell: Cell, timeout_s: float
) -> Mapping[str, Any]:
    """A call, with the state of memory if it fails. A kernel that runs on after PATIENCE timeouts
    ends the process, with a line."""

    def tell() -> None:
        lines.write(**label, failure="its kernel doesn't end", **cell.state())
        os._exit(1)

    cell.build()
    watch = threading.Timer(max(1.0, PATIENCE * timeout_s), tell)
    watch.daemon = True
    watch.start()
    try:
        return cell.call()
    except SleyError as error:
        if LOST in str(error):
            raise
        return {"failure": str(error), **cell.state()}
    finally:
        watch.cancel()


def protocols(lines: Lines, timeout_s: float, *, is_wide: bool) -> bool:
    """Each protocol with each engine."""
    good = []
    for protocol in sley.Protocol:
        for engine in Engine:
            label = {"protocol": protocol.name, "engine": engine.value}
            label |= {"scope": "sys"} if is_wide else {}

            def called(protocol: Any = protocol, engine: Any = engine, label: Any = label) -> Any:
                cell = Cell(ring(2, protocol), engine, timeout_s, is_wide=is_wide)
                return _called(lines, label, cell, timeout_s)

            good.append(lines.attempt(label, called))
    return all(good)


def time_lines(lines: Lines, timeout_s: float) -> bool:
    """What each block does when, in a ring and in a plan of one step."""
    one_step = sley.algorithms.one_step_allreduce(2, in_place=True)
    good = []
    for plan in (
        ring(2, sley.Protocol.LL),
        sley.compile(one_step, protocol="LL", allocate="state", max_blocks=1),
    ):
        label = {"what": "time line", "plan": plan.name}

        def called(plan: sley.Plan = plan, label: Any = label) -> Mapping[str, Any]:
            cell = Cell(plan, Engine.GENERATED, timeout_s, stamps=True)
            found = [_called(lines, label, cell, timeout_s) for _ in range(3)][-1]
            if found.get("wrong") or "failure" in found:
                return found
            noted = cell.on.timeline(sley.simulate(plan, 4 * COUNT, "1x2"))
            print("\n".join(simulation_lines(noted)))
            return {**found, "us": noted.time_us, "begin_us": noted.launch_us, **_moments(noted)}

        good.append(lines.attempt(label, called))
    return all(good)


def _moments(noted: Simulation) -> Mapping[str, Any]:
    """Executions as (rank, step, operation, turn, start, end), and exits of the ranks' blocks."""
    plan, e = noted.plan, noted.executions
    assert e is not None
    times = np.stack([e.turn_us, e.start_us, e.end_us], axis=1).round(3).tolist()
    rows = zip(plan.rank[e.instruction].tolist(), plan.step[e.instruction].tolist(), strict=True)
    ops = [Op(int(op)).name for op in plan.instructions.op[e.instruction]]
    executions = [(*row, op, *at) for row, op, at in zip(rows, ops, times, strict=True)]
    return {"executions": executions, "exits_us": noted.blocks.end_us.round(3).tolist()}


def hang(lines: Lines, timeout_s: float) -> bool:
    """A plan that hangs gives K508 in time, and the device is usable afterwards."""

    def called(plan: sley.Plan, what: str) -> Mapping[str, Any]:
        cell = Cell(plan, Engine.GENERATED, timeout_s)
        return _called(lines, {"what": what}, cell, timeout_s)

    def refused() -> Mapping[str, Any]:
        found = dict(called(hanging(), "a hang on purpose"))
        words = found.pop("failure", "no failure")
        return {"wrong": int("K508" not in words), "told": words, **found}

    good = lines.attempt({"what": "a hang on purpose"}, refused)
    after = "a call after it"
    return lines.attempt({"what": after}, lambda: called(ring(3), after)) and good


def step(lines: Lines, timeout_s: float, *, is_wide: bool) -> bool:
    good = protocols(lines, timeout_s, is_wide=is_wide)
    return (hang if is_wide else time_lines)(lines, timeout_s) and good


if __name__ == "__main__":
    parser = step_parser(__doc__)
    parser.add_argument("--scope", choices=("gpu", "sys"), default="gpu")
    options = parser.parse_args()
    is_wide = options.scope == "sys"
    run_step(
        "scope" if is_wide else "smoke",
        options.lines,
        lambda lines: step(lines, options.timeout_s, is_wide=is_wide),
    )
