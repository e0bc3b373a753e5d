"""Links: whether a topology can carry a program's transfers."""

from __future__ import annotations

import numpy as np

from sley.errors import Place
from sley.errors.compiler import C301, C305
from sley.ir.program import Program
from sley.ir.topology import Topology


def check_links(program: Program, topology: Topology) -> None:
    """Refuses a program that sends where the topology has no link. Errors: C301, C305."""
    ranks = program.collective.ranks
    if topology.ranks < ranks:
        raise C305.error(
            at=Place(detail=topology.name),
            expected=f"at least {ranks} ranks",
            found=f"{topology.ranks} ranks",
        )
    t = program.transfers
    missing = np.flatnonzero((t.src != t.dst) & ~topology.linked[t.src, t.dst])
    if len(missing):
        row = int(missing[0])
        src, dst = int(t.src[row]), int(t.dst[row])
        neighbours = ", ".join(map(str, np.flatnonzero(topology.linked[src]).tolist()))
        raise C301.error(
            at=program.sources.place(int(t.source[row])),
            expected=f"a transfer from rank {src} to a rank that it is linked to: {neighbours}",
            found=f"rank {src} -> rank {dst}, which {topology.name} does not link "
            f"({len(missing)} such transfers)",
        )
