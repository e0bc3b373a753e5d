"""Simulations of switches that reduce and multicast, calculated by hand.

A block moves 10,000 bytes a us, so a chunk of 80,000 bytes takes 8 us; a switch announces after
5 us.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sley
from model.simulation.test_hand_computed import CHUNK, ROUND, simulated, spans, star
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.tables import Edges
from sley.ir.words import Op, Protocol
from support.inputs.small_plans import IN, OUT, SCRATCH, Hand

SWITCH = replace(ROUND, switch_latency_us=5, switch_efficiency=1.0)
RANKS = 3


def machine(model: CostModel = SWITCH, *rates: float) -> sley.Topology:
    return replace(star(RANKS, model, *rates), in_network=True)


def grouped(hand: Hand, slots: int = 1) -> Plan:
    """The plan, in which peer 3 is the group of ranks 1 and 2."""
    plan = hand.plan(sley.AllReduce(RANKS), slots=slots, scratch=1)
    return replace(plan, groups=Edges(np.array([0, 2]), np.array([1, 2], np.int32)))


def multicast() -> Plan:
    hand = Hand()
    hand.add(0, 0, Op.SEND, (IN, 0), to=3)
    for rank in (1, 2):
        hand.add(rank, 0, Op.RECV, dst=(OUT, 0), of=0)
    return grouped(hand)


def reduction() -> Plan:
    hand = Hand()
    for rank in (1, 2):
        hand.add(rank, 0, Op.SEND, (IN, 0), to=0)
    hand.add(0, 0, Op.RECV_REDUCE_COPY, (IN, 0), (OUT, 0), of=3)
    return grouped(hand)


def moved(simulation: sley.Simulation) -> dict[str, float]:
    """The chunks that crossed each link."""
    label, found = simulation.topology.link_label, simulation.links.moved_bytes
    return {label(k): n / CHUNK for k, n in enumerate(found.tolist()) if n}


def test_a_multicast_crosses_the_senders_link_once() -> None:
    found = simulated(multicast(), 1, machine(), Protocol.SIMPLE)
    assert spans(found) == {(0, 0): (10, 23), (1, 0): (23, 31), (2, 0): (23, 31)}
    out = {f"switch 0 -> GPU {rank}": 1 for rank in range(RANKS)}
    assert moved(found) == pytest.approx({"GPU 0 -> switch 0": 1, **out})


def test_a_reduction_crosses_the_receivers_link_once() -> None:
    found = simulated(reduction(), 1, machine(), Protocol.SIMPLE)
    # The members copy into their slots, and need no fence.
    assert spans(found) == {(1, 0): (10, 18), (2, 0): (10, 18), (0, 0): (23, 31)}
    up = {f"GPU {rank} -> switch 0": 1 for rank in range(RANKS)}
    assert moved(found) == pytest.approx({"switch 0 -> GPU 0": 1, **up})


def test_with_direct_the_switch_reads_and_writes_the_buffers() -> None:
    found = simulated(reduction(), 1, machine(), Protocol.DIRECT)
    assert spans(found) == {(1, 0): (10, 10), (2, 0): (10, 10), (0, 0): (15, 23)}
    found = simulated(multicast(), 1, machine(), Protocol.DIRECT)
    assert spans(found) == {(0, 0): (10, 23), (1, 0): (23, 23), (2, 0): (23, 23)}


def test_links_reach_a_share_of_their_rate_when_a_switch_works() -> None:
    half = replace(SWITCH, switch_efficiency=0.5)
    found = simulated(multicast(), 1, machine(half, 10.0), Protocol.SIMPLE)
    assert spans(found)[0, 0] == (10, 31), "5 GB/s of 10, then the fence"
    # One member's link is slow.
    found = simulated(reduction(), 1, machine(SWITCH, 1000, 1000, 5), Protocol.SIMPLE)
    assert spans(found)[0, 0] == (23, 39)


def test_parts_of_a_message_that_moves_nothing_are_those_of_the_switch() -> None:
    two = replace(SWITCH, slices=ByProtocol(1, 1, 2))
    found = simulated(reduction(), 1, machine(two), Protocol.DIRECT)
    assert spans(found)[0, 0] == (15, 23)


def test_a_group_waits_for_the_slowest_member_and_the_last_slot() -> None:
    hand = Hand()
    for _ in range(2):
        hand.add(0, 0, Op.SEND, (IN, 0), to=3)
    for _ in range(2):
        hand.add(1, 0, Op.COPY, (IN, 0), (SCRATCH, 0))
    for rank in (1, 2):
        for _ in range(2):
            hand.add(rank, 0, Op.RECV, dst=(OUT, 0), of=0)
    busy = spans(simulated(grouped(hand), 1, machine(), Protocol.SIMPLE))
    assert busy[0, 0] == (10, 23)
    assert busy[4, 0] == (26, 34), "after rank 1's copies"
    assert busy[6, 0] == (23, 31)
    assert busy[1, 0][0] == pytest.approx(36), "rank 1 frees its slot at 34, seen 2 later"


@pytest.mark.parametrize("plan", [multicast(), reduction()])
def test_a_topology_without_such_switches_is_refused(plan: Plan) -> None:
    with pytest.raises(sley.SleyError) as error:
        sley.simulate(plan, "1M", star(RANKS, SWITCH))
    assert error.value.code == "C315"
    pieces = simulated(without_groups(plan), 1, star(RANKS, SWITCH), Protocol.SIMPLE)
    # Each message crosses two links.
    assert sum(moved(pieces).values()) == pytest.approx(2 * (RANKS - 1))


def test_memory_serves_the_switch_at_all_members() -> None:
    slow = replace(SWITCH, memory_GBps=10.0)
    found = simulated(multicast(), 1, machine(slow), Protocol.SIMPLE)
    # Rank 0 reads once, the members' slots are written once: 8 us each.
    assert spans(found)[0, 0] == (10, 23)
    assert spans(found)[1, 0] == (23, 39), "a copy reads and writes"
    found = simulated(reduction(), 1, machine(slow), Protocol.SIMPLE)
    assert spans(found)[1, 0] == (10, 26)
    assert spans(found)[0, 0] == (31, 47), "rank 0 reads its operand and writes the result"
