"""Files: plans from files and into files, proven for the runtime that will read them.

The end of a file's name says what is written: .xml is MSCCL XML, .cu are kernels for GPUs, .cpp the
same kernels for CPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np

from sley import formats
from sley.codegen import KERNELS, Engine, Kernels, Platform, Variant
from sley.devices import THREADS
from sley.devices.tables import RANKS
from sley.engine.limits import whole
from sley.engine.types import data_type, reduction
from sley.errors import Place
from sley.errors.compiler import C309
from sley.errors.devices import K515
from sley.errors.formats import F460
from sley.formats import EXECUTOR, Target, load, write_file
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import ReduceOp
from sley.verify import verify

__all__ = ["KERNEL_SUFFIXES", "load", "save"]

_PLATFORMS = {".cu": Platform.CUDA, ".cpp": Platform.CPU}
KERNEL_SUFFIXES = tuple(_PLATFORMS)
"""The ends of names of files with kernels."""

_COMMANDS = {
    Platform.CUDA: "nvcc -std=c++17 -cubin -arch=sm_90 FILE, or NVRTC: it includes nothing",
    Platform.CPU: "g++ -std=c++17 -O1 -fno-strict-aliasing -pthread -shared -fPIC FILE",
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
// sley.devices.Executor does all of this: it makes the tables, owns the memory that lasts from
// call to call, and launches these kernels.

"""


def save(
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    target: str | Target | None = None,
    name: str | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    threads: int | None = None,
    dtype: str | None = None,
    reduce_op: ReduceOp | None = None,
) -> None:
    """Writes a plan, after proving it: as MSCCL XML for a target, or as kernels.

    The targets' kernels send a message of several chunks chunk by chunk once a chunk fills a
    tile, each through a slot of its own, and a connection has the protocol's slots. A plan that
    was not compiled for that (`per_chunk`) may hang there, and is refused.

    path: ends in .xml, in .cu for kernels for GPUs, or in .cpp for kernels for CPUs.
    target: of XML: msccl, executor (without) or rccl. name: the algorithm's, the plan's without.
    min_bytes, max_bytes: of XML: the sizes that it is for, both included. threads: of a block, for
    kernels (512 without) and targets that read it. dtype, reduce_op: of kernels; float32 and SUM
    without.
    Errors: V2xx, F4xx, C309 for what such a file doesn't have, and for kernels K515, R504, R514;
    then nothing is written.
    """
    suffix = Path(path).suffix.lower()
    if suffix in _PLATFORMS:
        for_xml = {"target": target, "min_bytes": min_bytes or None, "max_bytes": max_bytes}
        _refuse(path, "kernels", for_xml)
        text = _kernels(
            plan,
            _PLATFORMS[suffix],
            name=name or plan.name,
            dtype=dtype or "float32",
            reduce_op=ReduceOp.SUM if reduce_op is None else reduce_op,
            threads=THREADS if threads is None else threads,
        )
        write_file(path, text)
        return
    if suffix != ".xml":
        ends = f"{', '.join(('.xml', *KERNEL_SUFFIXES[:-1]))} or {KERNEL_SUFFIXES[-1]}"
        raise F460.error(
            at=Place(str(path)),
            expected=f"a name that ends in {ends}",
            found=repr(suffix) if suffix else "none",
            remedy=f"Give the file a name that ends in {ends}.",
        )
    _refuse(path, "MSCCL XML", {"dtype": dtype, "reduce_op": reduce_op})
    verify(plan, plan.protocol.slots, per_chunk=True)
    formats.save(
        plan,
        path,
        target=EXECUTOR if target is None else target,
        name=name,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        threads=threads,
    )


def _refuse(path: str | os.PathLike[str], kind: str, given: Mapping[str, object]) -> None:
    """C309 for what a kind of file has no place for."""
    for word, value in given.items():
        if value is not None:
            raise C309.error(
                at=Place(str(path)),
                expected=f"no {word}: a file with {kind} has none",
                found=f"{word}={value!r}",
                remedy=f"Leave {word} out, or give the file another ending.",
            )


def _kernels(
    plan: Plan, platform: Platform, *, name: str, dtype: str, reduce_op: ReduceOp, threads: int
) -> str:
    """The text of a plan's kernels: the primitives and the code made of it, with a head."""
    kind, op = data_type(dtype), reduction(reduce_op)
    threads = whole(threads, "threads", 32)
    c = plan.collective
    if c.ranks > RANKS:
        raise K515.error(expected=f"at most {RANKS} ranks", found=f"{c.ranks} ranks")
    verify(plan)
    kernels = Kernels.of(plan)
    blocks = int(np.count_nonzero(kernels.kinds.kind != NONE))
    head = _HEAD.format(
        name=_one_line(name),
        collective=_one_line(c.name),
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


def _one_line(text: str) -> str:
    """A text as a comment can hold it: a name from a file may have anything in it."""
    return re.sub(r"[^ -\[\]-~]", "?", text)
