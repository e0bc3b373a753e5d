"""Rules: which algorithm runs for a call, by kind, hosts and size, with the reasons in words.

`default_rows` is the table of a kind of call. Nothing is compiled here. The sizes at which
one algorithm replaces another were measured: `Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sley.algorithms import TwoLevel, build
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.device_rules import DeviceLimits, device_rows, in_order
from sley.communicator.selection.kinds import ALL_TO_ALL, BARRIER, CALLS, check_call, collective_of
from sley.ir.orders import BALANCED, SameBits
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.program import Program
from sley.ir.sizes import ALL_SIZES, SizeRange
from sley.ir.words import Protocol
from sley.lang import ChunkProgram, trace

_FUSED = ("ring-", "binomial-", "recursive-", "hierarchical-")
"""Rings, trees and halving forward what they receive: fused, without a copy through memory."""

_GRIDS = ("hierarchical-allreduce", "two-step-alltoall")
"""Algorithms for nodes of equally many GPUs; `two-level-` ones take hosts of any."""

_TWO_STAGES = (
    *("all-pairs-allreduce", "all-pairs-reduce", "two-level-allreduce", "two-level-allgather"),
    "two-level-reduce",
)
"""Two stages in separate blocks: the first stage of a tile doesn't wait for the second stage of the
tile before."""


@dataclass(frozen=True)
class Limits:
    """The largest numbers and sizes of each algorithm.

    mesh_ranks: ranks, on one host or one on each host, up to which all pairs are connected.
    mesh_hosts: hosts up to which all pairs are connected.
    one_step_bytes: bytes that a rank reads in one step, up to which an AllReduce has one step.
    staged_bytes: size of a call up to which messages pass through slots even where a peer could
        read them in place: acknowledging such a read costs more than the copy.
    rooted_bytes: size up to which the root of a Reduce does all the work, as does, across hosts,
        the root of a Broadcast.
    tree_bytes: size up to which, with many ranks, the number of steps decides: halving and trees;
        above it rings.
    two_step_bytes: bytes for each pair of ranks up to which an AllToAll combines the messages
        between two hosts.
    chain_bytes: size, for each rank between the two ends of a chain, up to which a Reduce avoids
        the chain because of its latency.
    """

    mesh_ranks: int = 16
    mesh_hosts: int = 16
    one_step_bytes: int = 32 << 10
    staged_bytes: int = 32 << 10
    rooted_bytes: int = 32 << 10
    tree_bytes: int = 256 << 10
    two_step_bytes: int = 4 << 10
    chain_bytes: int = 128 << 10


@dataclass(frozen=True)
class RankGroup:
    """The ranks, as the rules see them. same_bits: whether a call's sums have one order."""

    hosts: Hosts
    limits: Limits
    same_bits: SameBits = False

    @property
    def ranks(self) -> int:
        return len(self.hosts.host)

    @property
    def largest(self) -> int:
        """The most ranks of a host."""
        return max(map(len, self.hosts.members))

    @property
    def is_network(self) -> bool:
        """Whether every rank is alone on its host."""
        return self.hosts.count == self.ranks > 1

    @property
    def is_flat(self) -> bool:
        """Whether all pairs of ranks are equivalent: one host, or one rank on each host."""
        return self.hosts.count == 1 or self.is_network

    @property
    def is_mesh(self) -> bool:
        """Whether all pairs are connected: few enough ranks and hosts, or sums in one order."""
        few = self.largest <= self.limits.mesh_ranks
        return bool(self.same_bits) or (few and self.hosts.count <= self.limits.mesh_hosts)

    @property
    def is_grid(self) -> bool:
        """Whether all hosts have the same number of ranks, numbered host by host."""
        return self.hosts.is_uniform and self.hosts.is_contiguous

    @property
    def too_many(self) -> str:
        """Why not all pairs are connected."""
        return (
            f"{self.largest} ranks on a host and {self.hosts.count} hosts; all pairs are connected "
            f"up to {self.limits.mesh_ranks} and {self.limits.mesh_hosts}"
        )

    def row(
        self, name: str, note: str, *refused: str, end: int | None = None, pulled: bool = False
    ) -> PlanRow:
        """An algorithm up to a size, the reason for it and those against others. pulled: messages
        are read in place where the buffers are shared, instead of passing through slots."""
        if name.startswith("two-level-"):
            all_as_one = (tuple(range(self.ranks)),)
            members = all_as_one if self.is_flat else self.hosts.members
            arguments: dict[str, Any] = {"hosts": members}
        elif name in _GRIDS:
            arguments = {"nodes": self.hosts.count, "gpus": self.largest}
        else:
            arguments = {"ranks": self.ranks}
        arguments |= in_order(name, self.same_bits)
        arguments |= {"stage_channels": (0, 1)} if name in _TWO_STAGES else {}
        options: dict[str, Any] = {"protocol": Protocol.DIRECT if pulled else Protocol.SIMPLE}
        options |= {} if name.startswith(_FUSED) else {"fusion": False}
        return PlanRow(
            Recipe(name, arguments, options), SizeRange(0, end), note=note, refused=refused
        )

    def two_ways(self, name: str, note: str, *refused: str) -> list[PlanRow]:
        """One algorithm for all sizes: small messages through slots, large ones read in place."""
        small, large = (
            f"{note}; small, so through slots",
            f"{note}; large, so read in place where the buffers are shared",
        )
        return [
            self.row(name, small, *refused, end=self.limits.staged_bytes),
            self.row(name, large, *refused, pulled=True),
        ]


