"""Plan digest: the parts of a plan, as its files have them, and the digest of what they do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.collective import Collective
from sley.ir.plan import Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import column_types

_ORIGINS = ("transfer", "forward", "pipeline", "source")
"""Columns with the origin of instructions, which have no effect on what they do."""


def digest(plan: Plan) -> bytes:
    """16 bytes, equal for plans with the same effect, whatever the names of their sources."""
    words = {word: value for word, value in scalars_of(plan).items() if word not in _NAMES}
    hashed = hashlib.blake2b(json.dumps(words).encode(), digest_size=16)
    for name, values in columns_of(plan):
        table, _, column = name.partition(".")
        if table in ("sources", "estimate") or column in _ORIGINS:
            continue
        hashed.update(f"{name} {len(values)}".encode())
        hashed.update(np.ascontiguousarray(values).data)
    return hashed.digest()


_NAMES = ("name", "times")
"""Scalars without an effect."""


def scalars_of(plan: Plan) -> dict[str, Any]:
    """The fields of a plan that are not columns, but for its sources and its topology."""
    c, e = plan.collective, plan.estimate
    collective = [c.name, int(c.ranks), int(c.chunks), bool(c.in_place), int(c.root)]
    if c.varies:  # only then, so that all other plans keep their digests
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


def columns_of(plan: Plan) -> Iterator[tuple[str, NDArray[Any]]]:
    """The names and columns of a plan, in order, without those of its topology."""
    for name in column_types(Collective):
        yield f"collective.{name}", getattr(plan.collective, name)
    for name in column_types(Instructions):
        yield f"instructions.{name}", getattr(plan.instructions, name)
    for name in column_types(Sources):
        yield f"sources.{name}", getattr(plan.sources, name)
    for name, edges in (("values", plan.collective.values), ("waits", plan.waits)):
        yield f"{name}.offset", edges.offset
        yield f"{name}.target", edges.target
    for name in column_types(Plan):
        yield f"plan.{name}", getattr(plan, name)
    if len(plan.groups):  # only then, so that all other plans keep their digests
        yield "groups.offset", plan.groups.offset
        yield "groups.target", plan.groups.target
    if plan.estimate is not None:
        yield "estimate.busy_us", plan.estimate.busy_us
