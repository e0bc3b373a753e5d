"""Emit: the plan of an ordered and allocated instruction DAG."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.compiler.passes.waits import assign_waits
from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.plan import Instructions, Plan
from sley.ir.program import Program
from sley.ir.tables import NONE, Edges, IntArray, inverse, offsets_of, ordered_by
from sley.ir.words import LoopOrder, Op, Protocol, TransferKind


def emit(
    dag: InstructionDag,
    order: Order,
    blocks: Blocks,
    protocol: Protocol,
    slots: int,
    loop_order: LoopOrder,
    *,
    per_chunk: bool,
) -> Plan:
    """The plan whose blocks list their instructions in `order`."""
    position = ordered_by(blocks.instruction_block)
    program = dag.chunks.program
    counts = np.bincount(blocks.instruction_block, minlength=len(blocks.rank))
    peers = _Peers.of(program)
    # Before the instructions, which need as much memory as the search for the waits.
    waits = assign_waits(dag, order, blocks, inverse(position))
    return Plan(
        name=program.name,
        collective=program.collective,
        protocol=protocol,
        loop_order=loop_order,
        slots=slots,
        instructions=_instructions(dag, order, position, peers),
        block_rank=blocks.rank,
        block_offset=offsets_of(counts),
        waits=waits,
        scratch_chunks=program.scratch_chunks,
        sources=program.sources,
        per_chunk=per_chunk,
        groups=peers.groups,
    )


@dataclass(frozen=True)
class _Peers:
    """The peers of instructions.

    of_send, of_receive: int32 (transfers,), of the instruction that sends each transfer, and of the
        one that receives it.
    groups: see `Plan.groups`.
    """

    of_send: IntArray
    of_receive: IntArray
    groups: Edges

    @classmethod
    def of(cls, program: Program) -> _Peers:
        t = program.transfers
        of_send, of_receive = t.dst.copy(), t.src.copy()
        number: dict[tuple[int, ...], int] = {}
        # Groups of the same members share a number, as their messages share a switch's group.
        for leader, rows in t.group_rows().items():
            reduces = t.kind[leader] == TransferKind.REDUCE
            members = tuple(sorted((t.src if reduces else t.dst)[rows].tolist()))
            peer = program.collective.ranks + number.setdefault(members, len(number))
            (of_receive if reduces else of_send)[leader] = peer
        ranks = [rank for members in number for rank in members]
        offset = offsets_of(np.array([len(members) for members in number], np.int64))
        return cls(of_send, of_receive, Edges(offset, np.array(ranks, np.int32)))


def _operations(dag: InstructionDag, order: Order) -> np.ndarray:
    """int8 (instructions,): the operation of each row of the order (MSCCLang 4.2, 4.3)."""
    receive, send = order.receive, order.send
    reduces = dag.chunks.program.transfers.kind[receive] == TransferKind.REDUCE
    local = (receive != NONE) & ~dag.remote[receive]
    # The result of a fused reduction need not be stored if only the fused send reads it.
    dropped = (dag.chunks.readers[receive] == 1) & ~dag.chunks.kept[receive]
    # The first condition that holds decides, so each one assumes that those above it don't.
    return np.select(
        [
            receive == NONE,
            local & reduces,
            local & (send == NONE),
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
            Op.COPY_SEND,
            Op.RECV_REDUCE_COPY,
            Op.RECV,
            Op.RECV_REDUCE_SEND,
            Op.RECV_REDUCE_COPY_SEND,
        ],
        Op.RECV_COPY_SEND,
    ).astype(np.int8)


def _instructions(
    dag: InstructionDag, order: Order, position: np.ndarray, peers: _Peers
) -> Instructions:
    t = dag.chunks.program.transfers
    op = _operations(dag, order)[position]
    receive, send = order.receive[position], order.send[position]
    main = np.where(receive == NONE, send, receive)
    plain_send, local = receive == NONE, (receive != NONE) & ~dag.remote[receive]
    reducing = np.isin(op, [Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND])
    own_source = plain_send | local
    # A reducing receive's operand is the local one (MSCCLang 4.2).
    own = dag.chunks.operands
    src_buffer = np.select([own_source, reducing], [t.src_buffer[main], own.buffer[main]], NONE)
    src_index = np.select([own_source, reducing], [t.src_index[main], own.index[main]], NONE)
    stores = ~plain_send & (op != Op.RECV_REDUCE_SEND)
    remote_receive = (receive != NONE) & ~local
    return Instructions(
        op=op,
        src_buffer=src_buffer,
        src_index=src_index,
        dst_buffer=np.where(stores, t.dst_buffer[main], NONE),
        dst_index=np.where(stores, t.dst_index[main], NONE),
        count=t.count[main],
        send_peer=np.where(send != NONE, peers.of_send[send], NONE),
        recv_peer=np.where(remote_receive, peers.of_receive[main], NONE),
        channel=dag.channel[np.where(send == NONE, main, send)],
        transfer=main,
        forward=np.where((receive != NONE) & (send != NONE), send, NONE),
        pipeline=order.pipeline[position],
        source=t.source[main],
    )
