"""Blocks: thread blocks by connection, and their instructions (MSCCLang 5.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.fuse import with_messages
from sley.errors.compiler import C302
from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.graph import levels
from sley.ir.program import Transfers
from sley.ir.tables import NONE, IntArray, LongArray, distinct, inverse, numbering
from sley.ir.words import TransferKind

_NO_HAND = np.iinfo(np.int32).max


def blocks_of_instances(dag: InstructionDag, order: Order) -> Blocks:
    """A block for each parallel part (lane) of each rank, for all of its peers. Lanes never share a
    connection."""
    t = dag.chunks.program.transfers
    sends = order.send != NONE
    main = np.where(sends, order.send, order.receive)
    key = np.where(sends, t.src[main], t.dst[main]).astype(np.int64) * t.lanes + t.lane[main]
    names, block = np.unique(key, return_inverse=True)
    return number_blocks(names // t.lanes, names % t.lanes, block)


def assign_blocks(dag: InstructionDag, order: Order) -> Blocks:
    """Assigns a block to each end of a connection. The ends of one instruction share one, and so do
    ends with the same requested block. Ends of a rank that only send into groups share one, and
    those that only receive from groups, in each lane and as far from the program's begin (NCCL's
    scatter and gather). A local operation
    gets the block of its rank whose latest instruction is the earliest.

    Requested blocks come first, by number; the others are numbered by their first instruction.
    Errors: C302.
    """
    ends = _Ends.of(dag, order)
    group = _tied_groups(ends)
    hand, hand_of = _hand_blocks(dag, ends, group)
    # A group with a requested number is the block of that (rank, number); others are their own.
    by_hand = hand != _NO_HAND
    lone = np.where(by_hand, NONE, np.arange(len(hand)))
    key = np.stack([hand_of, hand, lone])
    blocks, block_of_group = np.unique(key, axis=1, return_inverse=True)
    block_of_end = block_of_group.ravel()[group]
    _check_peers(dag, ends, block_of_end, by_hand[group])
    instruction_block = np.full(len(order), NONE, np.int64)
    receives, sends = dag.receives(order), order.send != NONE
    instruction_block[receives] = block_of_end[ends.receive_end[order.receive[receives]]]
    instruction_block[sends] = block_of_end[ends.send_end[order.send[sends]]]
    rank, number = blocks[0], blocks[1]
    rank, number = _place_local(dag, order, instruction_block, rank, number)
    return number_blocks(rank, number, instruction_block)


@dataclass(frozen=True)
class _Ends:
    """Ends of connections.

    columns: (4, ends), rank, peer, channel and direction (0 receives, 1 sends) of each end.
    receive_end, send_end: int64 (transfers,), the ends of a remote transfer.
    tied: (2, pairs), ends that share a block.
    """

    columns: LongArray
    receive_end: LongArray
    send_end: LongArray
    tied: LongArray

    @classmethod
    def of(cls, dag: InstructionDag, order: Order) -> _Ends:
        t = dag.chunks.program.transfers
        remote = np.flatnonzero(dag.remote)
        receive = np.stack([t.dst, t.src, dag.channel, np.zeros(len(t), np.int32)])[:, remote]
        send = np.stack([t.src, t.dst, dag.channel, np.ones(len(t), np.int32)])[:, remote]
        ranks, channels = dag.chunks.program.collective.ranks, int(dag.channel.max(initial=0)) + 1
        shape = (ranks, ranks, channels, 2)
        key = np.ravel_multi_index(tuple(np.concatenate([receive, send], axis=1)), shape)
        keys, end = numbering(key, math.prod(shape))
        columns = np.stack(np.unravel_index(keys, shape))
        receive_end, send_end = np.full((2, len(t)), NONE)
        receive_end[remote], send_end[remote] = end[: len(remote)], end[len(remote) :]
        fused = np.flatnonzero(order.fused & dag.remote[order.receive])
        tied = np.stack([receive_end[order.receive[fused]], send_end[order.send[fused]]])
        if (t.group != NONE).any():
            depth = levels(2 * len(t), *with_messages(dag.chunks))
            ties = _group_ties(t, receive_end, send_end, tied, depth)
            tied = np.concatenate([tied, ties], axis=1)
        pairs = distinct(tied[0] * len(keys) + tied[1])  # ten times as fast as to sort columns
        return cls(columns, receive_end, send_end, np.stack(np.divmod(pairs, len(keys))))


def _group_ties(
    t: Transfers, receive_end: LongArray, send_end: LongArray, tied: LongArray, depth: IntArray
) -> LongArray:
    """(2, pairs), ends that share a block because of groups: those of a group's instruction, and
    those of the members' instructions on a rank that do nothing else, as far from the program's
    begin: what comes later would delay the next tile of what comes earlier.

    tied: ends of fused instructions. depth: int32 (2 * transfers,), of the transfers' halves.
    """
    member, reduces = t.group != NONE, t.kind == TransferKind.REDUCE
    shared = np.concatenate([receive_end[member & reduces], send_end[member & ~reduces]])
    with_leader = np.concatenate(
        [receive_end[t.receiver[member & reduces]], send_end[t.sender[member & ~reduces]]]
    )
    other = np.concatenate([receive_end[~member], send_end[~member], shared, tied.ravel()])
    parts = [np.stack([with_leader, shared])]
    for rows, end, rank, far in (
        (member & reduces, send_end, t.src, depth[::2]),
        (member & ~reduces, receive_end, t.dst, depth[1::2]),
    ):
        alone = np.flatnonzero(rows & ~np.isin(end, other))
        key = np.stack([rank[alone], t.lane[alone], far[alone]])
        _, first, of = np.unique(key, axis=1, return_index=True, return_inverse=True)
        parts.append(np.stack([end[alone[first[of.ravel()]]], end[alone]]))
    return np.concatenate(parts, axis=1)


def _tied_groups(ends: _Ends) -> LongArray:
    """The group of each end; ends that are tied, directly or over others, share one."""
    group = np.arange(ends.columns.shape[1])
    one, other = ends.tied
    # Ends: labels only fall. When no tied pair differs, all that are joined have one label.
    while (group[one] != group[other]).any():
        least = np.minimum(group[one], group[other])
        np.minimum.at(group, one, least)
        np.minimum.at(group, other, least)
    return np.unique(group, return_inverse=True)[1]


def _hand_blocks(dag: InstructionDag, ends: _Ends, group: LongArray) -> tuple[LongArray, LongArray]:
    """The requested number (times lanes) of each group, or _NO_HAND; and its rank."""
    t = dag.chunks.program.transfers
    lanes, groups = t.lanes, int(group.max(initial=NONE)) + 1
    hand, row_of = np.full(groups, _NO_HAND), np.full(groups, NONE)
    rank = np.zeros(groups, np.int64)
    rank[group] = ends.columns[0]
    for requested, end in ((t.recv_block, ends.receive_end), (t.send_block, ends.send_end)):
        rows = np.flatnonzero((requested != NONE) & (end != NONE))
        # One after another, so that the message names the first two requests that differ.
        for row in rows.tolist():
            g = group[end[row]]
            number = int(requested[row]) * lanes + int(t.lane[row])
            if hand[g] not in (_NO_HAND, number):
                sources = dag.chunks.program.sources
                raise C302.error(
                    at=[
                        sources.place(int(t.source[row])),
                        sources.place(int(t.source[row_of[g]])).labelled("the other block"),
                    ],
                    expected="one block for a connection, or for two that are fused",
                    found=f"rank {rank[g]} is to use blocks {int(requested[row])} and "
                    f"{hand[g] // lanes} for one connection",
                )
            hand[g], row_of[g] = number, row
    return hand, rank


def _check_peers(
    dag: InstructionDag, ends: _Ends, block_of_end: LongArray, requested_end: NDArray[np.bool_]
) -> None:
    """Refuses a requested block with two ends of one direction, or on two channels."""
    of = np.flatnonzero(requested_end)
    _, _, channel, direction = ends.columns[:, of]
    # No two ends are equal, so a second one of a direction in a block is another peer or channel.
    twice = _sharing(block_of_end[of] * 2 + direction, np.arange(len(direction)))
    pair = twice or _sharing(block_of_end[of], channel)
    if pair is None:
        return
    t, sources = dag.chunks.program.transfers, dag.chunks.program.sources
    places, uses, requested = [], [], NONE
    for end in of[list(pair)]:
        rank, peer, number, sends = ends.columns[:, end].tolist()
        own = np.flatnonzero((ends.send_end if sends else ends.receive_end) == end)
        places.append(sources.place(int(t.source[own[0]])))
        requested = max(requested, int((t.send_block if sends else t.recv_block)[own].max()))
        uses.append(f"{'sends to' if sends else 'receives from'} rank {peer} on channel {number}")
    raise C302.error(
        at=[places[0], places[1].labelled("the other user of the block")],
        expected="at most one send peer, one receive peer and one channel for a block",
        found=f"block {requested} of rank {rank}, as requested, {uses[0]} and {uses[1]}",
    )


def _sharing(key: LongArray, value: LongArray) -> tuple[int, int] | None:
    """The first two rows with the same key and different values, if there are any."""
    order = np.lexsort((value, key))
    same = key[order][1:] == key[order][:-1]
    found = np.flatnonzero(same & (value[order][1:] != value[order][:-1]))
    return (int(order[found[0]]), int(order[found[0] + 1])) if len(found) else None


def _place_local(
    dag: InstructionDag,
    order: Order,
    instruction_block: LongArray,
    rank: LongArray,
    number: LongArray,
) -> tuple[LongArray, LongArray]:
    """Fills in the blocks of local operations; returns rank and number of all blocks, new ones
    included."""
    t = dag.chunks.program.transfers
    local = instruction_block == NONE
    ranks_with_local = set(t.src[order.receive[local]].tolist())
    if not ranks_with_local:
        return rank, number
    of_rank: dict[int, list[int]] = {r: [] for r in ranks_with_local}
    by_hand: dict[tuple[int, int], int] = {}
    ranks, numbers = rank.tolist(), number.tolist()
    for block, (r, n) in enumerate(zip(ranks, numbers, strict=True)):
        if r in of_rank:
            of_rank[r].append(block)
            by_hand[r, n] = block
    latest, lanes = [NONE] * len(ranks), t.lanes
    send_block, lane, src = t.send_block.tolist(), t.lane.tolist(), t.src.tolist()
    receive, block_of = order.receive.tolist(), instruction_block.tolist()
    # In the order of the run, since each choice depends on where all blocks are by then.
    for position, block in enumerate(block_of):
        if block == NONE:
            row = receive[position]
            r, requested = src[row], send_block[row]
            hand = NONE if requested == NONE else requested * lanes + lane[row]
            if hand != NONE:
                block = by_hand.get((r, hand), NONE)
            elif of_rank[r]:
                block = min(of_rank[r], key=latest.__getitem__)
            if block == NONE:
                block = len(ranks)
                ranks.append(r)
                numbers.append(_NO_HAND if hand == NONE else hand)
                latest.append(NONE)
                of_rank[r].append(block)
                by_hand[r, numbers[-1]] = block
            instruction_block[position] = block
        latest[block] = position
    return np.array(ranks), np.array(numbers)


def number_blocks(
    rank: NDArray[Any], number: NDArray[Any], instruction_block: NDArray[Any]
) -> Blocks:
    """Blocks sorted by rank, requested number and first instruction.

    rank, number: of each block. instruction_block: the block of each row of the order.
    """
    first = np.full(len(rank), len(instruction_block))
    # Of several values for one block, the last that is written remains.
    first[instruction_block[::-1]] = np.arange(len(instruction_block) - 1, -1, -1)
    order = np.lexsort((first, number, rank))
    new = inverse(order).astype(np.int32)
    return Blocks(rank[order].astype(np.int32), new[instruction_block])
