"""Mistakes in chunk programs: each is a coded diagnostic that names the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import sley
from sley.lang import ChunkProgram

Body = Callable[[ChunkProgram], object]


def uninitialised_output(p: ChunkProgram) -> None:
    p.chunk(0, "out", 0)  # here


def uninitialised_scratch(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(0, "scratch", 1)
    p.chunk(0, "scratch", 0)  # here


def uninitialised_in_the_middle(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(0, "scratch", 0)
    p.chunk(0, "in", 1).copy(0, "scratch", 2)
    p.chunk(0, "scratch", 0, 3)  # here


def stale_after_reduce(p: ChunkProgram) -> None:
    old = p.chunk(0, "in", 0)
    old.reduce(p.chunk(1, "in", 0))
    old.copy(2, "out", 0)  # here


def stale_after_copy(p: ChunkProgram) -> None:
    old = p.chunk(1, "in", 1)
    p.chunk(0, "in", 0, 2).copy(1, "in", 0)
    p.chunk(2, "in", 1).reduce(old)  # here


def stale_in_array(p: ChunkProgram) -> None:
    old = p.chunk([0, 1, 2], "in", 0)
    p.chunk(3, "in", 0).copy(1, "in", 0)
    old.copy([1, 2, 3], "out", 0)  # here


def unequal_counts(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0, 2).reduce(p.chunk(1, "in", 0))  # here


def unequal_lengths(p: ChunkProgram) -> None:
    p.chunk([0, 1], "in", 0).reduce(p.chunk(2, "in", 0))  # here


def rank_too_large(p: ChunkProgram) -> None:
    p.chunk(4, "in", 0)  # here


def rank_negative(p: ChunkProgram) -> None:
    p.chunk(-1, "in", 0)  # here


def destination_rank_too_large(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(4, "in", 0)  # here


def rank_in_array(p: ChunkProgram) -> None:
    p.chunk(np.arange(5), "in", 0)  # here


def index_too_large(p: ChunkProgram) -> None:
    p.chunk(0, "in", 4)  # here


def index_negative(p: ChunkProgram) -> None:
    p.chunk(0, "in", -1)  # here


def scratch_index_negative(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(0, "scratch", -1)  # here


def scratch_index_absurd(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(0, "scratch", 10**12)  # here


def end_too_large(p: ChunkProgram) -> None:
    p.chunk(0, "in", 3, 2)  # here


def count_zero(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0, 0)  # here


def count_of_wrong_kind(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0, 1.5)  # type: ignore[arg-type]  # here


def unknown_buffer(p: ChunkProgram) -> None:
    p.chunk(0, "tmp", 0)  # here


def overlapping_copy(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0, 2).copy(0, "in", 1)  # here


def copy_onto_itself(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(0, "in", 0)  # here


def dependent_elements(p: ChunkProgram) -> None:
    p.chunk([0, 1], "in", 0).copy([1, 1], "out", 0)  # here


def element_reads_what_another_writes(p: ChunkProgram) -> None:
    p.chunk([0, 1], "in", 0).copy([1, 2], "in", 0)  # here


def nothing_to_reduce(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).reduce(None)  # type: ignore[arg-type]  # here


def text_as_rank(p: ChunkProgram) -> None:
    p.chunk("0", "in", 0)  # here


def lengths_that_do_not_fit(p: ChunkProgram) -> None:
    p.chunk([0, 1], "in", [0, 1, 2])  # here


def negative_channel(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(1, "out", 0, channel=-2)  # here


def no_instances(p: ChunkProgram) -> None:
    with p.parallelize(0):  # here
        pass


def absurd_channel(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(1, "out", 0, channel=2**40)  # here


def negative_lane(p: ChunkProgram) -> None:
    with p.lane(-1):  # here
        pass


def transfer_in_a_lane(p: ChunkProgram) -> None:
    with p.lane(1):
        p.transfer(0, 1, 0, 0, "recv")  # here


def absurd_instances(p: ChunkProgram) -> None:
    with p.parallelize(100), p.parallelize(100):  # here
        pass


MISTAKES: list[tuple[Body, str]] = [
    (uninitialised_output, "L105"),
    (uninitialised_scratch, "L105"),
    (uninitialised_in_the_middle, "L105"),
    (stale_after_reduce, "L106"),
    (stale_after_copy, "L106"),
    (stale_in_array, "L106"),
    (unequal_counts, "L107"),
    (unequal_lengths, "L107"),
    (rank_too_large, "L101"),
    (rank_negative, "L101"),
    (destination_rank_too_large, "L101"),
    (rank_in_array, "L101"),
    (index_too_large, "L103"),
    (index_negative, "L103"),
    (scratch_index_negative, "L103"),
    (scratch_index_absurd, "L103"),
    (end_too_large, "L103"),
    (count_zero, "L102"),
    (count_of_wrong_kind, "L102"),
    (unknown_buffer, "L104"),
    (overlapping_copy, "L108"),
    (copy_onto_itself, "L108"),
    (dependent_elements, "L109"),
    (element_reads_what_another_writes, "L109"),
    (nothing_to_reduce, "L110"),
    (text_as_rank, "L112"),
    (lengths_that_do_not_fit, "L112"),
    (negative_channel, "L102"),
    (no_instances, "L102"),
    (absurd_channel, "L102"),
    (absurd_instances, "L102"),
    (negative_lane, "L102"),
    (transfer_in_a_lane, "L123"),
]


@pytest.mark.parametrize(("body", "code"), MISTAKES, ids=[b.__name__ for b, _ in MISTAKES])
def test_a_mistake_names_its_rule_and_line(body: Body, code: str) -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.trace(sley.AllReduce(4, 4), body)
    (diagnostic,) = caught.value.diagnostics
    lines, first = inspect.getsourcelines(body)
    line = first + next(k for k, text in enumerate(lines) if "# here" in text)
    assert diagnostic.code == code
    assert (diagnostic.places[0].file, diagnostic.places[0].line) == (__file__, line)
    assert diagnostic.expected
    assert diagnostic.found
    assert diagnostic.remedy


def test_a_stale_reference_names_the_line_that_overwrote_it() -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.trace(sley.AllReduce(4, 4), stale_after_reduce)
    _, overwriter = caught.value.diagnostics[0].places
    assert overwriter.line == inspect.getsourcelines(stale_after_reduce)[1] + 2


def test_a_reference_of_another_program_is_refused() -> None:
    kept: list[sley.lang.Ref] = []
    sley.trace(sley.AllReduce(2), lambda p: kept.append(p.chunk(0, "in", 0)))
    with pytest.raises(sley.SleyError, match="L110"):
        sley.trace(sley.AllReduce(2), lambda p: p.chunk(1, "in", 0).reduce(kept[0]))


def test_in_place_input_and_output_are_one_place() -> None:
    def overlap(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0, 2).copy(0, "out", 1)

    sley.trace(sley.AllReduce(2, 4), overlap)
    with pytest.raises(sley.SleyError, match="L108"):
        sley.trace(sley.AllReduce(2, 4, in_place=True), overlap)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: sley.AllReduce(0), "L102"),
        (lambda: sley.AllReduce(2, chunks=0), "L102"),
        (lambda: sley.Broadcast(2, root=2), "L101"),
        (lambda: sley.Broadcast(2, root="0"), "L112"),  # type: ignore[arg-type]
        (lambda: sley.SendRecv(3, src=1, dst=1), "L101"),
        (lambda: sley.Custom("c", 2, 1, 1, lambda rank, index: [(2, 0)]), "L101"),
        (lambda: sley.Custom("c", 2, 2, 2, lambda r, i: [(r, 1 - i)], chunks=2), "L116"),
        (lambda: sley.AllReduce(2, in_place=0), "L112"),  # type: ignore[arg-type]
        (lambda: sley.Custom("c", 2, 1, 1, lambda r, i: None, in_place="no"), "L112"),  # type: ignore
        (lambda: sley.Custom("c", 2, [1], 1, lambda r, i: None), "L112"),
        (lambda: sley.Custom("c", 2, [1, -1], 1, lambda r, i: None), "L112"),
        (lambda: sley.Custom("c", 2, 1, 1, lambda r, i: []), "L112"),
        (lambda: sley.Custom("c", 2, 1, 1, lambda r, i: [0]), "L112"),  # type: ignore[list-item]
        (lambda: sley.Custom("c", 2, 1, 1, lambda r, i: 5), "L112"),  # type: ignore
        (lambda: sley.AllGather(2**20), "L102"),
        (lambda: sley.AllGather(46341), "L102"),
        (lambda: sley.AllReduce(2**16, 2**15), "L102"),
        (lambda: sley.Custom("c", 2, 2**30, 1, lambda r, i: None), "L102"),
        (lambda: sley.Custom("c", 2, [2**33, 0], 1, lambda r, i: None), "L102"),
        (lambda: sley.Custom("allreduce", 2, 1, 1, lambda r, i: [(r, i)]), "L118"),
        (lambda: sley.Custom("All-Reduce", 2, 1, 1, lambda r, i: None), "L118"),
        (lambda: sley.Custom("allreduce", 2, 2, 2, lambda r, i: [(0, i), (1, i)]), "L118"),
        (lambda: sley.Custom("broadcast", 2, [1, 0], 1, lambda r, i: None), "L118"),
        (lambda: sley.Custom("sendrecv", 1, 1, 1, lambda r, i: None), "L118"),
        (lambda: sley.program(sley.AllReduce)(rank_negative), "L112"),  # type: ignore[arg-type]
        (lambda: sley.trace(sley.AllReduce(2), lambda p: None, protocol="fast"), "L112"),
    ],
)
def test_impossible_collectives_are_refused(make: Callable[[], object], code: str) -> None:
    with pytest.raises(sley.SleyError, match=code):
        make()


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: sley.program(rank_negative), "Give the collective to the decorator."),  # type: ignore[arg-type]
        (lambda: sley.Custom("c", 2, 1, 1, lambda r, i: (0, 0)), "Return a list of pairs"),  # type: ignore
        (lambda: sley.Broadcast(2, root=2), "Give one of these ranks as root."),
        (lambda: sley.SendRecv(3, src=1, dst=1), "Give two different ranks."),
        (lambda: sley.Custom("c", 2, 1, 1, lambda rank, index: [(2, 0)]), "Name a rank and one"),
    ],
)
def test_the_remedy_fits_the_argument(make: Callable[[], object], remedy: str) -> None:
    with pytest.raises(sley.SleyError) as caught:
        make()
    assert caught.value.diagnostics[0].remedy.startswith(remedy)


def test_chunks_of_varying_counts_are_not_reduced() -> None:
    def reduce(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0).copy(1, "scratch", 0).reduce(p.chunk(1, "in", 0))

    with pytest.raises(sley.SleyError, match="L119") as caught:
        sley.trace(sley.AllToAllV(2), reduce)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.places[0].line == inspect.getsourcelines(reduce)[1] + 1


@pytest.mark.parametrize(
    "make",
    [
        sley.AllToAll,
        sley.Gather,
        sley.Scatter,
        sley.AllGatherV,
        lambda n: sley.Custom("c", n, 1, 1, keep),
    ],
)
def test_chunks_that_change_their_numbers_have_no_data_buffer(
    make: Callable[[int], sley.Collective],
) -> None:
    with pytest.raises(sley.SleyError, match="L124"):
        sley.trace(make(3), lambda p: p.transfer(0, 1, 0, 0, "recv"))


def keep(rank: int, index: int) -> list[tuple[int, int]]:
    return [(rank, index)]
