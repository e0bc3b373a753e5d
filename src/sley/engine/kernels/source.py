"""Source: the whole text of the kernels, with primitives, for a type, reduction and platform."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, cached_property
from importlib.resources import files

import numpy as np

from sley.engine.kernels.kinds import Kinds, kinds
from sley.engine.kernels.operands import Operands, operands
from sley.engine.kernels.switches import reduction
from sley.engine.kernels.text import text_of
from sley.engine.types import DATA_TYPES
from sley.errors import Diagnostic, Place, SleyError, counted
from sley.errors.devices import K521
from sley.errors.formats import F437
from sley.errors.verifier import V208
from sley.ir.faults import diagnostics, overlap_faults
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.tables import LongArray
from sley.ir.words import Protocol, ReduceOp
from sley.verification.runs import MOST_ROWS

KERNELS = ("sley_run", "sley_divide", "sley_place")
"""The kernels in every text: the plan's, what AVG divides at the end, and what brings the memories
of more ranks than a launch's arguments have room for."""

THREADS = 512
"""The least threads of a block for which texts are compiled: each may have 128 registers."""

_SHARED_STEPS = 512
"""The most instructions, and the most conditions, of a block that the interpreter copies into
shared memory."""

_SHARED_BYTES = 48 << 10
"""The shared memory that a block has on every GPU."""

_STATE_BYTES, _PEER_BYTES, _LENT_BYTES, _WAIT_BYTES = 1024, 112, 48, 32
_STEP_BYTES, _CONDITION_BYTES, _ROW_BYTES = 48, 8, 192
"""Shared memory of a block (`primitives/state.hpp`, `interpreter.hpp`, `runs.hpp`): at most 1 KiB,
and for each connection of its senders and receivers (more with Direct), wait, instruction,
condition, and row of a run."""

_LEAST = 32
"""The least connections and waits for which a text has room. Nearly all plans need fewer, so that
they have one text for the interpreter, which can be compiled ahead of them."""

_STEPS, _CHUNKS = 1 << 20, 1 << 30
"""The numbers of steps of a block and of chunks that no longer fit into the bits of the kernels'
records."""

