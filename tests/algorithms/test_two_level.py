"""Tests of the two-level algorithms on hosts of any size, with their ranks in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import TwoLevel
from sley.errors import SleyError
from support.generators.examples import examples
from support.processes.rank_threads import execute

METHODS = ("allreduce", "one_step_allreduce", "allgather", "reducescatter", "broadcast", "reduce")
ROOTED = ("broadcast", "reduce")


@st.composite
def divisions(draw: st.DrawFn) -> list[list[int]]:
    """Ranks in any order, divided into hosts."""
    ranks = draw(st.permutations(range(draw(st.integers(2, 9)))))
    cuts = sorted(draw(st.sets(st.integers(1, len(ranks) - 1), max_size=4)))
    return [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, len(ranks)], strict=True)]


@pytest.mark.parametrize("method", METHODS)
@given(hosts=divisions(), in_place=st.booleans(), root=st.integers(0, 8))
@examples(12)
def test_two_level_algorithms_are_correct_for_any_hosts(
    method: str, hosts: list[list[int]], in_place: bool, root: int
) -> None:
    ranks = sum(map(len, hosts))
    rooted: dict[str, Any] = {"root": root % ranks} if method in ROOTED else {}
    built = getattr(TwoLevel(hosts), method)(in_place=in_place, **rooted)
    for slots in (1, 4):
        sley.verify(sley.compile(built, slots=slots, verify=False))


@given(hosts=divisions())
@examples(8)
def test_two_level_algorithms_send_the_least_data_over_the_network(hosts: list[list[int]]) -> None:
    """AllReduce: every host sends 2 (N - 1) / N of the data; AllGather: each chunk comes to each
    other host once."""
    host = np.empty(sum(map(len, hosts)), int)
    for number, members in enumerate(hosts):
        host[members] = number
    n = len(hosts)
    reduced, gathered = TwoLevel(hosts).allreduce(), TwoLevel(hosts).allgather()
    for built, share in ((reduced, 2 * (n - 1) / n), (gathered, None)):
        t = built.transfers
        rows = np.flatnonzero(host[t.src] != host[t.dst])
        out = np.bincount(host[t.src[rows]], weights=t.count[rows], minlength=n)
        for number, members in enumerate(hosts):
            expected = (
                len(members) * (n - 1) if share is None else share * reduced.collective.chunks
            )
            assert out[number] == pytest.approx(expected)


def test_all_ranks_of_uneven_hosts_have_the_same_bits() -> None:
    hosts = [[5, 1, 0], [2], [4, 3]]
    random = np.random.default_rng(3)
    data = [(random.standard_normal(50) * 1e3**k).astype(np.float32) for k in range(-3, 3)]
    for built in (TwoLevel(hosts).allreduce(), TwoLevel(hosts).one_step_allreduce(in_place=True)):
        outputs = execute(sley.compile(built), data)
        assert len({output.tobytes() for output in outputs}) == 1


@pytest.mark.parametrize(
    ("hosts", "code"),
    [
        ([[0, 1], [1]], "L112"),
        ([[0, 1], [3]], "L112"),
        ([[0, 1], []], "L112"),
        ([[0, True]], "L112"),
        ([["0", "1"]], "L112"),
        ([[0]], "L121"),
        ([], "L102"),
    ],
)
def test_lists_that_are_no_division_into_hosts_are_refused(
    hosts: list[list[Any]], code: str
) -> None:
    with pytest.raises(SleyError) as caught:
        TwoLevel(hosts)
    assert caught.value.code == code


def test_a_root_that_is_no_rank_is_refused() -> None:
    with pytest.raises(SleyError) as caught:
        TwoLevel([[0, 1], [2]]).reduce(root=3)
    assert caught.value.code == "L101"
