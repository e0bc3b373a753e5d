"""The structures and numbers that the host shares with kernels."""

from __future__ import annotations

import shutil
import subprocess
from itertools import cycle

import pytest

import sley
from sley.algorithms import build
from sley.engine.devices.tables import structure
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.kernels.operands import NOWHERE
from sley.engine.outcomes import Reason, Status
from sley.engine.types import DATA_TYPES
from sley.ir.words import Buffer, Protocol


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


@pytest.mark.parametrize("name", ["Instruction", "Block", "Peer", "Division", "Condition"])
def test_rows_have_all_fields_of_the_kernels(name: str) -> None:
    """Side by side; but for the report of a block, which the host fills in for each device."""
    kind, end = structure(name), 0
    for field, at in sorted((kind.fields or {}).values(), key=lambda found: int(found[1])):
        assert at == -(-end // field.itemsize) * field.itemsize
        end = at + field.itemsize
    assert end == kind.itemsize - (8 if name == "Block" else 0)


def test_every_name_has_its_number() -> None:
    assert compiles(*numbered())
    assert not compiles(same("kData", Buffer.OUTPUT))


def numbered() -> list[str]:
    assert (Status.DONE, Status.STALLED, Status.ABORTED) == (0, 1, 2)
    return [
        same("kData", Buffer.INPUT),
        same("kOutput", Buffer.OUTPUT),
        same("kScratch", Buffer.SCRATCH),
        same("kNowhere", NOWHERE),
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
