"""Registration: the Python text that registers execution plans with MSCCL++, written and read.

Source: microsoft/mscclpp, python/mscclpp (Algorithm, AlgorithmCollectionBuilder, ExecutionPlan) and
examples/torch-integration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sley.formats.mscclpp.targets import SUFFIX

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

_BEGIN, _END = _TEXT.split("{rows}")

# A name with a backslash or a folder isn't one of a package.
_ROW = re.compile(
    rf"    \((['\"])([^\\/\n]+{re.escape(SUFFIX)})\1, ([1-9][0-9]{{0,8}}), ([1-9][0-9]{{0,8}})\),"
)


def script(plans: Sequence[tuple[str, int, int]]) -> str:
    """The text that registers plans: the name of each file, its ranks, and the ranks of a node."""
    rows = "".join(f"    ({file!r}, {ranks}, {node}),\n" for file, ranks, node in plans)
    return _TEXT.replace("{rows}", rows)


def registered(text: str) -> tuple[tuple[str, int, int], ...] | None:
    """The plans that a text of `script` registers, as its argument; None for any other text, also
    for one that was changed by more than rows. The text isn't executed."""
    rows = text.removeprefix(_BEGIN).removesuffix(_END).split("\n")[:-1]
    found = [match for row in rows if (match := _ROW.fullmatch(row))]
    plans = tuple((match[2], int(match[3]), int(match[4])) for match in found)
    return plans if script(plans) == text else None
