"""Plan bytes: a plan as bytes, and a digest of its effect.

The bytes are the length of a JSON head, the head, and the columns as in memory, each at a multiple
of 8 bytes. So reading a plan copies nothing, and never executes anything.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place
from sley.ir.collective import Collective
from sley.ir.plan import Estimate, Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges, column_types
from sley.ir.words import LoopOrder, Protocol

FORMAT = 2
"""The number of this layout."""

_MAGIC = b"sleyplan"
_ALIGNMENT = 8
_DIGEST_BYTES = 16
_ORIGINS = ("transfer", "forward", "pipeline", "source")
"""Columns with the origin of instructions, which have no effect on what they do."""


def encode(plan: Plan) -> bytes:
    """The bytes of a plan. ValueError for a plan that was compiled for a topology."""
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
    parts = [_MAGIC, len(text).to_bytes(_ALIGNMENT, "little"), _pad(text)]
    parts += [_pad(a.tobytes()) for a in columns.values()]
    return b"".join(parts)


def decode(data: bytes) -> Plan:
    """The plan of the bytes of `encode`. ValueError, KeyError or TypeError for other bytes."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("no plan")
    start = len(_MAGIC) + _ALIGNMENT
    length = int.from_bytes(data[len(_MAGIC) : start], "little")
    head = json.loads(data[start : start + length])
    position = start + _align(length)
    columns: dict[str, NDArray[Any]] = {}
    for name, kind, rows in head["columns"]:
        dtype = np.dtype(kind)
        columns[name] = np.frombuffer(data, dtype, rows, position)
        position += _align(rows * dtype.itemsize)
    if position != len(data):
        raise ValueError("bytes after the last column")
    return _plan(head, columns)


def digest(plan: Plan) -> bytes:
    """16 bytes, equal for plans with the same effect, whatever the names of their sources."""
    words = {word: value for word, value in _scalars(plan).items() if word not in ("name", "times")}
    hashed = hashlib.blake2b(json.dumps(words).encode(), digest_size=_DIGEST_BYTES)
    for name, values in _columns(plan):
        table, _, column = name.partition(".")
        if table in ("sources", "estimate") or column in _ORIGINS:
            continue
        hashed.update(f"{name} {len(values)}".encode())
        hashed.update(np.ascontiguousarray(values).data)
    return hashed.digest()


def _scalars(plan: Plan) -> dict[str, Any]:
    """The fields of a plan that are not columns."""
    c, e = plan.collective, plan.estimate
    collective = [c.name, int(c.ranks), int(c.chunks), bool(c.in_place), int(c.root)]
    if c.varies:  # only then, so that all other plans keep their bytes and digests
        collective.append(int(c.max_count))
    return {
        "name": plan.name,
        "protocol": plan.protocol.value,
        "loop_order": plan.loop_order.value,
        "slots": int(plan.slots),
        "per_chunk": bool(plan.per_chunk),
        "collective": collective,
        "times": None if e is None else [float(e.time_us), float(e.unmerged_us), int(e.tiles)],
    }


def _columns(plan: Plan) -> Iterator[tuple[str, NDArray[Any]]]:
    """The names and columns of a plan, in order."""
    for name in column_types(Collective):
        yield f"collective.{name}", getattr(plan.collective, name)
    for name in Instructions.column_names():
        yield f"instructions.{name}", getattr(plan.instructions, name)
    for name in Sources.column_names():
        yield f"sources.{name}", getattr(plan.sources, name)
    for name, edges in (("values", plan.collective.values), ("waits", plan.waits)):
        yield f"{name}.offset", edges.offset
        yield f"{name}.target", edges.target
    for name in column_types(Plan):
        yield f"plan.{name}", getattr(plan, name)
    if len(plan.groups):  # only then, so that all other plans keep their bytes and digests
        yield "groups.offset", plan.groups.offset
        yield "groups.target", plan.groups.target
    if plan.estimate is not None:
        yield "estimate.busy_us", plan.estimate.busy_us


def _plan(head: dict[str, Any], columns: dict[str, NDArray[Any]]) -> Plan:
    def of(table: str, names: Iterable[str]) -> dict[str, Any]:
        return {name: columns[f"{table}.{name}"] for name in names}

    scalars = head["plan"]
    name, ranks, chunks, in_place, root, *varying = scalars["collective"]
    (max_count,) = varying or (NONE,)
    times = scalars["times"]
    return Plan(
        name=scalars["name"],
        collective=Collective(
            name=name,
            ranks=ranks,
            chunks=chunks,
            in_place=in_place,
            root=root,
            values=Edges(**of("values", ["offset", "target"])),
            max_count=max_count,
            **of("collective", column_types(Collective)),
        ),
        protocol=Protocol(scalars["protocol"]),
        loop_order=LoopOrder(scalars["loop_order"]),
        slots=scalars["slots"],
        per_chunk=scalars["per_chunk"],
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
        groups=Edges(**of("groups", ["offset", "target"]))
        if "groups.offset" in columns
        else Edges.empty(0),
        **of("plan", column_types(Plan)),
    )


def _align(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT


def _pad(data: bytes) -> bytes:
    return data.ljust(_align(len(data)), b"\0")
