"""Kernel files: the kernels of a plan as source code, .cu for GPUs and .cpp for CPUs."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import numpy as np

from sley.engine import native
from sley.engine.devices.settings import Settings
from sley.engine.kernels import KERNELS, THREADS, Engine, Kernels, Platform, Variant
from sley.engine.kernels.text import one_line
from sley.engine.types import data_type, reduction
from sley.errors.devices import K521
from sley.formats import Format
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import ReduceOp

_COMMANDS = {
    Platform.CUDA: "nvcc -std=c++17 -cubin -arch=sm_90 FILE, or NVRTC: it includes nothing",
    Platform.CPU: "g++ -std=c++17 -Og -fno-strict-aliasing -pthread -shared -fPIC FILE",
}
_LAUNCHES = {
    Platform.CUDA: "The {blocks} blocks of {run}, of {threads} threads each, wait for one another: "
    "all must be at\n// work at once (cuLaunchKernelEx, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).",
    Platform.CPU: "They are called with the address of a Call and a number of blocks, "
    "{blocks} for {run}; each\n// block is a thread.",
}
_HEAD = """\
// Kernels of {name}: {collective} on {ranks} ranks, {protocol}, {order}-major.
// Made by sley {version} from a plan that is proven right, for {dtype} and {operation}.
//
// Compile with {command}.
//
// {run} runs the plan; {divide}, after it, divides the sums of an average. Their one argument
// is sley::Call, below: its `setup` points to tables of the plan and to the memory of its
// connections, and says how a call is cut into tiles; its `buffers` are each rank's input (in
// place: all its data), output and scratch.
// {launch}
//
// sley.engine.devices.Executor does all of this: it makes the tables, owns the memory that lasts
// from call to call, and launches these kernels.

"""


def write(
    platform: Platform,
    plan: Plan,
    *,
    name: str | None = None,
    threads: int = THREADS,
    dtype: str = "float32",
    reduce_op: ReduceOp = ReduceOp.SUM,
) -> str:
    """The source of a verified plan's kernels: a head, the primitives and the generated code.

    name: the algorithm's name, by default the plan's. threads: per block. dtype: the elements'
    type. Errors: K521, R504, R514.
    """
    kind, op = data_type(dtype), reduction(reduce_op)
    threads = Settings(threads=threads).most_threads
    c = plan.collective
    if c.ranks > native.RANKS:
        raise K521.error(expected=f"at most {native.RANKS} ranks", found=f"{c.ranks} ranks")
    kernels = Kernels.of(plan)
    blocks = int(np.count_nonzero(kernels.kinds.kind != NONE))
    head = _HEAD.format(
        name=one_line(plan.name if name is None else name),
        collective=one_line(c.name),
        ranks=c.ranks,
        protocol=plan.protocol.value,
        order=plan.loop_order.value,
        version=version("sley"),
        dtype=dtype,
        operation=op.name.lower(),
        command=_COMMANDS[platform],
        run=KERNELS[0],
        divide=KERNELS[1],
        launch=_LAUNCHES[platform].format(run=KERNELS[0], blocks=blocks, threads=threads),
    )
    return head + kernels.source(Engine.GENERATED, Variant(platform, kind.number, op, threads))


FORMATS = (
    Format("kernels for GPUs", ".cu", partial(write, Platform.CUDA)),
    Format("kernels for CPUs", ".cpp", partial(write, Platform.CPU)),
)
"""The formats of kernel files."""
