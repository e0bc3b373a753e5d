"""Checks: refuse a raw file whose parts contradict one another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sley.errors.formats import F403, F412, F414, F415, F417, F419, F421, F422
from sley.formats.format import Problems
from sley.formats.msccl_xml.raw import RawFile
from sley.ir.tables import NONE, BoolArray, offsets_of
from sley.ir.words import RECEIVES, SENDS, Op

MAX_CHUNKS = 1 << 24
"""Limit of the chunks of all ranks together, scratch included."""


def check_raw(raw: RawFile, problems: Problems) -> NDArray[np.int64]:
    """int64 (steps,): the row of the step that each step waits for, or NONE. Checks the parts of a
    file against one another; raises the problems if later checks rely on what is wrong."""
    before = len(problems)
    _check_header(raw, problems)
    _check_gpus(raw, problems)
    _check_blocks(raw, problems)
    _check_step_order(raw, problems)
    are_numbered = len(problems) == before
    _check_peers(raw, problems)
    _check_channels(raw, problems)
    steps = raw.steps
    empty = (steps["type"] != Op.NOP) & (steps["cnt"] < 1)
    steps.report(problems, empty, F421, "cnt to be at least 1", "cnt")
    no_flag = (steps["hasdep"] != 0) & (steps["hasdep"] != 1)
    steps.report(problems, no_flag, F422, "hasdep to be 0 or 1", "hasdep")
    # Waits name blocks and steps by their numbers.
    if not are_numbered:
        problems.raise_any()
    return _wait_targets(raw, problems)


def _check_header(raw: RawFile, problems: Problems) -> None:
    header, at = raw.header, raw.whole
    for names, expected, allowed in (
        (("ngpus", "nchannels"), "to be at least 1", range(1, 1 << 31)),
        (("inplace", "outofplace"), "to be 0 or 1", range(2)),
        (("minBytes", "maxBytes"), "not to be negative", range(1 << 63)),
    ):
        for name in names:
            value = getattr(header, name)
            if value is not None and value not in allowed:
                problems.add(F422, at, f"{name} {expected}", f"{name}={value}")
    if header.ngpus * header.nchunksperloop > MAX_CHUNKS:
        expected = f"at most {MAX_CHUNKS} chunks on all ranks together"
        found = f"ngpus={header.ngpus}, nchunksperloop={header.nchunksperloop}"
        problems.add(F403, at, expected, found)


def _check_gpus(raw: RawFile, problems: Problems) -> None:
    ranks, ids = raw.header.ngpus, raw.gpus["id"]
    outside = (ids < 0) | (ids >= ranks)
    raw.gpus.report(
        problems,
        outside | _is_repeated(ids),
        F412,
        f"each id from 0 to {ranks - 1} once",
        lambda row: f"id={ids[row]}" + ("" if outside[row] else " again"),
    )
    present = np.unique(ids[~outside])
    if len(present) < ranks and len(present) == len(ids) and not problems.full:
        gaps = np.flatnonzero(present != np.arange(len(present)))
        first = int(gaps[0]) if len(gaps) else len(present)
        expected = f"{ranks} GPUs, as ngpus says"
        found = f"{len(present)} of them; the first missing one is {first}"
        problems.add(F412, raw.whole, expected, found)
    for name in ("i_chunks", "o_chunks", "s_chunks"):
        raw.gpus.report(problems, raw.gpus[name] < 0, F422, f"{name} not to be negative", name)
    scratch = int(raw.gpus["s_chunks"].sum())
    if scratch > MAX_CHUNKS:
        expected = f"at most {MAX_CHUNKS} chunks on all ranks together"
        problems.add(F403, raw.whole, expected, f"{scratch} chunks of scratch")


def _check_blocks(raw: RawFile, problems: Problems) -> None:
    gpu, ids = raw.blocks["gpu"], raw.blocks["id"]
    size = np.bincount(gpu, minlength=len(raw.gpus))[gpu] if len(gpu) else gpu
    outside = (ids < 0) | (ids >= size)
    # Ids have 32 bits, so no two pairs of GPU and id have one key.
    again = _is_repeated(gpu * (1 << 32) + ids)
    raw.blocks.report(
        problems,
        outside | again,
        F412,
        lambda row: f"each id from 0 to {size[row] - 1} once: the GPU has {size[row]} blocks",
        lambda row: f"id={ids[row]}" + (" again" if again[row] else ""),
    )


def _check_step_order(raw: RawFile, problems: Problems) -> None:
    s, block = raw.steps["s"], raw.steps["tb"]
    position = np.arange(len(s)) - offsets_of(np.bincount(block, minlength=len(raw.blocks)))[block]
    # One problem a block, since after the first wrong number all others are wrong as well.
    rows = np.flatnonzero(s != position)
    first = rows[np.unique(block[rows], return_index=True)[1]]
    raw.steps.report(problems, first, F414, lambda row: f"s={position[row]}", "s")


def _check_peers(raw: RawFile, problems: Problems) -> None:
    ranks, own = raw.header.ngpus, raw.block_rank
    swapped = _swapped_ids(raw, own)
    for name, uses in (("send", SENDS), ("recv", RECEIVES)):
        peer = raw.blocks[name]
        raw.blocks.report(
            problems,
            (peer < NONE) | (peer >= ranks) | (peer == own),
            F417,
            lambda row: f"a GPU from 0 to {ranks - 1} other than {own[row]}, or -1",
            name,
            swapped,
        )
        raw.steps.report(
            problems,
            uses[raw.steps["type"]] & (peer[raw.steps["tb"]] == NONE),
            F417,
            f"a block with a {name} peer",
            lambda row, name=name: f"{name}=-1",  # type: ignore[misc]
            "Give the block the intended peer of the step.",
        )


def _swapped_ids(raw: RawFile, own: NDArray[np.int64]) -> str:
    """A remedy if blocks of two GPUs name their own GPU, and none would if these exchanged their
    ids; else "". own: the id of each block's GPU."""
    peers = np.stack([raw.blocks["send"], raw.blocks["recv"]])
    both = np.unique(np.broadcast_to(own, peers.shape)[peers == own]).tolist()
    if len(both) != 2:
        return ""
    one, other = both
    exchanged = np.where(own == one, other, np.where(own == other, one, own))
    if (peers == exchanged).any():
        return ""
    return f"Exchange the ids of GPUs {one} and {other}, which seem swapped, or correct the peers."


