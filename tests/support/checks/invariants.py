"""Invariants: properties of each value between a program and a plan.

Each pass relies on them in its arguments and preserves them in its result; tests check them between
the passes. A violation is a mistake of the compiler and not of its user, so it has no error code.
Each function requires that the earlier values have no faults. The rows of a fault are rows of the
value's own table: transfers, rows of the order, or blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sley.ir.dag import Blocks, ChunkDag, Dependencies, InstructionDag, Order
from sley.ir.faults import LIMIT, Fault
from sley.ir.program import Program
from sley.ir.tables import (
    NONE,
    BoolArray,
    IntArray,
    LongArray,
    distinct,
    neighbouring_writes,
    ordered_by,
    spans,
)
from sley.ir.words import Buffer, TransferKind

_BEYOND = np.iinfo(np.int32).max

_Check: TypeAlias = tuple[str, NDArray[Any], Callable[[int], object]]
"""What is expected of each row, a mask of the rows that violate it, and what such a row has."""


def _faults(*checks: _Check) -> list[Fault]:
    return [
        Fault((row,), expected, str(found(row)))
        for expected, wrong, found in checks
        for row in np.flatnonzero(wrong)[:LIMIT].tolist()
    ]


def _lengths(rows: int, **columns: NDArray[Any]) -> list[Fault]:
    """A fault for each column that doesn't have `rows` rows."""
    return [
        Fault((), f"{rows} rows of {name}", str(len(column)))
        for name, column in columns.items()
        if len(column) != rows
    ]


def _limits(table: object, limits: dict[str, tuple[int, int]]) -> list[Fault]:
    """A fault for each value outside its column's limits: the least value, and the first too
    large."""
    found = []
    for name, (low, high) in limits.items():
        values = getattr(table, name)
        expected = f"{name} from {low}" + (f" to {high - 1}" if high < _BEYOND else "")
        found += _faults((expected, (values < low) | (values >= high), values.__getitem__))
    return found


# Programs


def program_faults(program: Program) -> list[Fault]:
    """Transfers with values out of range, and transfers whose source and destination overlap."""
    t, ranks = program.transfers, program.collective.ranks
    found = _lengths(ranks, scratch_chunks=program.scratch_chunks) or _limits(
        program, {"scratch_chunks": (0, _BEYOND)}
    )
    limits = {
        "kind": (0, len(TransferKind)),
        "src": (0, ranks),
        "src_buffer": (0, len(Buffer)),
        "dst": (0, ranks),
        "dst_buffer": (0, len(Buffer)),
        "count": (1, _BEYOND),
        "channel": (NONE, _BEYOND),
        "instances": (1, _BEYOND),
        "lane": (0, _BEYOND),
        "send_block": (NONE, _BEYOND),
        "recv_block": (NONE, _BEYOND),
        "step": (NONE, _BEYOND),
        "source": (NONE, len(program.sources)),
    }
    found = found or _limits(t, limits)
    if found:
        return found
    size = program.layout.size
    source, target = _read_and_written(program)
    return _faults(
        (
            "a source inside its buffer",
            (t.src_index < 0) | (t.src_index > size[t.src_buffer, t.src] - t.count),
            t.__getitem__,
        ),
        (
            "a destination inside its buffer",
            (t.dst_index < 0) | (t.dst_index > size[t.dst_buffer, t.dst] - t.count),
            t.__getitem__,
        ),
        (
            "a source and a destination that share no chunk",
            np.abs(source - target) < t.count,
            t.__getitem__,
        ),
    )


def _read_and_written(program: Program) -> tuple[LongArray, LongArray]:
    """int64 (transfers,): the first cell that each transfer reads, and the first cell that it
    writes."""
    t, layout = program.transfers, program.layout
    return (
        layout.cell(t.src, t.src_buffer, t.src_index),
        layout.cell(t.dst, t.dst_buffer, t.dst_index),
    )


# Chunk DAGs


