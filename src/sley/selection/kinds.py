"""Calls, as far as they decide which plan runs: kind, hosts, size, in place or not, and root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sley.errors import did_you_mean
from sley.errors.selection import N650
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD, Standard, standard
from sley.ir.words import is_integer
from sley.rendezvous.hosts import Hosts

BARRIER: Final = "barrier"
"""A barrier runs as an AllReduce, in place, of a single int8."""

CALLS: Mapping[str, Standard] = MappingProxyType(
    {row.call: row for row in STANDARD.values() if row.call} | {BARRIER: STANDARD["allreduce"]}
)
"""The kinds of calls, and the collective that each brings about."""


@dataclass(frozen=True)
class Request:
    """A call for which a plan is wanted.

    kind: one of `CALLS`. hosts: how the ranks lie on hosts.
    size_bytes: of the largest buffer of any rank, as nccl-tests counts it; of a call with `count`
        elements it is `size_of`.
    in_place: whether input and output are the same memory: all of it, or in an AllGather and a
        Gather the input is the rank's part of the output, and in a ReduceScatter and a Scatter the
        output is the rank's part of the input.
    root: the rank that it is about, for kinds that have one.

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
    return count * item_bytes * (ranks if CALLS[kind].has_parts else 1)


def collective_of(
    kind: str, ranks: int, *, chunks: int = 1, in_place: bool = False, root: int = 0
) -> Collective:
    """What a call brings about. Errors: N650, L101."""
    check_kind(kind)
    return CALLS[kind].of(ranks, chunks, in_place=in_place, root=root)


def kinds_of(collective: Collective) -> tuple[str, ...]:
    """The kinds of calls that a plan for this collective may run for."""
    row = standard(collective)
    return tuple(kind for kind, meant in CALLS.items() if meant is row)


def check_kind(kind: str) -> None:
    """Refuses what is no kind of call. Errors: N650."""
    if kind not in CALLS:
        raise N650.error(
            expected=f"one of {', '.join(CALLS)}",
            found=repr(kind),
            remedy=did_you_mean(str(kind), CALLS),
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