def _check_channels(raw: RawFile, problems: Problems) -> None:
    channel = raw.blocks["chan"]
    local = (raw.blocks["send"] == NONE) & (raw.blocks["recv"] == NONE)
    outside = (channel < 0) | (channel >= raw.header.nchannels)
    wrong = outside & ~(local & (channel == NONE))
    expected = f"a channel from 0 to {raw.header.nchannels - 1}, as nchannels says"
    raw.blocks.report(problems, wrong, F419, expected, "chan")


def _wait_targets(raw: RawFile, problems: Problems) -> NDArray[np.int64]:
    """int64 (steps,): the row of the step that each step waits for, or NONE. Reports waits for
    steps that don't exist, and for the step itself or later ones of its block.

    The ids of GPUs and blocks must be right.
    """
    depid, deps, block = raw.steps["depid"], raw.steps["deps"], raw.steps["tb"]
    target = np.full(len(depid), NONE, np.int64)
    rows = np.flatnonzero(depid != NONE)
    if not len(rows):
        return target
    steps = np.bincount(block, minlength=len(raw.blocks))
    by_id = np.lexsort((raw.blocks["id"], raw.blocks["gpu"]))
    blocks_of = np.bincount(raw.blocks["gpu"], minlength=len(raw.gpus))
    gpu = raw.blocks["gpu"][block[rows]]
    exists = (depid[rows] >= 0) & (depid[rows] < blocks_of[gpu])
    named = np.zeros(len(rows), np.int64)
    named[exists] = by_id[(offsets_of(blocks_of)[gpu] + depid[rows])[exists]]
    exists &= (deps[rows] >= 0) & (deps[rows] < steps[named])
    expected = "a block and a step of this GPU that exist, or depid=-1"
    raw.steps.report(problems, rows[~exists], F415, expected, "depid deps")
    start = offsets_of(steps)
    target[rows[exists]] = (start[named] + deps[rows])[exists]
    own = exists & (named == block[rows])
    raw.steps.report(
        problems,
        rows[own & (target[rows] >= rows)],
        F415,
        "a step of another block",
        lambda row: f"depid={depid[row]}, deps={deps[row]}: this block, not earlier than this step",
        "Name a step of another block, or an order without a cycle.",
    )
    return target


def _is_repeated(values: NDArray[np.int64]) -> BoolArray:
    """Whether each value is that of an earlier row."""
    mask = np.ones(len(values), np.bool_)
    mask[np.unique(values, return_index=True)[1]] = False  # the first row of each value
    return mask
