"""Calls of varying counts on the engine: every small matrix of counts, random ones, bad ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import (
    CATALOG,
    all_pairs_allgatherv,
    all_pairs_alltoallv,
    build,
    ring_allgatherv,
    two_step_alltoallv,
)
from sley.engine import native
from sley.engine.program import load
from sley.engine.types import DATA_TYPES
from sley.ir.collectives import STANDARD
from sley.ir.plan import Plan
from support.generators.examples import examples
from support.inputs.algorithm_cases import sizes
from support.processes import rank_threads

INT32 = DATA_TYPES["int32"]
GUARD = -7


class Threads:
    """The engines of a plan on threads. Calls follow one another without a barrier."""

    def __init__(self, plan: Plan, slot_bytes: int) -> None:
        loaded = load(plan, None, slot_bytes)
        self.ranks = plan.collective.ranks
        fabrics = rank_threads.fabrics(loaded.wiring)
        self._calls = [native.Calls(fabric) for fabric in fabrics]
        self._runners = [
            native.Runner.create(p.engine(fabric, loaded.wiring), 0, None)
            for p, fabric in zip(loaded.programs, fabrics, strict=True)
        ]
        self._start = threading.Barrier(self.ranks)

    def wrong(self, matrices: Iterable[Sequence[int]]) -> int:
        """The elements that are wrong after calls with these matrices, row after row: what rank s
        sends to rank r, or in an AllGather what rank s contributes."""
        given = list(matrices)
        with ThreadPoolExecutor(self.ranks) as threads:
            return sum(threads.map(lambda rank: self._live(rank, given), range(self.ranks)))

    def _live(self, rank: int, matrices: list[Sequence[int]]) -> int:
        self._start.wait(30)
        return sum(self._call(rank, matrix) for matrix in matrices)

    def _call(self, rank: int, matrix: Sequence[int]) -> int:
        ranks = self.ranks
        gathers = len(matrix) == ranks
        sent = [matrix[rank]] if gathers else matrix[rank * ranks : (rank + 1) * ranks]
        given = [data(rank, 0 if gathers else to, n) for to, n in enumerate(sent)]
        place = 0 if gathers else rank
        came = list(matrix) if gathers else [matrix[s * ranks + rank] for s in range(ranks)]
        taken = [np.full(n + 2, GUARD, np.int32) for n in came]
        parts = native.Parts.create(
            [(array.ctypes.data, array.size) for array in given],
            [(array.ctypes.data + 4, array.size - 2) for array in taken],
        )
        call = native.Call.varying(parts, INT32.number)
        assert self._calls[rank].run(self._runners[rank], call, 30.0, 1, True) is None
        return sum(
            int((array != np.concatenate([[GUARD], data(s, place, n), [GUARD]])).sum())
            for s, (array, n) in enumerate(zip(taken, came, strict=True))
        )


def data(sender: int, receiver: int, count: int) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.int32) + 100_000 * (sender * 10 + receiver + 1)


def plan_of(program: sley.Program, instances: int = 1, **options: Any) -> Plan:
    plan = sley.compile(program, instances=instances, **options)
    sley.verify(plan)
    return plan


def every_matrix(ranks: int, most: int, step: int) -> Iterator[tuple[int, ...]]:
    """Each `step`-th matrix of counts from 0 to `most`."""
    return itertools.islice(itertools.product(range(most + 1), repeat=ranks * ranks), 0, None, step)


SMALL = [(2, 2, 1), (3, 2, 13), (4, 1, 41)]
"""Ranks, the largest count, and which matrices run: one of so many."""


@pytest.mark.parametrize(("ranks", "most", "step"), SMALL)
def test_small_matrices_of_counts_move_no_wrong_element(ranks: int, most: int, step: int) -> None:
    threads = Threads(plan_of(all_pairs_alltoallv(ranks)), 8)
    assert threads.wrong(every_matrix(ranks, most, step)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("two_step", [False, True])
def test_every_small_matrix_of_counts_moves_no_wrong_element(two_step: bool) -> None:
    number = 0
    for ranks, most, _ in SMALL:
        program = all_pairs_alltoallv(ranks)
        if two_step:
            program = two_step_alltoallv(ranks // 2, 2) if ranks % 2 == 0 else program
        plan = plan_of(program)
        threads = Threads(plan, 8 * int(plan.instructions.count.max()))
        matrices = list(every_matrix(ranks, most, 1))
        number += len(matrices)
        assert threads.wrong(matrices) == 0
    assert number == 81 + 19_683 + 65_536


VARYING = [name for name, row in CATALOG.items() if STANDARD[row.collective].varies]


@pytest.mark.parametrize("name", VARYING)
def test_an_algorithm_of_varying_counts_is_proven_and_runs_equal_ones(name: str) -> None:
    for size in sizes(name):
        plan = plan_of(build(name, **size), instances=2)
        c = plan.collective
        inputs = [np.arange(6 * n // c.chunks) + 100 * r for r, n in enumerate(c.input_chunks)]
        out = rank_threads.execute(plan, inputs)
        if c.name == "allgatherv":
            right = [np.concatenate(inputs)] * c.ranks
        else:
            right = [np.concatenate([a[6 * r :][:6] for a in inputs]) for r in range(c.ranks)]
        for found, wanted in zip(out, right, strict=True):
            np.testing.assert_array_equal(found, wanted)
    with pytest.raises(sley.SleyError, match="L119"):
        build(name, **size, in_place=True)


COUNTS = st.one_of(st.integers(0, 3), st.integers(0, 200), st.just(0))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Plan, int, list[list[int]]]:
    """A plan of up to 8 ranks, the bytes of a slot, and a few calls."""
    nodes, gpus = draw(st.sampled_from([(1, 2), (1, 3), (2, 2), (5, 1), (3, 2), (1, 7), (2, 4)]))
    ranks = nodes * gpus
    program = draw(
        st.sampled_from(
            [
                lambda: all_pairs_alltoallv(ranks),
                lambda: two_step_alltoallv(nodes, gpus),
                lambda: all_pairs_allgatherv(ranks),
                lambda: ring_allgatherv(ranks),
            ]
        )
    )()
    options = draw(
        st.sampled_from(
            [
                {},
                {"fusion": False},
                {"allocate": "state"},
                {"schedule": "hpds"},
                {"protocol": "Direct"},
            ]
        )
    )
    plan = plan_of(program, draw(st.integers(1, 3)), **options)
    least = 8 * int(plan.instructions.count.max(initial=1))
    slot_bytes = least + draw(st.sampled_from([0, 12, 4096]))
    size = ranks * (1 if plan.collective.name == "allgatherv" else ranks)
    calls = draw(st.lists(st.lists(COUNTS, min_size=size, max_size=size), min_size=1, max_size=4))
    return plan, slot_bytes, calls


@examples(11)
@given(cases())
def test_random_counts_move_no_wrong_element(case: tuple[Plan, int, list[list[int]]]) -> None:
    plan, slot_bytes, calls = case
    assert Threads(plan, slot_bytes).wrong(calls) == 0


def own_program(p: Any) -> None:
    """Every part goes through its receiver's neighbour, where the next part overwrites it."""
    for sender in range(3):
        for receiver in range(3):
            c = p.chunk(sender, "in", receiver)
            c.copy((receiver + 1) % 3, "scratch", 0).copy(receiver, "out", sender)