def _all_reduce(group: RankGroup) -> list[PlanRow]:
    limits = group.limits
    if group.is_flat and group.is_mesh:
        pairs = f"{'rank-order' if group.same_bits else 'all-pairs'}-allreduce"
        return [
            group.row(
                "one-step-allreduce",
                "small: one step, in which each rank reads the data of all others",
                f"{pairs}: two steps, whose latency would dominate",
                end=limits.one_step_bytes // (group.ranks - 1),
            ),
            group.row(
                pairs,
                "each rank reduces its part and reads the others: the fewest bytes, in two steps",
                "one-step-allreduce: each rank would read the whole data of all others",
                f"ring-allreduce: {2 * (group.ranks - 1)} steps for the same bytes",
                pulled=True,
            ),
        ]
    if group.is_mesh:
        return [
            group.row(
                "two-level-one-step-allreduce",
                "small: one step within the hosts and one across",
                "two-level-allreduce: four steps, whose latency would dominate",
                "one-step-allreduce: ignores the hosts, and sends the data of all pairs of "
                "ranks over the network",
                end=limits.one_step_bytes // (group.largest + group.hosts.count - 2),
            ),
            group.row(
                "two-level-allreduce",
                "the fewest bytes over the network, spread over the ranks of each host",
                "all-pairs-allreduce, ring-allreduce: more bytes over the network",
                pulled=True,
            ),
        ]
    few = group.row(
        "recursive-halving-doubling-allreduce",
        "many ranks, small: few steps and few connections",
        f"all-pairs-allreduce: {group.too_many}",
        end=limits.tree_bytes,
    )
    if group.is_grid and group.hosts.count > 1:
        reason = "many ranks, large: rings within the hosts and across"
        refused = f"two-level-allreduce: {group.too_many}"
        return [few, group.row("hierarchical-allreduce", reason, refused)]
    ring = group.row(
        "ring-allreduce",
        "many ranks, large: the fewest bytes with two connections a rank",
        f"two-level-allreduce, all-pairs-allreduce: {group.too_many}",
        "hierarchical-allreduce: needs the same number of ranks on every host, in order",
    )
    return [few, ring]


def _all_gather(group: RankGroup) -> list[PlanRow]:
    if group.is_flat and group.is_mesh:
        reason = "each rank reads the parts of all others, in one step"
        return group.two_ways("all-pairs-allgather", reason)
    if group.is_mesh:
        reason = "each part crosses the network once to each other host"
        refused = "all-pairs-allgather: each part would cross the network once for each rank"
        return group.two_ways("two-level-allgather", reason, refused)
    rows = []
    # Recursive doubling pairs ranks at distances 1, 2, 4 and so on: it needs a power of two.
    if group.ranks & (group.ranks - 1) == 0:
        reason = "many ranks, small: few steps and few connections"
        rows = [group.row("recursive-doubling-allgather", reason, end=group.limits.tree_bytes)]
    refused = f"all-pairs-allgather, two-level-allgather: {group.too_many}"
    return [*rows, group.row("ring-allgather", _RING, refused)]


