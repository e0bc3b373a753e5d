"""Malformed plans: tables that contradict one another give V201, whatever else is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sley
from sley.ir.plan import Plan
from sley.ir.tables import Edges
from sley.ir.words import Op
from support.mutants.plan_edits import with_columns

PLAN = sley.compile(sley.algorithms.all_pairs_allreduce(3))
BLOCKS, ROWS = len(PLAN.block_rank), len(PLAN.instructions)


def edges(offset: list[int], target: list[int]) -> Edges:
    return Edges(np.array(offset), np.array(target))


def changed(values: Any, position: int, value: int) -> Any:
    values = values.astype(np.int64)
    values[position] = value
    return values


TABLES: dict[str, dict[str, Any]] = {
    "no slots": {"slots": 0},
    "half a slot": {"slots": 1.5},
    "a rank too high": {"block_rank": changed(PLAN.block_rank, -1, 99)},
    "a negative rank": {"block_rank": changed(PLAN.block_rank, 0, -1)},
    "ranks unsorted": {"block_rank": PLAN.block_rank[::-1]},
    "ranks missing": {"block_rank": PLAN.block_rank[:-1]},
    "no ranks": {"block_rank": PLAN.block_rank[:0]},
    "offsets missing": {"block_offset": PLAN.block_offset[:-1]},
    "no offsets": {"block_offset": PLAN.block_offset[:0]},
    "offsets shifted": {"block_offset": PLAN.block_offset + 1},
    "offsets falling": {"block_offset": PLAN.block_offset[::-1]},
    "an offset beyond": {"block_offset": changed(PLAN.block_offset, -1, 10**12)},
    "the last offset early": {"block_offset": changed(PLAN.block_offset, -1, ROWS - 1)},
    "waits missing": {"waits": edges([0] * ROWS, [])},
    "too many waits": {"waits": edges([0] * (ROWS + 4), [])},
    "wait offsets beyond": {"waits": edges([0] * ROWS + [5], [])},
    "wait offsets falling": {"waits": edges([0, 2, 1] + [2] * (ROWS - 2), [0, 1])},
    "a wait beyond": {"waits": edges([0] * ROWS + [1], [10**6])},
    "scratch missing": {"scratch_chunks": PLAN.scratch_chunks[:-1]},
    "negative scratch": {"scratch_chunks": PLAN.scratch_chunks - 5},
    "another collective": {"collective": sley.AllReduce(2, 2)},
}

ROW_VALUES = [
    ("op", 99),
    ("op", -1),
    ("src_buffer", 7),
    ("src_index", 10**6),
    ("src_index", -1),
    ("dst_buffer", -3),
    ("dst_index", 2**31 - 1),
    ("count", 0),
    ("count", 2**31 - 1),
    ("send_peer", 3),
    ("recv_peer", -2),
    ("channel", -5),
    ("source", 10**6),
]


def refused(plan: Plan) -> None:
    with pytest.raises(sley.SleyError, match=r"V20|R514"):
        sley.verify(plan)


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_do_not_fit_are_refused(name: str) -> None:
    refused(replace(PLAN, **TABLES[name]))


@pytest.mark.parametrize(("column", "value"), ROW_VALUES)
def test_values_that_mean_nothing_are_refused(column: str, value: int) -> None:
    for row in range(ROWS):
        broken = with_columns(PLAN, row, **{column: value})
        if value == getattr(PLAN.instructions, column)[row]:
            continue
        try:
            sley.verify(broken)
        except sley.SleyError as error:
            assert error.code in ("V201", "V202")
        else:
            # A column that this operation doesn't use may hold anything.
            assert column not in ("op", "count", "source")


@pytest.mark.parametrize("column", ["src_index", "dst_index"])
def test_a_range_that_ends_one_chunk_behind_its_buffer_is_refused(column: str) -> None:
    row = int(np.flatnonzero(PLAN.instructions.op == Op.RECV_REDUCE_COPY)[0])
    with pytest.raises(sley.SleyError, match=r"V201[^V]*inside its buffer"):
        sley.verify(with_columns(PLAN, row, **{column: int(PLAN.layout.size[0, 0])}))


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_local_operation_whose_ranges_overlap_is_refused(shift: int) -> None:
    """Shifted by a chunk its threads would read what others have overwritten."""

    def body(p: sley.lang.ChunkProgram) -> None:
        p.chunk(0, "in", 1, 2).copy(0, "scratch", 0)

    collective = sley.Custom("any", 1, 4, 1, lambda rank, index: None)
    plan = sley.compile(sley.trace(collective, body))
    overlapping = with_columns(with_columns(plan, 0, dst_buffer=0), 0, dst_index=1 + shift)
    with pytest.raises(sley.SleyError, match="V208"):
        sley.verify(overlapping)


def test_a_reducing_receive_whose_ranges_overlap_in_part_is_refused() -> None:
    def body(p: sley.lang.ChunkProgram) -> None:
        p.chunk(0, "in", 0, 2).reduce(p.chunk(1, "in", 0, 2))

    collective = sley.Custom("any", 2, 4, 1, lambda rank, index: None)
    plan = sley.compile(sley.trace(collective, body))
    row = int(np.flatnonzero(plan.instructions.recv_peer == 1)[0])
    with pytest.raises(sley.SleyError, match="V208"):
        sley.verify(with_columns(plan, row, dst_index=1))
    sley.verify(with_columns(plan, row, dst_index=2))


def test_slots_that_mean_nothing_are_refused() -> None:
    with pytest.raises(sley.SleyError, match="R514"):
        sley.verify(PLAN, slots=0)


def test_a_collective_that_is_not_what_it_is_called_is_refused() -> None:
    nothing = sley.Custom("nothing", 3, 3, 3, lambda rank, index: None, chunks=3)
    sley.verify(replace(PLAN, collective=nothing))
    with pytest.raises(sley.SleyError, match=r"L118[^V]*the buffers and results of sley.AllReduce"):
        sley.verify(replace(PLAN, collective=replace(nothing, name="allreduce")))
