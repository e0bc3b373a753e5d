"""Registration: the Python text that registers execution plans with MSCCL++.

Source: microsoft/mscclpp, python/mscclpp (Algorithm, AlgorithmCollectionBuilder, ExecutionPlan) and
examples/torch-integration.
"""

from __future__ import annotations

from collections.abc import Sequence

SCRIPT = "register_plans.py"
"""The name of the file."""

_TEXT = '''\
"""Registers the execution plans of this folder with MSCCL++.

    import register_plans

    register_plans.register()  # before the first communicator; RANK is the rank, as with torchrun
"""

import os
from pathlib import Path

import mscclpp

PLANS = (
    # file, ranks, ranks of a node
{rows})


def register(rank=None):
    """Registers the plans for a rank, by default that of the variable RANK."""
    rank = int(os.environ["RANK"]) if rank is None else rank
    folder = Path(__file__).resolve().parent
    builder = mscclpp.AlgorithmCollectionBuilder()
    for file, ranks, node in PLANS:
        if rank < ranks:
            plan = mscclpp.ExecutionPlan(str(folder / file), rank)
            limits = mscclpp.Algorithm.Constraint(ranks, node)
            builder.add_algorithm_builder(
                mscclpp.Algorithm(id=file, execution_plan=plan, constraint=limits)
            )
'''


def script(plans: Sequence[tuple[str, int, int]]) -> str:
    """The text that registers plans: the name of each file, its ranks, and the ranks of a node."""
    rows = "".join(f"    ({file!r}, {ranks}, {node}),\n" for file, ranks, node in plans)
    return _TEXT.replace("{rows}", rows)
