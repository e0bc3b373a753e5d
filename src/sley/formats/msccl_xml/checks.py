"""Checks: refuse a raw file whose parts contradict one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, Rule
from sley.errors.formats import (
    F403,
    F412,
    F414,
    F415,
    F417,
    F419,
    F421,
    F422,
)
from sley.formats.msccl_xml.raw import RawFile
from sley.formats.problems import Problems
from sley.ir.tables import NONE, offsets_of
from sley.ir.words import RECEIVES, SENDS, Op

MAX_CHUNKS = 1 << 24
"""Limit of the chunks of all ranks together, scratch included."""

_Mask = NDArray[np.bool_]


def report(
    problems: Problems,
    mask: _Mask,
    rule: Rule,
    place: Callable[[int], Place],
    expected: str | Callable[[int], str],
    found: Callable[[int], str],
    remedy: str = "",
) -> None:
    """Adds a problem for each row of `mask`, while there is room; `remedy` is by default the
    rule's."""
    for row in np.flatnonzero(mask)[: problems.room].tolist():
        text = expected if isinstance(expected, str) else expected(row)
        problems.add(rule, place(row), expected=text, found=found(row), remedy=remedy)


def check_structure(raw: RawFile, problems: Problems) -> None:
    """Header, ids of GPUs and blocks, and order of steps, which `wait_targets` relies on."""
    _check_header(raw, problems)
    _check_gpus(raw, problems)
    _check_blocks(raw, problems)
    _check_step_order(raw, problems)


def check_contents(raw: RawFile, problems: Problems) -> None:
    """Peers and channels of blocks, counts and flags of steps."""
    _check_peers(raw, problems)
    _check_channels(raw, problems)
    step = raw.step
    count, flag = step("cnt"), step("hasdep")
    real = step("type") != Op.NOP
    report(
        problems,
        real & (count < 1),
        F421,
        raw.step_place,
        "cnt to be at least 1",
        lambda row: f"cnt={count[row]}",
    )
    report(
        problems,
        (flag != 0) & (flag != 1),
        F422,
        raw.step_place,
        "hasdep to be 0 or 1",
        lambda row: f"hasdep={flag[row]}",
    )


def _check_header(raw: RawFile, problems: Problems) -> None:
    header, at = raw.header, raw.algo_place()
    for name in ("ngpus", "nchannels"):
        value = getattr(header, name)
        if value < 1:
            problems.add(F422, at, expected=f"{name} to be at least 1", found=f"{name}={value}")
    for name in ("inplace", "outofplace"):
        value = getattr(header, name)
        if value not in (None, 0, 1):
            problems.add(F422, at, expected=f"{name} to be 0 or 1", found=f"{name}={value}")
    for name, value in (("minBytes", header.min_bytes), ("maxBytes", header.max_bytes)):
        if value is not None and value < 0:
            problems.add(F422, at, expected=f"{name} not to be negative", found=f"{name}={value}")
    if header.ngpus * header.nchunksperloop > MAX_CHUNKS:
        problems.add(
            F403,
            at,
            expected=f"at most {MAX_CHUNKS} chunks on all ranks together",
            found=f"ngpus={header.ngpus}, nchunksperloop={header.nchunksperloop}",
        )


def _check_gpus(raw: RawFile, problems: Problems) -> None:
    ranks, ids = raw.header.ngpus, raw.gpu("id")
    outside = (ids < 0) | (ids >= ranks)
    report(
        problems,
        outside | _is_repeated(ids),
        F412,
        raw.gpu_place,
        f"each id from 0 to {ranks - 1} once",
        lambda row: f"id={ids[row]}" + ("" if outside[row] else " again"),
    )
    present = np.unique(ids[~outside])
    if len(present) < ranks and len(present) == len(ids) and not problems.full:
        gaps = np.flatnonzero(present != np.arange(len(present)))
        first = int(gaps[0]) if len(gaps) else len(present)
        problems.add(
            F412,
            raw.algo_place(),
            expected=f"{ranks} GPUs, as ngpus says",
            found=f"{len(present)} of them; the first missing one is {first}",
        )
    for name in ("i_chunks", "o_chunks", "s_chunks"):
        sizes = raw.gpu(name)
        report(
            problems,
            sizes < 0,
            F422,
            raw.gpu_place,
            f"{name} not to be negative",
            lambda row, name=name, sizes=sizes: f"{name}={sizes[row]}",  # type: ignore[misc]
        )
    scratch = int(raw.gpu("s_chunks").sum())
    if scratch > MAX_CHUNKS:
        problems.add(
            F403,
            raw.algo_place(),
            expected=f"at most {MAX_CHUNKS} chunks on all ranks together",
            found=f"{scratch} chunks of scratch",
        )


def _check_blocks(raw: RawFile, problems: Problems) -> None:
    gpu, ids = raw.block("gpu"), raw.block("id")
    size = np.bincount(gpu, minlength=len(raw.gpus))[gpu] if len(gpu) else gpu
    outside = (ids < 0) | (ids >= size)
    again = _is_repeated(gpu * (1 << 32) + ids)
    report(
        problems,
        outside | again,
        F412,
        raw.block_place,
        lambda row: f"each id from 0 to {size[row] - 1} once: the GPU has {size[row]} blocks",
        lambda row: f"id={ids[row]}" + (" again" if again[row] else ""),
    )


