"""Header: what MSCCL++ compares with a call before it runs an execution plan.

It accepts more than `parse`: MSCCL++ reads only these fields when it looks for a plan, and finds
other problems when a call has chosen it. A min_message_size above 32 bits is read too, because such
a plan is loaded and never chosen.

Source: microsoft/mscclpp, src/core/executor/execution_plan.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sley.errors import Place, SleyError
from sley.errors.deployment import F506
from sley.errors.formats import F404
from sley.formats.mscclpp.document import read_json
from sley.formats.mscclpp.words import PIPELINE

MAX_SIZE = (1 << 64) - 1
"""The value of max_message_size that means no limit."""

_FROM_0 = range(1 << 31)
_FROM_1 = range(1, 1 << 31)
_SIZE = range(MAX_SIZE + 1)


@dataclass(frozen=True)
class Chunks:
    """The chunks of a rank's buffers."""

    input: int
    output: int
    scratch: int


@dataclass(frozen=True)
class PlanHeader:
    """The head of a plan, and the numbers of its GPUs.

    min_bytes, max_bytes: the sizes of its calls, both included. alignment: the bytes of which a
    chunk is a multiple. chunks: those of each rank. operations: the most operations of a thread
    block, those inside pipelines included.
    """

    name: str
    collective: str
    protocol: str
    in_place: bool
    reuse_resources: bool
    double_scratch: bool
    alignment: int
    min_bytes: int
    max_bytes: int
    chunks: tuple[Chunks, ...]
    operations: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.chunks)


def read_header(path: Path) -> PlanHeader:
    """The header of a plan. Errors: F506 for a file that MSCCL++ can't read or can't run."""
    file = str(path)
    try:
        _, _, value = read_json(path)
    except SleyError as error:
        cause = error.diagnostics[0]
        remedy = F404.instead if cause.rule is F404 else ""
        raise F506.error(
            at=cause.places, expected=cause.expected, found=cause.found, remedy=remedy
        ) from error
    gpus = _field(file, value, "gpus", list)
    return PlanHeader(
        name=_field(file, value, "name", str),
        collective=_field(file, value, "collective", str),
        protocol=_field(file, value, "protocol", str),
        in_place=_field(file, value, "inplace", bool),
        reuse_resources=_field(file, value, "reuse_resources", bool, False),
        double_scratch=_field(file, value, "use_double_scratch_buffer", bool, False),
        alignment=_number(file, value, "buffer_alignment", _FROM_1, 16),
        min_bytes=_number(file, value, "min_message_size", _SIZE, 0),
        max_bytes=_number(file, value, "max_message_size", _SIZE, MAX_SIZE),
        chunks=tuple(_chunks(file, gpu, rank) for rank, gpu in enumerate(gpus)),
        operations=max((_operations(file, gpu) for gpu in gpus), default=0),
    )


def _chunks(file: str, gpu: Any, rank: int) -> Chunks:
    if not isinstance(gpu, dict) or gpu.get("id") != rank:
        found = gpu.get("id") if isinstance(gpu, dict) else type(gpu).__name__
        _refuse(file, f"the GPU with id {rank} at position {rank}", repr(found))
    words = ("input_chunks", "output_chunks", "scratch_chunks")
    return Chunks(*(_number(file, gpu, word, _FROM_0) for word in words))


def _operations(file: str, gpu: dict[str, Any]) -> int:
    """The most operations of a block of a GPU."""
    blocks = _objects(file, _field(file, gpu, "threadblocks", list))
    most = 0
    for block in blocks:
        own = _objects(file, _field(file, block, "ops", list))
        inner = (op.get("ops", ()) for op in own if op.get("name") == PIPELINE)
        most = max(most, len(own) + sum(len(ops) for ops in inner if isinstance(ops, list)))
    return most


def _objects(file: str, values: list[Any]) -> Sequence[dict[str, Any]]:
    for value in values:
        if not isinstance(value, dict):
            _refuse(file, "objects in the lists of thread blocks and operations", repr(value)[:60])
    return values


def _field(file: str, value: dict[str, Any], word: str, kind: type, default: Any = None) -> Any:
    found = value.get(word, default)
    if not isinstance(found, kind):
        words = {str: "a text", bool: "true or false", list: "a list"}
        _refuse(file, f"{word} to be {words[kind]}", repr(found)[:60] if word in value else "none")
    return found


def _number(
    file: str, value: dict[str, Any], word: str, allowed: range, default: int | None = None
) -> int:
    found = value.get(word, default)
    if type(found) is not int or found not in allowed:
        expected = f"{word} to be an integer from {allowed[0]} to {allowed[-1]}"
        _refuse(file, expected, repr(found)[:60] if word in value else "none")
    return int(found)


def _refuse(file: str, expected: str, found: str) -> NoReturn:
    raise F506.error(at=Place(file), expected=expected, found=found)
