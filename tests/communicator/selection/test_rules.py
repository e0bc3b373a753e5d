"""The plan for each call: always a correct one, and the one that the rules name."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sley
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.kinds import (
    CALLS,
    Request,
    collective_of,
    kinds_of,
    size_of,
)
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.rules import Limits, default_program, default_rows
from sley.errors import SleyError
from sley.ir.words import Protocol
from support.generators.examples import examples
from support.processes.call_cases import hosts_of, inputs, outputs, requests, some_hosts
from support.processes.rank_threads import execute

CHANNELS = 3
"""The most that any plan of the library may need."""


@given(request=requests(), elements=st.integers(0, 40))
@examples(14)
def test_every_call_has_a_plan_that_does_what_it_asks(request: Request, elements: int) -> None:
    where = {"in_place": request.in_place, "root": request.root}
    ready = Plans(request.hosts, cache=False).find(request.kind, request.size_bytes, **where)
    first, last = ready.row.sizes.begin_bytes, ready.row.sizes.end_bytes
    assert first <= request.size_bytes <= (last or request.size_bytes)
    plan = ready.plan
    c = plan.collective
    wanted = collective_of(
        request.kind, request.ranks, in_place=request.in_place, root=request.root
    )
    exact = collective_of(
        request.kind, request.ranks, chunks=c.chunks, in_place=request.in_place, root=request.root
    )
    assert c == exact
    assert request.kind in kinds_of(c)
    assert plan.channels <= CHANNELS
    assert plan.topology is None
    data = inputs(wanted, elements)
    for output, right in zip(
        execute(plan, data, count=elements),
        outputs(wanted, data, elements),
        strict=True,
    ):
        if right is not None:
            np.testing.assert_array_equal(output, right)


@given(
    hosts=some_hosts(40),
    kind=st.sampled_from(list(CALLS)),
    in_place=st.booleans(),
    limits=st.builds(
        Limits,
        mesh_ranks=st.integers(1, 20),
        mesh_hosts=st.integers(1, 3),
        one_step_bytes=st.integers(0, 1 << 20),
        staged_bytes=st.integers(0, 1 << 20),
        rooted_bytes=st.integers(0, 1 << 20),
        tree_bytes=st.integers(0, 1 << 20),
        two_step_bytes=st.integers(0, 1 << 20),
    ),
)
@settings(deadline=None)
def test_the_rows_have_no_gaps(hosts: Hosts, kind: str, in_place: bool, limits: Limits) -> None:
    rows = default_rows(kind, hosts, in_place=in_place, limits=limits)
    assert rows[0].sizes.begin_bytes == 0
    assert rows[-1].sizes.end_bytes is None
    for row, following in pairwise(rows):
        assert row.sizes.end_bytes is not None
        assert row.sizes.begin_bytes <= row.sizes.end_bytes == following.sizes.begin_bytes - 1
    for row in rows:
        assert row.note
        assert all(": " in line for line in row.refused)


def names(kind: str, *sizes: int) -> list[str]:
    return [row.recipe.name for row in default_rows(kind, hosts_of(*sizes))]


@pytest.mark.parametrize(
    ("kind", "sizes", "expected"),
    [
        ("all_reduce", (4,), ["one-step-allreduce", "all-pairs-allreduce"]),
        ("all_reduce", (1, 1, 1), ["one-step-allreduce", "all-pairs-allreduce"]),
        ("all_reduce", (4, 4), ["two-level-one-step-allreduce", "two-level-allreduce"]),
        ("all_reduce", (4, 3), ["two-level-one-step-allreduce", "two-level-allreduce"]),
        ("all_reduce", (20,), ["recursive-halving-doubling-allreduce", "ring-allreduce"]),
        (
            "all_reduce",
            (20, 20),
            ["recursive-halving-doubling-allreduce", "hierarchical-allreduce"],
        ),
        ("all_reduce", (20, 19), ["recursive-halving-doubling-allreduce", "ring-allreduce"]),
        ("all_reduce", (1,), ["local-copy"]),
        ("barrier", (4,), ["one-step-allreduce", "all-pairs-allreduce"]),
        ("all_gather", (8,), ["all-pairs-allgather"] * 2),
        ("all_gather", (4, 4), ["two-level-allgather"] * 2),
        ("all_gather", (32,), ["recursive-doubling-allgather", "ring-allgather"]),
        ("all_gather", (33,), ["ring-allgather"]),
        ("reduce_scatter", (8,), ["all-pairs-reducescatter"] * 2),
        ("reduce_scatter", (4, 4), ["two-level-reducescatter"] * 2),
        ("reduce_scatter", (20,), ["ring-reducescatter"]),
        ("all_to_all", (8,), ["all-pairs-alltoall"] * 2),
        ("all_to_all", (4, 4), ["two-step-alltoall", "all-pairs-alltoall"]),
        ("all_to_all", (4, 3), ["all-pairs-alltoall"] * 2),
        ("broadcast", (8,), ["flat-broadcast"] * 2),
        ("broadcast", (20,), ["binomial-broadcast", "flat-broadcast"]),
        ("broadcast", (1, 1, 1), ["flat-broadcast", "all-pairs-broadcast"]),
        ("broadcast", (4, 4), ["flat-broadcast", "two-level-broadcast"]),
        ("broadcast", (20, 20), ["binomial-broadcast"]),
        ("reduce", (2,), ["flat-reduce", "ring-reduce"]),
        ("reduce", (8,), ["flat-reduce", "all-pairs-reduce", "ring-reduce"]),
        ("reduce", (1, 1, 1), ["flat-reduce", "all-pairs-reduce"]),
        ("reduce", (4, 4), ["flat-reduce", "two-level-reduce"]),
        ("reduce", (20,), ["binomial-reduce", "ring-reduce"]),
        ("reduce", (20, 20), ["binomial-reduce"]),
        ("gather", (4, 4), ["flat-gather"] * 2),
        ("scatter", (20,), ["flat-scatter"] * 2),
    ],
)
def test_each_call_gets_the_algorithm_of_its_rule(
    kind: str, sizes: tuple[int, ...], expected: list[str]
) -> None:
    assert names(kind, *sizes) == expected


@pytest.mark.parametrize("sizes", [(2,), (4,), (1, 1, 1), (4, 4), (4, 3)])
def test_one_step_reads_as_much_as_its_limit_allows(sizes: tuple[int, ...]) -> None:
    limits = Limits()
    row = default_rows("all_reduce", hosts_of(*sizes), limits=limits)[0]
    program = default_program(row.recipe)
    t = program.transfers
    chunks_read = np.bincount(t.dst[t.remote], weights=t.count[t.remote]).max()
    blocks_read = chunks_read / program.collective.chunks
    assert row.sizes.end_bytes is not None
    assert row.sizes.end_bytes * blocks_read <= limits.one_step_bytes
    assert (row.sizes.end_bytes + 1) * blocks_read > limits.one_step_bytes


def test_ranks_that_alternate_between_hosts_know_their_hosts() -> None:
    hosts = Hosts.of(["a", "b"] * 3)
    row = default_rows("all_reduce", hosts)[-1]
    assert row.recipe.name == "two-level-allreduce"
    t = default_program(row.recipe).transfers
    crossing = t.src % 2 != t.dst % 2
    out = np.bincount(t.src[crossing] % 2, weights=t.count[crossing])
    assert (out / default_program(row.recipe).collective.chunks).tolist() == [1, 1], (
        "2 (H - 1) / H of the data"
    )


@pytest.mark.parametrize(
    "kind", [k for k, row in CALLS.items() if k != "barrier" and not row.varies]
)
def test_large_calls_are_read_in_place(kind: str) -> None:
    for hosts in (hosts_of(8), hosts_of(4, 4)):
        rows = default_rows(kind, hosts, in_place=True)
        assert rows[0].recipe.options["protocol"] == Protocol.SIMPLE.value
        # A chain's sums are in no memory but messages.
        is_chain = kind == "reduce" and hosts.count == 1
        assert Protocol(rows[-1].recipe.options["protocol"]) is (
            Protocol.SIMPLE if is_chain else Protocol.DIRECT
        )


def test_the_size_of_a_call_is_that_of_its_largest_buffer() -> None:
    assert size_of("all_reduce", 8, 10, 4) == 40
    assert size_of("all_gather", 8, 10, 4) == 320
    assert size_of("reduce_scatter", 8, 10, 4) == size_of("all_to_all", 8, 10, 4) == 320
    assert size_of("broadcast", 8, 10, 4) == size_of("reduce", 8, 10, 4) == 40
    for kind in CALLS:
        blocks = collective_of(kind, 8).blocks
        assert size_of(kind, 8, 10, 4) == blocks * 40


def test_each_kind_of_call_has_its_collective() -> None:
    for kind in CALLS:
        root = 2 if CALLS[kind].roles else 0
        c = collective_of(kind, 4, chunks=3, in_place=not CALLS[kind].varies, root=root)
        assert c.name == CALLS[kind].name
        assert kind in kinds_of(c)
    assert kinds_of(sley.AllToNext(4)) == ()
    odd = sley.Custom("odd", 2, 1, 1, lambda rank, index: [(rank, index)])
    assert kinds_of(replace(odd, name="allreduce")) == (), "a name is no promise"


@pytest.mark.parametrize(
    ("kind", "size", "root", "text"),
    [
        ("allreduce", 1, 0, "Did you mean all_reduce"),
        ("all_reduce", -1, 0, "-1"),
        ("all_reduce", "1K", 0, "'1K'"),
        ("broadcast", 1, 4, "root to be an integer from 0 to 3"),
        ("broadcast", 1, -1, "-1"),
    ],
)
def test_an_invalid_call_is_refused(kind: str, size: int, root: int, text: str) -> None:
    with pytest.raises(SleyError) as caught:
        Plans(hosts_of(4), cache=False).considered(Request(kind, hosts_of(4), size, False, root))
    assert caught.value.code == "N650"
    assert text in str(caught.value)
