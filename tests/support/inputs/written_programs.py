"""Programs written line by line, as the passes get them: a transfer a line.

    0 in[0:2] -> 1 out[4]     channel 1     rank 0 copies two chunks to rank 1
    1 out[4] +> 2 out[0]                    rank 2 adds what rank 1 has

The words after a transfer are columns of `Transfers` with their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np

import sley
from sley.compiler.passes.channels import assign_channels
from sley.compiler.passes.fuse import fuse
from sley.ir.dag import InstructionDag
from sley.ir.dependencies import dependencies
from sley.ir.program import Program, Transfers
from sley.ir.sources import Sources
from sley.ir.tables import NONE
from sley.ir.words import Buffer, TransferKind

_PLACE = r"(\d+) (in|out|scratch)"
_LINE = re.compile(rf"{_PLACE}\[(\d+)(?::(\d+))?\] ([-+])> {_PLACE}\[(\d+)\]((?: \w+ \d+)*)")
_BUFFERS = {"in": Buffer.INPUT, "out": Buffer.OUTPUT, "scratch": Buffer.SCRATCH}
_OPEN = dict.fromkeys(("channel", "send_block", "recv_block", "step", "group"), NONE)

Promise = Callable[[int, int], Iterable[tuple[int, int]] | None]


def program_of(text: str, *, chunks: int = 8, in_place: bool = False, result: str = "") -> Program:
    """The program of a text.

    chunks: of input and output on each rank. result: the output chunks that the collective
    promises, each the input chunk 0 of rank 0: "1 out[0], 1 out[1]".
    """
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    rows = [_row(line, number) for number, line in enumerate(lines)]
    wanted = {(int(r), int(k)) for r, k in re.findall(r"(\d+) out\[(\d+)\]", result)}
    ranks = 1 + max(max(row["src"], row["dst"]) for row in rows)
    promised: Promise = lambda rank, index: [(0, 0)] if (rank, index) in wanted else None  # noqa: E731
    ends = [
        (row[f"{s}_buffer"], row[s], row[f"{s}_index"] + row["count"])
        for row in rows
        for s in ("src", "dst")
    ]
    scratch = np.zeros(ranks, np.int32)
    for buffer, rank, end in ends:
        if buffer == Buffer.SCRATCH:
            scratch[rank] = max(scratch[rank], end)
    return Program(
        name="written",
        collective=sley.Custom("any", ranks, chunks, chunks, promised, in_place=in_place),
        transfers=Transfers(
            **{name: np.array([row[name] for row in rows]) for name in Transfers.column_names()}
        ),
        scratch_chunks=scratch,
        protocol=None,
        sources=Sources.of_file("written", np.arange(1, len(rows) + 1)),
    )


def lower(text: str, channels: int = 1, *, fusion: bool = True, result: str = "") -> InstructionDag:
    """The instructions of a text's program, with their channels."""
    dag = dependencies(program_of(text, chunks=512, result=result))
    return assign_channels(dag, fuse(dag) if fusion else None, channels)


def instruction_word(low: InstructionDag, receive: int, send: int) -> str:
    """An instruction in a word: "s0" sends transfer 0, "r0" receives it, "l0" does it locally,
    "r0+s1" is fused."""
    first = f"{'r' if low.remote[receive] else 'l'}{receive}"
    return "+".join(word for word in (first, f"s{send}") if not word.endswith("-1"))


def _row(line: str, number: int) -> dict[str, int]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"no transfer: {line!r}")
    src, src_buffer, start, end, kind, dst, dst_buffer, index, words = found.groups()
    pairs = words.split()
    return {
        "kind": TransferKind.REDUCE if kind == "+" else TransferKind.COPY,
        "src": int(src),
        "src_buffer": _BUFFERS[src_buffer],
        "src_index": int(start),
        "dst": int(dst),
        "dst_buffer": _BUFFERS[dst_buffer],
        "dst_index": int(index),
        "count": int(end or int(start) + 1) - int(start),
        "instances": 1,
        "lane": 0,
        "source": number,
        **_OPEN,
        **dict(zip(pairs[::2], map(int, pairs[1::2]), strict=True)),
    }