def _reduce_scatter(group: RankGroup) -> list[PlanRow]:
    if group.is_flat and group.is_mesh:
        reason = "each rank reads its part from all others and reduces it, in one step"
        pairs = f"{'one-step' if group.same_bits else 'all-pairs'}-reducescatter"
        return group.two_ways(pairs, reason)
    if group.is_mesh:
        reason = "hosts reduce first, so each part crosses the network once from each host"
        refused = "all-pairs-reducescatter: every rank would send its parts over the network"
        return group.two_ways("two-level-reducescatter", reason, refused)
    refused = f"all-pairs-reducescatter, two-level-reducescatter: {group.too_many}"
    return [group.row("ring-reducescatter", _RING, refused)]


def _all_to_all(group: RankGroup) -> list[PlanRow]:
    pairs = "all-pairs-alltoall", "every rank has different data for every other"
    if group.is_flat:
        return group.two_ways(*pairs)
    if not group.is_grid:
        refused = "two-step-alltoall: needs the same number of ranks on every host, in order"
        return group.two_ways(*pairs, refused)
    few = group.row(
        "two-step-alltoall",
        "small: one message from each rank to each other host",
        "all-pairs-alltoall: a message for every pair of ranks over the network",
        end=group.limits.two_step_bytes * group.ranks,
    )
    refused = "two-step-alltoall: copies within the hosts first, which costs more than it saves"
    return [few, *group.two_ways(*pairs, refused)]


def _all_to_all_v(group: RankGroup) -> list[PlanRow]:
    reason = "every rank has different data for every other; no rank knows all counts"
    return [group.row("all-pairs-alltoallv", reason)]


def _all_gather_v(group: RankGroup) -> list[PlanRow]:
    if group.is_mesh:
        reason = "each rank sends its part to all others, in one step"
        return [group.row("all-pairs-allgatherv", reason)]
    return [group.row("ring-allgatherv", _RING, f"all-pairs-allgatherv: {group.too_many}")]


def _broadcast(group: RankGroup) -> list[PlanRow]:
    flat = "flat-broadcast", "all ranks read the root's data, in one step"
    if group.hosts.count == 1:
        few = group.ranks <= group.limits.mesh_ranks
        return [*([] if few else [_tree(group, "broadcast")]), *group.two_ways(*flat)]
    if not group.is_mesh:
        return [replace(_tree(group, "broadcast"), sizes=ALL_SIZES)]
    why_not = "flat-broadcast: the root's host would send the data over the network several times"
    if group.is_network:
        reason = "the root scatters the data, and the others gather it: the root sends it once"
        large = group.row("all-pairs-broadcast", reason, why_not, pulled=True)
    else:
        reason = "the root's host sends the data once, spread over its ranks"
        large = group.row("two-level-broadcast", reason, why_not, pulled=True)
    return [group.row(*flat, end=group.limits.rooted_bytes), large]


def _reduce(group: RankGroup) -> list[PlanRow]:
    chain = group.row(
        "ring-reduce",
        "large: each rank adds its data to what arrives and sends it on: the fewest copies",
        "all-pairs-reduce: stages every rank's data, and the results once more",
    )
    if group.same_bits:  # a root that reads all data adds its own first
        reason = "each rank reduces its part in order, and the root reads the results"
        return group.two_ways("two-level-reduce", reason)
    if not group.is_mesh:
        tree = _tree(group, "reduce")
        return [tree, chain] if group.hosts.count == 1 else [replace(tree, sizes=ALL_SIZES)]
    reason = "small: the root reads all ranks' data and reduces it, in one step"
    small = group.row("flat-reduce", reason, end=group.limits.rooted_bytes)
    why_not = "flat-reduce: the root alone would do all the work"
    if not group.is_flat:
        reason = "hosts reduce first, so each sends its result over the network once"
        return [small, group.row("two-level-reduce", reason, why_not, pulled=True)]
    # On one host the chain takes over where its latency, a step for each rank, is small.
    between = group.limits.chain_bytes * (group.ranks - 2) if group.hosts.count == 1 else None
    reason = "each rank reduces its part, and the root reads the results"
    large = group.row("all-pairs-reduce", reason, why_not, end=between, pulled=True)
    return [small, large] if between is None else [small, large, chain]


