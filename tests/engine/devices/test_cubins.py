"""Kernels as machine code for GPUs, compiled without one: every protocol and type, no spills."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

import sley
from sley.algorithms import build
from sley.engine.kernels import KERNELS, Engine, Kernels, Platform, Variant, messages_source
from sley.engine.types import DATA_TYPES
from support.devices.machine_code import compiled_text, skip_without_nvrtc
from support.inputs.algorithm_cases import SIZED, sizes

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
TYPES = ("float32", "float16", "bfloat16", "int32")
PROTOCOLS = [protocol.name.lower() for protocol in sley.Protocol]


@pytest.fixture(autouse=True, scope="module")
def _nvrtc() -> None:
    skip_without_nvrtc()


def cases() -> list[Any]:
    """Every protocol and every one of TYPES, with the architectures in turn. The rest is slow."""
    found = []
    for protocol, dtype, engine, architecture in product(
        PROTOCOLS, DATA_TYPES, Engine, ARCHITECTURES
    ):
        k = PROTOCOLS.index(protocol)
        turn = TYPES[(k + 1) % len(TYPES)], Engine.GENERATED, ARCHITECTURES[k % len(ARCHITECTURES)]
        marks = [] if (dtype, engine, architecture) == turn else [pytest.mark.slow]
        found.append(pytest.param(protocol, dtype, engine, architecture, marks=marks))
    return found


def with_waits(protocol: str) -> Kernels:
    """Kernels with waits, fused steps, several connections a block, scratch."""
    program = build("hierarchical-allreduce", nodes=2, gpus=2, in_place=False)
    found = Kernels.of(sley.compile(program, protocol=protocol))
    assert "wait(" in found.text
    return found


def check(
    kernels: Kernels,
    engine: Engine,
    dtype: str,
    architecture: str,
    op: sley.ReduceOp = sley.ReduceOp.SUM,
    *,
    one_gpu: bool = True,
    threads: int = 512,
    scales: bool = False,
) -> None:
    """Compiles; nothing may spill, and a block must fit."""
    variant = Variant(Platform.CUDA, DATA_TYPES[dtype].number, op, threads, one_gpu, scales)
    check_text(kernels.source(engine, variant), architecture, KERNELS)


def check_text(text: str, architecture: str, names: Sequence[str]) -> None:
    """The same of a text with the kernels `names`."""
    compiled = compiled_text(text, architecture)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert set(names) <= set(compiled.functions)
    spilling = {
        name: (r.spill_store_bytes, r.spill_load_bytes)
        for name, r in compiled.functions.items()
        if r.spill_store_bytes or r.spill_load_bytes
    }
    assert not spilling
    assert all(0 < compiled.functions[name].registers <= 128 for name in names)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernel_of_messages_compiles_without_spills(architecture: str) -> None:
    check_text(messages_source(Platform.CUDA), architecture, ["sley_messages"])


@pytest.mark.parametrize(("protocol", "dtype", "engine", "architecture"), cases())
def test_kernels_of_every_protocol_and_type_compile_without_spills(
    protocol: str, dtype: str, engine: Engine, architecture: str
) -> None:
    check(with_waits(protocol), engine, dtype, architecture)


@pytest.mark.parametrize(
    ("architecture", "engine"),
    [
        ("sm_80", Engine.GENERATED),
        *(pytest.param(a, Engine.INTERPRETED, marks=pytest.mark.slow) for a in ARCHITECTURES),
    ],
)
def test_kernels_of_8_bit_floats_compile_with_and_without_conversions(
    architecture: str, engine: Engine
) -> None:
    dtype = ("float8_e4m3fn", "float8_e5m2")[ARCHITECTURES.index(architecture) % 2]
    check(with_waits("simple"), engine, dtype, architecture, sley.ReduceOp.AVG)


@pytest.mark.parametrize(
    ("protocol", "dtype", "engine"),
    [
        ("simple", "bfloat16", Engine.GENERATED),
        *(
            pytest.param(*of, Engine.INTERPRETED, marks=pytest.mark.slow)
            for of in (("simple", "bfloat16"), ("simple", "float8_e5m2"), ("ll128", "float8_e5m2"))
        ),
    ],
)
def test_kernels_that_multiply_inputs_compile_without_spills(
    protocol: str, dtype: str, engine: Engine
) -> None:
    """Of all, the interpreter with a type that is converted has the fewest registers left."""
    check(with_waits(protocol), engine, dtype, "sm_90", scales=True)


@pytest.mark.parametrize(
    "engine", [Engine.GENERATED, pytest.param(Engine.INTERPRETED, marks=pytest.mark.slow)]
)
def test_kernels_of_larger_blocks_compile_without_spills(engine: Engine) -> None:
    """640 threads leave 96 registers to each; more threads leave too few."""
    check(with_waits("ll128"), engine, "bfloat16", "sm_90", threads=640)


@pytest.mark.slow
@pytest.mark.parametrize("op", list(sley.ReduceOp), ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DATA_TYPES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kernels_of_every_reduction_compile_without_spills(
    protocol: str, dtype: str, op: sley.ReduceOp
) -> None:
    check(with_waits(protocol), Engine.GENERATED, dtype, "sm_90", op)


@pytest.mark.slow
@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize("op", ["SUM", "AVG", "BXOR"])
@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_kernels_of_groups_compile_without_spills(dtype: str, op: str, engine: Engine) -> None:
    """Those of a switch, which GPUs have since sm_90, and of reductions that it hasn't."""
    plan = sley.compile(build("nvls-allreduce", ranks=8, in_place=True))
    found = Kernels.of(plan, switches=True)
    check(found, engine, dtype, "sm_90", sley.ReduceOp[op], one_gpu=False)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kernels_for_several_gpus_compile_without_spills(protocol: str, architecture: str) -> None:
    check(with_waits(protocol), Engine.GENERATED, "float16", architecture, one_gpu=False)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", SIZED)
def test_kernels_of_every_algorithm_compile_without_spills(name: str, protocol: str) -> None:
    grid = "nodes" in sizes(name)[0]
    size = {"nodes": 2, "gpus": 4} if grid else {"ranks": 8}
    plan = sley.compile(build(name, **size, in_place=True), protocol=protocol)
    check(Kernels.of(plan), Engine.GENERATED, "float16", "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kernels_in_instruction_order_compile_without_spills(protocol: str) -> None:
    program = build("hm-allreduce", nodes=2, gpus=4, in_place=True)
    plan = sley.compile(program, schedule="hpds", allocate="state", protocol=protocol)
    check(Kernels.of(plan), Engine.GENERATED, "bfloat16", "sm_90")
