"""Notes: remarks on a file that was read in spite of its oddities (F430 to F434)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sley.errors import Diagnostic, Place, Rule
from sley.errors.formats import F430, F431, F432, F433
from sley.formats.msccl_xml.raw import RawFile
from sley.ir.collective import Collective
from sley.ir.tables import NONE
from sley.ir.words import Buffer

_Mask = NDArray[np.bool_]


def about_rows(
    mask: _Mask,
    rule: Rule,
    place: Callable[[int], Place],
    expected: str,
    found: str,
) -> list[Diagnostic]:
    """One remark on all rows of `mask`, at the first of them; none without rows."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return []
    more = [f"and {len(rows) - 1} more like it"] if len(rows) > 1 else []
    at = place(int(rows[0]))
    return [rule.diagnostic(at=at, expected=expected, found=found, notes=more)]


def about_ignored(raw: RawFile) -> list[Diagnostic]:
    """Remarks on what the parser ignored."""
    return [
        F431.diagnostic(
            at=Place(raw.file, remark.line, remark.column),
            expected="only elements and attributes that define the steps",
            found=f"{remark.what}, {remark.times} times" if remark.times > 1 else remark.what,
        )
        for remark in raw.ignored
    ]


def about_silent_waits(raw: RawFile, target: NDArray[np.int64]) -> list[Diagnostic]:
    """Remarks on waits for steps without hasdep, read as waits for these steps."""
    return about_rows(
        (target != NONE) & ~_own_waits(raw, target) & (raw.step("hasdep")[target] == 0),
        F430,
        raw.step_place,
        'a wait for a step with hasdep="1"',
        'a wait for a step with hasdep="0", read as a wait for this step; a runtime waits for a '
        "later step, or for ever: --target proves which",
    )


def about_own_waits(raw: RawFile, target: NDArray[np.int64]) -> list[Diagnostic]:
    """Remarks on waits for steps of the same block: those that end in runtimes too, since the
    block has announced the step or a later one, and the others."""
    own = _own_waits(raw, target)
    announced = np.concatenate([[0], np.cumsum(raw.step("hasdep") != 0)])
    ends = announced[: len(target)] > announced[target]
    found = "a wait for the block's own step"
    silent = f"{found}, which it has not announced: a runtime may wait for ever (--target)"
    return [
        note
        for rows, text in ((own & ends, found), (own & ~ends, silent))
        for note in about_rows(rows, F432, raw.step_place, "waits for other blocks", text)
    ]


def about_idle_numbers(raw: RawFile) -> list[Diagnostic]:
    """Remarks on numbers of steps that nothing waits for: deps without depid."""
    return about_rows(
        (raw.step("depid") == NONE) & (raw.step("deps") != NONE),
        F431,
        raw.step_place,
        'deps="-1" where depid="-1"',
        "a number in deps, which is ignored: the step waits for nothing",
    )


def _own_waits(raw: RawFile, target: NDArray[np.int64]) -> _Mask:
    block = raw.step("block")
    own: _Mask = (target != NONE) & (block[target] == block)
    return own


def about_nops(raw: RawFile, dropped: _Mask) -> list[Diagnostic]:
    """Remarks on nops without effect, which were left out."""
    return about_rows(
        dropped,
        F432,
        raw.step_place,
        "nops that wait, each followed by a step",
        "a nop without effect",
    )


def about_sizes(raw: RawFile, collective: Collective, past_declared: _Mask) -> list[Diagnostic]:
    """Remarks on declared buffer sizes other than the collective's, and on offsets beyond them.

    In place, a file may use one name for all data: then a size is 0, or that of all data.
    """
    rank = raw.gpu("id")
    notes = []
    for buffer, name in ((Buffer.INPUT, "i_chunks"), (Buffer.OUTPUT, "o_chunks")):
        sizes = collective.input_chunks if buffer is Buffer.INPUT else collective.output_chunks
        declared, wanted = raw.gpu(name), sizes[rank]
        same = declared == wanted
        if collective.in_place:
            same |= (declared == 0) | (declared == collective.data_chunks[rank])
        if same.all():
            continue
        row = int(np.flatnonzero(~same)[0])
        notes += about_rows(
            ~same,
            F433,
            raw.gpu_place,
            f"{name}={wanted[row]}, as in {collective}",
            f"{name}={declared[row]}",
        )
    return notes + about_rows(
        past_declared,
        F433,
        raw.step_place,
        "offsets below the declared size",
        "an offset beyond it, but inside the collective's buffer",
    )
