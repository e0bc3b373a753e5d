"""Limits: refuse plans and files that a target can't run.

The runtimes check some of these limits when they load a file, and refuse to start; others they
don't check, and compute wrong results or hang.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, counted
from sley.errors.formats import F438, F441, F444, F454
from sley.errors.verifier import V201, V202, V208
from sley.formats.msccl_xml.raw import RawFile
from sley.formats.msccl_xml.targets import XmlTarget
from sley.formats.problems import Problems
from sley.ir.faults import faults, overlap_faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import (
    FIFO_PROTOCOLS,
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    LoopOrder,
    Op,
)

_FEWER_BLOCKS = "Use fewer instances, blocks that serve both directions, or more channels."

_LARGER_CHUNKS = "Use fewer, larger chunks, or transfers of fewer chunks in the program."
_SHORTER_BLOCKS = (
    "Distribute the work over more channels, use fewer instances, or write for msccl (256)."
)
_FEWER_ELEMENTS = "Use fewer instances or chunks."

_FIXED_NODES = 1
"""<algo>, which counts as a node of each GPU."""


def check_order(plan: Plan, problems: Problems) -> None:
    """Refuses a plan that is not tile-major, or whose messages are not sent through slots."""
    at = Place(detail=plan.name)
    if plan.protocol not in FIFO_PROTOCOLS:
        remedy = (
            "Compile the program with another protocol: --protocol simple, or "
            'sley.compile(..., protocol="simple").'
        )
        problems.add(F441, at, "Simple, LL or LL128", plan.protocol.value, remedy)
    if plan.loop_order is not LoopOrder.TILE:
        remedy = (
            "Write the tile-major plan of the same program: --loop-order tile, or "
            'sley.compile(..., loop_order="tile").'
        )
        found = f"one in {plan.loop_order.value}-major order"
        problems.add(F441, at, "a plan in tile-major order", found, remedy)


def refuse_groups(plan: Plan) -> None:
    """Refuses a plan with groups of peers, which no XML has. Errors: F438."""
    if len(plan.grouped):
        raise F438.error(
            at=plan.place(int(plan.grouped[0])),
            expected="one rank at the other end of a message",
            found=f"{counted(len(plan.grouped), 'instruction')} with a group of ranks",
        )


def check_tables(plan: Plan, problems: Problems) -> None:
    """Refuses tables that contradict one another, and waits of instructions for themselves or for
    later ones of their block."""
    found = faults(plan)
    for fault in found[: problems.room]:
        problems.add(V201, plan.places(fault.rows)[0], expected=fault.expected, found=fault.found)
    if found:
        return
    source, target = plan.waits.source, plan.waits.target
    late = source[(plan.block[target] == plan.block[source]) & (target >= source)]
    problems.add_each(
        late,
        V201,
        plan.place,
        "waits for other blocks' instructions",
        lambda row: f"waits for instructions {', '.join(map(str, plan.waits[row].tolist()))}",
    )


_ONLY_IN_PLACE = (
    'If the plan is meant for calls in place alone, write outofplace="0" in <algo>; else use '
    "scratch or the output for partial results."
)


def check_peers(plan: Plan, raw: RawFile, problems: Problems) -> None:
    """Refuses a block with several connections in one direction. raw: of the plan."""
    t = plan.instructions
    sends, receives = SENDS[t.op], RECEIVES[t.op]
    for word, mask, mine, attribute in (
        ("send peer", sends, t.send_peer, "send"),
        ("receive peer", receives, t.recv_peer, "recv"),
        ("channel", sends | receives, t.channel, "chan"),
    ):
        own = raw.blocks[attribute][plan.block]
        problems.add_each(
            mask & (mine != own),
            F441,
            plan.place,
            f"one {word} in a block",
            lambda row, mine=mine, own=own, word=word: (  # type: ignore[misc]
                f"{word} {mine[row]} here and {own[row]} elsewhere in the block"
            ),
            "Give each pair of peers and channel its own block, as sley.compile does "
            "with --allocate connection and without --max-blocks.",
        )


def check_memory(
    plan: Plan, target: XmlTarget, problems: Problems, *, declares_both: bool = False
) -> None:
    """Refuses an out-of-place plan that overwrites its input, and operands that overlap.
    declares_both: whether the plan's file is for calls in place too."""
    for fault in overlap_faults(plan)[: problems.room]:
        problems.add(V208, plan.places(fault.rows), expected=fault.expected, found=fault.found)
    if plan.collective.in_place or not target.keeps_input:
        return
    rows = plan.input_writes[: problems.room]
    for row, cell in zip(rows.tolist(), plan.destination_cells(rows).tolist(), strict=True):
        expected = f"the input to be kept, for {target.name}"
        found = f"a write to {plan.layout.name(cell)}, out of place"
        remedy = _ONLY_IN_PLACE if declares_both else ""
        problems.add(F454, plan.place(row), expected, found, remedy)


