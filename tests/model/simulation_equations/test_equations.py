"""Equations (1) to (6) of ResCCL: calculated by hand on small plans, and properties of all
plans."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.cost_model import ByProtocol
from sley.ir.tables import NONE
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.mutants.plan_edits import as_nop, with_columns

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
TILE, TILES = 100_000, 8
ALPHA = 4.0


def _module(name: str) -> ModuleType:
    """A module of benchmarks/, which is no package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


equations = _module("papers_equations")


def model(**changes: Any) -> sley.CostModel:
    """Tiles of 100 kB, hops of 4 us, blocks of 20 GB/s."""
    tile = ByProtocol(TILE, TILE, TILE)
    hop = ByProtocol(ALPHA, ALPHA, ALPHA)
    settings: dict[str, Any] = {"tile_bytes": tile, "nvlink_latency_us": hop} | changes
    return sley.CostModel(**settings)


def chain(*rates: float, **changes: Any) -> sley.Topology:
    """Ranks in a row, each linked to the next at a rate in GB/s."""
    ends = [(rank, rank + 1) for rank in range(len(rates))]
    topology = sley.Topology.from_links("chain", len(rates) + 1, ends, model=model(**changes))
    links = topology.links
    by_pair = np.array(rates)[np.minimum(links.src, links.dst)]
    columns = {name: getattr(links, name) for name in type(links).column_names()}
    return sley.Topology(
        "chain", topology.vertices, type(links)(**columns | {"GBps": by_pair}), topology.model
    )


def relay(*rates: float, channels: tuple[int, ...] = (), **changes: Any) -> sley.Plan:
    """A chunk goes from the first rank of a chain to the last, over rank after rank."""
    ranks = len(rates) + 1

    def body(p: Any) -> None:
        c = p.chunk(0, "in", 0)
        for rank in range(1, ranks):
            channel = channels[rank - 1] if channels else None
            c = c.copy(rank, "out", 0, channel=channel)

    collective = sley.Broadcast(ranks, 1, root=0, in_place=True)
    program = sley.trace(collective, body, name="relay")
    return sley.compile(program, topology=chain(*rates, **changes), fusion=False)


def side_by_side(**changes: Any) -> sley.Plan:
    """Two chunks over one link of 20 GB/s, each on a channel of its own."""

    def body(p: Any) -> None:
        for index in range(2):
            p.chunk(0, "in", index).copy(1, "out", index, channel=index)

    program = sley.trace(sley.Broadcast(2, 2, root=0, in_place=True), body, name="side-by-side")
    return sley.compile(program, topology=chain(20.0, **changes))


def test_links_with_equal_tasks_take_the_times_computed_by_hand() -> None:
    """A task has 4 us and 100 kB at 10 GB/s; the second link waits for the first in every tile, or
    once."""
    found = equations.estimate(relay(10.0, 10.0), TILE * TILES)
    assert found.tiles == TILES
    assert found.algorithm == equations.LevelEstimate(
        "GPU 1 -> GPU 2", NONE, TILES, 1, 14.0, 0.0, pytest.approx(14.0), 0.0
    )
    assert found.algorithm.time_us == pytest.approx(8 * 28)
    assert found.task == equations.LevelEstimate(
        "GPU 1 -> GPU 2", NONE, TILES, 1, 14.0, 0.0, 0.0, pytest.approx(14.0)
    )
    assert found.task.time_us == pytest.approx(14 + 8 * 14)


def test_stages_with_blocks_of_their_own_overlap() -> None:
    plan = relay(10.0, 10.0, channels=(0, 1))
    apart = equations.estimate(plan, TILE * TILES)
    assert (apart.stages, apart.stage.time_us) == (2, pytest.approx(8 * 14))
    assert apart.stage.bubble_us == 0
    together = equations.estimate(plan, TILE * TILES, stages=[0, 0])
    assert (together.stages, together.stage.time_us) == (1, together.algorithm.time_us)


