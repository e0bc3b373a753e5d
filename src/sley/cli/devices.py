"""Where a plan runs: the options of commands that run plans on devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import numpy as np

from sley.cli.options import BlockThreads, standing_for
from sley.devices import THREADS, Device
from sley.devices.device_names import devices_named
from sley.errors import counted
from sley.ir.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])

PROCESSES = "processes"


@dataclass(frozen=True)
class Where:
    """The values of `device_options`."""

    device: str
    ranks_per_gpu: int | None
    threads: int | None

    @property
    def is_processes(self) -> bool:
        """Whether it is processes of this machine, which are no devices."""
        return self.device == PROCESSES

    def devices(self, plan: Plan) -> list[Device]:
        """The device of each rank of a plan. Errors: K501, K502, K510."""
        return devices_named(self.device, plan.collective.ranks, self.ranks_per_gpu)

    @property
    def settings(self) -> dict[str, Any]:
        """What calls on devices take."""
        return {"threads": self.threads or THREADS}

    def words(self, plan: Plan, devices: Sequence[Device]) -> str:
        """Where a plan's ranks are, with how many thread blocks, as a table's head says it."""
        names = list(dict.fromkeys(device.name for device in devices))
        places = " and ".join(names)
        if len(names) > 2:
            places = f"{len(names)} devices, {names[0]} to {names[-1]}"
        blocks = counted(int(np.count_nonzero(np.diff(plan.block_offset))), "thread block")
        if devices[0].platform == "cuda":
            blocks += f" of {self.threads or THREADS} threads"
        return f"{counted(plan.collective.ranks, 'rank')} on {places}, {blocks}"


def device_options(default: str | None = None) -> Callable[[F], F]:
    """Adds --device, --ranks-per-gpu and --threads; the command gets them as `where`.

    default: the device, which must be named without one.
    """
    first = f"{PROCESSES}, " if default == PROCESSES else ""
    given: dict[str, Any] = {"required": True}
    if default is not None:
        given = {"default": default, "show_default": True}

    def decorate(command: F) -> F:
        @click.option(
            "--device",
            metavar="DEVICE",
            **given,
            help=f"Where to run: {first}threads or cuda; cuda:0,1 for these GPUs alone.",
        )
        @click.option(
            "--ranks-per-gpu",
            type=click.IntRange(min=1),
            help="Ranks on each device, on as many as that takes. [evenly on all]",
        )
        @click.option(
            "--threads",
            type=BlockThreads(),
            help=f"Threads of a thread block, on GPUs. [{THREADS}]",
        )
        def wrapper(
            *args: Any,
            device: str,
            ranks_per_gpu: int | None,
            threads: int | None,
            **values: Any,
        ) -> object:
            return command(*args, where=Where(device, ranks_per_gpu, threads), **values)

        return standing_for(command, wrapper)

    return decorate
