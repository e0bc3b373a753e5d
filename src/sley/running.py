"""Running: plans on processes of this machine or on devices, proven before they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from sley import jobs
from sley.codegen import Engine
from sley.devices import Device, measure
from sley.devices.device_names import devices_named
from sley.devices.execute import execute as execute_on
from sley.errors.runtime import R514
from sley.ir.choices import member
from sley.ir.plan import Plan
from sley.jobs import Measurement
from sley.verify import verify

__all__ = ["execute", "run"]


def run(
    plan: Plan,
    sizes_bytes: Sequence[int],
    *,
    devices: str | Sequence[Device] | None = None,
    ranks_per_device: int | None = None,
    engine: Engine | str | None = None,
    proven: bool = False,
    **settings: Any,
) -> list[Measurement]:
    """Proves a plan and runs it over sizes, timed and checked.

    devices: where: processes of this machine without; or devices by name ("threads", "cuda",
        "cuda:0,1") with `ranks_per_device` ranks on each, as `devices_named` deals them; or
        the device of each rank.
    engine: on devices, "generated" code or the "interpreted" plan; the former without.
    proven: leaves the proof out, for a plan that has one.
    settings: those of `sley.jobs.run`, or on devices of `sley.devices.measure.run`.

    Errors: V2xx, R5xx, K5xx."""
    if not proven:
        verify(plan)
    where = _devices(plan, devices, ranks_per_device, engine)
    if where is None:
        return jobs.run(plan, sizes_bytes, **settings)
    return measure.run(plan, sizes_bytes, devices=where, engine=_engine(engine), **settings)


def execute(
    plan: Plan,
    inputs: Sequence[NDArray[Any]],
    *,
    devices: str | Sequence[Device] | None = None,
    ranks_per_device: int | None = None,
    engine: Engine | str | None = None,
    proven: bool = False,
    **settings: Any,
) -> list[NDArray[Any]]:
    """Proves a plan and runs it once on NumPy arrays, which are copied to devices and back.

    devices, ranks_per_device, engine, proven: as for `run`. settings: those of
    `sley.jobs.execute`, or on devices of `sley.devices.execute`. Errors: V2xx, R5xx, K5xx."""
    if not proven:
        verify(plan)
    where = _devices(plan, devices, ranks_per_device, engine)
    if where is None:
        return jobs.execute(plan, inputs, **settings)
    return execute_on(plan, inputs, devices=where, engine=_engine(engine), **settings)


def _devices(
    plan: Plan,
    devices: str | Sequence[Device] | None,
    ranks_per_device: int | None,
    engine: Engine | str | None,
) -> Sequence[Device] | None:
    """The device of each rank; None for processes. R514 for settings that devices alone have."""
    if isinstance(devices, str):
        return devices_named(devices, plan.collective.ranks, ranks_per_device)
    if ranks_per_device is not None:
        raise R514.error(
            expected="devices by name, for ranks_per_device",
            found=f"ranks_per_device={ranks_per_device!r}",
            remedy='Name the devices (devices="cuda"), or leave ranks_per_device out.',
        )
    if devices is None and engine is not None:
        raise R514.error(
            expected="devices, for an engine: processes have one of their own",
            found=f"engine={engine!r}",
            remedy='Say where to run (devices="cuda"), or leave engine out.',
        )
    return devices


def _engine(engine: Engine | str | None) -> Engine:
    return Engine.GENERATED if engine is None else member(Engine, engine, "engine", R514)
