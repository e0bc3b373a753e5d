"""Emit: from an ordered, allocated instruction DAG to a Plan, with waits where blocks need them."""

from __future__ import annotations

import numpy as np

from sley.ir.dag import InstructionDag, Order
from sley.ir.plan import Instructions, Plan
from sley.ir.tables import NONE, Edges, LongArray, offsets_of
from sley.ir.words import LoopOrder, Op, Protocol, TransferKind
from sley.passes.blocks import Blocks


def emit(
    dag: InstructionDag, order: Order, blocks: Blocks, protocol: Protocol, slots: int
) -> Plan:
    """The plan whose blocks list their instructions in the order given."""
    position = np.argsort(blocks.instruction_block, kind="stable")
    program = dag.chunks.program
    counts = np.bincount(blocks.instruction_block, minlength=len(blocks.rank))
    row = np.empty(len(position), np.int64)
    row[position] = np.arange(len(position))
    return Plan(
        name=program.name,
        collective=program.collective,
        protocol=protocol,
        loop_order=LoopOrder.TILE,
        slots=slots,
        instructions=_instructions(dag, order, position),
        block_rank=blocks.rank,
        block_offset=offsets_of(counts),
        waits=_waits(dag, order, blocks, row),
        scratch_chunks=program.scratch_chunks,
        sources=program.sources,
    )


def _operations(dag: InstructionDag, order: Order) -> np.ndarray:
    """int8 (instructions,): the operation of each row of the order (MSCCLang 4.2, 4.3)."""
    receive, send = order.receive, order.send
    reduces = dag.chunks.program.transfers.kind[receive] == TransferKind.REDUCE
    local = (receive != NONE) & ~dag.remote[receive]
    # The result of a fused reduction need not be stored when only the fused send reads it.
    dropped = (dag.chunks.readers[receive] == 1) & ~dag.chunks.kept[receive]
    return np.select(
        [
            receive == NONE,
            local & reduces,
            local,
            (send == NONE) & reduces,
            send == NONE,
            reduces & dropped,
            reduces,
        ],
        [
            Op.SEND,
            Op.REDUCE,
            Op.COPY,
            Op.RECV_REDUCE_COPY,
            Op.RECV,
            Op.RECV_REDUCE_SEND,
            Op.RECV_REDUCE_COPY_SEND,
        ],
        Op.RECV_COPY_SEND,
    ).astype(np.int8)


def _instructions(dag: InstructionDag, order: Order, position: np.ndarray) -> Instructions:
    t = dag.chunks.program.transfers
    op = _operations(dag, order)[position]
    receive, send = order.receive[position], order.send[position]
    main = np.where(receive == NONE, send, receive)
    plain_send, local = receive == NONE, (receive != NONE) & ~dag.remote[receive]
    reducing = np.isin(op, [Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND])
    own_source = plain_send | local
    # A reducing receive's operand is the local one: the transfer's destination (MSCCLang 4.2).
    src_buffer = np.select([own_source, reducing], [t.src_buffer[main], t.dst_buffer[main]], NONE)
    src_index = np.select([own_source, reducing], [t.src_index[main], t.dst_index[main]], NONE)
    stores = ~plain_send & (op != Op.RECV_REDUCE_SEND)
    remote_receive = (receive != NONE) & ~local
    return Instructions(
        op=op,
        src_buffer=src_buffer,
        src_index=src_index,
        dst_buffer=np.where(stores, t.dst_buffer[main], NONE),
        dst_index=np.where(stores, t.dst_index[main], NONE),
        count=t.count[main],
        send_peer=np.where(send != NONE, t.dst[send], NONE),
        recv_peer=np.where(remote_receive, t.src[main], NONE),
        channel=dag.channel[main],
        transfer=main,
        forward=np.where((receive != NONE) & (send != NONE), send, NONE),
        source=t.source[main],
    )


def _waits(dag: InstructionDag, order: Order, blocks: Blocks, row: LongArray) -> Edges:
    """Waits between blocks: one for each dependency that the order of blocks and other waits
    don't imply within the rank (MSCCLang 5.2)."""
    at = _instruction_of_halves(dag, order)
    d = dag.chunks.dependencies
    before = at[2 * d.before.astype(np.int64) + d.before_at_dst]
    after = at[2 * d.after.astype(np.int64) + d.after_at_dst]
    block = blocks.instruction_block.astype(np.int64)
    across = block[before] != block[after]
    before, after = before[across], after[across]
    # Of several instructions of one block, waiting for the latest is enough.
    key = after * len(blocks.rank) + block[before]
    sort = np.lexsort((before, key))
    last = np.append(key[sort][1:] != key[sort][:-1], True)[: len(sort)]
    before, after = before[sort][last], after[sort][last]
    # By instruction in order, the latest candidate first: a later one may imply an earlier.
    sort = np.lexsort((-before, after))
    kept = _irredundant(before[sort].tolist(), after[sort].tolist(), blocks, row)
    pairs = np.array(kept, np.int64).reshape(-1, 2)
    return Edges.from_pairs(len(order), row[pairs[:, 1]], row[pairs[:, 0]])


def _instruction_of_halves(dag: InstructionDag, order: Order) -> LongArray:
    """int64 (2 * transfers,): the row of the order that does each half of a transfer."""
    at = np.full(2 * len(dag.forward), NONE)
    rows = np.arange(len(order))
    sends, receives = order.send != NONE, order.receive != NONE
    at[2 * order.send[sends]] = rows[sends]
    at[2 * order.receive[receives].astype(np.int64) + 1] = rows[receives]
    local = np.flatnonzero(~dag.remote)
    at[2 * local] = at[2 * local + 1]
    return at


def _irredundant(
    before: list[int], after: list[int], blocks: Blocks, row: LongArray
) -> list[tuple[int, int]]:
    """The waits (before, after) that are not implied by those kept so far.

    Vector clocks: known[b] tells for every block of the rank up to which position block b has
    surely been waited for. Clocks are shared until a wait changes one.
    """
    rank_of, block_of = blocks.rank.tolist(), blocks.instruction_block.tolist()
    first_block = np.searchsorted(blocks.rank, blocks.rank).tolist()
    size = np.bincount(blocks.rank).tolist() if len(blocks.rank) else []
    known = [[NONE] * size[rank] for rank in rank_of]
    # The clock of each instruction that is waited for, as it was when its block reached it.
    history: dict[int, list[tuple[int, list[int]]]] = {}
    kept = []
    for earlier, later in zip(before, after, strict=True):
        here, there = block_of[later], block_of[earlier]
        local = there - first_block[there]
        if known[here][local] >= earlier:
            continue
        theirs = _clock_at(history.get(there, []), earlier, len(known[here]))
        merged = list(map(max, known[here], theirs))
        merged[local] = max(merged[local], earlier)
        known[here] = merged
        history.setdefault(here, []).append((later, merged))
        kept.append((earlier, later))
    return kept


def _clock_at(history: list[tuple[int, list[int]]], position: int, size: int) -> list[int]:
    """What a block knew at `position` of the order: its last clock change not after it."""
    low, high = 0, len(history)
    while low < high:
        middle = (low + high) // 2
        if history[middle][0] <= position:
            low = middle + 1
        else:
            high = middle
    return history[low - 1][1] if low else [NONE] * size
