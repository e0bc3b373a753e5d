"""Notes of wrong results: who never hears from whom, and what a chunk holds instead."""

from __future__ import annotations

import pytest

import sley
from sley.lang import ChunkProgram
from sley.verification.reach import spell_ranks


def notes(program: sley.Program) -> tuple[str, list[str]]:
    with pytest.raises(sley.SleyError) as error:
        sley.compile(program)
    (found,) = error.value.diagnostics
    assert found.code == "V206"
    return found.found, list(found.notes)


def test_groups_of_ranks_that_never_exchange_anything_are_named() -> None:
    def body(p: ChunkProgram) -> None:
        for ranks in ((0, 1, 2), (3, 4, 5)):
            total = p.chunk(ranks[0], "in", 0)
            for rank in ranks[1:]:
                total = p.chunk(rank, "in", 0).reduce(total)
            for rank in ranks[:2]:
                total.copy(rank, "in", 0)

    _, found = notes(sley.trace(sley.AllReduce(6, 1, in_place=True), body, name="two groups"))
    assert found[1:3] == [
        "ranks 0-2 never hear from ranks 3-5",
        "ranks 3-5 never hear from ranks 0-2",
    ]


def test_a_rank_that_is_left_out_is_named() -> None:
    def body(p: ChunkProgram) -> None:
        total = p.chunk(1, "in", 0).reduce(p.chunk(0, "in", 0))
        for rank in (0, 2):
            total.copy(rank, "in", 0)

    _, found = notes(sley.trace(sley.AllReduce(3, 1, in_place=True), body, name="forgetful"))
    assert "ranks 0-1 never hear from rank 2" in found


def test_data_count_only_if_they_arrive_before_a_rank_sends() -> None:
    def body(p: ChunkProgram) -> None:
        def share(src: int, dst: int) -> None:
            p.chunk(src, "in", 0, 2).copy(dst, "out", 2 * src)

        for src, dst in ((1, 2), (0, 1), (0, 0), (1, 1), (2, 2), (2, 1), (1, 0), (2, 0)):
            share(src, dst)

    _, found = notes(sley.trace(sley.AllGather(3, 2), body, name="late"))
    assert found[1] == "rank 2 never hears from rank 0"


def test_a_chunk_of_one_input_names_what_it_holds_instead() -> None:
    def body(p: ChunkProgram) -> None:
        for rank in range(2):
            for place in range(2):
                p.chunk(1 - place, "in", 0).copy(rank, "out", place)

    found, more = notes(sley.trace(sley.AllGather(2), body, name="swapped"))
    assert found == "in[0] of rank 1 instead"
    assert not any("never" in note for note in more)


def test_ranks_are_spelt_as_spans() -> None:
    assert spell_ranks([3]) == "rank 3"
    assert spell_ranks([0, 1, 2, 5]) == "ranks 0-2, 5"
    assert spell_ranks(list(range(0, 20, 2))) == "ranks 0, 2, 4, 6, 8, 10 and 4 more"
