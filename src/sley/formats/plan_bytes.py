"""Plans as bytes, and a digest of what they do.

A head in JSON, its length before it, and after it the columns as they lie in memory, each at a
multiple of 8 bytes: nothing is copied when a plan is read, and nothing in the bytes is ever run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place
from sley.ir.collective import Collective
from sley.ir.plan import Estimate, Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import Edges
from sley.ir.words import LoopOrder, Protocol

FORMAT = 1
"""The number of this layout."""

_MAGIC = b"sleyplan"
_ALIGNMENT = 8
_DIGEST_BYTES = 16
_ORIGINS = ("transfer", "forward", "pipeline", "source")
"""Columns of instructions that say where they come from, and nothing of what they do."""


def encode(plan: Plan) -> bytes:
    """The bytes of a plan. One that was compiled for a topology has none: ValueError."""
    if plan.topology is not None:
        raise ValueError("a plan that was compiled for a topology")
    columns = dict(_columns(plan))
    head: dict[str, Any] = {
        "plan": _scalars(plan),
        "files": list(plan.sources.files),
        "whole": [
            plan.sources.whole.file,
            plan.sources.whole.line,
            plan.sources.whole.column,
            plan.sources.whole.detail,
        ],
        "columns": [[name, a.dtype.str, len(a)] for name, a in columns.items()],
    }
    text = json.dumps(head).encode()
    parts = [_MAGIC, len(text).to_bytes(_ALIGNMENT, "little"), _padded(text)]
    parts += [_padded(a.tobytes()) for a in columns.values()]
    return b"".join(parts)


def decode(data: bytes) -> Plan:
    """The plan of bytes that `encode` made. ValueError, KeyError or TypeError for others."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("no plan")
    start = len(_MAGIC) + _ALIGNMENT
    length = int.from_bytes(data[len(_MAGIC) : start], "little")
    head = json.loads(data[start : start + length])
    position = start + _aligned(length)
    columns: dict[str, NDArray[Any]] = {}
    for name, kind, rows in head["columns"]:
        dtype = np.dtype(kind)
        columns[name] = np.frombuffer(data, dtype, rows, position)
        position += _aligned(rows * dtype.itemsize)
    if position != len(data):
        raise ValueError("bytes at the end that belong to nothing")
    return _plan(head, columns)


def digest(plan: Plan) -> bytes:
    """16 bytes, equal for plans that do the same: on all ranks, whatever their sources are
    called."""
    told = {word: value for word, value in _scalars(plan).items() if word not in ("name", "times")}
    hashed = hashlib.blake2b(json.dumps(told).encode(), digest_size=_DIGEST_BYTES)
    for name, values in _columns(plan):
        table, _, column = name.partition(".")
        if table in ("sources", "estimate") or column in _ORIGINS:
            continue
        hashed.update(f"{name} {len(values)}".encode())
        hashed.update(np.ascontiguousarray(values).data)
    return hashed.digest()


def _scalars(plan: Plan) -> dict[str, Any]:
    """What of a plan is no column."""
    c, e = plan.collective, plan.estimate
    return {
        "name": plan.name,
        "protocol": plan.protocol.value,
        "loop_order": plan.loop_order.value,
        "slots": int(plan.slots),
        "per_chunk": bool(plan.per_chunk),
        "collective": [c.name, int(c.ranks), int(c.chunks), bool(c.in_place), int(c.root)],
        "times": None if e is None else [float(e.time_us), float(e.unmerged_us), int(e.tiles)],
    }


_COLLECTIVE = (
    "input_chunks",
    "output_chunks",
    "input_base",
    "output_base",
    "initial",
    "expected",
)


def _columns(plan: Plan) -> Iterator[tuple[str, NDArray[Any]]]:
    """The columns of a plan with their names, in order."""
    for name in _COLLECTIVE:
        yield f"collective.{name}", getattr(plan.collective, name)
    for name in Instructions.column_names():
        yield f"instructions.{name}", getattr(plan.instructions, name)
    for name in Sources.column_names():
        yield f"sources.{name}", getattr(plan.sources, name)
    for name, edges in (("values", plan.collective.values), ("waits", plan.waits)):
        yield f"{name}.offset", edges.offset
        yield f"{name}.target", edges.target
    for name in ("block_rank", "block_offset", "scratch_chunks"):
        yield f"plan.{name}", getattr(plan, name)
    if plan.estimate is not None:
        yield "estimate.busy_us", plan.estimate.busy_us


def _plan(head: dict[str, Any], columns: dict[str, NDArray[Any]]) -> Plan:
    def of(table: str, names: tuple[str, ...] | list[str]) -> dict[str, Any]:
        return {name: columns[f"{table}.{name}"] for name in names}

    told = head["plan"]
    name, ranks, chunks, in_place, root = told["collective"]
    times = told["times"]
    return Plan(
        name=told["name"],
        collective=Collective(
            name=name,
            ranks=ranks,
            chunks=chunks,
            in_place=in_place,
            root=root,
            values=Edges(**of("values", ["offset", "target"])),
            **of("collective", _COLLECTIVE),
        ),
        protocol=Protocol(told["protocol"]),
        loop_order=LoopOrder(told["loop_order"]),
        slots=told["slots"],
        per_chunk=told["per_chunk"],
        instructions=Instructions(**of("instructions", Instructions.column_names())),
        waits=Edges(**of("waits", ["offset", "target"])),
        sources=Sources(
            **of("sources", Sources.column_names()),
            files=tuple(head["files"]),
            whole=Place(*head["whole"]),
        ),
        estimate=None
        if times is None
        else Estimate(times[0], times[1], columns["estimate.busy_us"], times[2]),
        **of("plan", ["block_rank", "block_offset", "scratch_chunks"]),
    )


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")
