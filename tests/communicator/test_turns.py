"""Turns: which calls ranks repeat after the network has ended them, without a network."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.communicator.turns import Cut, Meeting, Standing, Turns, Why, last_over, may_go_on
from sley.errors import SleyError
from sley.errors.calls import N624

ERROR = N624.error(expected="", found="")
CALLS = 6


@dataclass(frozen=True)
class Failure:
    """A failure of the network: during which call it comes, and for each rank how many calls from
    this one on it finishes first, and whether the next one spoils its input."""

    call: int
    finishes: tuple[int, ...]
    spoils: tuple[bool, ...]


@st.composite
def failures(draw: st.DrawFn) -> tuple[int, list[Failure]]:
    """The number of ranks, and failures, one after another."""
    ranks = draw(st.integers(2, 4))

    def each(one: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(st.lists(one, min_size=ranks, max_size=ranks)))

    numbers = sorted(draw(st.lists(st.integers(1, CALLS), max_size=4)))
    few, flag = st.integers(0, 2), st.integers(0, 1)
    return ranks, [Failure(n, each(few), tuple(map(bool, each(flag)))) for n in numbers]


class Network:
    """Ranks, each with its turns, that make calls until failures end them; what happened.

    ran: of each start and call, the ranks that made it. finished: of each call, the same of those
    that finished it, with the start. spoiled: of each call, the ranks that can't repeat it.
    """

    def __init__(self, ranks: int, planned: list[Failure]) -> None:
        self.turns, self._planned = [Turns() for _ in range(ranks)], planned
        self._starts = [0] * ranks
        self._standings: list[Standing | None] = [None] * ranks
        self._barrier = Barrier(ranks, timeout=10)
        self.ran: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.finished: dict[int, dict[int, int]] = defaultdict(dict)
        self.spoiled: dict[int, set[int]] = defaultdict(set)

    def live(self, rank: int) -> None:
        """A rank's calls; after them it comes to meetings that others need."""
        turns = self.turns[rank]
        for _ in range(CALLS):
            turns.make(lambda: self._run(rank), lambda cut, own: self._meet(rank, own))
        while self._starts[rank] < len(self._planned):
            turns.meet(Cut(Why.CUT, False, ERROR), lambda cut, own: self._meet(rank, own))

    def _run(self, rank: int) -> Cut | None:
        start, number = self._starts[rank], self.turns[rank].finished + 1
        self.ran[start, number].add(rank)
        if start < len(self._planned):
            failure = self._planned[start]
            if number >= failure.call + failure.finishes[rank]:
                spoils = failure.spoils[rank]
                self.spoiled[number] |= {rank} if spoils else set()
                return Cut(Why.CUT, spoils, ERROR)
        assert rank not in self.finished[number]
        self.finished[number][rank] = start
        return None

    def _meet(self, rank: int, own: Standing) -> Meeting:
        self._standings[rank] = own
        self._barrier.wait()
        standings = [Standing.of(one.words) for one in self._standings if one is not None]
        self._barrier.wait()
        self._starts[rank] += 1
        return standings


@given(failures())
def test_all_ranks_repeat_a_call_or_none_does(drawn: tuple[int, list[Failure]]) -> None:
    ranks, planned = drawn
    network = Network(ranks, planned)
    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(network.live, range(ranks)))
    everyone = set(range(ranks))
    for (start, number), ran in network.ran.items():
        is_cut = start < len(planned) and number >= planned[start].call
        assert is_cut or ran == everyone, "a rank waits for others that don't make the call"
    for number, finished in network.finished.items():
        for rank, start in finished.items():
            before = (s for s in range(start) if rank in network.ran[s, number])
            assert rank not in network.spoiled[number] or not any(before), "it has lost its input"
    for number in range(1, CALLS + 1):
        if not network.spoiled[number] and any(
            network.ran[start, number] == everyone
            and not (start < len(planned) and number >= planned[start].call)
            for start in range(len(planned) + 1)
        ):
            assert set(network.finished[number]) == everyone


def test_a_call_that_no_rank_has_finished_is_repeated_if_no_input_is_lost() -> None:
    def over(*ranks: tuple[int, bool]) -> int:
        return last_over([Standing(number, Why.CUT, spoiled) for number, spoiled in ranks])

    assert over((4, False), (4, False)) == 4
    assert over((4, False), (4, True)) == 5
    assert over((4, False), (5, False)) == 5
    assert over((4, True), (5, False)) == 5
    assert over((4, True), (5, True)) == 6


def test_a_stall_without_a_change_of_the_network_ends_the_communicator() -> None:
    def goes_on(*reasons: Why, changed: bool = False) -> bool:
        return may_go_on([Standing(0, why) for why in reasons], has_changed=changed)

    assert goes_on(Why.CUT, Why.STALLED)
    assert goes_on(Why.PLANNED, Why.PLANNED)
    assert goes_on(Why.STALLED, Why.STALLED, changed=True)
    assert not goes_on(Why.STALLED, Why.PLANNED)


def test_a_call_is_not_repeated_for_ever() -> None:
    turns, cuts = Turns(), list[int]()

    def run() -> Cut:
        cuts.append(turns.finished)
        return Cut(Why.CUT, False, ERROR)

    assert not turns.make(run, lambda cut, own: [own])
    assert 1 < len(cuts) < 10
    assert turns.finished == turns.over == 1


def test_calls_that_don_t_wait_run_in_the_order_of_the_requests() -> None:
    turns, order = Turns(), list[int]()
    slow = threading.Event()

    def call(number: int) -> None:
        slow.wait(5)
        order.append(number)

    works = [turns.submit(lambda n=n: call(n)) for n in range(3)]  # type: ignore[misc]
    assert not works[0].is_completed()
    assert not works[0].wait(0.001)
    ended = list[str]()
    works[2].on_done(lambda: ended.append("done"))
    slow.set()
    turns.run(lambda: call(3))
    assert order == [0, 1, 2, 3]
    assert all(work.wait() for work in works)
    turns.close()
    assert ended == ["done"]


def test_the_error_of_a_call_that_doesn_t_wait_is_kept_for_its_work() -> None:
    turns = Turns()

    def fail() -> None:
        raise ERROR

    work = turns.submit(fail)
    with pytest.raises(SleyError) as caught:
        work.wait()
    assert caught.value is ERROR is work.error()
    with pytest.raises(SleyError, match="R514"):
        work.wait(float("nan"))
    end = time.monotonic() + 5
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    with pytest.raises(SleyError):
        work.check()
    turns.close()
