"""Programs: the kernels of a communicator's plans, as its calls need them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sley.engine.devices.device import Program
from sley.engine.devices.device_state import DeviceState
from sley.engine.devices.links import LinkSet
from sley.engine.kernels import KERNELS, Engine, Platform, Variant
from sley.engine.types import DataType
from sley.errors.devices import K506
from sley.ir.words import ReduceOp
from sley.verification.scales import prove_scales


class Programs:
    """The programs of the plans of links, by type and reduction, loaded when they are first used.
    Errors: K5xx."""

    def __init__(self, links: LinkSet) -> None:
        self._links = links
        self._loaded: dict[tuple[int, str, ReduceOp, bool], list[Program]] = {}

    def of(
        self,
        number: int,
        dtype: DataType,
        op: ReduceOp,
        *,
        scales: bool,
        wait: Callable[[], None],
        again: bool = False,
    ) -> list[Program]:
        """The programs of a plan, by its number among those of the links, for each of its states.

        scales: whether calls multiply inputs by a factor.
        wait: called before programs are loaded: the driver may wait for all kernels then, also for
            one that waits for another thread's launch, which would wait for the load.
        again: whether to load those that were compiled in the meantime.
        """
        key = (number, dtype.name, op, scales)
        if again or key not in self._loaded:
            wait()
            states = self._links.states[number]
            self._loaded[key] = [self._program(number, s, dtype, op, scales) for s in states]
        return self._loaded[key]

    def _program(
        self, number: int, state: DeviceState, dtype: DataType, op: ReduceOp, scales: bool
    ) -> Program:
        kernels, settings = self._links.kernels[number], self._links.settings
        variant = Variant(
            Platform(state.device.platform),
            dtype.number,
            op,
            settings.threads,
            self._links.ranks.is_one_device,
            scales,
        )
        if scales:
            prove_scales(kernels.plan)
        engine = Engine.INTERPRETED if scales else settings.engine or Engine.GENERATED
        interim = ""
        if settings.engine is None:  # kernels are prebuilt for several GPUs, and right on one, too
            interim = kernels.source(Engine.INTERPRETED, replace(variant, one_gpu=False))
        program = state.device.build(kernels.source(engine, variant), KERNELS, interim)
        room = state.device.capacity(program, KERNELS[0], settings.threads)
        if state.plan.blocks > room:
            raise K506.error(
                expected=f"at most {room} blocks of {settings.threads} threads at once on "
                f"{state.device.name}",
                found=f"{state.plan.blocks} blocks",
            )
        return program
