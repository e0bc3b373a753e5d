"""Notes: remarks on a file that was read in spite of its oddities (F430 to F434)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sley.errors import Diagnostic
from sley.errors.formats import F430, F431, F432, F433
from sley.formats.msccl_xml.raw import RawFile
from sley.ir.collective import Collective
from sley.ir.tables import NONE, BoolArray


def about_ignored(raw: RawFile) -> list[Diagnostic]:
    """Remarks on what the parser ignored."""
    return [
        F431.diagnostic(
            at=first,
            expected="only elements and attributes that define the steps",
            found=f"{what}, {times} times" if times > 1 else what,
        )
        for what, (times, first) in raw.ignored.items()
    ]


def about_silent_waits(raw: RawFile, target: NDArray[np.int64]) -> list[Diagnostic]:
    """Remarks on waits for steps without hasdep, read as waits for these steps."""
    return raw.steps.remark(
        (target != NONE) & ~_own_waits(raw, target) & (raw.steps["hasdep"][target] == 0),
        F430,
        'a wait for a step with hasdep="1"',
        'a wait for a step with hasdep="0", read as a wait for this step; a runtime waits for a '
        "later step, or for ever: --target proves which",
    )


def about_own_waits(raw: RawFile, target: NDArray[np.int64]) -> list[Diagnostic]:
    """Remarks on waits for steps of the same block: those that end in runtimes too, since the
    block has announced the step or a later one, and the others."""
    own = _own_waits(raw, target)
    announced = np.concatenate([[0], np.cumsum(raw.steps["hasdep"] != 0)])
    ends = announced[: len(target)] > announced[target]
    expected, found = "waits for other blocks", "a wait for the block's own step"
    silent = f"{found}, which it has not announced: a runtime may wait for ever (--target)"
    return [
        *raw.steps.remark(own & ends, F432, expected, found),
        *raw.steps.remark(own & ~ends, F432, expected, silent),
    ]


def _own_waits(raw: RawFile, target: NDArray[np.int64]) -> BoolArray:
    block = raw.steps["tb"]
    own: BoolArray = (target != NONE) & (block[target] == block)
    return own


def about_idle_numbers(raw: RawFile) -> list[Diagnostic]:
    """Remarks on numbers of steps that nothing waits for: deps without depid."""
    return raw.steps.remark(
        (raw.steps["depid"] == NONE) & (raw.steps["deps"] != NONE),
        F431,
        'deps="-1" where depid="-1"',
        "a number in deps, which is ignored: the step waits for nothing",
    )


def about_nops(raw: RawFile, dropped: BoolArray) -> list[Diagnostic]:
    """Remarks on nops without effect, which were left out."""
    expected = "nops that wait, each followed by a step"
    return raw.steps.remark(dropped, F432, expected, "a nop without effect")


def about_sizes(raw: RawFile, collective: Collective, past_declared: BoolArray) -> list[Diagnostic]:
    """Remarks on declared buffer sizes other than the collective's, and on offsets beyond them.

    In place, a file may use one name for all data: then a size is 0, or that of all data.
    """
    rank, notes = raw.gpus["id"], list[Diagnostic]()
    for name, sizes in (
        ("i_chunks", collective.input_chunks),
        ("o_chunks", collective.output_chunks),
    ):
        declared, wanted = raw.gpus[name], sizes[rank]
        same = declared == wanted
        if collective.in_place:
            same |= (declared == 0) | (declared == collective.data_chunks[rank])
        row = int(np.argmin(same))
        expected = f"{name}={wanted[row]}, as in {collective}"
        notes += raw.gpus.remark(~same, F433, expected, f"{name}={declared[row]}")
    return notes + raw.steps.remark(
        past_declared,
        F433,
        "offsets below the declared size",
        "an offset beyond it, but inside the collective's buffer",
    )
