"""Mutants of plans: kinds of one damage each, and plans of which every mutant is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import sley
from sley.ir.plan import Plan
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, WRITES_DESTINATION, Op
from sley.lang import ChunkProgram
from support.mutants.plan_edits import (
    as_nop,
    moved_to_block,
    swapped,
    wait_pairs,
    with_columns,
    with_waits,
)

Mutator = Callable[[Plan], Iterator[Plan]]


def ring(n: int) -> sley.Program:
    def body(p: ChunkProgram) -> None:
        rank = np.arange(n)
        c = p.chunk((rank + 1) % n, "in", rank)
        for step in range(1, n):
            c = p.chunk((rank + 1 + step) % n, "in", rank).reduce(c)
        for step in range(1, n):
            c = c.copy((rank + step) % n, "in", rank)

    return sley.trace(sley.AllReduce(n, n, in_place=True), body, name="ring")


def all_pairs(n: int) -> sley.Program:
    """Everybody sends to everybody's scratch, reduces locally, sends the result: waits matter."""

    def body(p: ChunkProgram) -> None:
        for owner in range(n):
            for step in range(1, n):
                p.chunk((owner + step) % n, "in", owner).copy(owner, "scratch", step - 1)
        for owner in range(n):
            c = p.chunk(owner, "in", owner)
            for step in range(1, n):
                c = c.reduce(p.chunk(owner, "scratch", step - 1))
            for step in range(1, n):
                c.copy((owner + step) % n, "in", owner)

    return sley.trace(sley.AllReduce(n, n, in_place=True), body, name="all-pairs")


PLANS = {
    "fused ring": sley.compile(ring(4)),
    "unfused ring": sley.compile(ring(3), fusion=False),
    "all pairs": sley.compile(all_pairs(3)),
}


def rows_of(plan: Plan, *ops: Op) -> list[int]:
    return np.flatnonzero(np.isin(plan.instructions.op, ops)).tolist()


def drop_wait(plan: Plan) -> Iterator[Plan]:
    pairs = wait_pairs(plan)
    for k in range(len(pairs)):
        yield with_waits(plan, pairs[:k] + pairs[k + 1 :])


def swap_steps(plan: Plan) -> Iterator[Plan]:
    for row in range(len(plan.instructions) - 1):
        if plan.block[row] == plan.block[row + 1]:
            yield swapped(plan, row, row + 1)


def shift_source(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(READS_SOURCE[plan.instructions.op]).tolist():
        index = int(plan.instructions.src_index[row])
        yield with_columns(plan, row, src_index=index + 1 if index == 0 else index - 1)


def shift_destination(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(WRITES_DESTINATION[plan.instructions.op]).tolist():
        index = int(plan.instructions.dst_index[row])
        yield with_columns(plan, row, dst_index=index + 1 if index == 0 else index - 1)


def change_count(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        yield with_columns(plan, row, count=int(plan.instructions.count[row]) + 1)


def drop_local(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.COPY, Op.REDUCE):
        yield as_nop(plan, row)


def drop_send(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.SEND):
        yield as_nop(plan, row)


def drop_receive(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.RECV, Op.RECV_REDUCE_COPY):
        yield as_nop(plan, row)


def wrong_channel_at_one_end(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(RECEIVES[plan.instructions.op]).tolist():
        yield with_columns(plan, row, channel=int(plan.instructions.channel[row]) + 1)


def wrong_send_peer(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        peer, ranks = int(plan.instructions.send_peer[row]), plan.collective.ranks
        yield with_columns(plan, row, send_peer=(peer + 1) % ranks)


def send_to_oneself(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        yield with_columns(plan, row, send_peer=int(plan.rank[row]))


def store_without_reducing(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.RECV_REDUCE_COPY):
        yield with_columns(plan, row, op=Op.RECV)


def copy_for_reduce(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.REDUCE):
        yield with_columns(plan, row, op=Op.COPY)


def reduce_twice(plan: Plan) -> Iterator[Plan]:
    """A reduce takes the operand of another one of its rank: that one counts twice."""
    reduces = rows_of(plan, Op.REDUCE)
    for row in reduces:
        for other in reduces:
            if row != other and plan.rank[row] == plan.rank[other]:
                yield with_columns(plan, row, src_index=int(plan.instructions.src_index[other]))


def forget_store(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.RECV_REDUCE_COPY_SEND):
        yield with_columns(plan, row, op=Op.RECV_REDUCE_SEND, dst_buffer=-1, dst_index=-1)


def wrong_buffer(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.SEND):
        buffer = 2 - int(plan.instructions.src_buffer[row])
        yield with_columns(plan, row, src_buffer=buffer)


def one_connection_in_two_blocks(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        rank = int(plan.rank[row])
        for block in range(int(plan.rank_block[rank]), int(plan.rank_block[rank + 1])):
            if block != plan.block[row]:
                yield moved_to_block(plan, row, block, 0)


def wait_in_a_circle(plan: Plan) -> Iterator[Plan]:
    for row, other in wait_pairs(plan):
        yield with_waits(plan, [*wait_pairs(plan), (other, row)])


def wait_for_another_rank(plan: Plan) -> Iterator[Plan]:
    for row, other in wait_pairs(plan):
        far = int(np.argmax(plan.rank != plan.rank[row]))
        yield with_waits(plan, [*(p for p in wait_pairs(plan) if p != (row, other)), (row, far)])


def merge_connections(plan: Plan) -> Iterator[Plan]:
    """All of a rank's sends to one peer join those on another channel, without their receives."""
    for row in np.flatnonzero(
        SENDS[plan.instructions.op] & (plan.instructions.channel > 0)
    ).tolist():
        yield with_columns(plan, row, channel=0)


def aim_at_itself(plan: Plan) -> Iterator[Plan]:
    t = plan.instructions
    for row in rows_of(plan, Op.COPY, Op.REDUCE):
        buffer, index = int(t.src_buffer[row]), int(t.src_index[row])
        yield with_columns(plan, row, dst_buffer=buffer, dst_index=index)


TWO_CHANNELS = sley.compile(ring(4), channels=2, fusion=False)

KINDS: list[tuple[Mutator, list[Plan]]] = [
    (drop_wait, [PLANS["all pairs"]]),
    (swap_steps, [PLANS["fused ring"]]),
    (shift_source, list(PLANS.values())),
    (shift_destination, list(PLANS.values())),
    (change_count, list(PLANS.values())),
    (drop_local, [PLANS["all pairs"]]),
    (drop_send, list(PLANS.values())),
    (drop_receive, list(PLANS.values())),
    (wrong_channel_at_one_end, list(PLANS.values())),
    (wrong_send_peer, list(PLANS.values())),
    (send_to_oneself, list(PLANS.values())),
    (store_without_reducing, [PLANS["unfused ring"]]),
    (copy_for_reduce, [PLANS["all pairs"]]),
    (reduce_twice, [PLANS["all pairs"]]),
    (forget_store, [PLANS["fused ring"]]),
    (wrong_buffer, list(PLANS.values())),
    (one_connection_in_two_blocks, [PLANS["all pairs"]]),
    (wait_in_a_circle, [PLANS["all pairs"], PLANS["unfused ring"]]),
    (wait_for_another_rank, [PLANS["all pairs"]]),
    (merge_connections, [TWO_CHANNELS]),
    (aim_at_itself, [PLANS["all pairs"]]),
]
"""Each kind, with the plans of which its every mutant is wrong."""
