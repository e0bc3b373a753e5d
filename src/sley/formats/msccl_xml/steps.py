"""Steps: a plan's instructions as the <step> elements of a file, nops included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sley.ir.plan import Plan
from sley.ir.tables import NONE, IntArray, offsets_of
from sley.ir.words import RECEIVES, SENDS, Op

_Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Steps:
    """One row a <step>, block after block.

    instruction: the plan's row of the step. An instruction has one step, which has its last wait,
        and before it a nop (`is_nop`) for each other wait.
    position: the step's number `s` in its block.
    depid, deps: block number and step that it waits for, or NONE.
    hasdep: whether the step must announce that it has finished.
    offset: (blocks + 1,), the first step of each block.
    """

    instruction: _Longs
    is_nop: NDArray[np.bool_]
    position: _Longs
    depid: _Longs
    deps: _Longs
    hasdep: NDArray[np.bool_]
    offset: _Longs


def steps_of(plan: Plan, reduce_run: int) -> Steps:
    """The steps of a plan without nops.

    reduce_run: the target's limit of consecutive reductions into one place; hasdep breaks longer
    runs.
    """
    waits, total = plan.waits, len(plan.instructions)
    count = np.diff(waits.offset)
    lines = np.maximum(count, 1)
    start = offsets_of(lines)
    last = start[1:] - 1
    instruction = np.repeat(np.arange(total), lines)
    offset = start[plan.block_offset]
    position = np.arange(len(instruction)) - offset[plan.block[instruction]]
    source = waits.source
    order = np.lexsort((waits.target, source))
    target = waits.target[order]
    line = start[source] + np.arange(len(source)) - waits.offset[source]
    depid = np.full(len(instruction), NONE, np.int64)
    deps = depid.copy()
    depid[line] = plan.block_number[plan.block[target]]
    deps[line] = position[last[target]]
    hasdep = np.zeros(len(instruction), np.bool_)
    hasdep[last[target]] = True
    hasdep[last[_run_ends(plan, depid[last], reduce_run)]] = True
    is_nop = np.arange(len(instruction)) != last[instruction]
    return Steps(instruction, is_nop, position, depid, deps, hasdep, offset)


def _run_ends(plan: Plan, depid: _Longs, reduce_run: int) -> _Longs:
    """The reductions after which a run of reductions must be broken.

    The runtimes run consecutive reductions between the same buffers into the same place, the later
    ones without a wait, at once, with the count of one of them. So all counts of a run must be
    equal, and its length is limited.
    """
    t = plan.instructions
    joins = np.zeros(len(t), np.bool_)
    joins[1:] = (
        (t.op[1:] == Op.REDUCE)
        & (t.op[:-1] == Op.REDUCE)
        & (plan.block[1:] == plan.block[:-1])
        & (t.dst_buffer[1:] == t.dst_buffer[:-1])
        & (t.dst_index[1:] == t.dst_index[:-1])
        & (t.src_buffer[1:] == t.src_buffer[:-1])
        & (depid[1:] == NONE)
    )
    mixed = np.zeros(len(t), np.bool_)
    mixed[1:] = joins[1:] & (t.count[1:] != t.count[:-1])
    rows = np.arange(len(t))
    run_start = np.maximum.accumulate(np.where(joins & ~mixed, 0, rows))
    too_long = joins & ~mixed & ((rows - run_start) % reduce_run == 0)
    return np.flatnonzero(mixed | too_long) - 1


@dataclass(frozen=True, eq=False)
class Peers:
    """The attributes of <tb>: int32 (blocks,), NONE without a peer, and channel 0 without both."""

    send: IntArray
    recv: IntArray
    chan: IntArray


def peers_of(plan: Plan) -> Peers:
    """Each block's peers and channel; the last ones if it has several, which `limits` refuses."""
    t = plan.instructions
    send, recv = (np.full(len(plan.block_rank), NONE, np.int32) for _ in range(2))
    chan = np.zeros(len(plan.block_rank), np.int32)
    sends, receives = SENDS[t.op], RECEIVES[t.op]
    send[plan.block[sends]] = t.send_peer[sends]
    recv[plan.block[receives]] = t.recv_peer[receives]
    chan[plan.block[sends | receives]] = t.channel[sends | receives]
    return Peers(send, recv, chan)
