"""Algorithms that sum in one order: every element has the bits of this order, with all protocols
and in both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import CATALOG, build
from sley.engine.devices import Engine
from sley.engine.types import DATA_TYPES
from support.devices.device_calls import executor
from support.inputs.sum_terms import FLOATS, terms, total, tree_of

IN_ORDER = [
    name
    for name, one in CATALOG.items()
    if "same_bits" in one.parameters or name == "chain-allreduce"
]
COUNTS = (1, 3, 50, 1003)


def check(plan: sley.Plan, hosts: list[range], engine: Engine, dtype: str, op: Any) -> None:
    c, kind, on = plan.collective, DATA_TYPES[dtype], executor(plan, engine=engine)
    scatters, tree = c.name == "reducescatter", tree_of(hosts)
    ends = range(1 if c.name == "reduce" else c.ranks)
    for count in COUNTS:
        data = [
            np.resize(own, count * (c.ranks if scatters else 1)) for own in terms(dtype, c.ranks)
        ]
        out = (
            None
            if c.in_place
            else [np.zeros(count * (rank in ends), kind.array) for rank in range(c.ranks)]
        )
        on(data, out, dtype=dtype, reduce_op=op)
        wanted = np.resize(total(dtype, c.ranks, tree, op), count * c.ranks)
        for rank in ends:
            first = rank * count if scatters else 0
            found = out[rank] if out else data[rank][first:][:count]
            np.testing.assert_array_equal(found, wanted[first:][:count])


@pytest.mark.slow
@pytest.mark.parametrize("engine", Engine, ids=lambda engine: engine.value)
@pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.name.lower())
@pytest.mark.parametrize("name", IN_ORDER)
def test_every_protocol_keeps_the_order(name: str, protocol: sley.Protocol, engine: Engine) -> None:
    algorithm = CATALOG[name]
    options = {"same_bits": True} if "same_bits" in algorithm.parameters else {}
    for turn, dtype in enumerate(FLOATS):
        ranks = 3 + turn + (turn == 4)
        hosts = [range(ranks)]
        size: dict[str, Any] = {"ranks": ranks}
        if "nodes" in algorithm.parameters:
            nodes = 2 - ranks % 2
            size = {"nodes": nodes, "gpus": ranks // nodes}
            hosts = [range(k * ranks // nodes, (k + 1) * ranks // nodes) for k in range(nodes)]
        program = build(name, **size, **options, in_place=turn % 2 == 0)
        plan = sley.compile(program, protocol=protocol, instances=1 + turn % 2)
        for op in (sley.ReduceOp.SUM, sley.ReduceOp.AVG):
            check(plan, hosts, engine, dtype, op)
