"""Calls, as far as they decide which plan runs: kind, hosts, size, in place or not, and root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sley.errors import did_you_mean
from sley.errors.selection import N650
from sley.ir.collective import Collective
from sley.ir.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from sley.ir.words import is_integer
from sley.rendezvous.hosts import Hosts

BARRIER: Final = "barrier"
"""A barrier runs as an AllReduce, in place, of a single int8."""

_ALIKE: Mapping[str, Callable[[int, int, bool], Collective]] = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    BARRIER: AllReduce,
}
_ROOTED: Mapping[str, Callable[[int, int, int, bool], Collective]] = {
    "broadcast": Broadcast,
    "reduce": Reduce,
    "gather": Gather,
    "scatter": Scatter,
}
KINDS: tuple[str, ...] = (*_ALIKE, *_ROOTED)
"""The kinds of calls; a call's record has their numbers."""

ROOTED: frozenset[str] = frozenset(_ROOTED)
"""Those that are about one rank."""

_PARTS = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Those whose count is of one rank's part, of which the largest buffer has one for each rank."""

COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {kind: kind.replace("_", "") for kind in KINDS if kind != BARRIER} | {BARRIER: "allreduce"}
)
"""The name of the collective that a kind of call brings about."""


@dataclass(frozen=True)
class Request:
    """A call for which a plan is wanted.

    kind: one of `KINDS`. hosts: how the ranks lie on hosts.
    size_bytes: of the largest buffer of any rank, as nccl-tests counts it; of a call with `count`
        elements it is `size_of`.
    in_place: whether input and output are the same memory: all of it, or in an AllGather and a
        Gather the input is the rank's part of the output, and in a ReduceScatter and a Scatter the
        output is the rank's part of the input.
    root: the rank that it is about, for kinds in `ROOTED`.

    The elements' type and the reduction make no difference: a plan moves chunks, of any type.
    """

    kind: str
    hosts: Hosts
    size_bytes: int
    in_place: bool = False
    root: int = 0

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return len(self.hosts.host)


def size_of(kind: str, ranks: int, count: int, item_bytes: int) -> int:
    """Bytes of the largest buffer of a call with `count` elements a block. Errors: N650."""
    check_kind(kind)
    return count * item_bytes * (ranks if kind in _PARTS else 1)


def collective_of(
    kind: str, ranks: int, *, chunks: int = 1, in_place: bool = False, root: int = 0
) -> Collective:
    """What a call brings about. Errors: N650, L101."""
    check_kind(kind)
    if kind in _ROOTED:
        return _ROOTED[kind](ranks, chunks, root, in_place)
    return _ALIKE[kind](ranks, chunks, in_place)


def kinds_of(collective: Collective) -> tuple[str, ...]:
    """The kinds of calls that a plan for this collective may run for."""
    root = max(collective.root, 0)
    return tuple(
        kind
        for kind in KINDS
        if COLLECTIVES[kind] == collective.name
        and collective
        == collective_of(
            kind,
            collective.ranks,
            chunks=collective.chunks,
            in_place=collective.in_place,
            root=root,
        )
    )


def check_kind(kind: str) -> None:
    """Refuses what is no kind of call. Errors: N650."""
    if kind not in KINDS:
        raise N650.error(
            expected=f"one of {', '.join(KINDS)}",
            found=repr(kind),
            remedy=did_you_mean(str(kind), KINDS),
        )


def check_call(kind: str, ranks: int, size_bytes: int, root: int) -> None:
    """Refuses what is no call of a communicator with so many ranks. Errors: N650."""
    check_kind(kind)
    if not is_integer(size_bytes) or size_bytes < 0:
        raise N650.error(
            expected="a size in bytes, from 0 on",
            found=repr(size_bytes),
            remedy="Give the bytes of the largest buffer of any rank.",
        )
    if not is_integer(root) or not 0 <= root < ranks:
        raise N650.error(
            expected=f"a root from 0 to {ranks - 1}",
            found=repr(root),
            remedy="Give the number of the rank that the call is about.",
        )
