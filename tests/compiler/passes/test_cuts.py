"""Cuts: copies within a rank are cut where sends read parts of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes.copies import forward_copies
from sley.compiler.passes.cuts import cut_copies
from sley.compiler.passes.parallelize import parallelize
from sley.ir.dag import Forwarded, Operands
from sley.ir.words import Op
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.written_programs import program_of
from support.machines.contents import meaning


def pieces(text: str, widest: int | None = None) -> list[tuple[int, int, int]]:
    """The copies within rank 0, cut: the first chunks of source and destination, and how many."""
    program = program_of(text)
    t = cut_copies(Forwarded(program, Operands.at_destinations(program)), widest).program.transfers
    rows = np.flatnonzero(~t.remote)
    return [(int(t.src_index[k]), int(t.dst_index[k]), int(t.count[k])) for k in rows]


SENDS = "0 in[1] -> 1 out[0]\n 0 in[2:4] -> 2 out[0]"


def test_a_copy_is_cut_at_the_borders_of_the_sends_inside_it() -> None:
    assert pieces(f"0 in[0:6] -> 0 out[2]\n {SENDS}") == [
        (0, 2, 1),
        (1, 3, 1),
        (2, 4, 2),
        (4, 6, 2),
    ]
    assert pieces(f"{SENDS}\n 0 in[1:4] -> 0 out[0]") == [(1, 0, 1), (2, 1, 2)]


def test_of_sends_that_share_chunks_the_first_and_widest_counts() -> None:
    wide = "0 in[1:3] -> 1 out[4]"
    assert pieces(f"0 in[0:4] -> 0 out[0]\n {SENDS}\n {wide}") == [(0, 0, 1), (1, 1, 2), (3, 3, 1)]


def test_of_copies_of_the_same_chunks_one_is_cut_for_a_send() -> None:
    copies = "\n ".join(f"0 in[0:4] -> 0 out[{4 * k}]" for k in range(3))
    whole = [(0, 4, 4), (0, 8, 4)]
    assert pieces(f"{copies}\n {SENDS}") == [(0, 0, 1), (1, 1, 1), (2, 2, 2), *whole]
    twice = [(0, 4, 1), (1, 5, 1), (2, 6, 2), (0, 8, 4)]
    assert pieces(f"{copies}\n {SENDS}\n 0 in[1] -> 3 out[0]")[3:] == twice


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"0 in[4:6] -> 0 out[0]\n {SENDS}", id="others"),
        pytest.param("0 in[2:5] -> 0 out[0]\n 0 in[1:4] -> 1 out[0]", id="a part"),
        pytest.param(f"0 in[1:4] -> 0 out[0]\n {SENDS}\n 0 in[1:4] -> 3 out[0]", id="the whole"),
        pytest.param("0 in[1:4] -> 0 out[0]\n 0 in[1] -> 1 out[0] lane 1", id="another lane"),
        pytest.param("0 in[1:4] -> 0 out[0]\n 1 in[1] -> 0 in[1]\n 0 in[1] -> 1 out[0]", id="new"),
        pytest.param("1 in[1] -> 0 in[1]\n 0 in[1:4] -> 0 out[0]\n 0 in[1] -> 1 out[0]", id="got"),
        pytest.param("0 in[1:4] +> 0 out[0]\n 0 in[1] -> 1 out[0]", id="a reduction"),
        pytest.param(
            "0 in[1:4] -> 0 out[0] send_block 1\n 0 in[1] -> 1 out[0] send_block 2 channel 0",
            id="another block",
        ),
    ],
)
def test_other_copies_stay_whole(text: str) -> None:
    assert [count for *_, count in pieces(text)] == [2 if "in[4:6]" in text else 3]


def test_sends_too_wide_to_be_fused_cut_nothing() -> None:
    text = "0 in[0:4] -> 0 out[0]\n 0 in[0:3] -> 1 out[0]"
    assert pieces(text, 2) == [(0, 0, 4)]
    assert pieces(text, 3) == [(0, 0, 3), (3, 3, 1)]


@examples(36)
@given(random_programs(max_operations=16), st.integers(1, 2))
def test_random_programs_keep_their_meaning(random: RandomProgram, instances: int) -> None:
    found = forward_copies(parallelize(random.program, instances))
    cut = cut_copies(found)
    assert meaning(cut) == meaning(found)
    assert cut_copies(cut) == cut


@pytest.mark.parametrize("schedule", ["msccl", "hpds", "round-robin"])
@pytest.mark.parametrize(
    "build", [sley.algorithms.all_pairs_broadcast, sley.algorithms.ring_broadcast]
)
def test_the_root_of_a_broadcast_copies_while_it_sends(build: object, schedule: str) -> None:
    plan = sley.compile(build(4), schedule=schedule)  # type: ignore[operator]
    ops = plan.instructions.op
    assert Op.COPY_SEND in ops
    assert Op.COPY not in ops
    apart = sley.compile(build(4), schedule=schedule, fusion=False)  # type: ignore[operator]
    assert (apart.instructions.op == Op.COPY).sum() == 1