def check_limits(raw: RawFile, target: XmlTarget, problems: Problems) -> None:
    """Refuses what doesn't fit into the target's tables."""
    ranks, steps, ops = raw.header.ngpus, raw.steps, raw.steps["type"]
    is_nop = ops == Op.NOP
    offset = np.maximum(
        np.where(READS_SOURCE[ops], steps["srcoff"], NONE),
        np.where(WRITES_DESTINATION[ops], steps["dstoff"], NONE),
    )
    of_block = np.bincount(steps["tb"], minlength=len(raw.blocks))
    nops = np.bincount(steps["tb"][is_nop], minlength=len(raw.blocks))
    blocks = np.bincount(raw.block_rank, minlength=ranks)
    of_rank = np.bincount(raw.block_rank[steps["tb"]], minlength=ranks)
    nodes = _FIXED_NODES + ranks + blocks + of_rank
    most_children = np.array([max(ranks, int(blocks.max(initial=0)))])

    def refuse(
        values: NDArray[Any],
        most: int | None,
        place: Callable[[int], Place],
        texts: tuple[str, str],
        remedy: str,
        *more: NDArray[Any],
    ) -> None:
        """Adds a problem for each value above a limit, if there is one. texts: what is expected,
        with the limit, and what is found, with the value and `more` of the row."""
        if most is not None:
            expected = f"{texts[0].format(most)}, for {target.name}"

            def found(row: int) -> str:
                return texts[1].format(values[row], *(of_row[row] for of_row in more))

            problems.add_each(values > most, F444, place, expected, found, remedy)

    _check_ends(raw, target, problems)
    counts, texts = np.where(is_nop, 0, steps["cnt"]), ("at most {} chunks in a step", "{} chunks")
    refuse(counts, target.count, steps.place, texts, _LARGER_CHUNKS)
    texts = ("offsets up to {}", "offset {}")
    refuse(offset, target.offset, steps.place, texts, "Use fewer chunks.")
    texts = ("waits for blocks up to {}", "a wait for block {}")
    refuse(steps["depid"], target.waited_block, steps.place, texts, _FEWER_BLOCKS)
    texts = ("at most {} steps in a block", "{} steps, {} of them nops for further waits")
    refuse(of_block, target.steps_per_block, raw.blocks.place, texts, _SHORTER_BLOCKS, nops)
    texts = ("at most {} blocks on a GPU", "{} blocks")
    refuse(blocks, target.blocks, _rank_place, texts, _FEWER_BLOCKS)
    found = f"{{}}: <algo>, {ranks} GPUs, {{}} blocks, {{}} steps"
    texts = ("at most {} elements for a GPU", found)
    refuse(nodes, target.nodes, _rank_place, texts, _FEWER_ELEMENTS, blocks, of_rank)
    found = f"{ranks} GPUs, and up to {blocks.max(initial=0)} blocks in one"
    texts = ("at most {} children of an element", found)
    algo = Place(detail="<algo>")
    refuse(most_children, target.children, lambda _: algo, texts, _FEWER_ELEMENTS)


def _rank_place(rank: int) -> Place:
    return Place(detail=f"rank {rank}")


def _check_ends(raw: RawFile, target: XmlTarget, problems: Problems) -> None:
    """Refuses channels beyond the target's, connections with several blocks at one end, and too
    many blocks of a GPU that send, or that receive, on one channel."""
    ranks, channels, chan = raw.header.ngpus, raw.header.nchannels, raw.blocks["chan"]
    if channels > target.channels:
        highest = int(chan.max(initial=NONE))
        problems.add(
            F444,
            raw.blocks.place(int(np.argmax(chan))) if len(chan) else Place(),
            expected=f"channels below {target.channels}, for {target.name}",
            found=f"channel {highest}" if highest >= target.channels else f"{channels} channels",
            remedy="Use fewer instances, or use a channel for several connections.",
        )
    for word, peer in (("sending", raw.blocks["send"]), ("receiving", raw.blocks["recv"])):
        used = np.flatnonzero(peer != NONE)
        on_channel = raw.block_rank[used] * channels + chan[used]
        _, first, again = np.unique(
            on_channel * ranks + peer[used], return_index=True, return_inverse=True
        )
        others = np.flatnonzero(first[again] != np.arange(len(used)))
        for k in others[: problems.room].tolist():
            block = int(used[k])
            places = [raw.blocks.place(block), raw.blocks.place(int(used[first[again[k]]]))]
            expected = f"one {word} block for a connection"
            found = f"another one with peer {peer[block]} and channel {chan[block]}"
            remedy = "Give one of the blocks another channel, at both ends."
            problems.add(V202, places, expected, found, remedy)
        busy, count = np.unique(on_channel, return_counts=True)
        problems.add_each(
            count > target.peers_per_channel,
            F444,
            lambda row, busy=busy: _rank_place(busy[row] // channels),  # type: ignore[misc]
            f"at most {target.peers_per_channel} blocks on a channel, for {target.name}",
            lambda row, busy=busy, count=count: (  # type: ignore[misc]
                f"{count[row]} on channel {busy[row] % channels}"
            ),
            _FEWER_BLOCKS,
        )
