"""Messages: the receive of each send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic, SleyError
from sley.errors.verifier import V202
from sley.ir.faults import LIMIT
from sley.ir.plan import Plan
from sley.ir.tables import NONE, IntArray, LongArray


@dataclass(frozen=True)
class Messages:
    """The messages of all connections, connection after connection, in the order of each.

    connection: a number for (source rank, destination rank, channel), ascending.
    send, receive: the instructions that send and receive each message.
    receive_of: int32 (instructions,), the receive of each send, NONE for others.
    """

    connection: LongArray
    send: LongArray
    receive: LongArray
    receive_of: IntArray


def match_messages(plan: Plan) -> tuple[Messages, list[Diagnostic]]:
    """The messages of a plan, and V202 findings; with findings, the messages are meaningless.

    The k-th receive on a connection takes the k-th message sent. The blocks define both orders, so
    each end of a connection must be in one block.
    """
    send_key, receive_key = plan.connection_keys()
    # Rows of a block ascend in the order of execution, so a stable sort keeps FIFO order.
    by_send = np.argsort(send_key, kind="stable")
    by_receive = np.argsort(receive_key, kind="stable")
    send = plan.sends[by_send].astype(np.int64)
    receive = plan.receives[by_receive].astype(np.int64)
    sent, taken = send_key[by_send], receive_key[by_receive]
    receive_of = np.full(len(plan.instructions), NONE, np.int32)
    messages = Messages(sent, send, receive, receive_of)
    found = _check_single(plan, send_key, plan.sends, "sending")
    found += _check_single(plan, receive_key, plan.receives, "receiving")
    if not found and not np.array_equal(sent, taken):
        found = _uneven(plan, sent, taken)
    if found:
        return messages, found
    receive_of[send] = receive
    counts = plan.instructions.count
    for k in np.flatnonzero(counts[send] != counts[receive])[:LIMIT].tolist():
        found.append(
            V202.diagnostic(
                at=[plan.place(int(send[k])), plan.place(int(receive[k]))],
                expected="the same count at both ends of a message",
                found=f"{counts[send[k]]} chunks sent, {counts[receive[k]]} received",
            )
        )
    return messages, found


def messages_of(plan: Plan) -> Messages:
    """The messages of a plan; SleyError (V202) if the ends of a connection don't agree."""
    messages, found = match_messages(plan)
    if found:
        raise SleyError(found)
    return messages


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
