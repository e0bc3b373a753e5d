"""The structures that the host packs match those that kernels read, field by field."""

from __future__ import annotations

import shutil
import subprocess
from itertools import cycle

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import tables
from sley.engine.devices.memory import HIDDEN
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.kernels.operands import NOWHERE
from sley.engine.outcomes import Reason, Status
from sley.engine.types import DATA_TYPES
from sley.ir.words import Buffer, Protocol

STRUCTURES = {
    "Cell": tables.CELL,
    "Counter": tables.COUNTER,
    "Report": tables.REPORT,
    "Peer": tables.PEER,
    "Block": tables.BLOCK,
    "Instruction": tables.INSTRUCTION,
    "Condition": tables.CONDITION,
    "Division": tables.DIVISION,
}
RENAMED = {("Report", "number"): "target_step"}
NO_FIELD = {("Condition", "number_held")}
"""Two fields of bits, which have no address."""
OF_RANKS = ("buffers", "registered")
"""Fields of a call that aren't in its setup."""


def compiles(*lines: str, dtype: int = 2, protocol: str = "simple") -> bool:
    """Whether a kernel's text compiles with these lines behind it."""
    compiler = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True), protocol=protocol)
    variant = Variant(Platform.CPU, dtype, sley.ReduceOp.SUM)
    text = Kernels.of(plan).source(Engine.INTERPRETED, variant)
    text += "\n#include <cstddef>\n#include <type_traits>\nusing namespace sley;\n"
    text += "\n".join(lines)
    command = [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0 or "static assertion failed" in done.stderr, done.stderr
    return done.returncode == 0


def same(left: str, right: int) -> str:
    return f'static_assert({left} == {right}, "");'


def of_fields(structure: str, packed: np.dtype[np.void], start: int = 0) -> list[str]:
    assert packed.fields is not None
    lines = []
    for name, (kind, offset, *_) in packed.fields.items():
        if (structure, name) in NO_FIELD or name in OF_RANKS:
            continue
        field = RENAMED.get((structure, name), name)
        lines.append(same(f"{start} + offsetof({structure}, {field})", offset))
        lines.append(same(f"sizeof({structure}::{field})", kind.itemsize))
    return lines


def asserted() -> list[str]:
    lines = []
    for structure, packed in STRUCTURES.items():
        lines += [same(f"sizeof({structure})", packed.itemsize), *of_fields(structure, packed)]
    call = tables.CALL
    assert call.fields is not None
    lines += of_fields("Setup", call)
    lines += [
        same("sizeof(Call)", call.itemsize),
        same("offsetof(Call, setup)", 0),
        same("kRanks", tables.RANKS),
    ]
    for name in OF_RANKS:
        kind, offset, *_ = call.fields[name]
        lines += [same(f"offsetof(Call, {name})", offset)]
        lines += [same(f"sizeof(Call::{name})", kind.itemsize)]
    return lines


def test_every_field_lies_where_the_kernels_have_it_and_every_name_has_their_number() -> None:
    fields = asserted()
    assert len(fields) > 100
    assert compiles(*fields, *numbered())


def test_a_field_elsewhere_is_noticed() -> None:
    assert not compiles(same("offsetof(Block, steps)", tables.BLOCK.fields["steps"][1] + 4))


def numbered() -> list[str]:
    assert (Status.DONE, Status.STALLED, Status.ABORTED) == (0, 1, 2)
    return [
        same("kData", Buffer.INPUT),
        same("kOutput", Buffer.OUTPUT),
        same("kScratch", Buffer.SCRATCH),
        same("kNowhere", NOWHERE),
        same("kHidden", HIDDEN),
        same("kInstruction", Reason.INSTRUCTION),
        same("kMessage", Reason.MESSAGE),
        same("kSlot", Reason.SLOT),
        same("kReading", Reason.READING),
    ]


@pytest.mark.parametrize(
    ("name", "protocol"), list(zip(DATA_TYPES, cycle(Protocol), strict=False)), ids=str
)
def test_types_and_protocols_have_the_kernels_numbers(name: str, protocol: Protocol) -> None:
    """The protocols in turn."""
    kind = DATA_TYPES[name]
    number = {"SIMPLE": "kSimple", "LL": "kLL", "LL128": "kLL128", "DIRECT": "kDirect"}
    bits = 8 * kind.size_bytes
    word = {
        "float16": "Float16",
        "bfloat16": "Bfloat16",
        "float32": "float",
        "float64": "double",
        "float8_e4m3fn": "Float8<3, 0x7E>",
        "float8_e5m2": "Float8<2, 0x7B>",
    }.get(name, f"std::{name}_t")
    lines = [same("8 * kItem", bits), same("8 * sizeof(Element)", bits)]
    if name.endswith("int64"):  # which of the 64-bit types it is depends on the platform
        signed = same("std::is_signed_v<Element>", int(name == "int64"))
        lines += [signed, 'static_assert(std::is_integral_v<Element>, "");']
    else:
        lines.append(same(f"std::is_same_v<Element, {word}>", 1))
    lines.append(f'static_assert(kProtocol == {number[protocol.name]}, "");')
    assert compiles(*lines, dtype=kind.number, protocol=protocol.value)
