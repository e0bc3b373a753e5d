"""Makes the source of the package sley-kernels: the interpreter's kernels as machine code.

    python .ci/prebuild.py FOLDER [--jobs 4]

`pip wheel FOLDER` then makes the wheel. It needs sley with its extra `cuda`, and nvidia-nvfatbin;
no GPU. Each text takes the compiler some two seconds for each architecture.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from cuda.bindings import nvfatbin

import sley
from sley.algorithms import build
from sley.engine.devices.cuda import compiler
from sley.engine.kernels import Engine, Kernels, Platform, Variant, messages_source
from sley.engine.kernels.prebuilt import DIGESTS, PACKAGE, digests_of, file_of
from sley.engine.types import DATA_TYPES

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""The last one also as PTX, which the driver compiles for GPUs that are newer than all of these."""

OPS = ("AVG", "PRODUCT", "MIN", "MAX")
"""NCCL's operations beside SUM. Plans with others are compiled."""

LEAST = (8, 0)
"""The least compute capability that runs code of ARCHITECTURES."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "sley-kernels"
version = "{version}"
description = "Kernels of sley for NVIDIA GPUs, compiled ahead"
license = "Apache-2.0"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""

OPTIONS = ("-64", "-compress=true", "-compress-mode=size")


def texts() -> Iterator[str]:
    """The text of messages, and the texts of the interpreter: for each protocol one for each type
    and operation, for sums of floats another one that multiplies inputs, as NCCL's averages do, and
    for plans that reduce nothing one for each size of an element."""
    yield messages_source(Platform.CUDA)
    for protocol in sley.Protocol:
        for name in ("ring-allreduce", "ring-allgather"):
            plan = sley.compile(build(name, ranks=2, in_place=True), protocol=protocol)
            kernels = Kernels.of(plan)
            for kind in DATA_TYPES.values():
                variant = Variant(Platform.CUDA, kind.number, sley.ReduceOp.SUM)
                yield kernels.source(Engine.INTERPRETED, variant)
                if not plan.reduces:
                    continue
                if kind.is_float:
                    yield kernels.source(Engine.INTERPRETED, replace(variant, scales=True))
                for op in OPS:
                    other = replace(variant, reduce_op=sley.ReduceOp[op])
                    yield kernels.source(Engine.INTERPRETED, other)


def fat_binary(text: str) -> bytes:
    """The code of a text for all architectures, compressed."""
    handle = nvfatbin.create(list(OPTIONS), len(OPTIONS))
    for arch in ARCHITECTURES:
        made = compiler.compile_text(text, arch)
        number = arch.removeprefix("sm_")
        nvfatbin.add_cubin(handle, made.cubin, len(made.cubin), number, PACKAGE)
    nvfatbin.add_ptx(handle, made.ptx, len(made.ptx), number, PACKAGE, "")
    binary = bytearray(nvfatbin.size(handle))
    nvfatbin.get(handle, binary)
    return bytes(binary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args()
    package = arguments.folder / PACKAGE
    package.mkdir(parents=True)
    every = list(dict.fromkeys(texts()))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        code = dict(zip(map(file_of, every), pool.map(fat_binary, every), strict=True))
    for name, made in code.items():
        (package / name).write_bytes(made)
    digests = digests_of(" ".join(ARCHITECTURES), code, compiler.version()[0])
    (package / DIGESTS).write_text(digests)
    constants = f"CUDA = {compiler.version()}\nLEAST = {LEAST}\n"
    (package / "__init__.py").write_text(constants)
    project = PROJECT.format(version=sley.__version__, package=PACKAGE)
    (arguments.folder / "pyproject.toml").write_text(project)


if __name__ == "__main__":
    main()
