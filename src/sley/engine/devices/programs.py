"""Programs: the kernels of a communicator's plans, as its calls need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sley.engine.devices.device import Device, Program
from sley.engine.devices.links import LinkSet
from sley.engine.kernels import KERNELS, Engine, Platform, Variant
from sley.engine.types import DataType
from sley.errors.devices import K506, K518
from sley.ir.words import ReduceOp
from sley.verification.scales import prove_scales


def check_capture(device: Device, streams: Sequence[Any], op: ReduceOp, dtype: DataType) -> None:
    """K518 if one of the caller's streams (None: the default) is captured, where a call would wait
    for what it lacks."""
    if any(device.is_captured(each) for each in streams if each is not None):
        raise K518.error(
            expected="kernels and scratch that are there before the capture",
            found=f"the first {op.name} of {dtype.name}, or of this size",
            remedy="Make the call once before the capture, or call `Executor.reserve` for it.",
        )


class Programs:
    """The programs of the plans of links, by type and reduction, loaded when they are first used.
    mates: the ranks on the device, if links of other ranks share it. Errors: K5xx."""

    def __init__(self, links: LinkSet, mates: Sequence[int] = ()) -> None:
        self._links, self._mates = links, list(mates)
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
        engine: Engine | None = None,
    ) -> list[Program]:
        """The programs of a plan, by its number among those of the links, for each device.

        scales: whether calls multiply inputs by a factor.
        wait: called before programs are loaded: the driver may wait for all kernels then, also for
            one that waits for another thread's launch, which would wait for the load.
        again: whether to load those that were compiled in the meantime.
        engine: of this plan, if the settings name none.
        """
        key = (number, dtype.name, op, scales)
        if again or key not in self._loaded:
            wait()
            links, engine = self._links, self._links.settings.engine or engine
            self._loaded[key] = [
                self._program(number, device, own.blocks, dtype, op, scales, engine)
                for device, own in zip(links.launches, links.on_devices[number], strict=True)
            ]
        return self._loaded[key]

    def _program(
        self,
        number: int,
        device: Device,
        blocks: int,
        dtype: DataType,
        op: ReduceOp,
        scales: bool,
        engine: Engine | None,
    ) -> Program:
        settings, plan, of_ranks = self._links.settings, self._links.kernels[number].plan, ""
        variant = Variant(
            Platform(device.platform),
            dtype.number,
            op,
            settings.most_threads,
            self._links.ranks.is_one_device,
            scales,
            settings.stamps,
        )
        if scales:
            prove_scales(plan)
        program = device.build(self._text(number, device, variant, engine), KERNELS)
        room = device.capacity(program, KERNELS[0], settings.most_threads)
        if len(self._mates) > 1:
            blocks = int(np.maximum(np.diff(plan.rank_block), 1)[self._mates].sum())
            of_ranks = f" of {len(self._mates)} ranks"
        if blocks > room:
            raise K506.error(
                expected=f"at most {room} blocks of {settings.most_threads} threads at once on "
                f"{device.name}",
                found=f"{blocks} blocks{of_ranks}",
            )
        return program

    def _text(self, number: int, device: Device, variant: Variant, engine: Engine | None) -> str:
        """The text of an engine. By default of generated code; or, if that would be compiled while
        a call waits, of the interpreter, where that was compiled ahead or serves other plans,
        too."""
        source = self._links.kernels[number].source
        best = Engine.INTERPRETED if variant.scales else engine or Engine.GENERATED
        text = source(best, variant)
        if engine is not None or device.has(text):
            return text
        prebuilt = source(Engine.INTERPRETED, replace(variant, one_gpu=False))  # right on one, too
        if device.has(prebuilt):
            device.compile_later(text)
            return prebuilt
        if len(self._links.plans) == 1:
            return text
        device.compile_later(text)
        return source(Engine.INTERPRETED, variant)