def _check_step_order(raw: RawFile, problems: Problems) -> None:
    s, position = raw.step("s"), positions(raw.step("block"), len(raw.blocks))
    wrong = s != position
    block = raw.step("block")
    # One problem a block, since after the first wrong number all others are wrong as well.
    first = np.zeros(len(s), np.bool_)
    rows = np.flatnonzero(wrong)
    first[rows[np.unique(block[rows], return_index=True)[1]]] = True
    report(
        problems,
        first,
        F414,
        raw.step_place,
        lambda row: f"s={position[row]}",
        lambda row: f"s={s[row]}",
    )


def _check_peers(raw: RawFile, problems: Problems) -> None:
    ranks = raw.header.ngpus
    own = raw.gpu("id")[raw.block("gpu")] if len(raw.blocks) else raw.block("gpu")
    ops, block = raw.step("type"), raw.step("block")
    swapped = _swapped_ids(raw, own)
    for name, uses in (("send", SENDS), ("recv", RECEIVES)):
        peer = raw.block(name)
        report(
            problems,
            (peer < NONE) | (peer >= ranks) | (peer == own),
            F417,
            raw.block_place,
            lambda row, own=own: (  # type: ignore[misc]
                f"a GPU from 0 to {ranks - 1} other than {own[row]}, or -1"
            ),
            lambda row, name=name, peer=peer: f"{name}={peer[row]}",  # type: ignore[misc]
            swapped,
        )
        alone = uses[ops] & (peer[block] == NONE) if len(block) else np.zeros(0, np.bool_)
        report(
            problems,
            alone,
            F417,
            raw.step_place,
            f"a block with a {name} peer",
            lambda row, name=name: f"{name}=-1",  # type: ignore[misc]
            remedy="Give the block the intended peer of the step.",
        )


def _swapped_ids(raw: RawFile, own: NDArray[np.int64]) -> str:
    """A remedy if blocks of two GPUs name their own GPU, and none would if these exchanged their
    ids; else "". own: the id of each block's GPU."""
    peers = np.stack([raw.block("send"), raw.block("recv")])
    both = np.unique(np.broadcast_to(own, peers.shape)[peers == own]).tolist()
    if len(both) != 2:
        return ""
    one, other = both
    exchanged = np.where(own == one, other, np.where(own == other, one, own))
    if (peers == exchanged).any():
        return ""
    return f"Exchange the ids of GPUs {one} and {other}, which seem swapped, or correct the peers."


def _check_channels(raw: RawFile, problems: Problems) -> None:
    channel = raw.block("chan")
    local = (raw.block("send") == NONE) & (raw.block("recv") == NONE)
    outside = (channel < 0) | (channel >= raw.header.nchannels)
    report(
        problems,
        outside & ~(local & (channel == NONE)),
        F419,
        raw.block_place,
        f"a channel from 0 to {raw.header.nchannels - 1}, as nchannels says",
        lambda row: f"chan={channel[row]}",
    )


def wait_targets(raw: RawFile, problems: Problems) -> NDArray[np.int64]:
    """int64 (steps,): the row of the step that each step waits for, or NONE. Reports waits for
    steps that don't exist, and for the step itself or later ones of its block.

    The ids of GPUs and blocks must be right.
    """
    depid, deps, block = raw.step("depid"), raw.step("deps"), raw.step("block")
    target = np.full(len(depid), NONE, np.int64)
    rows = np.flatnonzero(depid != NONE)
    if not len(rows):
        return target
    steps = np.bincount(block, minlength=len(raw.blocks))
    by_id = np.lexsort((raw.block("id"), raw.block("gpu")))
    blocks_of = np.bincount(raw.block("gpu"), minlength=len(raw.gpus))
    gpu = raw.block("gpu")[block[rows]]
    exists = (depid[rows] >= 0) & (depid[rows] < blocks_of[gpu])
    named = np.zeros(len(rows), np.int64)
    named[exists] = by_id[(offsets_of(blocks_of)[gpu] + depid[rows])[exists]]
    exists &= (deps[rows] >= 0) & (deps[rows] < steps[named])
    bad = np.zeros(len(depid), np.bool_)
    bad[rows[~exists]] = True
    report(
        problems,
        bad,
        F415,
        raw.step_place,
        "a block and a step of this GPU that exist, or depid=-1",
        lambda row: f"depid={depid[row]}, deps={deps[row]}",
    )
    start = offsets_of(steps)
    target[rows[exists]] = (start[named] + deps[rows])[exists]
    own = np.zeros(len(depid), np.bool_)
    own[rows] = exists & (named == block[rows])
    report(
        problems,
        own & (target >= np.arange(len(target))),
        F415,
        raw.step_place,
        "a step of another block",
        lambda row: f"depid={depid[row]}, deps={deps[row]}: this block, not earlier than this step",
        remedy="Name a step of another block, or an order without a cycle.",
    )
    return target


def positions(group: NDArray[Any], groups: int) -> NDArray[np.int64]:
    """int64 (rows,): each row's number within its group, whose rows are consecutive."""
    start = offsets_of(np.bincount(group, minlength=groups))
    number: NDArray[np.int64] = np.arange(len(group), dtype=np.int64) - start[group]
    return number


def _is_repeated(values: NDArray[np.int64]) -> _Mask:
    """Whether each value is that of an earlier row."""
    mask = np.ones(len(values), np.bool_)
    mask[np.unique(values, return_index=True)[1]] = False
    return mask