def test_scratch_that_parts_of_different_counts_share_holds_the_right_one() -> None:
    program = sley.lang.trace(sley.AllToAllV(3), own_program, name="by-a-neighbour")
    threads = Threads(plan_of(program), 16)
    random = np.random.default_rng(1)
    assert threads.wrong(random.integers(0, 40, 9).tolist() for _ in range(40)) == 0


def test_a_job_runs_counts_that_vary() -> None:
    counts = np.array([[0, 3], [5, 1]])
    inputs = [np.arange(3), np.arange(10, 16)]
    out = sley.execute(sley.compile(all_pairs_alltoallv(2)), inputs, counts=counts)
    assert [array.tolist() for array in out] == [
        [10, 11, 12, 13, 14],
        [0, 1, 2, 15],
    ]


def test_a_job_gathers_counts_that_vary() -> None:
    inputs = [np.arange(3.0), np.zeros(0), np.ones(1)]
    out = rank_threads.execute(plan_of(ring_allgatherv(3)), inputs, counts=[3, 0, 1])
    assert [array.tolist() for array in out] == [[0, 1, 2, 1]] * 3


@pytest.mark.parametrize(
    ("counts", "sizes", "text"),
    [
        ([[0, 3], [5, -1]], (3, 4), "-1 elements"),
        ([[0, 3], [5, 9]], (3, 14), "9 elements"),
        ([[0, 3]], (3, 6), r"shape \(1, 2\)"),
        ([[0.5, 3], [5, 1]], (3, 6), "float64"),
        ([[0, 3], [5]], (3, 6), "lists of different lengths"),
        ([[0, 3], [5, 1]], (4, 6), "3 elements, the sum of its counts"),
    ],
)
def test_counts_that_do_not_fit_are_refused(
    counts: list[list[int]], sizes: tuple[int, int], text: str
) -> None:
    program = sley.lang.trace(
        sley.AllToAllV(2, 8),
        lambda p: [p.chunk(s, "in", r).copy(r, "out", s) for s in range(2) for r in range(2)],
        name="small",
    )
    inputs = [np.zeros(size) for size in sizes]
    with pytest.raises(sley.SleyError, match=text) as error:
        rank_threads.execute(sley.compile(program), inputs, counts=counts)
    assert error.value.code == "R503"


def test_counts_whose_sum_no_memory_has_are_refused() -> None:
    plan = sley.compile(all_pairs_alltoallv(8))
    with pytest.raises(sley.SleyError, match=f"{2**64} elements, the sum"):
        sley.execute(plan, [np.zeros(0)] * 8, counts=np.full((8, 8), 2**61))


def test_a_count_and_counts_are_refused() -> None:
    plan = sley.compile(all_pairs_alltoallv(2))
    with pytest.raises(sley.SleyError, match="count or counts"):
        sley.execute(plan, [np.zeros(2)] * 2, counts=[[1, 1], [1, 1]], count=1)


def test_counts_of_a_collective_of_equal_counts_are_refused() -> None:
    plan = sley.compile(sley.algorithms.all_pairs_alltoall(2))
    with pytest.raises(sley.SleyError, match="no counts of parts"):
        sley.execute(plan, [np.zeros(2)] * 2, counts=[[1, 1], [1, 1]])


def test_a_slot_that_cannot_hold_the_counts_is_refused() -> None:
    plan = sley.compile(two_step_alltoallv(2, 2))
    with pytest.raises(sley.SleyError, match="R506"):
        rank_threads.execute(
            plan,
            [np.zeros(4, np.int8)] * 4,
            rank_threads.Limits(slot_bytes=8),
            counts=np.ones((4, 4), int),
        )


def test_a_plan_that_puts_a_part_to_a_wrong_place_ends_with_an_error() -> None:
    plan = sley.compile(all_pairs_alltoallv(2))
    rows = replace(plan.instructions, dst_index=1 - plan.instructions.dst_index)
    wrong = replace(plan, instructions=rows)
    with pytest.raises(sley.SleyError, match="a chunk of another length"):
        rank_threads.execute(wrong, [np.zeros(3), np.zeros(6)], counts=[[0, 3], [5, 1]])
