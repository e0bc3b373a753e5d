"""Kinds: what decides the plan of a call: kind, hosts, size, whether in place, and root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sley.communicator.rendezvous.hosts import Hosts
from sley.engine.limits import whole
from sley.errors import check_name
from sley.errors.selection import N650
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD, Standard, standard

BARRIER: Final = "barrier"
"""A barrier runs as an AllReduce, in place, of a single int8."""

ALL_TO_ALL: Final = "all_to_all"
"""The kind of calls whose counts other ranks may vary."""

CALLS: Mapping[str, Standard] = MappingProxyType(
    {row.call: row for row in STANDARD.values() if row.call} | {BARRIER: STANDARD["allreduce"]}
)
"""The kinds of calls, with the collective of each."""


@dataclass(frozen=True)
class Request:
    """A call that needs a plan.

    kind: one of `CALLS`. hosts: which ranks share a host.
    size_bytes: of the largest buffer of any rank, as nccl-tests counts it; `size_of` computes it
        from a call's number of elements. 0 where counts vary: each rank knows only its own, so one
        plan serves all sizes.
    in_place: whether input and output are the same memory. In an AllGather and a Gather, the input
        is then the rank's part of the output, in a ReduceScatter and a Scatter the output the
        rank's part of the input.
    root: the root rank, for kinds that have one.

    The elements' type and the reduction don't matter: a plan moves chunks of any type.
    """

    kind: str
    hosts: Hosts
    size_bytes: int
    in_place: bool = False
    root: int = 0

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.hosts.host)


def size_of(kind: str, ranks: int, count: int, item_bytes: int) -> int:
    """Bytes of the largest buffer of a call with `count` elements a block. Errors: N650."""
    check_kind(kind)
    return count * item_bytes * (ranks if CALLS[kind].has_parts else 1)


def collective_of(
    kind: str, ranks: int, *, chunks: int = 1, in_place: bool = False, root: int = 0
) -> Collective:
    """The collective of a call. Errors: N650, L101."""
    check_kind(kind)
    return CALLS[kind].of(ranks, chunks, in_place=in_place, root=root)


def kinds_of(collective: Collective) -> tuple[str, ...]:
    """The kinds of calls that a plan of this collective can run."""
    row = standard(collective)
    return tuple(kind for kind, standard_row in CALLS.items() if standard_row is row)


def check_kind(kind: str) -> None:
    """Refuses an unknown kind of call. Errors: N650."""
    check_name(N650, "a call", kind, CALLS)


def check_call(kind: str, ranks: int, size_bytes: int, root: int) -> None:
    """Refuses a call that a communicator of `ranks` can't make. Errors: N650."""
    check_kind(kind)
    whole(size_bytes, "size_bytes", 0, rule=N650)
    whole(root, "root", 0, ranks - 1, N650)