def chunk_faults(dag: ChunkDag) -> list[Fault]:
    """Missing and superfluous dependencies, and wrong values of `origin`, `version`, `readers` and
    `kept`."""
    number = len(dag.program.transfers)
    ends = dict.fromkeys(("before_at_dst", "after_at_dst", "true"), (0, 2))
    found = (
        _lengths(
            number,
            operands=dag.operands.index,
            origin=dag.origin,
            version=dag.version,
            readers=dag.readers,
            kept=dag.kept,
        )
        or _limits(dag.dependencies, {"before": (0, number), "after": (0, number), **ends})
        or _limits(dag.program.transfers, {"instances": (1, 2)})
    )
    if found:
        return found
    history = _History.of(dag)
    needed, given = history.conflicts(), _dependency_keys(dag.dependencies, number)
    found = [
        Fault((), expected, _dependency(int(key), number))
        for expected, keys in (
            ("a dependency between neighbouring conflicting accesses", np.setdiff1d(needed, given)),
            ("no dependency between other accesses", np.setdiff1d(given, needed)),
        )
        for key in keys[:LIMIT].tolist()
    ]
    by_value = needed[needed % 2 == 1]
    readers = np.bincount(by_value // (8 * number) if number else by_value, minlength=number)
    return found + [
        fault
        for name, right in (
            ("origin", history.origin()),
            ("readers", readers),
            ("kept", history.kept()),
            ("version", history.version()),
        )
        for fault in _differences(name, getattr(dag, name), right)
    ]


def _differences(name: str, values: NDArray[Any], right: NDArray[Any]) -> list[Fault]:
    return [
        Fault((row,), f"{name} {right[row]}", str(values[row]))
        for row in np.flatnonzero(values != right)[:LIMIT].tolist()
    ]


def _dependency_keys(d: Dependencies, transfers: int) -> LongArray:
    """int64 (dependencies,): a number for each dependency; `_dependency` reads it."""
    before = 2 * d.before.astype(np.int64) + d.before_at_dst
    after = 2 * d.after.astype(np.int64) + d.after_at_dst
    return np.asarray((before * 2 * transfers + after) * 2 + d.true, np.int64)


def _dependency(key: int, transfers: int) -> str:
    """A dependency in words, from its number."""
    pair, by_value = divmod(key, 2)
    before, after = divmod(pair, 2 * transfers)
    ends = ["at its source", "at its destination"]
    return (
        f"transfer {before // 2} {ends[before % 2]} before transfer {after // 2} "
        f"{ends[after % 2]}, by {'value' if by_value else 'reuse of the place'}"
    )


@dataclass(frozen=True)
class _History:
    """All accesses of a program to memory, one row an access to one cell: cell after cell, and
    within a cell in the order of the program.

    half: int64 (accesses,), 2t if transfer t accesses it at its source, 2t + 1 at its destination.
    write: bool (accesses,), whether it writes. last, following: the rows of the previous and of the
    next write to the cell, NONE if there is none.
    """

    program: Program
    operand: LongArray
    cell: LongArray
    half: LongArray
    write: BoolArray
    last: LongArray
    following: LongArray

    @classmethod
    def of(cls, dag: ChunkDag) -> _History:
        program, t = dag.program, dag.program.transfers
        source, target = _read_and_written(program)
        operand = dag.operands.cells(program)
        apart = np.flatnonzero((t.kind == TransferKind.REDUCE) & (operand != target))
        reader, read = spans(source, t.count)
        combiner, combined = spans(operand[apart], t.count[apart])
        writer, written = spans(target, t.count)
        cell = np.concatenate([read, combined, written])
        half = np.concatenate([2 * reader, 2 * apart[combiner] + 1, 2 * writer + 1])
        write = np.arange(len(cell)) >= len(read) + len(combined)
        order = ordered_by(cell, half)
        cell, half, write = cell[order], half[order], write[order]
        return cls(program, operand, cell, half, write, *neighbouring_writes(cell, write))

    def conflicts(self) -> LongArray:
        """The dependencies between neighbouring accesses (`_dependency_keys`), ascending. A read of
        a cell and a reduction into it come after the last write, by value. A write that overwrites
        a cell comes after its readers, or after the last write if it has none."""
        kind, number = self.program.transfers.kind, len(self.program.transfers)
        combines = (kind == TransferKind.REDUCE) & (
            self.operand == _read_and_written(self.program)[1]
        )
        writes = self.write
        takes = ~writes | combines[self.half // 2]
        row = np.arange(len(self.half))
        by_value = np.flatnonzero((self.last != NONE) & takes)
        over = np.flatnonzero((self.last != NONE) & ~takes & (self.last == row - 1))
        read = np.flatnonzero((self.following != NONE) & ~writes)
        before = np.concatenate([self.last[by_value], self.last[over], read])
        after = np.concatenate([by_value, over, self.following[read]])
        true = np.arange(len(before)) < len(by_value)
        return distinct((self.half[before] * 2 * number + self.half[after]) * 2 + true)

    def origin(self) -> LongArray:
        """`ChunkDag.origin`: for each transfer the last writer of all cells that it reads, if that
        transfer wrote exactly this range."""
        t, (source, target) = self.program.transfers, _read_and_written(self.program)
        rows = np.flatnonzero((self.half % 2 == 0) & (self.last != NONE))
        reader, writer = self.half[rows] // 2, self.half[self.last[rows]] // 2
        same = (source[reader] == target[writer]) & (t.count[reader] == t.count[writer])
        origin = np.full(len(t), NONE)
        origin[reader[same]] = writer[same]
        return np.where(np.bincount(reader[same], minlength=len(t)) == t.count, origin, NONE)

    def version(self) -> LongArray:
        """`ChunkDag.version`."""
        version = np.zeros(len(self.program.transfers), np.int64)
        reads = np.flatnonzero(self.half % 2 == 0)
        np.add.at(version, self.half[reads] // 2, self.last[reads])
        return version

    def kept(self) -> BoolArray:
        """`ChunkDag.kept`."""
        promised = self.program.collective.promised_cells(self.program.layout)
        final = self.write & (self.following == NONE) & promised[self.cell]
        kept = np.zeros(len(self.program.transfers), bool)
        kept[self.half[final] // 2] = True
        return kept


# Instruction DAGs


def instruction_faults(dag: InstructionDag) -> list[Fault]:
    """Fused transfers that can't be one instruction, and channels other than the program's own or
    shared by two lanes."""
    t, number = dag.chunks.program.transfers, len(dag.chunks.program.transfers)
    found = _lengths(
        number, forward=dag.forward, channel=dag.channel, copied=dag.copied
    ) or _limits(
        dag, {"forward": (NONE, number), "channel": (NONE, _BEYOND), "copied": (NONE, number)}
    )
    if found:
        return found
    asked = np.where((t.lane == 0) & dag.remote, t.channel, NONE)
    found = _faults(
        (
            "a channel for a remote transfer and none for a local one",
            (dag.channel != NONE) != dag.remote,
            dag.channel.__getitem__,
        ),
        (
            "the channel that the program asks for",
            (asked != NONE) & (asked != dag.channel),
            dag.channel.__getitem__,
        ),
        (
            "a channel without transfers of another lane",
            dag.remote & ~_agrees(dag.channel, t.lane),
            lambda row: f"lane {t.lane[row]} on channel {dag.channel[row]}",
        ),
    )
    return [*found, *_fusion_faults(dag), *_copy_faults(dag)]


def _fusion_faults(dag: InstructionDag) -> list[Fault]:
    """Fused transfers that can't be one instruction. A send of exactly the range that a receive
    wrote depends on nothing else, so fusing the two closes no cycle."""
    receive = np.flatnonzero(dag.forward != NONE)
    send = dag.forward[receive]
    end, other = dag.connection[receive], dag.connection[send]
    wrong = {
        "two remote transfers": ~(dag.remote[receive] & dag.remote[send]),
        "a send of what was received": dag.chunks.origin[send] != receive,
        "a send on the channel of the receive": dag.channel[send] != dag.channel[receive],
        "one connection to send on for one to receive on": ~_agrees(end, other),
        "one connection to receive on for one to send on": ~_agrees(other, end),
    }
    return [
        Fault((int(receive[k]),), f"fused into one instruction, {expected}", f"transfer {send[k]}")
        for expected, mask in wrong.items()
        for k in np.flatnonzero(mask)[:LIMIT].tolist()
    ]


def _copy_faults(dag: InstructionDag) -> list[Fault]:
    """Copies that can't be one instruction with a send."""
    t, version = dag.chunks.program.transfers, dag.chunks.version
    source = _read_and_written(dag.chunks.program)[0]
    send = np.flatnonzero(dag.copied != NONE)
    copy = dag.copied[send]
    by_hand = t.send_block[copy]
    wrong = {
        "a copy within the rank that sends": dag.remote[copy]
        | ~dag.remote[send]
        | (t.kind[copy] != TransferKind.COPY),
        "a copy and a send of the same chunks": (source[copy] != source[send])
        | (t.count[copy] != t.count[send])
        | (version[copy] != version[send]),
        "one lane": t.lane[copy] != t.lane[send],
        "the block that is asked for": (by_hand != NONE) & (by_hand != t.send_block[send]),
        "one send of a copy": np.bincount(copy, minlength=len(t))[copy] > 1,
        "a send in no other instruction": np.isin(send, dag.forward),
    }
    return [
        Fault((int(send[k]),), f"sent with a copy: {expected}", f"transfer {copy[k]}")
        for expected, mask in wrong.items()
        for k in np.flatnonzero(mask)[:LIMIT].tolist()
    ]


def _agrees(key: NDArray[Any], value: NDArray[Any]) -> BoolArray:
    """bool (rows,): whether all rows with the key of a row have its value."""
    order = np.lexsort((value, key))
    key, value = key[order], value[order]
    changes = np.flatnonzero((key[1:] == key[:-1]) & (value[1:] != value[:-1]))
    agrees = np.empty(len(key), bool)
    agrees[order] = ~np.isin(key, key[changes])
    return agrees


# Orders


def order_faults(
    dag: InstructionDag, order: Order, slots: int, *, per_chunk: bool = False
) -> list[Fault]:
    """Transfers that are missing or occur twice, rows that violate a dependency, and messages for
    which a connection of `slots` slots has no room.

    per_chunk: whether a message of several chunks takes a slot for each of them.
    """
    number = len(dag.forward)
    found = _limits(
        order, {"receive": (NONE, number), "send": (NONE, number), "pipeline": (NONE, _BEYOND)}
    )
    if found:
        return found
    sends, receives = order.send[order.send != NONE], order.receive[order.receive != NONE]
    found = _faults(
        (
            "a row that sends or receives",
            (order.send == NONE) & (order.receive == NONE),
            order.__getitem__,
        ),
        (
            "rows that fuse what the instruction DAG fuses",
            order.fused
            & (dag.forward[order.receive] != order.send)
            & (dag.copied[order.send] != order.receive),
            order.__getitem__,
        ),
    )
    for word, times, right in (
        ("sent", np.bincount(sends, minlength=number), dag.remote.astype(np.int64)),
        ("received or done", np.bincount(receives, minlength=number), np.ones(number, np.int64)),
    ):
        wrong = np.flatnonzero(times != right)[:LIMIT].tolist()
        found += [
            Fault((), f"transfer {k} {word} {right[k]} times", f"{times[k]} times") for k in wrong
        ]
    if found:
        return found
    at = order.row_of_half(dag.chunks.program.transfers)
    return [*_dependency_faults(dag, order, at), *_slot_faults(dag, order, at, slots, per_chunk)]


def _dependency_faults(dag: InstructionDag, order: Order, at: LongArray) -> list[Fault]:
    before, after = dag.chunks.half_pairs()
    return [
        Fault(
            (int(at[after[k]]),),
            f"transfer {after[k] // 2} after transfer {before[k] // 2}, on which it depends",
            f"rows {at[after[k]]} and {at[before[k]]}",
        )
        for k in np.flatnonzero(at[before] > at[after])[:LIMIT].tolist()
    ]


def _slot_faults(
    dag: InstructionDag, order: Order, at: LongArray, slots: int, per_chunk: bool
) -> list[Fault]:
    """Messages received before they are sent, received in another order than sent, or sent while
    their connection is full.

    at: int64 (2 * transfers,), `Order.row_of_half`.
    """
    t, rows = dag.chunks.program.transfers, np.flatnonzero(dag.remote)
    key = dag.connection[rows].astype(np.int64)
    by_send, by_receive = (np.lexsort((at[2 * rows + end], key)) for end in (0, 1))
    rows, key, following = rows[by_send], key[by_send], rows[by_receive]
    sent, received = at[2 * rows], at[2 * rows + 1]
    width = t.count[rows].astype(np.int64) if per_chunk else np.ones(len(rows), np.int64)
    wide = width > slots
    # The number of messages, of its and earlier connections, received before each is sent.
    taken = np.searchsorted(key * len(order) + received, key * len(order) + sent)
    behind = np.append(0, np.cumsum(width))
    held = behind[:-1] - behind[taken]
    fused = np.zeros(len(t), bool)
    fused[order.receive[order.fused]] = fused[order.send[order.fused]] = True
    found = {
        "each message received in the order of the sends": rows != following,
        "a message received after it is sent": received < sent,
        f"room for it in {slots} slots": held + width > np.maximum(slots, width),
        "a message wider than the slots received right after it is sent": wide
        & (received != sent + 1),
        "a message wider than the slots in unfused instructions": wide & fused[rows],
    }
    return [
        Fault((int(sent[k]),), f"transfer {rows[k]}: {expected}", f"received in row {received[k]}")
        for expected, wrong in found.items()
        for k in np.flatnonzero(wrong)[:LIMIT].tolist()
    ]


# Blocks


def block_faults(dag: InstructionDag, order: Order, blocks: Blocks) -> list[Fault]:
    """Blocks with instructions of another rank, several blocks at one end of a connection, and
    blocks other than those that the program asks for."""
    t, ranks = dag.chunks.program.transfers, dag.chunks.program.collective.ranks
    found = (
        _lengths(len(order), instruction_block=blocks.instruction_block)
        or _limits(blocks, {"rank": (0, ranks), "instruction_block": (0, len(blocks.rank))})
        or _faults(
            ("ranks in ascending order", np.diff(blocks.rank) < 0, blocks.rank.__getitem__),
        )
    )
    if found:
        return found
    number = np.bincount(blocks.instruction_block, minlength=len(blocks.rank))
    rank = np.where(order.send != NONE, t.src[order.send], t.dst[order.receive])
    found = _faults(
        ("an instruction for every block", number == 0, lambda row: f"none for block {row}"),
        (
            "instructions of the block's own rank",
            blocks.rank[blocks.instruction_block] != rank,
            lambda row: f"one of rank {rank[row]} in block {blocks.instruction_block[row]}",
        ),
    )
    at = order.row_of_half(dag.chunks.program.transfers)
    at_src, at_dst = blocks.instruction_block[at[0::2]], blocks.instruction_block[at[1::2]]
    rows = np.flatnonzero(dag.remote)
    for word, block in (("sending", at_src[rows]), ("receiving", at_dst[rows])):
        found += [
            Fault((), f"one {word} block for a connection", f"transfer {rows[k]} in {block[k]}")
            for k in np.flatnonzero(~_agrees(dag.connection[rows], block))[:LIMIT].tolist()
        ]
    return found + _hand_faults(dag, at_src, at_dst)


def _hand_faults(dag: InstructionDag, at_src: IntArray, at_dst: IntArray) -> list[Fault]:
    """Blocks other than those that the program asks for.

    at_src, at_dst: int32 (transfers,), the blocks that execute each transfer at its source and at
    its destination.
    """
    t = dag.chunks.program.transfers
    transfer = np.append(*(np.flatnonzero(asked != NONE) for asked in (t.send_block, t.recv_block)))
    sends = np.arange(len(transfer)) < (t.send_block != NONE).sum()
    # For a local transfer only send_block matters.
    chosen = sends | dag.remote[transfer]
    transfer, sends = transfer[chosen], sends[chosen]
    asked = np.where(sends, t.send_block[transfer], t.recv_block[transfer]).astype(np.int64)
    rank = np.where(sends, t.src[transfer], t.dst[transfer]).astype(np.int64)
    block = np.where(sends, at_src[transfer], at_dst[transfer])
    most = int(asked.max(initial=0)) + 1
    wish = (rank * most + asked) * t.lanes + t.lane[transfer]
    wrong = ~(_agrees(wish, block) & _agrees(block, wish))
    return [
        Fault(
            (int(block[k]),),
            "one block for each that the program asks for",
            f"transfer {transfer[k]} in it, which asks for block {asked[k]} of rank {rank[k]}",
        )
        for k in np.flatnonzero(wrong)[:LIMIT].tolist()
    ]
