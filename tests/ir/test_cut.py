"""The cut of blocks into chunks, and the homes of chunks in scratch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.connections import Messages
from sley.ir.cut import UNIT_BYTES, Homes, border, longest_chunk
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.words import Op
from support.inputs import small_plans
from support.inputs.algorithm_cases import SIZED, label, program, sizes

ITEMS = st.sampled_from([1, 2, 4, 8])


def borders(chunks: int, count: int, item: int) -> list[int]:
    return [int(b) for b in border(np.arange(chunks + 1), chunks, count, item)]


@given(st.integers(1, 40), st.integers(0, 5000), ITEMS, st.integers(1, 6))
def test_chunks_are_a_block_in_whole_units_that_finer_cuts_keep(
    chunks: int, count: int, item: int, instances: int
) -> None:
    found = borders(chunks, count, item)
    assert (found[0], found[-1]) == (0, count)
    assert all(b * item % UNIT_BYTES == 0 for b in found[:-1])
    assert set(found) <= set(borders(chunks * instances, count, item))
    lengths = [end - first for first, end in pairwise(found)]
    units = [-(-n * item // UNIT_BYTES) for n in lengths]
    assert max(units) - min(units) <= 1
    longest = longest_chunk(chunks, count, item)
    assert max(lengths) <= longest < max(lengths) + UNIT_BYTES // item


@pytest.mark.parametrize("item", [4, 2], ids=["float32", "bfloat16"])
def test_every_chunk_of_every_count_begins_aligned(item: int) -> None:
    """Borders at `i * count // chunks` are all aligned for 6 % of float32 in 8 chunks."""
    counts = np.random.default_rng(item).integers(1, 1 << 28, 200_000)
    for chunks in (8, 64, 128):
        for chunk in range(chunks):
            assert not (border(chunk, chunks, counts, item) * item % UNIT_BYTES).any()


def homes(plan: Plan) -> Homes:
    plan = without_groups(plan)
    return Homes.of(plan, Messages.of(plan))


@pytest.mark.parametrize("name", SIZED)
def test_no_algorithm_keeps_a_chunk_at_the_place_of_another(name: str) -> None:
    case = (name, {**sizes(name)[-1], "in_place": False})
    assert not homes(sley.compile(program(*case), instances=2)).misplaced, label(case[1])


def test_scratch_has_the_home_of_what_comes_through_messages() -> None:
    """Chunk 1 of a block goes through scratch of both ranks, and back to another block."""
    hand = small_plans.Hand()
    hand.add(0, 0, Op.COPY, (small_plans.IN, 1), (small_plans.SCRATCH, 2))
    hand.add(0, 0, Op.SEND, (small_plans.SCRATCH, 2), to=1)
    hand.add(1, 0, Op.RECV, dst=(small_plans.SCRATCH, 0), of=0)
    hand.add(1, 0, Op.SEND, (small_plans.SCRATCH, 0), to=0)
    hand.add(0, 0, Op.RECV, dst=(small_plans.OUT, 3), of=1)
    found = homes(hand.plan(sley.AllGather(2, chunks=2), scratch=4))
    assert not found.misplaced
    assert found.offset.tolist() == [0, 3, 4]
    assert found.scratch[[2, 3]].tolist() == [1, 1]
    hand.add(1, 0, Op.SEND, (small_plans.SCRATCH, 0), to=0)
    hand.add(0, 0, Op.RECV, dst=(small_plans.OUT, 2), of=1)
    assert homes(hand.plan(sley.AllGather(2, chunks=2), scratch=4)).misplaced
