"""Running: proves plans and runs them on processes of this machine or on devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

from numpy.typing import ArrayLike, NDArray

from sley.communicator import Settings, jobs
from sley.engine import devices as on_devices
from sley.engine.devices import Device, Launching, open_devices
from sley.engine.kernels import Engine, refuse_varying_plan
from sley.engine.measure import Measurement, Sweep
from sley.engine.types import reduction
from sley.errors import did_you_mean, without_inner_frames
from sley.errors.runtime import R514
from sley.ir.plan import Plan, check_kind
from sley.ir.sizes import checked_sizes
from sley.ir.words import ReduceOp
from sley.verification import verify

__all__ = ["execute", "run"]


class RunSettings(TypedDict, total=False):
    """Settings of a run: of the communicator of processes, or of `devices.Settings`."""

    slots: int
    slot_bytes: int
    timeout_s: float
    engine: Engine | str
    threads: int
    launching: Launching | str


_NAMES = ("dtype", "reduce_op", *RunSettings.__annotations__)
"""The settings that both functions have, for messages."""


# More than eight parameters: the public function takes the fields of Sweep and Settings by name.
@without_inner_frames
def run(
    plan: Plan,
    sizes: int | str | Sequence[int | str],
    *,
    devices: str | Sequence[Device] | None = None,
    ranks_per_device: int | None = None,
    dtype: str = "float32",
    reduce_op: ReduceOp | str = ReduceOp.SUM,
    iterations: int = 20,
    warmup: int = 12,
    check: bool = True,
    progress: Callable[[Measurement], None] | None = None,
    **settings: Unpack[RunSettings],
) -> list[Measurement]:
    """Proves a plan and runs it for several sizes; measures and checks each.

    sizes: a size as nccl-tests counts it, a number of bytes (0, too) or a text such as "64K", or
        several.
    dtype, reduce_op, iterations, warmup, check: the fields of `sley.engine.measure.Sweep`.
    devices: the names of devices ("threads", "cuda", "cuda:0,1"), with `ranks_per_device` ranks on
        each (`sley.engine.devices.open_devices`); or the device of each rank; or None for processes
        of this machine.
    progress: called with each measurement.
    settings: `slots`, `slot_bytes` and `timeout_s` of `sley.communicator.Settings`, whose other
        fields come from the environment; on devices of `sley.engine.devices.Settings`, with
        `engine`, `threads` and `launching`.
    Errors: C307, S702, V2xx, R5xx, K5xx.
    """
    _prove(plan, devices)
    sweep = Sweep(
        checked_sizes(sizes, zero=True), dtype, reduction(reduce_op), iterations, warmup, check
    )
    place = _place(plan, devices, ranks_per_device, settings)
    if isinstance(place, Settings):
        return jobs.run(plan, sweep, place, progress=progress)
    return on_devices.run(plan, sweep, *place, progress=progress)


@without_inner_frames
def execute(
    plan: Plan,
    inputs: Sequence[NDArray[Any]],
    *,
    devices: str | Sequence[Device] | None = None,
    ranks_per_device: int | None = None,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp | str = ReduceOp.SUM,
    counts: ArrayLike | None = None,
    **settings: Unpack[RunSettings],
) -> list[NDArray[Any]]:
    """Proves a plan and runs it once on NumPy arrays, which are copied to devices and back; returns
    each rank's output.

    inputs, dtype, count, reduce_op, counts: as for `sley.communicator.jobs.execute`; the others as
        for `run`.
    Errors: C307, V2xx, R5xx, K5xx.
    """
    op = reduction(reduce_op)
    _prove(plan, devices)
    if devices is not None and counts is not None:
        raise R514.error(
            expected="processes of this machine, for counts, which devices do not have",
            found=f"counts={counts!r} with devices",
            remedy="Leave devices out, or counts.",
        )
    place = _place(plan, devices, ranks_per_device, settings)
    if isinstance(place, Settings):
        return jobs.execute(
            plan, inputs, place, dtype=dtype, count=count, reduce_op=op, counts=counts
        )
    return on_devices.execute(plan, inputs, *place, dtype=dtype, count=count, reduce_op=op)


def _prove(plan: Plan, devices: object) -> None:
    """Proves a plan, once it is known that the place where it runs can run it. Errors: C307, F437,
    V2xx."""
    check_kind(plan)
    if devices is not None:
        refuse_varying_plan(plan)
    verify(plan)


def _place(
    plan: Plan,
    devices: str | Sequence[Device] | None,
    ranks_per_device: int | None,
    settings: RunSettings,
) -> Settings | tuple[Sequence[Device], on_devices.Settings]:
    """The settings for processes, or the device of each rank and the settings for devices. Errors:
    R514 for settings that only devices have, or that don't exist."""
    given: dict[str, Any] = {**settings}
    for name in sorted(given.keys() - RunSettings.__annotations__.keys()):
        raise R514.error(
            expected=f"settings among {', '.join(_NAMES)}",
            found=f"{name}={given[name]!r}",
            remedy=did_you_mean(name, _NAMES) or "Use one of these names, or leave it out.",
        )
    if isinstance(devices, str):
        devices = open_devices(devices, plan.collective.ranks, ranks_per_device)
    elif ranks_per_device is not None:
        raise R514.error(
            expected="names of devices, for ranks_per_device",
            found=f"ranks_per_device={ranks_per_device!r}",
            remedy='Name the devices (devices="cuda"), or leave ranks_per_device out.',
        )
    if devices is not None:
        return devices, on_devices.Settings(**given)
    for name in sorted(given.keys() & {"engine", "threads", "launching"}):
        raise R514.error(
            expected=f"devices, for {name}, which processes do not have",
            found=f"{name}={given[name]!r}",
            remedy=f'Name the devices (devices="cuda"), or leave {name} out.',
        )
    return Settings.from_environment(**given)
