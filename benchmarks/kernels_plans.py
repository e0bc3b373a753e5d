"""The plans of the benchmark of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import papers_levels

import sley
from sley.algorithms import build
from sley.communicator.selection.kinds import CALLS
from sley.ir.words import Protocol

RING, ALL_PAIRS, HM = "ring", "all-pairs", "HM task level"
ALGORITHMS = (RING, ALL_PAIRS, HM)

LEVELS = ("task", "round-robin", "stage", "stage4", "algorithm")
"""ResCCL's levels of execution; at stage4 each of the four stages has its own blocks."""

KINDS = {
    "all_reduce": ("one-step", ALL_PAIRS, RING),
    "all_gather": (ALL_PAIRS, RING),
    "reduce_scatter": (ALL_PAIRS, RING),
    "all_to_all": (ALL_PAIRS,),
    "broadcast": ("flat", ALL_PAIRS, RING),
    "reduce": ("flat", ALL_PAIRS, RING),
}
"""The calls that are compared with NCCL's, and the algorithms that are tried for each."""

IN_PLACE = ("all_reduce", "broadcast", "reduce")

TRIED = (
    (Protocol.LL, 1, 128, 64 << 10),
    (Protocol.LL, 8, 256, 1 << 20),
    (Protocol.DIRECT, 16, 512, 1 << 40),
)
"""How each algorithm is tried: protocol, thread blocks of a rank, threads of a block, and the
largest size, as few blocks take very long for more."""


@dataclass(frozen=True)
class Case:
    """A plan, the name of its algorithm, and the threads of its blocks; None: by the messages."""

    algorithm: str
    plan: sley.Plan
    threads: int | None = None


@cache
def case(
    algorithm: str, ranks: int, protocol: Protocol, blocks: int, slots: int | None = None
) -> Case:
    """An AllReduce in place with the most instances that need at most `blocks` blocks on a rank.
    slots: by default the protocol's."""
    one = _compiled(algorithm, ranks, protocol, 1, slots)
    instances = max(1, blocks // one.blocks_per_rank)
    return Case(algorithm, _compiled(algorithm, ranks, protocol, instances, slots))


def _compiled(
    algorithm: str, ranks: int, protocol: Protocol, instances: int, slots: int | None
) -> sley.Plan:
    options: dict[str, Any] = {"protocol": protocol, "instances": instances, "slots": slots}
    if algorithm == HM:
        program = build("hm-allreduce", nodes=2, gpus=ranks // 2, in_place=True)
        options |= {"schedule": "hpds", "allocate": "state"}
    else:
        program = build(f"{algorithm}-allreduce", ranks=ranks, in_place=True)
    return sley.compile(program, **options)


def tried(kind: str, ranks: int) -> Iterator[tuple[Case, int]]:
    """The plans that are tried for a kind of calls, with the largest size of each. Their blocks
    serve all peers."""
    for algorithm in KINDS[kind]:
        name = f"{algorithm}-{CALLS[kind].name}"
        program = build(name, ranks=ranks, in_place=kind in IN_PLACE)
        for protocol, blocks, threads, most_bytes in TRIED:
            plan = sley.compile(program, protocol=protocol, instances=blocks, allocate="instance")
            yield Case(algorithm, plan, threads), most_bytes


@cache
def level(name: str) -> Case:
    """HM AllReduce on 2 nodes of 4 GPUs, ResCCL's Topo1, at one of LEVELS."""
    plan = papers_levels.plan("allreduce", name, 2, 4, 1)
    sley.verify(plan)
    return Case(f"HM {name}", plan)
