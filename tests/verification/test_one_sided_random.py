"""Random one-sided plans against an adversary that runs them in the worst order: what the verifier
accepts never goes wrong, and most of what it refuses does."""

from __future__ import annotations

from collections import Counter

import pytest

import sley
from sley.errors import SleyError
from sley.ir.one_sided import OneSidedPlan
from support.generators.random_one_sided import random_draft
from support.inputs.one_sided_plans import At, Block, plan_of
from support.machines.one_sided_machine import broken

BY_THE_RUN = {"V203", "V204", "V205", "V206", "V211", "V214", "V215"}
"""Codes of what the verifier finds in its run of a plan, rather than in its tables."""


def codes(plan: OneSidedPlan) -> frozenset[str]:
    try:
        sley.verify(plan)
    except SleyError as error:
        return frozenset(found.code for found in error.diagnostics)
    return frozenset()


def accepted_and_wrong(seeds: range, schedules: int) -> tuple[list[tuple[int, str]], int]:
    """(seed, what goes wrong) of plans that the verifier accepts, and the number of accepted
    mutants."""
    wrong, mutants = [], 0
    for seed in seeds:
        draft, changes = random_draft(seed)
        plan = draft.plan()
        if not codes(plan):
            mutants += bool(changes)
            fault = broken(plan, seed, schedules)
            wrong += [(seed, fault)] * bool(fault)
    return wrong, mutants


def refused_and_broken(seeds: range, schedules: int) -> tuple[Counter[str], Counter[str]]:
    """By code, the plans that the verifier's run refuses, and how many of them the adversary
    breaks."""
    refused, breaks = Counter[str](), Counter[str]()
    for seed in seeds:
        plan = random_draft(seed)[0].plan()
        found = codes(plan)
        if found and found <= BY_THE_RUN:
            refused.update(found)
            if broken(plan, seed, schedules):
                breaks.update(found)
    return refused, breaks


def test_accepted_plans_go_wrong():
    wrong, mutants = accepted_and_wrong(range(120), schedules=2)
    assert wrong == []
    assert mutants > 15


def test_plans_are_refused_that_never_go_wrong():
    refused, breaks = refused_and_broken(range(200, 250), schedules=15)
    assert breaks.total() > 0.7 * refused.total() > 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_accepted_plans_go_wrong_in_20000(part):
    wrong, mutants = accepted_and_wrong(range(part * 2500, (part + 1) * 2500), schedules=8)
    assert wrong == []
    assert mutants > 500


@pytest.mark.slow
def test_plans_of_some_code_are_refused_that_never_go_wrong():
    refused, breaks = refused_and_broken(range(30000, 32000), schedules=40)
    shares = {code: breaks[code] / refused[code] for code in refused}
    # The data of packets that are written twice, or read after a relaxed wait, are often the same.
    least = {"V203": 0.95, "V204": 0.9, "V205": 0.9, "V206": 0.95, "V215": 0.93}
    assert {code for code, share in least.items() if shares[code] < share} == set()
    assert min(shares.values()) > 0.4


OWN = sley.Custom("own", 2, 1, 1, lambda rank, index: [(rank, index)])
"""Each rank's output is its input."""

FIRST = sley.Custom("first", 2, 1, 1, lambda rank, index: [(0, 0)])
"""The output of both ranks is the input of rank 0."""


def packet(rank: int, index: int) -> At:
    return At(rank, "s", index, packet=True)


def copy_on(rank: int) -> Block:
    """A block that copies the input of its rank to the output."""
    return Block(rank).move([At(rank, "i", 0)], [At(rank, "o", 0)])


def packets_over_data() -> OneSidedPlan:
    """Scratch holds data, and then packets: the reader takes the data for a packet."""
    writer = Block(0).move([At(0, "i", 0)], [At(0, "s", 0)]).join()
    writer.move([At(0, "i", 0)], [packet(0, 0)])
    reader = Block(0).move([packet(0, 0)], [At(0, "o", 0)])
    return plan_of(OWN, [writer, reader, copy_on(1)], scratch=2)


def packets_of_two_ports(*, join: bool) -> OneSidedPlan:
    """Rank 0 sends a packet, which rank 1 reads, and returns through a port."""
    first = Block(0).move([At(0, "i", 0)], [packet(1, 0)])
    first.move([packet(0, 0)], [At(0, "o", 0)])
    second = Block(1).move([packet(1, 0)], [At(1, "o", 0)])
    if join:
        second.join()
    second.push(0, [packet(1, 0)], [packet(0, 0)]).flush(0)
    return plan_of(FIRST, [first, second], ports=[1], scratch=2, copies=2)


def two_ways_to_post(*, by_port: bool) -> OneSidedPlan:
    """Rank 1 waits for two posts of rank 0, one of which a port may perform in the next call, when
    rank 0 has posted again."""
    first = Block(0).post(0).wait(1, relaxed=True).join()
    first.move([At(0, "i", 0)], [At(0, "s", 0), At(0, "o", 0)]).join()
    first.push(0, [At(0, "s", 0)], [At(1, "o", 0)])
    second = Block(1).post(1, relaxed=True).wait(0).wait(0)
    if by_port:
        first.push_post(0, 0)
    else:
        first.flush(0).post(0)
    counters = [(1, 0, 0), (0, 1, 0)]
    return plan_of(FIRST, [first, second], counters=counters, ports=[0], scratch=1, copies=2)


SMALL = [
    (packets_over_data(), {"V216"}, "wrong"),
    (packets_of_two_ports(join=False), {"V204"}, "hang"),
    (packets_of_two_ports(join=True), set(), ""),
    (two_ways_to_post(by_port=True), {"V215"}, "wrong"),
    (two_ways_to_post(by_port=False), set(), ""),
]


@pytest.mark.parametrize(("plan", "expected", "fault"), SMALL)
def test_the_verifier_and_the_adversary_disagree_on_a_plan(plan, expected, fault):
    assert codes(plan) == expected
    assert broken(plan, 1, 60) == fault
