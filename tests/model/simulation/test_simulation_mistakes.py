"""Refusals of the simulator, and their texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sley
from sley.ir.cost_model import ByProtocol
from sley.ir.plan import Plan
from sley.ir.tables import Edges
from sley.ir.topology import Topology
from sley.ir.words import LoopOrder, Op
from sley.model.simulation import Simulator
from support.inputs.small_plans import (
    IN,
    OUT,
    Hand,
    direct_allgather,
    stalling,
    stalling_for_a_slot,
)
from support.mutants.plan_edits import with_columns

PAIR = Topology.from_links("pair", 2, [(0, 1)])


def refused(code: str, plan: Plan, size: Any = 1000, *args: Any, **settings: Any) -> str:
    with pytest.raises(sley.SleyError) as caught:
        sley.simulate(plan, size, *args, **settings)
    assert [d.code for d in caught.value.diagnostics] == [code]
    return str(caught.value)


def message() -> Plan:
    hand = Hand()
    hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0)
    return hand.plan(sley.AllReduce(2), slots=2)


def test_a_simulation_without_a_topology_is_refused() -> None:
    assert "by-hand" in refused("S701", message())
    assert sley.simulate(replace(message(), topology=PAIR), 1000).topology is PAIR
    other = Topology.from_links("other", 2, [(0, 1)])
    assert sley.simulate(replace(message(), topology=PAIR), 1000, other).topology is other


@pytest.mark.parametrize(
    "size",
    [
        0,
        -1,
        1.5,
        True,
        None,
        "",
        "0",
        "-1K",
        "64 apples",
        "1e3",
        "1.5M",
        [],
        [1, 0],
        10**30,
        "9" * 15 + "G",
    ],
)
def test_an_invalid_size_is_refused(size: Any) -> None:
    refused("S702", message(), size, PAIR)
    with pytest.raises(sley.SleyError, match="S702"):
        Simulator(message(), PAIR)(size)


@pytest.mark.parametrize(("text", "size"), [("64k", 2**16), ("3 MB", 3 * 2**20), ("1GiB", 2**30)])
def test_sizes_may_be_texts_with_units(text: str, size: int) -> None:
    assert sley.simulate(message(), text, PAIR).size_bytes == size


@pytest.mark.parametrize("slots", [0, 1, -3, 2.0, "2", True])
def test_fewer_slots_than_the_plan_was_ordered_for_are_refused(slots: Any) -> None:
    said = refused("R514", message(), 1000, PAIR, slots=slots)
    assert "slots from 2" in said
    assert f"slots={slots!r}" in said


def test_a_message_between_ranks_that_are_not_linked_is_refused_with_its_line() -> None:
    line = Topology.from_links("line", 3, [(0, 1), (1, 2)])
    said = refused("C301", direct_allgather(3, in_place=True), 1000, line)
    assert "rank 0 -> rank 2, which line does not link" in said
    assert "by_hand.py:3" in said
    assert "rank 0, block 1, step 0 (send)" in said


@pytest.mark.parametrize(
    "values", [{"op": 77}, {"send_peer": -5}, {"send_peer": 0}, {"channel": -3}, {"count": 0}]
)
def test_a_plan_that_contradicts_itself_is_refused(values: dict[str, int]) -> None:
    said = refused("V201", with_columns(message(), 0, **values), 1000, PAIR)
    assert "by_hand.py:1, rank 0, block 0, step 0" in said


def test_a_wait_for_an_instruction_that_does_not_exist_is_refused() -> None:
    waits = Edges(np.array([0, 0, 1]), np.array([10**6]))
    assert "a wait for instruction 1000000" in refused(
        "V201", replace(message(), waits=waits), 1000, PAIR
    )


def test_more_ranks_than_gpus_are_refused() -> None:
    said = refused("C305", direct_allgather(3, in_place=True), 1000, PAIR)
    assert "at least 3 ranks" in said
    assert "pair: 2 ranks" in said


def test_fewer_ranks_than_gpus_are_fine() -> None:
    four = Topology.from_links("four", 4, [(a, b) for a in range(4) for b in range(a)])
    found = sley.simulate(direct_allgather(3, in_place=True), 3000, four)
    used = found.links.moved_bytes > 0
    assert used.sum() == 6
    assert not (used & ((four.links.src == 3) | (four.links.dst == 3))).any()


def test_a_plan_that_hangs_is_refused_with_where_it_is_stuck() -> None:
    said = refused("V203", stalling(3), 1000, Topology.cluster(1, 3))
    assert "3 blocks stuck" in said
    for rank in range(3):
        assert f"stuck at rank {rank} block 0 step 0 (recv, by_hand.py:{2 * rank + 1})" in said


def test_a_plan_that_hangs_with_its_slots_runs_with_more() -> None:
    plan = stalling_for_a_slot()
    said = refused("V203", plan, 1000, PAIR)
    assert "stuck at rank 0 block 0 step 1 (send, by_hand.py:2)" in said
    assert "stuck at rank 1 block 0 step 0 (recv, by_hand.py:5)" in said
    assert sley.simulate(plan, 1000, PAIR, slots=3).plan.slots == 3


def test_what_hangs_only_with_many_tiles_runs_with_few() -> None:
    """Two sends from one block to one that receives them the other way round."""
    hand = Hand()
    for channel in (0, 1):
        hand.add(0, 0, Op.SEND, (IN, 0), to=1, channel=channel)
        hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0, channel=1 - channel)
    plan = hand.plan(sley.AllReduce(2), loop_order=LoopOrder.INSTRUCTION, slots=2)
    assert sley.simulate(plan, "4M", PAIR).tiles == 2
    assert "2 blocks stuck" in refused("V203", plan, "6M", PAIR)
    assert sley.simulate(plan, "6M", PAIR, slots=3).tiles == 3


def test_only_the_first_of_many_stuck_blocks_are_named() -> None:
    said = refused("V203", stalling(12), 1000, Topology.cluster(1, 12))
    assert "12 blocks stuck" in said
    assert said.count("stuck at") == 8


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("C307", {"topology": 4}),
        ("T604", {"topology": "ndv44"}),
        ("C307", {"model": 3}),
        ("C307", {"plan": message}),
        ("R514", {"interpreter": "yes"}),
        ("R514", {"executions": 1}),
        ("R514", {"slots": 10**9}),
    ],
)
def test_arguments_of_another_kind_are_refused(code: str, settings: dict[str, Any]) -> None:
    given = {"plan": message(), "topology": PAIR, **settings}
    with pytest.raises(sley.SleyError, match=code):
        Simulator(given.pop("plan"), given.pop("topology"), **given)


@pytest.mark.parametrize("slices", [0, 2.5, 17, float("inf"), float("nan"), "2"])
def test_slices_are_a_few_whole_parts(slices: Any) -> None:
    with pytest.raises(sley.SleyError, match=r"T602(.|\n)*slices as a whole number"):
        sley.CostModel(slices=ByProtocol(1, 1, slices))


def test_more_executions_than_anybody_waits_for_are_refused() -> None:
    model = replace(PAIR.model, tile_bytes=ByProtocol(1, 1, 1))
    found = refused("S705", message(), "1G", PAIR, model=model, executions=True)
    assert "tiles of 2 instructions" in found


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-320, 1e300, float("nan"), float("inf")])
def test_rates_of_no_finite_time_are_refused(rate: float) -> None:
    with pytest.raises(sley.SleyError, match="T602"):
        sley.CostModel(nvlink_block_GBps=rate)
    with pytest.raises(sley.SleyError, match="T602"):
        Topology.from_links("pair", 2, [(0, 1)], GBps=rate)


def test_a_plan_without_work_takes_no_time_and_reaches_its_bound() -> None:
    empty = sley.compile(
        sley.trace(sley.Custom("none", 2, 1, 1, lambda rank, index: None), lambda p: None)
    )
    model = replace(PAIR.model, launch_us=ByProtocol.same(0))
    simulation = sley.simulate(empty, 1000, PAIR, model=model)
    assert (simulation.time_us, simulation.algbw_GBps, simulation.of_bound) == (0, float("inf"), 1)
