"""The plans of the benchmark of kernels, and the bytes that they move."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import papers_levels

import sley
from sley.algorithms import build
from sley.ir.words import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    Op,
    Protocol,
)
from sley.verification.direct import pulls

RING, ALL_PAIRS, HM = "ring", "all-pairs", "HM task level"
ALGORITHMS = (RING, ALL_PAIRS, HM)

LEVELS = ("task", "round-robin", "stage", "stage4", "algorithm")
"""ResCCL's levels of execution; at stage4 each of the four stages has its own blocks."""

FLAGS = {Protocol.LL: 2.0, Protocol.LL128: 128 / 120}
"""Bytes of a message in memory for each byte of its data: LL uses 4 of 8 bytes for flags, LL128 8
of 128."""


@dataclass(frozen=True)
class Case:
    """A plan and the name of its algorithm."""

    algorithm: str
    plan: sley.Plan


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


@cache
def level(name: str) -> Case:
    """HM AllReduce on 2 nodes of 4 GPUs, ResCCL's Topo1, at one of LEVELS."""
    plan = papers_levels.plan("allreduce", name, 2, 4, 1)
    sley.verify(plan)
    return Case(f"HM {name}", plan)


def traffic(plan: sley.Plan) -> float:
    """Total bytes that all ranks read and write in memory for each byte of a rank's (largest)
    buffer. Messages in slots are written and read; pulled messages are read from their source.
    Flags of LL and LL128 count."""
    t = plan.instructions
    op, chunks = t.op, t.count.astype(np.float64)
    pulled = pulls(plan).pulled
    flags = FLAGS.get(plan.protocol, 1.0)
    stays = pulled & (op == Op.SEND)
    local = READS_SOURCE[op] & ~stays
    local = local.astype(np.float64) + WRITES_DESTINATION[op]
    local += op == Op.REDUCE  # it reads its destination, too
    messages = RECEIVES[op].astype(np.float64) + (SENDS[op] & ~pulled)
    moved = float((chunks * (local + flags * messages)).sum())
    return moved / plan.collective.chunks


def compulsory(ranks: int) -> float:
    """The lower bound on `traffic` for an AllReduce in place: each rank's buffer is read and
    written."""
    return 2.0 * ranks
