"""Groups: the same plan without them, for runtimes without such switches.

An instruction with a group becomes several in its place of the block, its *pieces*: a receive from
each member, one after another, then a send to each. The first has the instruction's waits, and
waits for the instruction become waits for the last. Each piece needs some of the messages and of
the free slots that the instruction needs all at once. So an order that runs the plan also runs its
replacement, which hangs nowhere where the plan doesn't.

A message orders less than before: the first piece doesn't wait for the other members' messages, and
the message of the first piece doesn't show that the others have been sent. Where two accesses to a
chunk were ordered only by that, a wait orders them. It adds nothing to the order of the plan with
groups, so the replacement still runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.happens_before import HappensBefore, hazards
from sley.ir.plan import Instructions, Plan
from sley.ir.tables import NONE, BoolArray, Edges, LongArray, offsets_of, spans
from sley.ir.words import RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, Buffer, Op

_Row = dict[str, Any]
"""The columns in which a piece differs from its instruction."""


def without_groups(plan: Plan) -> Plan:
    """The plan with pieces instead of its instructions with groups; a plan without faults.

    A `recv_reduce_send`, whose result is in no buffer, gets spare scratch of its block for it.
    """
    return in_pieces(plan)[0]


def in_pieces(plan: Plan) -> tuple[Plan, LongArray]:
    """`without_groups`, and int64 (instructions + 1,): the first piece of each instruction."""
    if not len(plan.groups):
        return plan, np.arange(len(plan.instructions) + 1)
    grouped, t = plan.grouped, plan.instructions
    combines = grouped[t.op[grouped] == Op.RECV_REDUCE_SEND]
    spare, scratch = spare_chunks(plan, combines)
    # Row by row: a piece depends on its place among those of its instruction.
    pieces = {row: _pieces(plan, row, int(spare[plan.block[row]])) for row in grouped.tolist()}
    parts = np.ones(len(plan.instructions), np.int64)
    parts[grouped] = [len(pieces[row]) for row in grouped.tolist()]
    start = offsets_of(parts)
    columns = {name: np.repeat(getattr(t, name), parts) for name in t.column_names()}
    for row, rows in pieces.items():
        for k, piece in enumerate(rows):
            for name, value in piece.items():
                columns[name][start[row] + k] = value
    found = cut_up(replace(plan, groups=Edges.empty(0)), start, columns, scratch)
    return _with_waits(plan, found, parts), start


def _with_waits(plan: Plan, found: Plan, parts: LongArray) -> Plan:
    """The plan of the pieces, with waits between accesses that only groups ordered.

    parts: int64 (instructions,), the number of pieces of each instruction of `plan`.
    """
    messages = Messages.of(plan)
    level = levels(len(parts), *messages.happens_before(plan))
    if (level == NONE).any():  # it hangs, and so may the pieces
        return found
    # Pieces of one level are apart from all of other levels, and in order within an instruction: so
    # this is a linear extension of the order of the pieces too.
    origin, piece = spans(np.zeros(len(parts), np.int64), parts)
    place = level[origin].astype(np.int64) * int(parts.max()) + piece
    place = np.unique(place, return_inverse=True)[1].astype(np.int32)
    before, after = (
        HappensBefore(plan, messages, level),
        HappensBefore(found, Messages.of(found), place),
    )
    first, second, _, aligned = hazards(found, place, unordered=True)
    pairs = set(zip(first.tolist(), second.tolist(), (~aligned).tolist(), strict=True))
    lost = np.array(
        sorted(
            {
                (a, b)
                for a, b, whole in pairs
                if not after.reaches(a, b, whole=whole)
                and before.reaches(int(origin[a]), int(origin[b]), whole=whole)
            }
        ),
        np.int64,
    ).reshape(-1, 2)
    waits = found.waits
    source, target = (
        np.append(a, b) for a, b in ((waits.source, lost[:, 1]), (waits.target, lost[:, 0]))
    )
    return replace(found, waits=Edges.from_pairs(len(origin), source, target))


def cut_up(
    plan: Plan, start: LongArray, columns: Mapping[str, NDArray[Any]], scratch: LongArray
) -> Plan:
    """The plan with pieces instead of its instructions: a wait is one of the first piece, for the
    last one.

    start: int64 (instructions + 1,), the first piece of each. columns: of the pieces. scratch: the
    ranks' sizes of scratch.
    """
    waits = plan.waits
    return replace(
        plan,
        instructions=Instructions(**columns),
        block_offset=start[plan.block_offset],
        waits=Edges.from_pairs(int(start[-1]), start[waits.source], start[waits.target + 1] - 1),
        scratch_chunks=scratch.astype(np.int32),
    )


def spare_chunks(plan: Plan, needs: LongArray | BoolArray) -> tuple[LongArray, LongArray]:
    """The first spare chunk of each block, with room for any of the instructions `needs` of the
    block, and the ranks' sizes of scratch with these chunks."""
    width = np.zeros(len(plan.block_rank), np.int64)
    np.maximum.at(width, plan.block[needs], plan.instructions.count[needs])
    ends = offsets_of(width)
    before_rank = ends[plan.rank_block[:-1]]
    first = plan.scratch_chunks[plan.block_rank] + ends[:-1] - before_rank[plan.block_rank]
    return first, plan.scratch_chunks + ends[plan.rank_block[1:]] - before_rank


def _pieces(plan: Plan, row: int, spare: int) -> list[_Row]:
    """The pieces of an instruction with a group, in order."""
    t = plan.instructions
    op = Op(int(t.op[row]))
    sources = plan.peers(int(t.recv_peer[row])) if RECEIVES[op] else []
    targets = plan.peers(int(t.send_peer[row])) if SENDS[op] else []
    if not sources:
        return _sends(op, targets)
    own = (int(t.dst_buffer[row]), int(t.dst_index[row]))
    at = own if WRITES_DESTINATION[op] else (int(Buffer.SCRATCH), spare)
    result = {"dst_buffer": at[0], "dst_index": at[1], "send_peer": NONE, "forward": NONE}
    again = {"src_buffer": at[0], "src_index": at[1]}
    first = Op.RECV_REDUCE_COPY if REDUCES[op] else Op.RECV
    found: list[_Row] = [{**result, "op": first, "recv_peer": sources[0]}]
    found += [{**result, **again, "op": Op.RECV_REDUCE_COPY, "recv_peer": r} for r in sources[1:]]
    if targets:  # the last receive sends to the first target
        last = found[-1]
        fused = Op.RECV_COPY_SEND if last["op"] == Op.RECV else Op.RECV_REDUCE_COPY_SEND
        last |= {"op": fused, "send_peer": targets[0], "forward": int(t.forward[row])}
    nothing = {"dst_buffer": NONE, "dst_index": NONE, "recv_peer": NONE, "forward": NONE}
    sent = {**nothing, **again, "op": Op.SEND, "transfer": int(t.forward[row])}
    return found + [{**sent, "send_peer": rank} for rank in targets[1:]]


def _sends(op: Op, targets: list[int]) -> list[_Row]:
    """The pieces of an instruction that only sends. A copy comes last: it may overwrite a part of
    what the others send."""
    plain = {"op": Op.SEND, "dst_buffer": NONE, "dst_index": NONE}
    found: list[_Row] = [{**plain, "send_peer": rank} for rank in targets[:-1]]
    return [*found, {**(plain if op is Op.SEND else {}), "send_peer": targets[-1]}]