_HEADERS = ("layout.hpp", "elements.hpp", "state.hpp", "carry.hpp")
_OF_PLANS, _OF_GROUPS = ("execute.hpp", "runs.hpp", "kernel.hpp"), "groups.hpp"
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

    dtype: the number of the element type in `sley.engine.DATA_TYPES`. threads: of a block, at most;
    with fewer than 512 the text is that for 512: a launch says how many there are.
    one_gpu: whether all ranks are on one GPU, so that memory need only be ordered within it.
    scales: whether calls multiply inputs by a factor; for INTERPRETED. stamps: whether blocks note
    when they do what.
    """

    platform: Platform
    dtype: int
    reduce_op: ReduceOp
    threads: int = THREADS
    one_gpu: bool = False
    scales: bool = False
    stamps: bool = False


@dataclass(frozen=True)
class Kernels:
    """A plan as kernels. The host's tables are made of `operands` and `kinds`.

    plan: what the kernels run, with groups only if they use switches.
    """

    plan: Plan
    operands: Operands
    kinds: Kinds

    @classmethod
    def of(cls, plan: Plan, *, switches: bool = False) -> Kernels:
        """The kernels of a verified plan. V208 for local operations with overlapping operands, K521
        for numbers beyond the bits of the kernels' records, F437 for counts that vary.

        switches: whether switches move the messages of groups, if `single_messages` finds no
            obstacle; else there is one message for each member.
        """
        refuse_varying_plan(plan)
        plan = plan if switches else without_groups(plan)
        t = plan.instructions
        chunks = int(max(t.src_index.max(initial=0), t.dst_index.max(initial=0)))
        problems = (
            diagnostics(V208, plan, overlap_faults(plan))
            + _too_large(_longest(plan.block_offset), _STEPS, "steps in a thread block")
            + _too_large(chunks, _CHUNKS, "chunks")
        )
        if problems:
            raise SleyError(problems)
        found = operands(plan)
        _check_shared(found)
        return cls(plan, found, kinds(found))

    @cached_property
    def text(self) -> str:
        """The generated code; the interpreter needs none."""
        return text_of(self.operands, self.kinds)

    def source(self, engine: Engine, variant: Variant) -> str:
        """The whole text for an engine; nearly all plans share one for INTERPRETED."""
        if not (self.plan.reduces or variant.scales):
            moved = list(DATA_TYPES.values())[variant.dtype].moved
            variant = replace(variant, dtype=moved.number, reduce_op=ReduceOp.SUM)
        body = self.text if engine is Engine.GENERATED else _header("interpreter.hpp")
        groups = len(self.plan.groups) > 0
        head = _head(variant, _sizes(self.operands), groups=groups)
        return "\n".join([*head, primitives(variant.platform, groups), body])


def refuse_varying_plan(plan: Plan) -> None:
    """Refuses a plan whose counts vary, for which there are no kernels. Errors: F437."""
    if plan.collective.varies:
        raise F437.error(
            at=Place(detail=plan.name),
            expected="counts that are the same for all parts, and known before the call",
            found=str(plan.collective),
        )


def _too_large(number: int, limit: int, what: str) -> list[Diagnostic]:
    if number < limit:
        return []
    return [K521.diagnostic(expected=f"fewer than {limit} {what}", found=f"{number} {what}")]


def _check_shared(operands: Operands) -> None:
    """K521 if a block's state doesn't fit into shared memory."""
    connections, waits = _connections(operands), _longest(operands.conditions.offset)
    needed = _state_bytes(operands, *_rooms(operands))
    if needed > _SHARED_BYTES:
        raise K521.error(
            expected=f"at most {_SHARED_BYTES:,} bytes of shared memory for a block's state",
            found=f"{needed:,}: an instruction with {counted(waits, 'wait')}, a block with "
            f"{counted(connections, 'connection')}",
        )


def _state_bytes(operands: Operands, connections: int, waits: int) -> int:
    is_direct = operands.plan.protocol is Protocol.DIRECT
    of_connection = _PEER_BYTES + _LENT_BYTES * is_direct
    rows = _ROW_BYTES * MOST_ROWS * (operands.plan.protocol is not Protocol.LL128)
    return _STATE_BYTES + rows + of_connection * connections + _WAIT_BYTES * waits


def _connections(operands: Operands) -> int:
    """The most connections that a block sends on, or receives on."""
    return max(_longest(operands.sends.offset), _longest(operands.receives.offset))


def _longest(offset: LongArray) -> int:
    """The length of the longest row of a CSR table."""
    return int(np.diff(offset).max(initial=0))


def _rooms(operands: Operands) -> tuple[int, int]:
    """The connections and the waits for which a text has room."""
    needed = _connections(operands), _longest(operands.conditions.offset)
    for least in (_LEAST, 1):
        connections, waits = (_round_up(max(number, least)) for number in needed)
        if _state_bytes(operands, connections, waits) <= _SHARED_BYTES:
            break
    return connections, waits


def _sizes(operands: Operands) -> dict[str, object]:
    """The sizes of arrays in the text, rounded up so that many plans share an interpreter."""
    connections, waits = _rooms(operands)
    plan, offset = operands.plan, operands.conditions.offset
    longest = max(_longest(plan.block_offset), _longest(offset[plan.block_offset]))
    copied = (_STEP_BYTES + _CONDITION_BYTES) * _SHARED_STEPS
    fits = longest <= _SHARED_STEPS
    fits = fits and _state_bytes(operands, connections, waits) + copied <= _SHARED_BYTES
    return {
        "SLEY_PROTOCOL": list(Protocol).index(plan.protocol),
        "SLEY_MISPLACED": int(operands.homes.misplaced),
        "SLEY_PEERS": connections,
        "SLEY_WAITS": waits,
        "SLEY_STEPS": _SHARED_STEPS if fits else 0,
    }


def _round_up(number: int) -> int:
    """The next power of two, from 4; above 512, where that would waste much, multiples of 32."""
    if number > 512:
        return -(-number // 32) * 32
    return max(4, 1 << (number - 1).bit_length())


@cache
def primitives(platform: Platform, groups: bool = False) -> str:
    """The primitives of a platform as one text, with those of groups if a plan needs them."""
    names = (f"{platform.value}.hpp", *_HEADERS, *_OF_PLANS, *([_OF_GROUPS] if groups else []))
    return "\n".join(_header(name) for name in names)


def messages_source(platform: Platform, threads: int = THREADS) -> str:
    """The text of the kernel of sends and receives, which have no plan.

    threads: as for `Variant`.
    """
    byte = Variant(platform, DATA_TYPES["int8"].number, ReduceOp.SUM, threads)
    sizes = {"SLEY_PROTOCOL": list(Protocol).index(Protocol.SIMPLE), "SLEY_MISPLACED": 0}
    head = _head(byte, {**sizes, "SLEY_PEERS": 1, "SLEY_WAITS": 1}, groups=False)
    names = (f"{platform.value}.hpp", *_HEADERS, "messages.hpp")
    return "\n".join([*head, *map(_header, names)])


def _head(variant: Variant, sizes: dict[str, object], *, groups: bool) -> list[str]:
    """The definitions before the primitives."""
    head: dict[str, object] = {
        "SLEY_TYPE": variant.dtype,
        "SLEY_REDUCTION": int(variant.reduce_op),
        "SLEY_SCALES": int(variant.scales),
        "SLEY_STAMPS": int(variant.stamps),
        "SLEY_THREADS": max(variant.threads, THREADS),
        "SLEY_SCOPE": '"gpu"' if variant.one_gpu else '"sys"',
        **sizes,
        "SLEY_GROUPS": int(groups),
    }
    if groups:
        operation, size_bytes = reduction(variant.dtype, variant.reduce_op)
        head |= {"SLEY_SWITCH_OP": f'"{operation}"', "SLEY_SWITCH_BYTES": size_bytes}
    return [f"#define {name} {value}" for name, value in head.items()]


@cache
def _header(name: str) -> str:
    """A header, with the headers that it includes inlined."""
    text = files("sley.engine.kernels").joinpath("primitives", name).read_text("utf-8")
    return _INCLUDE.sub(lambda match: _header(match[2]) if match[2] else "", text)