def test_a_link_behind_a_slower_one_has_residual_bubbles() -> None:
    """Tasks of 24 and 14 us: the second link waits 10 us for every tile, and 14 more at first."""
    found = equations.estimate(relay(5.0, 10.0), TILE * TILES)
    assert found.algorithm.time_us == pytest.approx(8 * (24 + 14))
    assert found.task.link == "GPU 1 -> GPU 2"
    assert found.task.transfer_us == pytest.approx(14)
    assert found.task.bubble_us == pytest.approx(10)
    assert found.task.load_us == pytest.approx(14)
    assert found.task.time_us == pytest.approx(24 * 8 + 14)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_contention_makes_tasks_of_shared_links_longer(gamma: float) -> None:
    """Two blocks of 20 GB/s on a link of 20. In one stage: tasks of 2 us (half of 4) and 5 (100 kB
    at 20 GB/s), and gamma L = gamma 5 (2 - 1). In two, each alone would have 4 + 5, z_k is 2, and
    gamma L = gamma 10 (2 - 1)."""
    plan = side_by_side(contention=gamma)
    apart = equations.estimate(plan, 2 * TILE * TILES)
    assert apart.algorithm.time_us == pytest.approx(8 * 2 * (2 + 5))
    assert apart.task.time_us == pytest.approx(8 * 2 * (2 + 5))
    assert apart.stage.tasks == 1
    assert apart.stage.transfer_us == pytest.approx(2 * (4 + 5))
    assert apart.stage.contention_us == pytest.approx(gamma * 10)
    together = equations.estimate(plan, 2 * TILE * TILES, stages=[7, 7])
    assert together.stage.time_us == pytest.approx(8 * 2 * (7 + gamma * 5))


def test_gpus_share_the_card_that_they_send_over() -> None:
    """Two GPUs of a node send over its card of 24 GB/s, with blocks of 20: 12 for each."""
    topology = sley.Topology.cluster(2, 2, 1, model=model(network_latency_us=model().launch_us))

    def body(p: Any) -> None:
        p.chunk([0, 1, 2, 3], "in", 0).copy([2, 3, 0, 1], "out", 0)

    swapped = sley.Custom("swap", 4, 1, 1, lambda rank, _: [((rank + 2) % 4, 0)])
    program = sley.trace(swapped, body, name="swap")
    found = equations.estimate(sley.compile(program, topology=topology), TILE * TILES)
    launch = topology.model.launch_us[sley.Protocol.SIMPLE]
    assert found.algorithm.link == "card 0, sending"
    assert found.algorithm.tasks == 2
    assert found.algorithm.transfer_us == pytest.approx(launch + 2 * 100 / 24)


def test_nodes_share_the_card_that_they_send_to() -> None:
    """Two nodes send to a third, whose card gives each 12 of 24 GB/s."""
    topology = sley.Topology.cluster(3, 1, 1, model=model())

    def body(p: Any) -> None:
        p.chunk([1, 2], "in", 0).copy(0, "out", [1, 2])

    program = sley.trace(sley.Gather(3, 1, root=0, in_place=True), body, name="gather")
    found = equations.estimate(sley.compile(program, topology=topology), 3 * TILE * TILES)
    hop = topology.model.network_latency_us[sley.Protocol.SIMPLE]
    task = hop + 100 / 12
    assert found.algorithm.transfer_us == pytest.approx(task)
    assert found.algorithm.bubble_us == pytest.approx(task / 2), "the second waits for half of it"
    assert found.algorithm.time_us == pytest.approx(8 * 1.5 * task)
    assert found.task.time_us == pytest.approx(8 * 1.5 * task)


def test_tasks_of_one_block_follow_one_another() -> None:
    """4 us and 100 kB at 20 GB/s, twice."""

    def body(p: Any) -> None:
        for index in range(2):
            p.chunk(0, "in", index).copy(1, "out", index, channel=0)

    program = sley.trace(sley.Broadcast(2, 2, root=0, in_place=True), body, name="one-block")
    plan = sley.compile(program, topology=chain(20.0))
    assert len(plan.block_rank) == 2
    found = equations.estimate(plan, 2 * TILE * TILES)
    assert found.algorithm.time_us == pytest.approx(8 * 2 * 9)
    assert found.task.time_us == pytest.approx(8 * 2 * 9)


def test_tasks_take_turns_on_a_link() -> None:
    """Two chunks over two links, by two blocks each: tasks of 7 us, the second starts when the
    first leaves the first link."""

    def body(p: Any) -> None:
        for index in range(2):
            c = p.chunk(0, "in", index)
            for rank in (1, 2):
                c = c.copy(rank, "out", index, channel=index)

    program = sley.trace(sley.Broadcast(3, 2, root=0, in_place=True), body, name="two-lanes")
    plan = sley.compile(program, topology=chain(20.0, 20.0), fusion=False)
    found = equations.estimate(plan, 2 * TILE * TILES)
    assert found.algorithm.transfer_us == pytest.approx(14)
    assert found.algorithm.bubble_us == pytest.approx(7)
    assert found.task.time_us == pytest.approx(7 + 8 * 14)


