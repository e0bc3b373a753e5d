"""Words: texts and styles of operands, instructions and their peers."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sley.errors import SleyError
from sley.errors.verifier import V201
from sley.ir.faults import diagnostics, faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, ByteArray
from sley.ir.words import (
    READS_SOURCE,
    RECEIVES,
    REDUCES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    Op,
)
from sley.report.pictures.canvas import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_GREY,
    PALE_PURPLE,
    PURPLE,
    WHITE,
    Fill,
    Style,
)
from sley.report.tables import check_rank

_REDUCING_PT = 1.9

SEND = Fill("sends", PALE_BLUE, BLUE)
RECEIVE = Fill("receives", PALE_GREEN, GREEN)
BOTH = Fill("receives and sends", PALE_PURPLE, PURPLE)
LOCAL = Fill("local", PALE_GREY, GREY)
REDUCING = Fill("thick frame: reduces", WHITE, GREY, _REDUCING_PT)

ORDER = Style("next in its block", GREY, width_pt=1.2)
MESSAGE = Style("message", BLUE, port=-0.07)
WAIT = Style("wait", ORANGE, "dashed", port=0.07)


def instruction_text(plan: Plan, row: int) -> tuple[str, ...]:
    """An instruction in lines: its operation, its operands, and its peers if it has any."""
    i = plan.instructions[row]
    read = Buffer(i.src_buffer).chunks(i.src_index, i.count) if READS_SOURCE[i.op] else ""
    written = Buffer(i.dst_buffer).chunks(i.dst_index, i.count) if WRITES_DESTINATION[i.op] else ""
    if read == written:
        operands = read or "-"
    else:
        operands = f"{read} → {written}".strip() if written else read
    peers = [f"from {_join(plan.peers(i.recv_peer))}"] if RECEIVES[i.op] else []
    peers += [f"to {_join(plan.peers(i.send_peer))}"] if SENDS[i.op] else []
    return Op(i.op).name.lower(), operands, *([", ".join(peers)] if peers else [])


def instruction_fill(op: int) -> Fill:
    """The style of an instruction's box: a colour for its kind, a thick frame if it reduces."""
    sends, receives = bool(SENDS[op]), bool(RECEIVES[op])
    fill = BOTH if sends and receives else SEND if sends else RECEIVE if receives else LOCAL
    return Fill(fill.word, fill.face, fill.edge, _REDUCING_PT) if REDUCES[op] else fill


def used_fills(ops: ByteArray) -> list[Fill]:
    """The styles of these operations' boxes, for the legend."""
    words = {instruction_fill(op).word for op in np.unique(ops).tolist()}
    fills = [fill for fill in (SEND, RECEIVE, BOTH, LOCAL) if fill.word in words]
    return [*fills, REDUCING] if REDUCES[ops].any() else fills


def block_peers(plan: Plan, block: int) -> tuple[str, str, str]:
    """The ranks that a block sends to, those that it receives from, and its channels, in words."""
    rows = slice(int(plan.block_offset[block]), int(plan.block_offset[block + 1]))
    t = plan.instructions
    sends, receives = (
        sorted({rank for peer in set(column[rows].tolist()) for rank in plan.peers(peer)})
        for column in (t.send_peer, t.recv_peer)
    )
    channels = sorted(set(t.channel[rows].tolist()) - {NONE})
    return _join(sends), _join(receives), _join(channels)


def _join(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def check_plan(plan: Plan) -> None:
    """Refuses a plan whose tables contradict one another. Errors: V201."""
    found = faults(plan)
    if found:
        raise SleyError(diagnostics(V201, plan, found))


def rank_mask(ranks: Collection[int] | None, total: int) -> BoolArray:
    """bool (total,): whether each rank is drawn; all if `ranks` is None. Errors: L101."""
    if ranks is None:
        return np.ones(total, bool)
    for rank in ranks:
        check_rank(rank, total)
    chosen = np.zeros(total, bool)
    chosen[list(ranks)] = True
    return chosen