def _tree(group: RankGroup, kind: str) -> PlanRow:
    reason, refused = (
        "many ranks: few steps and few connections",
        f"flat-{kind}: {group.too_many}",
    )
    return group.row(f"binomial-{kind}", reason, refused, end=group.limits.tree_bytes)


def _gather(group: RankGroup) -> list[PlanRow]:
    return group.two_ways("flat-gather", "the root reads every rank's part")


def _scatter(group: RankGroup) -> list[PlanRow]:
    return group.two_ways("flat-scatter", "every rank reads its part of the root's data")


_RING = "many ranks: the fewest bytes with two connections a rank"

RULES: Mapping[str, Callable[[RankGroup], list[PlanRow]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "all_gather_v": _all_gather_v,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    BARRIER: _all_reduce,
}
"""For each kind of call, the rows for a group of more than one rank; the last has no end."""


_TWO_LEVEL: Mapping[str, Callable[..., Program]] = {
    "two-level-allreduce": TwoLevel.allreduce,
    "two-level-one-step-allreduce": TwoLevel.one_step_allreduce,
    "two-level-allgather": TwoLevel.allgather,
    "two-level-reducescatter": TwoLevel.reducescatter,
    "two-level-broadcast": TwoLevel.broadcast,
    "two-level-reduce": TwoLevel.reduce,
}
_LOCAL = "local-copy"
"""The program of a single rank."""


def default_program(recipe: Recipe) -> Program:
    """The program of a row of `default_rows`; no recipe from a file comes here."""
    arguments = dict(recipe.arguments)
    if recipe.name in _TWO_LEVEL:
        return _TWO_LEVEL[recipe.name](TwoLevel(arguments.pop("hosts")), **arguments)
    if recipe.name == _LOCAL:
        return _local_copy(**arguments)
    return build(recipe.name, **arguments)


def default_rows(
    kind: str,
    hosts: Hosts,
    *,
    in_place: bool | None = False,
    root: int = 0,
    limits: Limits | DeviceLimits | None = None,
    disk: bool = False,
    same_bits: SameBits = False,
) -> tuple[PlanRow, ...]:
    """What the library runs for a kind of call on these hosts: rows of a table, with ranges of
    sizes without gaps, ascending; the last one has no end.

    in_place: None for plans that shall be right in either place (`places`), of kinds that can be.
    limits: for ranks on processors, or on devices. disk: as for `device_rows`. same_bits: only
    plans that sum in this order (`wanted_order`). Errors: N650, and those of `device_rows`.
    """
    check_call(kind, len(hosts.host), 0, root)
    same_bits = CALLS[kind].reduces and same_bits
    if same_bits == BALANCED and not hosts.are_subtrees:
        hosts = Hosts.of([""] * len(hosts.host))
    group = RankGroup(hosts, limits if isinstance(limits, Limits) else Limits(), same_bits)
    varies = CALLS[kind].varies
    if varies or kind == ALL_TO_ALL:
        in_place = bool(in_place)
    common: dict[str, Any] = {"in_place": bool(in_place)}
    if CALLS[kind].roles:
        common["root"] = root
    if group.ranks == 1:
        found = [PlanRow(Recipe(_LOCAL, {"kind": kind}), note="one rank already has its data")]
        common.pop("root", None)
    elif isinstance(limits, DeviceLimits) and not varies:
        either = in_place is None
        found = device_rows(
            kind,
            group.ranks,
            limits,
            disk=disk,
            either_place=either,
            same_bits=same_bits,
            root=root,
        )
    else:
        found = RULES[kind](group)
    rows, begin = [], 0
    # Each row begins where the one before has ended, so the ranges have no gaps and no overlaps.
    for row in found:
        end = row.sizes.end_bytes
        # A limit that ends before the range begins leaves the row no size.
        if end is not None and end < begin:
            continue
        rows.append(
            replace(
                row,
                recipe=row.recipe.given(**common),
                sizes=SizeRange(begin, end),
                collective=CALLS[kind].name,
                ranks=group.ranks,
                in_place=in_place,
                root=common.get("root"),
            )
        )
        begin = (end or 0) + 1
    return tuple(rows)


def _local_copy(kind: str, in_place: bool) -> Program:
    """The program of a single rank: copies its input to its output."""

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(0, "in", 0).copy(0, "out", 0)

    return trace(collective_of(kind, 1, in_place=in_place), body, name=_LOCAL)
