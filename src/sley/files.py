"""Files: plans from files and into files, proven for the runtime that will read them."""

from __future__ import annotations

import os

from sley import formats
from sley.formats import EXECUTOR, Target, load
from sley.ir.plan import Plan
from sley.verify import verify

__all__ = ["load", "save"]


def save(
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    target: str | Target = EXECUTOR,
    name: str | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    threads: int | None = None,
) -> None:
    """Writes a plan for a target, after proving it for the target's connections.

    The targets' kernels send a message of several chunks chunk by chunk once a chunk fills a
    tile, each through a slot of its own, and a connection has the protocol's slots. A plan that
    was not compiled for that (`per_chunk`) may hang there, and is refused.

    target: msccl, executor or rccl. name: the algorithm's, the plan's by default. min_bytes,
    max_bytes: the sizes that it is for, both included. threads: of a block, for targets that read
    it. Errors: V2xx, F4xx; then nothing is written.
    """
    verify(plan, plan.protocol.slots, per_chunk=True)
    formats.save(
        plan,
        path,
        target=target,
        name=name,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        threads=threads,
    )
