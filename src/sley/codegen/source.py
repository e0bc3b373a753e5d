"""Source: the whole text of the kernels, with primitives, for a type, reduction and platform."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files

import numpy as np

from sley.codegen.kinds import Kinds, kinds
from sley.codegen.operands import Operands, operands
from sley.codegen.text import text_of
from sley.errors import Diagnostic, Place, SleyError
from sley.errors.devices import K520, K521, K522
from sley.ir.faults import diagnostics, overlap_faults
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.tables import LongArray
from sley.ir.words import Protocol, ReduceOp

KERNELS = ("sley_run", "sley_divide")
"""The kernels in every text: the plan's, and the division for AVG."""

_SHARED_STEPS = 512
"""The most instructions, and the most conditions, of a block that the interpreter copies into
shared memory: 28 KiB of the 48 KiB of every GPU."""

_STEPS, _WAITS, _CHUNKS = 1 << 20, 1 << 11, 1 << 30
"""The numbers of steps of a block, of waits of an instruction and of chunks that no longer fit into
the bits of the kernels' records."""

_HEADERS = ("layout.hpp", "elements.hpp", "state.hpp", "carry.hpp", "execute.hpp", "kernel.hpp")
_INCLUDE = re.compile(r'^(#pragma once|#include "(.*)")\n', re.MULTILINE)


class Platform(Enum):
    """The platform whose primitives a text uses."""

    CUDA = "cuda"
    CPU = "cpu"


class Engine(Enum):
    """GENERATED runs code generated for the plan; INTERPRETED runs the same code for all plans,
    which reads the instructions from memory (MSCCLang 6.2)."""

    GENERATED = "generated"
    INTERPRETED = "interpreted"


@dataclass(frozen=True)
class Variant:
    """The parameters of a text besides its plan.

    dtype: the number of the element type in `sley.engine.DATA_TYPES`. reduce_op: AVG is SUM
    until the division. threads: per block. one_gpu: whether all ranks are on one GPU, so that
    memory need only be ordered within it.
    """

    platform: Platform
    dtype: int
    reduce_op: ReduceOp
    threads: int = 512
    one_gpu: bool = False


@dataclass(frozen=True)
class Kernels:
    """A plan as kernels. The host's tables are made of `operands` and `kinds`."""

    plan: Plan
    operands: Operands
    kinds: Kinds
    text: str

    @classmethod
    def of(cls, plan: Plan) -> Kernels:
        """The kernels of a verified plan. K520 for local operations with overlapping operands, K521
        for numbers beyond the bits of the kernels' records, K522 for counts that vary."""
        refuse_varying_plan(plan)
        plan = without_groups(plan)
        t = plan.instructions
        chunks = int(max(t.src_index.max(initial=0), t.dst_index.max(initial=0)))
        _check(
            diagnostics(K520, plan, overlap_faults(plan))
            + _too_large(_longest(plan.block_offset), _STEPS, "steps in a thread block")
            + _too_large(chunks, _CHUNKS, "chunks")
        )
        found = operands(plan)
        _check(_too_large(_longest(found.conditions.offset), _WAITS, "waits of an instruction"))
        of_blocks = kinds(found)
        return cls(plan, found, of_blocks, text_of(found, of_blocks))

    def source(self, engine: Engine, variant: Variant) -> str:
        """The whole text for an engine; many plans share the text for INTERPRETED."""
        body = self.text if engine is Engine.GENERATED else _header("interpreter.hpp")
        head = {**_variant(variant), **_sizes(self.operands)}
        lines = [f"#define {name} {value}" for name, value in head.items()]
        return "\n".join([*lines, primitives(variant.platform), body])


def refuse_varying_plan(plan: Plan) -> None:
    """Refuses a plan whose counts vary, for which there are no kernels. Errors: K522."""
    if plan.collective.varies:
        raise K522.error(
            at=Place(detail=plan.name),
            expected="counts that are the same for all parts, and known before the call",
            found=str(plan.collective),
        )


def _check(problems: list[Diagnostic]) -> None:
    if problems:
        raise SleyError(problems)


def _too_large(number: int, limit: int, what: str) -> list[Diagnostic]:
    if number < limit:
        return []
    return [K521.diagnostic(expected=f"fewer than {limit} {what}", found=f"{number} {what}")]


def _longest(offset: LongArray) -> int:
    """The length of the longest row of a CSR table."""
    return int(np.diff(offset).max(initial=0))


def _variant(variant: Variant) -> dict[str, object]:
    reduction = variant.reduce_op
    if reduction is ReduceOp.AVG:
        reduction = ReduceOp.SUM
    return {
        "SLEY_TYPE": variant.dtype,
        "SLEY_REDUCTION": int(reduction),
        "SLEY_THREADS": variant.threads,
        "SLEY_SCOPE": '"gpu"' if variant.one_gpu else '"sys"',
    }


def _sizes(operands: Operands) -> dict[str, object]:
    """The sizes of arrays in the text, rounded up so that many plans share an interpreter."""
    plan, offset = operands.plan, operands.conditions.offset
    steps = _round_up(_longest(plan.block_offset))
    conditions = _round_up(_longest(offset[plan.block_offset]))
    fits = steps <= _SHARED_STEPS and conditions <= _SHARED_STEPS
    return {
        "SLEY_PROTOCOL": list(Protocol).index(plan.protocol),
        "SLEY_PEERS": _round_up(
            max(_longest(operands.sends.offset), _longest(operands.receives.offset))
        ),
        "SLEY_WAITS": _round_up(_longest(offset)),
        "SLEY_STEPS": steps if fits else 0,
        "SLEY_CONDITIONS": conditions if fits else 0,
    }


def _round_up(number: int) -> int:
    """The next power of two, from 4."""
    return max(4, 1 << (number - 1).bit_length())


@cache
def primitives(platform: Platform) -> str:
    """The primitives of a platform as one text."""
    names = (f"{platform.value}.hpp", *_HEADERS)
    return "\n".join(_header(name) for name in names)


@cache
def _header(name: str) -> str:
    """A header, with the headers that it includes inlined."""
    text = files("sley.codegen").joinpath("primitives", name).read_text("utf-8")
    return _INCLUDE.sub(lambda match: _header(match[2]) if match[2] else "", text)
