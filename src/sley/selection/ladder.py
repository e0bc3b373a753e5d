"""Selection: which algorithm runs for which call, by kind, hosts and size, and why not another.

`ladder` gives the ranges of sizes of a kind of call, `select` the one for a call. Nothing is
compiled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sley.algorithms import TwoLevel, build
from sley.compiler import Options
from sley.ir.program import Program
from sley.lang import ChunkProgram, trace
from sley.rendezvous.hosts import Hosts
from sley.selection.kinds import ROOTED, Request, check_call, collective_of
from sley.selection.rules import RULES, Group, Limits, Step

_TWO_LEVEL: Mapping[str, Callable[..., Program]] = {
    "two-level-allreduce": TwoLevel.allreduce,
    "two-level-one-step-allreduce": TwoLevel.one_step_allreduce,
    "two-level-allgather": TwoLevel.allgather,
    "two-level-reducescatter": TwoLevel.reducescatter,
    "two-level-broadcast": TwoLevel.broadcast,
    "two-level-reduce": TwoLevel.reduce,
}
_LOCAL = "local-copy"
"""What a single rank does."""


@dataclass(frozen=True)
class Selection:
    """What runs for a range of sizes.

    name: of the algorithm, or of the own plan.
    arguments: what the algorithm is built with. options: what it is compiled with.
    begin_bytes, end_bytes: the first and the last size; None for no end.
    reason: why, in words. refused: what else was considered, and why it does not run.
    """

    name: str
    arguments: tuple[tuple[str, Any], ...]
    options: Options
    reason: str
    begin_bytes: int = 0
    end_bytes: int | None = None
    refused: tuple[str, ...] = ()

    def program(self) -> Program:
        """The algorithm's program. Errors: its own."""
        arguments = dict(self.arguments)
        if self.name in _TWO_LEVEL:
            return _TWO_LEVEL[self.name](TwoLevel(arguments.pop("hosts")), **arguments)
        if self.name == _LOCAL:
            return _local_copy(**arguments)
        return build(self.name, **arguments)


def ladder(
    kind: str, hosts: Hosts, *, in_place: bool = False, root: int = 0, limits: Limits | None = None
) -> tuple[Selection, ...]:
    """What runs for a kind of call on these hosts: ranges of sizes without gaps, ascending; the
    last one has no end. Errors: N650."""
    group = Group(hosts, limits or Limits())
    check_call(kind, group.ranks, 0, root)
    common: dict[str, Any] = {"in_place": in_place}
    if kind in ROOTED:
        common["root"] = root
    if group.ranks == 1:
        steps = [Step(None, _LOCAL, Options(), "one rank has its data already", {"kind": kind})]
        common.pop("root", None)
    else:
        steps = RULES[kind](group)
    rungs, begin = [], 0
    for step in steps:
        if step.end_bytes is not None and step.end_bytes < begin:
            continue
        rungs.append(
            Selection(
                name=step.name,
                arguments=tuple(sorted({**step.arguments, **common}.items())),
                options=step.options,
                reason=step.reason,
                begin_bytes=begin,
                end_bytes=step.end_bytes,
                refused=step.refused,
            )
        )
        begin = (step.end_bytes or 0) + 1
    return tuple(rungs)


def select(request: Request, limits: Limits | None = None) -> Selection:
    """What runs for a call. Errors: N650."""
    check_call(request.kind, request.ranks, request.size_bytes, request.root)
    rungs = ladder(
        request.kind, request.hosts, in_place=request.in_place, root=request.root, limits=limits
    )
    return next(
        rung for rung in rungs if rung.end_bytes is None or request.size_bytes <= rung.end_bytes
    )


def _local_copy(kind: str, in_place: bool) -> Program:
    """What a single rank does: its input is its output."""

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(0, "in", 0).copy(0, "out", 0)

    return trace(collective_of(kind, 1, in_place=in_place), body, name=_LOCAL)
