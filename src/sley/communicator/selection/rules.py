"""Rules: which algorithm runs for a call, by kind, hosts and size, with the reasons in words.

`default_rows` is the table of a kind of call. Nothing is compiled here. The sizes at which
one algorithm replaces another were measured: `Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sley.algorithms import TwoLevel, build
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.kinds import BARRIER, CALLS, check_call, collective_of
from sley.compiler import Options
from sley.errors import Place
from sley.errors.language import L112
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.program import Program
from sley.ir.sizes import SizeRange
from sley.ir.words import Protocol
from sley.lang import ChunkProgram, trace

_STAGED = Options(protocol=Protocol.SIMPLE, fusion=False)
_PULLED = Options(protocol=Protocol.DIRECT, fusion=False)
_FUSED = Options(protocol=Protocol.SIMPLE)
"""Rings, trees and halving forward what they receive: fused, without a copy through memory."""

_STAGES = {"stage_channels": (0, 1)}
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


def _row(
    end_bytes: int | None,
    name: str,
    options: Options,
    note: str,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    refused: tuple[str, ...] = (),
) -> PlanRow:
    """An algorithm up to a size, with its arguments, options and the reason for it."""
    recipe = Recipe(name, arguments, options.given())
    return PlanRow(recipe, SizeRange(0, end_bytes), note=note, refused=refused)


def _up_to(row: PlanRow, end_bytes: int | None) -> PlanRow:
    return replace(row, sizes=SizeRange(0, end_bytes))


@dataclass(frozen=True)
class Group:
    """The ranks, as the rules see them."""

    hosts: Hosts
    limits: Limits

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
        """Whether there are few enough ranks and hosts to connect all pairs."""
        few = self.largest <= self.limits.mesh_ranks
        return few and self.hosts.count <= self.limits.mesh_hosts

    @property
    def is_grid(self) -> bool:
        """Whether all hosts have the same number of ranks, numbered host by host."""
        return self.hosts.is_uniform and self.hosts.is_contiguous

    @property
    def size(self) -> dict[str, int]:
        return {"ranks": self.ranks}

    @property
    def grid(self) -> dict[str, int]:
        return {"nodes": self.hosts.count, "gpus": self.largest}

    @property
    def members(self) -> dict[str, Any]:
        return {"hosts": self.hosts.members}

    @property
    def too_many(self) -> str:
        """Why not all pairs are connected."""
        return (
            f"{self.largest} ranks on a host and {self.hosts.count} hosts; all pairs are connected "
            f"up to {self.limits.mesh_ranks} and {self.limits.mesh_hosts}"
        )


def _two_ways(limits: Limits, row: PlanRow) -> list[PlanRow]:
    """One algorithm for all sizes: small messages through slots, large ones read in place."""
    ways = (
        (limits.staged_bytes, Protocol.SIMPLE, "small, so through slots"),
        (None, Protocol.DIRECT, "large, so read in place where the buffers are shared"),
    )
    return [
        replace(
            _up_to(row, end_bytes),
            recipe=replace(row.recipe, options={**row.recipe.options, "protocol": protocol}),
            note=f"{row.note}; {words}",
        )
        for end_bytes, protocol, words in ways
    ]


def _all_reduce(group: Group) -> list[PlanRow]:
    limits = group.limits
    if group.is_flat and group.is_mesh:
        once = limits.one_step_bytes // (group.ranks - 1)
        return [
            _row(
                once,
                "one-step-allreduce",
                _STAGED,
                "small: one step, in which each rank reads the data of all others",
                group.size,
                ("all-pairs-allreduce: two steps, whose latency would dominate",),
            ),
            _row(
                None,
                "all-pairs-allreduce",
                _PULLED,
                "each rank reduces its part and reads the others: the fewest bytes, in two steps",
                {**group.size, **_STAGES},
                (
                    "one-step-allreduce: each rank would read the whole data of all others",
                    f"ring-allreduce: {2 * (group.ranks - 1)} steps for the same bytes",
                ),
            ),
        ]
    if group.is_mesh:
        once = limits.one_step_bytes // (group.largest + group.hosts.count - 2)
        return [
            _row(
                once,
                "two-level-one-step-allreduce",
                _STAGED,
                "small: one step within the hosts and one across",
                group.members,
                (
                    "two-level-allreduce: four steps, whose latency would dominate",
                    "one-step-allreduce: ignores the hosts, and sends the data of all pairs of "
                    "ranks over the network",
                ),
            ),
            _row(
                None,
                "two-level-allreduce",
                _PULLED,
                "the fewest bytes over the network, spread over the ranks of each host",
                {**group.members, **_STAGES},
                ("all-pairs-allreduce, ring-allreduce: more bytes over the network",),
            ),
        ]
    return _many_all_reduce(group)


def _many_all_reduce(group: Group) -> list[PlanRow]:
    few = _row(
        group.limits.tree_bytes,
        "recursive-halving-doubling-allreduce",
        _FUSED,
        "many ranks, small: few steps and few connections",
        group.size,
        (f"all-pairs-allreduce: {group.too_many}",),
    )
    if group.is_grid and group.hosts.count > 1:
        rings = _row(
            None,
            "hierarchical-allreduce",
            _FUSED,
            "many ranks, large: rings within the hosts and across",
            group.grid,
            (f"two-level-allreduce: {group.too_many}",),
        )
        return [few, rings]
    ring = _row(
        None,
        "ring-allreduce",
        _FUSED,
        "many ranks, large: the fewest bytes with two connections a rank",
        group.size,
        (
            f"two-level-allreduce, all-pairs-allreduce: {group.too_many}",
            "hierarchical-allreduce: needs the same number of ranks on every host, in order",
        ),
    )
    return [few, ring]


def _all_gather(group: Group) -> list[PlanRow]:
    if group.is_flat and group.is_mesh:
        reason = "each rank reads the parts of all others, in one step"
        row = _row(None, "all-pairs-allgather", _STAGED, reason, group.size)
        return _two_ways(group.limits, row)
    if group.is_mesh:
        reason = "each part crosses the network once to each other host"
        arguments = {**group.members, **_STAGES}
        refused = ("all-pairs-allgather: each part would cross the network once for each rank",)
        row = _row(None, "two-level-allgather", _STAGED, reason, arguments, refused)
        return _two_ways(group.limits, row)
    rows = []
    if group.ranks & (group.ranks - 1) == 0:
        reason = "many ranks, small: few steps and few connections"
        end = group.limits.tree_bytes
        rows = [_row(end, "recursive-doubling-allgather", _FUSED, reason, group.size)]
    reason = "many ranks: the fewest bytes with two connections a rank"
    refused = (f"all-pairs-allgather, two-level-allgather: {group.too_many}",)
    return [*rows, _row(None, "ring-allgather", _FUSED, reason, group.size, refused)]


def _reduce_scatter(group: Group) -> list[PlanRow]:
    if group.is_flat and group.is_mesh:
        reason = "each rank reads its part from all others and reduces it, in one step"
        row = _row(None, "all-pairs-reducescatter", _STAGED, reason, group.size)
        return _two_ways(group.limits, row)
    if group.is_mesh:
        reason = "hosts reduce first, so each part crosses the network once from each host"
        refused = ("all-pairs-reducescatter: every rank would send its parts over the network",)
        row = _row(None, "two-level-reducescatter", _STAGED, reason, group.members, refused)
        return _two_ways(group.limits, row)
    reason = "many ranks: the fewest bytes with two connections a rank"
    refused = (f"all-pairs-reducescatter, two-level-reducescatter: {group.too_many}",)
    return [_row(None, "ring-reducescatter", _FUSED, reason, group.size, refused)]


def _all_to_all(group: Group) -> list[PlanRow]:
    reason = "every rank has different data for every other"
    pairs = _row(None, "all-pairs-alltoall", _STAGED, reason, group.size)
    if group.is_flat:
        return _two_ways(group.limits, pairs)
    end = group.limits.two_step_bytes * group.ranks
    if not group.is_grid:
        refused = ("two-step-alltoall: needs the same number of ranks on every host, in order",)
        return _two_ways(group.limits, replace(pairs, refused=refused))
    few = _row(
        end,
        "two-step-alltoall",
        _STAGED,
        "small: one message from each rank to each other host",
        group.grid,
        ("all-pairs-alltoall: a message for every pair of ranks over the network",),
    )
    refused = ("two-step-alltoall: copies within the hosts first, which costs more than it saves",)
    return [few, *_two_ways(group.limits, replace(pairs, refused=refused))]


def _all_to_all_v(group: Group) -> list[PlanRow]:
    reason = "every rank has different data for every other; no rank knows all counts"
    return [_row(None, "all-pairs-alltoallv", _STAGED, reason, group.size)]


def _all_gather_v(group: Group) -> list[PlanRow]:
    if group.is_mesh:
        reason = "each rank sends its part to all others, in one step"
        return [_row(None, "all-pairs-allgatherv", _STAGED, reason, group.size)]
    reason = "many ranks: the fewest bytes with two connections a rank"
    refused = (f"all-pairs-allgatherv: {group.too_many}",)
    return [_row(None, "ring-allgatherv", _FUSED, reason, group.size, refused)]


def _broadcast(group: Group) -> list[PlanRow]:
    reason = "all ranks read the root's data, in one step"
    flat = _row(None, "flat-broadcast", _STAGED, reason, group.size)
    if group.hosts.count == 1:
        few = group.ranks <= group.limits.mesh_ranks
        return [*([] if few else [_tree(group, "broadcast")]), *_two_ways(group.limits, flat)]
    if not group.is_mesh:
        return [_up_to(_tree(group, "broadcast"), None)]
    small = _up_to(flat, group.limits.rooted_bytes)
    why_not = "flat-broadcast: the root's host would send the data over the network several times"
    if group.is_network:
        reason = "the root scatters the data, and the others gather it: the root sends it once"
        large = _row(None, "all-pairs-broadcast", _PULLED, reason, group.size, (why_not,))
    else:
        reason = "the root's host sends the data once, spread over its ranks"
        large = _row(None, "two-level-broadcast", _PULLED, reason, group.members, (why_not,))
    return [small, large]


def _reduce(group: Group) -> list[PlanRow]:
    if not group.is_mesh:
        tree = _tree(group, "reduce")
        return [tree, _chain(group)] if group.hosts.count == 1 else [_up_to(tree, None)]
    reason = "small: the root reads all ranks' data and reduces it, in one step"
    small = _row(group.limits.rooted_bytes, "flat-reduce", _STAGED, reason, group.size)
    why_not = ("flat-reduce: the root alone would do all the work",)
    if group.is_flat:
        reason = "each rank reduces its part, and the root reads the results"
        arguments = {**group.size, **_STAGES}
        large = _row(None, "all-pairs-reduce", _PULLED, reason, arguments, why_not)
        if group.hosts.count == 1:
            between = group.limits.chain_bytes * (group.ranks - 2)
            return [small, _up_to(large, between), _chain(group)]
    else:
        reason = "hosts reduce first, so each sends its result over the network once"
        arguments = {**group.members, **_STAGES}
        large = _row(None, "two-level-reduce", _PULLED, reason, arguments, why_not)
    return [small, large]


def _chain(group: Group) -> PlanRow:
    reason = "large: each rank adds its data to what arrives and sends it on: the fewest copies"
    why_not = "all-pairs-reduce: stages every rank's data, and the results once more"
    return _row(None, "ring-reduce", _FUSED, reason, group.size, (why_not,))


def _tree(group: Group, kind: str) -> PlanRow:
    refused = (f"flat-{kind}: {group.too_many}",)
    reason = "many ranks: few steps and few connections"
    end = group.limits.tree_bytes
    return _row(end, f"binomial-{kind}", _FUSED, reason, group.size, refused)


def _gather(group: Group) -> list[PlanRow]:
    reason = "the root reads every rank's part"
    return _two_ways(group.limits, _row(None, "flat-gather", _STAGED, reason, group.size))


def _scatter(group: Group) -> list[PlanRow]:
    reason = "every rank reads its part of the root's data"
    return _two_ways(group.limits, _row(None, "flat-scatter", _STAGED, reason, group.size))


RULES: Mapping[str, Callable[[Group], list[PlanRow]]] = {
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


def program_of(recipe: Recipe) -> Program:
    """The program of an algorithm with its arguments. Errors: L112, L120, the algorithm's own."""
    try:
        return _program(recipe.name, dict(recipe.arguments))
    except (KeyError, TypeError) as error:  # a table may have any arguments
        found = f"{dict(recipe.arguments)!r:.80}"
        at, expected = Place(detail=recipe.name), "arguments of the algorithm"
        raise L112.error(at=at, expected=expected, found=found) from error


def _program(name: str, arguments: dict[str, Any]) -> Program:
    if "hosts" in arguments:  # of the library's own choice; others give nodes and GPUs
        return _TWO_LEVEL[name](TwoLevel(arguments.pop("hosts")), **arguments)
    if name == _LOCAL:
        return _local_copy(**arguments)
    return build(name, **arguments)


def default_rows(
    kind: str, hosts: Hosts, *, in_place: bool = False, root: int = 0, limits: Limits | None = None
) -> tuple[PlanRow, ...]:
    """What the library runs for a kind of call on these hosts: rows of a table, with ranges of
    sizes without gaps, ascending; the last one has no end. Errors: N650."""
    group = Group(hosts, limits or Limits())
    check_call(kind, group.ranks, 0, root)
    common: dict[str, Any] = {"in_place": in_place}
    if CALLS[kind].roles:
        common["root"] = root
    if group.ranks == 1:
        found = [_row(None, _LOCAL, Options(), "one rank already has its data", {"kind": kind})]
        common.pop("root", None)
    else:
        found = RULES[kind](group)
    rows, begin = [], 0
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
                **common,
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
