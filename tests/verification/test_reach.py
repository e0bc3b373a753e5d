"""Notes of wrong results: who never hears from whom, and what a chunk holds instead."""

from __future__ import annotations

from collections.abc import Callable

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


def lacking(*, ranks: int, lacks: Callable[[int, int], bool], in_place: bool) -> str:
    """The error of an AllReduce in which chunk c doesn't come from rank c to some ranks."""

    @sley.program(sley.AllReduce(ranks, chunks=ranks, in_place=in_place))
    def body(p: sley.ChunkProgram) -> None:
        buffer = "in" if in_place else "out"
        for c in range(ranks):
            total = p.chunk(c, "in", c)
            total = total if in_place else total.copy(c, "out", c)
            for turn in range(1, ranks):
                total = total.reduce(p.chunk((c + turn) % ranks, "in", c))
            for rank in range(ranks):
                if rank != c and not lacks(rank, c):
                    total.copy(rank, buffer, c)

    with pytest.raises(sley.SleyError) as caught:
        sley.compile(body)
    (found,) = caught.value.diagnostics
    assert found.code == "V206"
    return "\n".join([found.found, *found.notes])


def test_chunks_to_which_nothing_came_are_told_as_one_shape() -> None:
    behind = lacking(ranks=8, lacks=lambda rank, c: (c - rank) % 4 == 1, in_place=True)
    assert behind == (
        "nothing arrived: it holds the rank's own input alone\n"
        "16 of 64 promised chunks are wrong\n"
        "nothing arrived at out[(r + 1) % 8], out[(r + 5) % 8] of each rank, r"
    )
    equal = lacking(ranks=6, lacks=lambda rank, c: c == 5 and rank > 2, in_place=False)
    assert equal.startswith("nothing was written there\n2 of 36")  # rank 5 has it
    assert "nothing arrived" not in equal, "two chunks are told one by one"
    equal = lacking(ranks=6, lacks=lambda rank, c: c in (4, 5) and rank in (1, 3), in_place=False)
    assert "nothing arrived at out[4], out[5] of each of ranks 1, 3" in equal
    other = lacking(ranks=4, lacks=lambda rank, c: rank < 2 and c == rank**2 + 1, in_place=True)
    assert other.count("holds the rank's own input alone") == 2
