"""Running a plan once on devices, on arrays of the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sley.codegen import Engine
from sley.devices.buffers import RankBuffers, arguments
from sley.devices.device import Device
from sley.devices.executor import Executor
from sley.devices.settings import THREADS
from sley.engine.arguments import check_inputs
from sley.engine.limits import TIMEOUT_S
from sley.engine.types import Array
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp


def execute(
    plan: Plan,
    inputs: Sequence[Array],
    *,
    devices: Sequence[Device],
    engine: Engine = Engine.GENERATED,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    slots: int | None = None,
    slot_bytes: int | None = None,
    threads: int = THREADS,
    timeout_s: float = TIMEOUT_S,
) -> list[Array]:
    """Run `plan` once on `inputs`, NumPy arrays that are copied to the devices, and return each
    rank's output. Arrays that lie on devices already are what an `Executor` is for.

    inputs: one 1-D array a rank with the elements of its input buffer; a rank without input gets
        an empty one. In place: all of the rank's data, input and output together, with the input
        where it lies. They stay as they are.
    devices: of each rank, as `devices_named` gives them.
    dtype: the elements' type, that of the arrays without; "bfloat16" for uint16 arrays of its bits.
    count: elements of one block of the collective, told from the inputs without.
    engine, slots, slot_bytes, threads, timeout_s: as `Executor` has them.

    Raises SleyError with the rules K5xx and R5xx.
    """
    call = check_inputs(plan, inputs, dtype, count, reduce_op)
    with Executor(
        plan,
        devices,
        engine=engine,
        slots=slots,
        slot_bytes=slot_bytes,
        threads=threads,
        timeout_s=timeout_s,
    ) as executor:
        buffers = RankBuffers.of(plan, devices, call.count, call.dtype)
        for own, array in zip(buffers, call.arrays, strict=True):
            own.memory[0].write(np.ascontiguousarray(array, call.dtype.array))
        arrays = arguments(buffers, call.count, call.dtype)
        executor(*arrays, count=call.count, dtype=call.dtype.name, reduce_op=call.reduce_op)
    outputs = []
    for own, sizes in zip(buffers, call.sizes, strict=True):
        last = np.empty(sizes.data if call.in_place else sizes.output, call.dtype.array)
        own.memory[-1].read(last)
        outputs.append(last[sizes.output_start : sizes.output_start + sizes.output].copy())
    return outputs