def test_local_operations_hand_data_on_within_a_stage() -> None:
    def body(p: Any) -> None:
        c = p.chunk(0, "in", 0).copy(1, "scratch", 0, channel=0)
        c.copy(1, "out", 0).copy(2, "out", 0, channel=0)

    program = sley.trace(sley.Broadcast(3, 1, root=0, in_place=True), body, name="local")
    plan = sley.compile(program, topology=chain(10.0, 10.0), fusion=False)
    assert equations.estimate(plan, TILE * TILES).stage.time_us == pytest.approx(8 * 28)


def test_a_plan_without_messages_takes_no_time() -> None:
    def body(p: Any) -> None:
        p.chunk(0, "in", 0).copy(0, "out", 0)

    program = sley.trace(sley.AllGather(1, 1), body, name="alone")
    found = equations.estimate(sley.compile(program), 1000, topology=chain(10.0))
    assert (found.algorithm.time_us, found.stage.time_us, found.task.time_us, found.stages) == (
        0,
        0,
        0,
        1,
    )


def levels_hold(plan: sley.Plan, found: Any) -> None:
    """What must hold of any plan's estimates."""
    for level in (found.algorithm, found.stage, found.task):
        assert min(level.transfer_us, level.contention_us, level.bubble_us, level.load_us) >= 0
        assert level.time_us >= level.tiles * level.transfer_us * (1 - 1e-12)
        assert level.tasks <= len(plan.sends)
    assert found.task.time_us <= found.algorithm.time_us * (1 + 1e-12)
    assert found.task.limit_us <= found.algorithm.limit_us * (1 + 1e-12)


@examples(14)
@given(
    random=random_programs(),
    schedule=st.sampled_from(["msccl", "hpds"]),
    gpus=st.sampled_from([1, 2, 5]),
    tiles=st.integers(1, 20),
)
def test_equations_keep_their_order_on_random_plans(
    random: RandomProgram, schedule: str, gpus: int, tiles: int
) -> None:
    nodes = -(-random.ranks // gpus)
    topology = sley.Topology.cluster(max(nodes, 2), gpus, 1, model=model())
    plan = sley.compile(random.program, schedule=schedule, topology=topology)
    size = tiles * TILE * plan.collective.blocks * plan.collective.chunks
    found = equations.estimate(plan, size)
    levels_hold(plan, found)
    whole = equations.estimate(plan, size, stages=[0] * plan.channels)
    assert whole.stage.time_us == pytest.approx(whole.algorithm.time_us)
    many = equations.estimate(plan, size * 10**4)
    assert many.algorithm.time_us / many.tiles == pytest.approx(found.algorithm.limit_us)
    assert many.task.time_us / many.tiles == pytest.approx(many.task.limit_us, rel=0.02)


@pytest.mark.parametrize("name", ["hm-allgather", "hm-allreduce"])
def test_equation_5_keeps_to_the_simulation_of_a_hierarchical_mesh(name: str) -> None:
    """Equation (5) leaves out slots and what blocks wait for; it keeps to the simulation for
    large sizes."""
    topology = sley.topologies.resccl(nodes=2)
    program = sley.algorithms.build(name, nodes=2, gpus=8, nics=4, in_place=True)
    plan = sley.compile(program, schedule="hpds", topology=topology)
    found = equations.estimate(plan, "1G")
    levels_hold(plan, found)
    assert found.task.time_us == pytest.approx(sley.simulate(plan, "1G", slots=8).time_us, rel=0.2)


@pytest.mark.parametrize("stages", [[0], [0, 1, 2], [0, -1], [0, 1.5]])
def test_stages_that_do_not_fit_are_refused(stages: list[Any]) -> None:
    with pytest.raises(sley.SleyError, match="R514") as error:
        equations.estimate(relay(10.0, 10.0, channels=(0, 1)), 1000, stages=stages)
    assert "2 channels" in str(error.value)


def test_questions_without_an_answer_are_refused() -> None:
    plan = relay(10.0, 10.0)
    with pytest.raises(sley.SleyError, match="S702"):
        equations.estimate(plan, 0)
    with pytest.raises(sley.SleyError, match="S701"):
        equations.estimate(sley.compile(sley.algorithms.ring_allreduce(4)), 1000)
    with pytest.raises(sley.SleyError, match="C305"):
        equations.estimate(plan, 1000, topology=chain(10.0))
    with pytest.raises(sley.SleyError, match="V201"):
        equations.estimate(with_columns(plan, 0, send_peer=9), 1000)


def test_a_message_that_nobody_receives() -> None:
    plan = relay(10.0, 10.0)
    with pytest.raises(sley.SleyError, match="V202") as caught:
        equations.estimate(as_nop(plan, int(plan.receives[-1])), 1000)
    assert "1 send, 0 receives" in str(caught.value)
