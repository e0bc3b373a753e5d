"""Measuring: where and how plans are measured, as options of commands that run plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from sley.cli.options import POSITIVE, BlockThreads, DType, SizeType, Whole, gather_options
from sley.engine.devices import THREADS, Device, open_devices
from sley.engine.devices.windows import single_messages, way_of_groups
from sley.engine.kernels import refuse_varying_plan
from sley.engine.limits import TIMEOUT_S
from sley.engine.measure import REDUCE_OPS, Measurement, Sweep
from sley.engine.types import data_type
from sley.errors import counted
from sley.ir.plan import Plan

PROCESSES = "processes"


@dataclass(frozen=True)
class DeviceOptions:
    """The values of `device_options`."""

    device: str
    ranks_per_gpu: int | None
    threads: int | None

    @property
    def is_processes(self) -> bool:
        """Whether the plan runs on processes of this machine, not on devices."""
        return self.device == PROCESSES

    def devices(self, plan: Plan) -> list[Device]:
        """The device of each rank of a plan. Errors: K501, K502, K510, F437."""
        refuse_varying_plan(plan)
        return open_devices(self.device, plan.collective.ranks, self.ranks_per_gpu)

    def words(self, plan: Plan, devices: Sequence[Device], measuring: Measuring) -> str:
        """The devices and thread blocks of a plan, and the way of its groups, for a table's
        head."""
        names = list(dict.fromkeys(device.name for device in devices))
        places = " and ".join(names)
        if len(names) > 2:
            places = f"{len(names)} devices, {names[0]} to {names[-1]}"
        blocks = counted(int(np.count_nonzero(np.diff(plan.block_offset))), "thread block")
        if devices[0].platform == "cuda":
            blocks += f" of {self.threads or THREADS} threads"
        kind, op = data_type(measuring.dtype), REDUCE_OPS[measuring.reduce_op]
        single = single_messages(plan, dict(enumerate(devices)), is_one_process=True)
        way = way_of_groups(plan, single, kind, op)
        groups = f", groups {way}" if way else ""
        return f"{counted(plan.collective.ranks, 'rank')} on {places}, {blocks}{groups}"


@dataclass(frozen=True)
class Measuring:
    """The values of `measuring_options`. reduce_op: nccl-tests' name."""

    iterations: int
    warmup: int
    check: bool
    dtype: str
    reduce_op: str
    slot_bytes: int | None
    timeout_s: float

    def sweep(self, sizes_bytes: Sequence[int]) -> Sweep:
        """The measurements to make at these sizes."""
        op = REDUCE_OPS[self.reduce_op]
        return Sweep(sizes_bytes, self.dtype, op, self.iterations, self.warmup, bool(self.check))


def without_none(**values: Any) -> dict[str, Any]:
    """The values that are not None, so that the others keep their defaults."""
    return {name: value for name, value in values.items() if value is not None}


device_options = gather_options(
    DeviceOptions,
    "where",
    [
        click.option(
            "--device",
            metavar="DEVICE",
            default=PROCESSES,
            show_default=True,
            help=f"Where to run: {PROCESSES}, threads or cuda; cuda:0,1 for only these GPUs.",
        ),
        click.option(
            "--ranks-per-gpu",
            type=POSITIVE,
            help="Ranks on each device, on as many devices as needed. [evenly on all]",
        ),
        click.option(
            "--threads",
            type=BlockThreads(),
            help=f"Threads of a thread block, on GPUs. [{THREADS}]",
        ),
    ],
)
"""Adds --device, --ranks-per-gpu and --threads; the command gets them as `where`."""


measuring_options = gather_options(
    Measuring,
    "measuring",
    [
        click.option(
            "-n",
            "--iterations",
            type=POSITIVE,
            default=20,
            show_default=True,
            help="Timed runs.",
        ),
        click.option(
            "-w",
            "--warmup",
            type=Whole(0),
            default=12,
            show_default=True,
            help="Untimed runs before them.",
        ),
        click.option(
            "-c",
            "--check",
            type=Whole(0, 1),
            default=1,
            show_default=True,
            help="Check results.",
        ),
        click.option(
            "-d",
            "--dtype",
            type=DType(),
            default="float32",
            show_default=True,
            help="Element type.",
        ),
        click.option(
            "-o",
            "--op",
            "reduce_op",
            type=click.Choice(list(REDUCE_OPS)),
            default="sum",
            show_default=True,
            help="Reduction.",
        ),
        click.option(
            "--slot-bytes",
            type=SizeType(),
            help="Size of a slot, which limits a tile. [by ranks; on devices all slots share 24M]",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=0.1),
            default=TIMEOUT_S,
            help="Seconds without progress after which the run fails.",
        ),
    ],
)
"""Adds the options of nccl-tests for runs; the command gets them as `measuring`."""


def timing_json(m: Measurement) -> dict[str, Any]:
    """The JSON of a table's cell; `wrong` is None without a check."""
    return {
        "time_us": m.time_us,
        "algbw_GBps": m.algbw_GBps,
        "busbw_GBps": m.busbw_GBps,
        "wrong": None if m.wrong < 0 else m.wrong,
    }


def row_json(m: Measurement) -> dict[str, Any]:
    """The JSON that all cells of a table's row share."""
    return {
        "size_bytes": m.size_bytes,
        "count": m.count,
        "dtype": m.dtype,
        "reduce_op": m.redop,
        "root": m.root,
    }
