"""Collectives by their words: the promise of each output chunk, and shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sley
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD, Standard, standard
from sley.ir.tables import NONE
from sley.ir.words import Buffer

N, C = 3, 2

Chunk = tuple[int, int]


def promised(c: Collective) -> dict[Chunk, set[Chunk]]:
    """(rank, index) of an output chunk -> the (rank, index) of the inputs that it must hold."""
    found = {}
    for rank in range(c.ranks):
        for index in range(int(c.output_chunks[rank])):
            value = int(c.expected[c.output_offset[rank] + index])
            if value >= 0:
                ids = c.values[value].tolist()
                owners = [int(np.searchsorted(c.input_offset, i, "right")) - 1 for i in ids]
                found[rank, index] = {
                    (r, i - int(c.input_offset[r])) for r, i in zip(owners, ids, strict=True)
                }
    return found


WORDS: list[tuple[Callable[..., Collective], dict[Chunk, set[Chunk]]]] = [
    (
        sley.AllReduce,
        {(r, i): {(s, i) for s in range(N)} for r in range(N) for i in range(C)},
    ),
    (
        sley.AllGather,
        {(r, s * C + i): {(s, i)} for r in range(N) for s in range(N) for i in range(C)},
    ),
    (
        sley.ReduceScatter,
        {(r, i): {(s, r * C + i) for s in range(N)} for r in range(N) for i in range(C)},
    ),
    (
        sley.AllToAll,
        {(r, s * C + i): {(s, r * C + i)} for r in range(N) for s in range(N) for i in range(C)},
    ),
    (
        lambda *a, **k: sley.Broadcast(*a, root=1, **k),
        {(r, i): {(1, i)} for r in range(N) for i in range(C)},
    ),
    (
        lambda *a, **k: sley.Reduce(*a, root=1, **k),
        {(1, i): {(s, i) for s in range(N)} for i in range(C)},
    ),
    (
        lambda *a, **k: sley.Gather(*a, root=1, **k),
        {(1, s * C + i): {(s, i)} for s in range(N) for i in range(C)},
    ),
    (
        lambda *a, **k: sley.Scatter(*a, root=1, **k),
        {(r, i): {(1, r * C + i)} for r in range(N) for i in range(C)},
    ),
    (
        lambda *a, **k: sley.SendRecv(*a, src=2, dst=1, **k),
        {(1, i): {(2, i)} for i in range(C)},
    ),
    (sley.AllToNext, {(r, i): {(r - 1, i)} for r in range(1, N) for i in range(C)}),
]
NAMES = [make(2).name for make, _ in [(w[0], 0) for w in WORDS[:4]]] + [
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "alltonext",
]

VARYING = [(sley.AllToAllV, sley.AllToAll), (sley.AllGatherV, sley.AllGather)]
"""Each collective of varying counts, and what it is with equal ones."""


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("make", "words"), WORDS, ids=NAMES)
def test_each_collective_promises_what_its_name_says(
    make: Callable[..., Collective], words: dict[Chunk, set[Chunk]], in_place: bool
) -> None:
    assert promised(make(N, C, in_place=in_place)) == words


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("make", [w[0] for w in WORDS], ids=NAMES)
def test_finer_chunks_are_the_collective_of_more_chunks(
    make: Callable[..., Collective], in_place: bool
) -> None:
    assert make(N, C, in_place=in_place).refine(3) == make(N, 3 * C, in_place=in_place)


ALIASES = [
    (sley.AllReduce(N, C, in_place=True), lambda rank: 0),
    (sley.AllGather(N, C, in_place=True), lambda rank: rank * C),
    (sley.Gather(N, C, root=1, in_place=True), lambda rank: C if rank == 1 else 0),
]


@pytest.mark.parametrize(("collective", "offset"), ALIASES)
def test_in_place_the_input_lies_in_the_output(
    collective: Collective, offset: Callable[[int], int]
) -> None:
    layout = collective.layout(np.zeros(N, np.int32))
    for rank in range(N):
        if collective.output_chunks[rank]:
            first = layout.cell(rank, Buffer.INPUT, 0) - layout.cell(rank, Buffer.OUTPUT, 0)
            assert first == offset(rank)
    assert layout.cells == int(collective.data_chunks.sum())


def test_in_place_the_output_of_reduce_scatter_lies_in_the_input() -> None:
    collective = sley.ReduceScatter(N, C, in_place=True)
    layout = collective.layout(np.zeros(N, np.int32))
    for rank in range(N):
        assert layout.cell(rank, Buffer.OUTPUT, 0) == layout.cell(rank, Buffer.INPUT, rank * C)


def test_out_of_place_nothing_is_shared() -> None:
    collective = sley.AllGather(N, C)
    layout = collective.layout(np.full(N, 4, np.int32))
    cells = [
        layout.cell(rank, buffer, index)
        for rank in range(N)
        for buffer in Buffer
        for index in range(int(layout.size[buffer, rank]))
    ]
    assert sorted(cells) == list(range(layout.cells))


def test_cells_have_names() -> None:
    layout = sley.AllReduce(2, 2).layout(np.array([0, 1], np.int32))
    names = [layout.name(cell) for cell in range(layout.cells)]
    assert names == [
        *(f"rank 0 {w}" for w in ("in[0]", "in[1]", "out[0]", "out[1]")),
        *(f"rank 1 {w}" for w in ("in[0]", "in[1]", "out[0]", "out[1]", "scratch[0]")),
    ]


def row_of(c: Collective) -> Standard:
    row = standard(c)
    assert row is not None
    return row


@pytest.mark.parametrize("make", [w[0] for w in WORDS], ids=NAMES)
def test_the_row_of_a_collective_says_what_its_columns_say(
    make: Callable[..., Collective],
) -> None:
    c = make(N, C)
    row = row_of(c)
    assert row is STANDARD[c.name]
    assert row.reduces == bool((np.diff(c.values.offset) > 1).any())
    assert row.roles == () if c.root == -1 else row.roles_in(c)[row.roles[0]] == c.root
    for of, parts, sizes in (
        (row.input_of, row.input_parts, c.input_chunks),
        (row.output_of, row.output_parts, c.output_chunks),
    ):
        holders = [row.roles_in(c)[of]] if of else list(range(N))
        assert np.flatnonzero(sizes).tolist() == holders
        assert sizes.max() == C * (N if parts else 1)
    ours = make(N, C, in_place=True)
    assert row.has_place_of_rank == bool(ours.input_base.any() or ours.output_base.any())


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("make", [w[0] for w in WORDS], ids=NAMES)
def test_a_standard_collective_is_known_by_what_it_promises(
    make: Callable[..., Collective], in_place: bool
) -> None:
    c = make(N, C, in_place=in_place)
    assert row_of(c).like(c, in_place=in_place) == c
    assert row_of(c).like(c, in_place=not in_place) == make(N, C, in_place=not in_place)
    assert standard(replace(c, name="mine")) is None
    assert standard(replace(c, expected=np.full(len(c.expected), -1))) is None


def test_every_standard_collective_is_tested_here() -> None:
    assert {*NAMES, *(make(2).name for make, _ in VARYING)} == set(STANDARD)


@pytest.mark.parametrize(("make", "equal"), VARYING)
def test_varying_counts_change_nothing_but_the_counts(
    make: Callable[..., Collective], equal: Callable[..., Collective]
) -> None:
    c = make(N, max_count=7, chunks=C)
    assert c.varies
    assert not equal(N, C).varies
    assert c == replace(equal(N, C), name=f"{equal(N).name}v", max_count=7)
    assert c.refine(3) == make(N, 7, 3 * C)
    row = row_of(c)
    assert row.varies
    assert row.like(c, in_place=False) == row.of(N, C, max_count=7) == c
    assert row.of(N, C) == make(N, chunks=C)
    assert row_of(equal(N)) == replace(
        row, title=equal.__name__, call=row_of(equal(N)).call, varies=False
    )


@pytest.mark.parametrize("make", [w[0] for w in VARYING])
def test_a_largest_count_of_its_own_is_no_collective_of_equal_counts(
    make: Callable[..., Collective],
) -> None:
    c = make(2)
    assert standard(replace(c, max_count=NONE)) is None
    assert standard(replace(sley.AllReduce(2), max_count=5)) is None
    assert standard(replace(c, max_count=0)) is None
    with pytest.raises(sley.SleyError) as caught:
        sley.Custom(c.name, 2, 2, 2, lambda rank, index: [(index, rank)])
    assert caught.value.diagnostics[0].rule.code == "L118"


@pytest.mark.parametrize("make", [w[0] for w in VARYING])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("L102", {"max_count": 0}),
        ("L102", {"max_count": 2**62 + 1}),
        ("L102", {"chunks": 0}),
        ("L102", {"chunks": 2**30}),
        ("L112", {"max_count": 2.0}),
        ("L112", {"max_count": True}),
        ("L119", {"in_place": True}),
    ],
)
def test_impossible_varying_collectives_are_refused(
    make: Callable[..., Collective], code: str, words: dict[str, Any]
) -> None:
    with pytest.raises(sley.SleyError) as caught:
        make(2, **words)
    (found,) = caught.value.diagnostics
    assert (found.rule.code, found.places[0].detail) == (code, make.__name__)


def test_a_custom_collective_of_a_standard_name_is_that_collective() -> None:
    assert sley.Custom(
        "AllReduce", 2, 3, 3, lambda rank, index: [(0, index), (1, index)], chunks=3
    ) == sley.AllReduce(2, 3)
    assert sley.Custom("reduce", 3, 1, [0, 0, 1], lambda r, i: [(s, i) for s in range(3)]) == (
        sley.Reduce(3, root=2)
    )
    assert sley.Custom("sendrecv", 3, [0, 1, 0], [1, 0, 0], lambda r, i: [(1, 0)]) == (
        sley.SendRecv(3, src=1, dst=0)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: sley.AllReduce(1291, 1291),
        lambda: sley.Gather(2**20),
        lambda: sley.Scatter(2**20, root=5),
        lambda: sley.AllToNext(2**20, 4),
    ],
)
def test_only_chunks_that_there_are_count(make: Callable[[], Collective]) -> None:
    assert make().values.target.max() < 2**31
