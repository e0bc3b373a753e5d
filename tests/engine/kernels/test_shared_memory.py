"""The shared memory of a block: plans that need more are refused, and no others."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.kernels import Engine, Kernels, Platform, Variant, source
from sley.engine.kernels.operands import Operands
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from support.devices.machine_code import compiled_text, skip_without_nvrtc

PLAN, DIRECT = (
    sley.compile(
        build("all-pairs-allgather", ranks=3, in_place=True), protocol=protocol, allocate="instance"
    )
    for protocol in ("simple", "direct")
)
MOST_WAITS = 1280
"""The most waits, in steps of 32, of an instruction whose block has up to 4 connections."""


def waiting(waits: int, plan: sley.Plan = PLAN) -> Operands:
    """The operands of a plan whose last instruction has that many waits."""
    found = Kernels.of(plan).operands
    offset = np.array(found.conditions.offset)
    offset[-1] = offset[-2] + waits
    return replace(found, conditions=replace(found.conditions, offset=offset))


def compiled(operands: Operands, engine: Engine) -> int:
    """The bytes of shared memory of the kernel with the sizes of `operands`."""
    variant = Variant(Platform.CUDA, DATA_TYPES["float32"].number, sley.ReduceOp.SUM)
    text = Kernels.of(operands.plan).source(engine, variant)
    for name, value in source._sizes(operands).items():
        text = re.sub(f"#define {name} .*", f"#define {name} {value}", text)
    return compiled_text(text, "sm_90").functions["sley_run"].shared_bytes


def test_more_waits_than_shared_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for waits in (1, 1025, MOST_WAITS):
        source._check_shared(waiting(waits))
    many = waiting(MOST_WAITS + 1)
    monkeypatch.setattr(source, "operands", lambda plan: many)
    with pytest.raises(SleyError) as caught:
        Kernels.of(PLAN)
    assert caught.value.code == "K521"
    assert f"{MOST_WAITS + 1} waits" in str(caught.value)


@pytest.mark.parametrize(
    ("waits", "engine"),
    [
        (MOST_WAITS, Engine.GENERATED),
        # To compile the interpreter takes ten seconds, and tests of packages do it.
        pytest.param(MOST_WAITS, Engine.INTERPRETED, marks=pytest.mark.slow),
        *(pytest.param(*of, marks=pytest.mark.slow) for of in product((1, 256, 400), Engine)),
    ],
)
def test_what_is_not_refused_compiles(waits: int, engine: Engine) -> None:
    skip_without_nvrtc()
    operands = waiting(waits, DIRECT if engine is Engine.INTERPRETED else PLAN)
    sizes = source._sizes(operands)
    needed = source._state_bytes(operands, sizes["SLEY_PEERS"], sizes["SLEY_WAITS"])
    if engine is Engine.INTERPRETED:
        needed += (48 + 8) * sizes["SLEY_STEPS"]
    assert needed - source._STATE_BYTES < compiled(operands, engine) <= needed <= 48 << 10
