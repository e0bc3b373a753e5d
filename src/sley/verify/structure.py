"""Structure: whether a plan's rows make sense by themselves, and its connections at both ends."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V201, V202
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, WRITES_DESTINATION, Op

LIMIT = 8
"""How many findings of one kind are reported; the rest would say the same."""


def check_rows(plan: Plan) -> list[Diagnostic]:
    """V201 for rows that refer to what does not exist."""
    t, ranks = plan.instructions, plan.collective.ranks
    size = plan.layout.size
    known = (t.op >= 0) & (t.op < len(Op))
    op = np.where(known, t.op, Op.NOP)
    checks: list[tuple[str, np.ndarray, np.ndarray]] = [
        ("a known operation", ~known, t.op),
        ("a count of at least 1", (op != Op.NOP) & (t.count < 1), t.count),
    ]
    for word, used, buffer, index in (
        ("source", READS_SOURCE[op], t.src_buffer, t.src_index),
        ("destination", WRITES_DESTINATION[op], t.dst_buffer, t.dst_index),
    ):
        named = (buffer >= 0) & (buffer < 3)
        end = index.astype(np.int64) + t.count
        inside = named & (index >= 0) & (end <= size[np.where(named, buffer, 0), plan.rank])
        checks.append((f"a {word} inside its buffer", used & ~inside, index))
    for word, used, peer in (
        ("send", SENDS[op], t.send_peer),
        ("receive", RECEIVES[op], t.recv_peer),
    ):
        right = (peer >= 0) & (peer < ranks) & (peer != plan.rank)
        checks.append((f"a {word} peer that is another rank", used & ~right, peer))
        checks.append((f"a channel for its {word}", used & (t.channel < 0), t.channel))
    found = []
    for expected, wrong, values in checks:
        for row in np.flatnonzero(wrong)[:LIMIT].tolist():
            found.append(
                V201.diagnostic(at=plan.place(row), expected=expected, found=str(values[row]))
            )
    return found + _check_waits(plan)


def _check_waits(plan: Plan) -> list[Diagnostic]:
    source, target = plan.waits.source, plan.waits.target
    inside = (target >= 0) & (target < len(plan.instructions))
    same_rank = plan.rank[np.where(inside, target, 0)] == plan.rank[source]
    wrong = np.flatnonzero(~inside | ~same_rank)[:LIMIT]
    return [
        V201.diagnostic(
            at=plan.place(int(source[k])),
            expected="a wait for an instruction of the same rank",
            found=f"a wait for instruction {target[k]}",
        )
        for k in wrong.tolist()
    ]


def match_messages(plan: Plan) -> tuple[np.ndarray, list[Diagnostic]]:
    """The receive of each send: int32 (instructions,), NONE for others; and V202 findings.

    The k-th receive on a connection takes the k-th message sent. Both orders come from the blocks,
    so each end of a connection must lie in one block.
    """
    send_key, receive_key = plan.connection_keys()
    sends, receives = plan.sends, plan.receives
    found = _check_single(plan, send_key, sends, "sending")
    found += _check_single(plan, receive_key, receives, "receiving")
    match = np.full(len(plan.instructions), NONE, np.int32)
    if found:
        return match, found
    # Rows of a block ascend in the order of execution, so a stable sort keeps FIFO order.
    by_send = np.argsort(send_key, kind="stable")
    by_receive = np.argsort(receive_key, kind="stable")
    sent, taken = send_key[by_send], receive_key[by_receive]
    if not np.array_equal(sent, taken):
        return match, _uneven(plan, sent, taken)
    first, second = sends[by_send], receives[by_receive]
    match[first] = second
    counts = plan.instructions.count
    for k in np.flatnonzero(counts[first] != counts[second])[:LIMIT].tolist():
        found.append(
            V202.diagnostic(
                at=[plan.place(int(first[k])), plan.place(int(second[k]))],
                expected="the same count at both ends of a message",
                found=f"{counts[first[k]]} chunks sent, {counts[second[k]]} received",
            )
        )
    return match, found


def _check_single(plan: Plan, key: np.ndarray, rows: np.ndarray, word: str) -> list[Diagnostic]:
    """V202 for connections with several blocks at one end."""
    order = np.argsort(key, kind="stable")
    keys, blocks = key[order], plan.block[rows[order]]
    twice = np.flatnonzero((keys[1:] == keys[:-1]) & (blocks[1:] != blocks[:-1]))
    _, first = np.unique(keys[twice], return_index=True)
    found = []
    for k in twice[first][:LIMIT].tolist():
        a, b = int(rows[order[k]]), int(rows[order[k + 1]])
        found.append(
            V202.diagnostic(
                at=[plan.place(b), plan.place(a)],
                expected=f"one {word} block for {_connection(plan, int(keys[k]))}",
                found=f"blocks {plan.block_number[plan.block[a]]} and "
                f"{plan.block_number[plan.block[b]]} of rank {plan.rank[a]}",
            )
        )
    return found


def _uneven(plan: Plan, sent: np.ndarray, taken: np.ndarray) -> list[Diagnostic]:
    """V202 for connections whose ends differ in the number of messages."""
    keys = np.union1d(sent, taken)
    out, into = (
        np.searchsorted(k, keys, "right") - np.searchsorted(k, keys, "left") for k in (sent, taken)
    )
    found = []
    for k in np.flatnonzero(out != into)[:LIMIT].tolist():
        rows, all_keys = (
            (plan.sends, plan.connection_keys()[0])
            if out[k]
            else (plan.receives, plan.connection_keys()[1])
        )
        found.append(
            V202.diagnostic(
                at=plan.place(int(rows[np.argmax(all_keys == keys[k])])),
                expected=f"as many receives as sends on {_connection(plan, int(keys[k]))}",
                found=f"{out[k]} sends, {into[k]} receives",
            )
        )
    return found


def _connection(plan: Plan, key: int) -> str:
    pair, channel = divmod(key, plan.channels)
    src, dst = divmod(pair, plan.collective.ranks)
    return f"the connection from rank {src} to rank {dst}, channel {channel}"
