"""The watch over calls under a policy: when it compares, when it changes, and how much it tries."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.communicator.watch import (
    DEFAULT,
    FIRST_CALLS,
    MARGIN,
    MOST_CALLS,
    PAIRS,
    POLICY,
    TRIAL_CALLS,
    WARM_CALLS,
    Turns,
    Watch,
)

RANKS = 3


class Run:
    """The calls of a watch. time_us: the time of a call, by the plan's number and the call's."""

    def __init__(
        self,
        time_us: Callable[[int, int], float],
        *,
        plans: int = 2,
        explore: float = 0.0,
    ) -> None:
        self.changes: list[tuple[float, ...]] = []
        self.watch = Watch(RANKS, plans, explore, lambda *made: self.changes.append(made))
        self.time_us = time_us
        self.called = dict.fromkeys(range(plans), 0)
        self.calls = 0

    def until(self, calls: int) -> Run:
        while self.calls < calls:
            self.turn()
        return self

    def turn(self) -> Turns:
        """Runs the turns to their end."""
        done = self.watch.turns
        seconds = []
        for number, calls in done:
            seconds.append(self.time_us(number, self.calls) * 1e-6 * RANKS)
            self.called[number] += min(calls, 1 << 20)
            self.calls += min(calls, 1 << 20)
        self.watch.decide(seconds)
        return done


def constant(*times: float) -> Callable[[int, int], float]:
    return lambda number, call: times[number]


def test_a_fast_plan_stays_and_the_default_has_few_calls() -> None:
    run = Run(constant(8.0, 10.0)).until(200_000)
    assert not run.changes
    assert run.called[DEFAULT] <= 0.02 * run.calls
    turns = [run.turn() for _ in range(2)]
    assert [(POLICY, MOST_CALLS)] in turns


def test_a_default_that_is_faster_than_it_was_in_the_training_is_found() -> None:
    run = Run(constant(8.0, 5.0)).until(2 * FIRST_CALLS)
    assert [change[2] for change in run.changes] == [DEFAULT]


def test_rare_slow_calls_neither_revert_a_good_plan_nor_cause_more_trials() -> None:
    draw = random.Random(1)
    run = Run(lambda number, call: 100.0 if draw.random() < 0.05 else (8.0, 10.0)[number])
    run.until(200_000)
    assert not run.changes
    assert run.called[DEFAULT] <= 0.025 * run.calls


def test_a_plan_slower_than_the_default_is_reverted_for_good() -> None:
    call = WARM_CALLS + FIRST_CALLS + TRIAL_CALLS
    run = Run(constant(12.0, 10.0)).until(call)
    (change,) = run.changes
    assert change == (call, POLICY, DEFAULT, pytest.approx(12.0), pytest.approx(10.0))
    assert run.called[POLICY] == WARM_CALLS + FIRST_CALLS + PAIRS
    ((number, calls),) = run.watch.turns
    assert number == DEFAULT
    assert calls > 1 << 50, "no further agreement"


def test_a_difference_within_the_margin_changes_nothing() -> None:
    run = Run(constant(10.0 * (1 + MARGIN) - 0.01, 10.0)).until(50_000)
    assert not run.changes


def test_one_late_rank_in_a_trial_does_not_revert_a_good_plan() -> None:
    late = WARM_CALLS + FIRST_CALLS + WARM_CALLS + 2  # a call of the policy's plan in the trial
    run = Run(lambda number, call: 1e6 if call == late else 8.0 + number)
    run.until(WARM_CALLS + FIRST_CALLS + TRIAL_CALLS)
    assert run.called[DEFAULT] == WARM_CALLS + PAIRS
    assert not run.changes


def test_a_plan_that_becomes_slow_later_is_reverted() -> None:
    run = Run(lambda number, call: 8.0 if number or call < 9_000 else 20.0).until(20_000)
    (change,) = run.changes
    assert 9_000 < change[0] <= 9_000 + 2 * MOST_CALLS + TRIAL_CALLS


def test_exploration_is_off_by_default() -> None:
    run = Run(constant(8.0, 10.0, 1.0), plans=3).until(50_000)
    assert run.called[2] == 0


def test_exploration_finds_a_faster_alternative() -> None:
    run = Run(constant(8.0, 10.0, 9.0, 5.0), plans=4, explore=0.1).until(20_000)
    assert [change[1:3] for change in run.changes] == [(POLICY, 3)]
    assert run.watch.current == 3
    assert run.called[2] > 0


@given(
    st.floats(0.0, 0.1),
    st.integers(3, 5),
    st.lists(st.floats(0.1, 100.0), min_size=64, max_size=64),
)
def test_trials_of_alternatives_stay_within_the_fraction(
    explore: float, plans: int, times: list[float]
) -> None:
    run = Run(
        lambda number, call: times[(7 * number + call) % len(times)],
        plans=plans,
        explore=explore,
    )
    explored = 0
    for _ in range(60):
        current = run.watch.current
        done = run.turn()
        if DEFAULT not in {number for number, _ in done} and len(done) > 2:
            explored += sum(calls for _, calls in done)
            assert len({number for number, _ in done}) == 2
        assert explored <= explore * run.calls
        assert all(number == current for number, _ in done) or len(done) > 2
        if run.watch.current == DEFAULT:
            break
