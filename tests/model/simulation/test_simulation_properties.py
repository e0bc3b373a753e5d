"""Properties of every simulation, with random plans, clusters and cost models."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from test_against_naive import RELATIVE, close

import sley
from sley.algorithms import build
from sley.ir.cost_model import ByProtocol
from sley.ir.fabric import LinkKind
from sley.ir.tables import NONE, Table
from sley.ir.words import LoopOrder, Op
from sley.model.simulation import Cause, Simulation, Simulator
from sley.model.simulation.result import TileExecutions
from sley.topologies import machine
from support.generators.examples import examples
from support.generators.random_cases import Call, calls
from support.inputs.small_plans import IN, OUT, Hand

NEAR_US = 1e-5
ANOMALY = 0.12
"""How much Graham's anomalies may change a time in the wrong direction."""
MANY = examples(15, suppress_health_check=list(HealthCheck))


def as_bytes(value: object) -> bytes:
    """Every number of a result, as it lies in memory."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Table):
        return b"".join(getattr(value, name).tobytes() for name in value.column_names())
    return repr(value).encode()


def parts(simulation: Simulation) -> dict[str, bytes]:
    links = {f"links.{f.name}": getattr(simulation.links, f.name) for f in fields(simulation.links)}
    values: dict[str, Any] = {
        name: getattr(simulation, name)
        for name in ("time_us", "tiles", "tile_bytes", "blocks", "critical", "executions")
    }
    return {name: as_bytes(value) for name, value in (values | links).items()}


def kept(simulation: Simulation) -> TileExecutions:
    assert simulation.executions is not None
    return simulation.executions


@MANY
@given(calls())
def test_the_same_question_gets_the_same_bytes(call: Call) -> None:
    first = parts(call.simulated())
    assert parts(call.simulated()) == first
    simulator = Simulator(
        call.plan,
        call.topology,
        interpreter=call.interpreter,
        slots=call.slots,
        executions=True,
    )
    other = min(call.size_bytes * 2, call.size_bytes + 1000)
    simulator(other)
    assert parts(simulator(call.size_bytes)) == first
    assert parts(simulator(other)) == parts(replace(call, size_bytes=other).simulated())
    assert parts(call.simulated(model=call.topology.model)) == first
    executed = call.simulated(executions=False)
    assert executed.executions is None
    assert parts(executed) | {"executions": b""} == first | {"executions": b""}


@MANY
@given(calls())
def test_every_execution_is_there_once_and_in_order(call: Call) -> None:
    simulation = call.simulated()
    e, plan = kept(simulation), call.plan
    pairs = set(zip(e.instruction.tolist(), e.tile.tolist(), strict=True))
    assert len(e) == len(pairs) == len(plan.instructions) * simulation.tiles
    assert pairs == {(i, t) for i in range(len(plan.instructions)) for t in range(simulation.tiles)}
    assert (np.diff(e.end_us) >= 0).all()
    assert (e.turn_us <= e.start_us).all()
    assert (e.start_us <= e.end_us).all()
    last = np.full(len(plan.block_rank), simulation.launch_us)
    np.maximum.at(last, plan.block[e.instruction], e.end_us)
    assert (last == simulation.blocks.end_us).all()
    assert simulation.time_us == max([simulation.launch_us, *e.end_us])


@MANY
@given(calls())
def test_nothing_happens_before_its_cause(call: Call) -> None:
    simulation, plan = call.simulated(), call.plan
    model, t, e = call.topology.model, plan.instructions, kept(simulation)
    for row in e:
        one = t[row.instruction]
        rank = int(plan.rank[row.instruction])
        assert (row.cause == Cause.LAUNCH) == (row.after == NONE)
        if row.after == NONE:
            assert row.turn_us == simulation.launch_us
            assert row.tile == 0
            assert plan.step[row.instruction] == 0
            continue
        before = e[row.after]
        other = t[before.instruction]
        if row.cause == Cause.TURN:
            assert before.end_us == row.turn_us
            assert follows(plan, before, row, int(e.tile.max()) + 1)
        if row.cause == Cause.WAIT:
            assert before.tile == row.tile
            assert before.instruction in plan.waits[row.instruction]
            assert before.end_us + model.wait_us <= row.start_us + NEAR_US
        if row.cause == Cause.MESSAGE:
            ends = (int(plan.rank[before.instruction]), other.send_peer, other.channel)
            assert ends == (one.recv_peer, rank, one.channel)
            assert before.tile == row.tile
            assert other.count == one.count
            assert before.start_us <= row.start_us
            assert before.end_us <= row.end_us + NEAR_US
        if row.cause == Cause.SLOT:
            ends = (other.recv_peer, int(plan.rank[before.instruction]), other.channel)
            sends = (int(plan.rank[before.instruction]), other.send_peer, other.channel)
            mine = (rank, one.send_peer, one.channel)
            # Over the network a proxy may have kept the block's own part.
            way = call.topology.paths([rank], [one.send_peer])[0]
            remote = LinkKind.NETWORK in call.topology.links.kind[way]
            assert ends == mine or (remote and sends == mine)
            assert before.start_us <= row.end_us


def follows(plan: sley.Plan, before: Any, row: Any, tiles: int) -> bool:
    """Whether a block executes one right after the other."""
    b = plan.block[row.instruction]
    first, end = plan.block_offset[b : b + 2].tolist()
    spans = [range(first, end), range(tiles)]
    if plan.loop_order is LoopOrder.TILE:
        order = [(i, tile) for tile in spans[1] for i in spans[0]]
    else:
        order = [(i, tile) for i in spans[0] for tile in spans[1]]
    place = order.index((row.instruction, row.tile))
    return order[place - 1] == (before.instruction, before.tile)


@MANY
@given(calls())
def test_the_critical_path_leads_from_launch_to_the_end(call: Call) -> None:
    simulation = call.simulated()
    e, way = kept(simulation), simulation.critical
    if not len(e):
        assert not len(way)
        return
    assert way.end_us[-1] == simulation.time_us
    assert way.cause[0] == Cause.LAUNCH
    assert way.turn_us[0] == simulation.launch_us
    assert (way.cause[1:] != Cause.LAUNCH).all()
    assert (way.after == np.arange(-1, len(way) - 1)).all()
    assert (np.diff(way.end_us) >= 0).all()
    place = {(x.instruction, x.tile): k for k, x in enumerate(e)}
    rows = [place[x.instruction, x.tile] for x in way]
    assert (way.end_us <= e.end_us[rows]).all()
    # None passed its data on before it ended, and none waited for a part of its own.
    if way.end_us.tolist() == e.end_us[rows].tolist() and len(set(rows)) == len(rows):
        assert e.after[rows].tolist() == [NONE, *rows[:-1]]


@MANY
@given(calls())
def test_a_blocks_times_add_up(call: Call) -> None:
    simulation = call.simulated()
    b = simulation.blocks
    spent = b.moving_us + b.waiting_us + b.message_us + b.slot_us + b.overhead_us
    close(spent, b.end_us - simulation.launch_us, simulation.time_us)
    for name in columns_of_blocks():
        assert (getattr(b, name) >= 0).all()
    for to_exit in (True, False):
        idle = simulation.idle(to_exit=to_exit)
        ran = simulation.blocks.end_us > simulation.launch_us
        assert ((idle[ran] >= -RELATIVE) & (idle[ran] <= 1 + RELATIVE)).all()


def columns_of_blocks() -> list[str]:
    return ["moving_us", "waiting_us", "message_us", "slot_us", "overhead_us", "end_us"]


@MANY
@given(calls())
def test_links_carry_what_the_plan_sends(call: Call) -> None:
    model = replace(call.topology.model, part_overhead_bytes=0.0)
    simulation, plan = call.simulated(model=model), call.plan
    chunk = call.size_bytes / plan.collective.blocks / plan.collective.chunks
    expected = np.zeros(len(call.topology.links))
    for i in plan.sends.tolist():
        size = chunk * plan.instructions.count[i] / model.wire_efficiency[plan.protocol]
        way = call.topology.paths([plan.rank[i]], [plan.instructions.send_peer[i]])[0]
        expected[way] += size
    np.testing.assert_allclose(simulation.links.moved_bytes, expected, rtol=RELATIVE)
    assert (simulation.utilisation <= 1 + RELATIVE).all()


@MANY
@given(calls())
def test_no_link_carries_more_than_it_can(call: Call) -> None:
    simulation = call.simulated()
    links, rate = simulation.links, call.topology.links.GBps
    assert (links.load_GBps <= rate * (1 + RELATIVE)).all()
    total = links.load_GBps.sum(axis=0) * links.bin_us * 1e3
    np.testing.assert_allclose(total, links.moved_bytes, rtol=RELATIVE)
    assert len(links.load_GBps) * links.bin_us <= max(2 * simulation.time_us, 256 / 64)


@MANY
@given(calls())
def test_an_interpreter_makes_no_plan_faster_but_by_anomalies(call: Call) -> None:
    model = call.topology.model
    model = replace(model, contention=min(model.contention, 0.3))  # with more, delays help more
    generated, interpreted = (
        call.simulated(model=model, interpreter=on).time_us for on in (False, True)
    )
    # When an interpreter's loss relieved links, a plan took 40 % of the time.
    assert interpreted >= (1 - ANOMALY) * generated


@MANY
@given(calls())
def test_a_later_launch_shifts_everything(call: Call) -> None:
    simulation, model = call.simulated(), call.topology.model
    more = 17.25
    was = model.launch_us
    launch = ByProtocol(was.ll + more, was.ll128 + more, was.simple + more)
    later = call.simulated(model=replace(model, launch_us=launch))
    close(later.time_us, simulation.time_us + more, later.time_us)
    for name in columns_of_blocks():
        shift = more if name == "end_us" else 0
        expected = getattr(simulation.blocks, name) + shift
        close(getattr(later.blocks, name), expected, later.time_us)
    close(later.links.moved_bytes, simulation.links.moved_bytes, later.links.moved_bytes.max())


@MANY
@given(calls())
def test_gpus_of_one_thread_start_later_than_each_with_its_own(call: Call) -> None:
    gpus = int(np.bincount(call.topology.node).max())
    times = []
    for launch_gpus in (1, 2, 1024):
        changes = {"launch_gpus": launch_gpus, "host_launch_us": 4.5}
        changes |= {"block_us": 0, "network_call_us": 0}
        model = replace(call.topology.model, **changes)
        one = call.simulated(model=model)
        assert one.startup_us == 4.5 * (min(launch_gpus, gpus) - 1)
        assert one.launch_us == model.launch_us[call.plan.protocol] + one.startup_us
        assert one.bound.time_us <= one.time_us * (1 + RELATIVE)
        times.append(one.time_us - one.startup_us)
    close(times[1], times[0], times[0])
    close(times[2], times[0], times[0])


def test_the_critical_path_goes_round_messages_of_more_parts_than_slots() -> None:
    """One slot, three chunks a message, each a part of its own: the last part waits for a slot
    that the receiver gives back, and yet the path leads back to the copy before."""
    hand = Hand()
    hand.add(0, 0, Op.COPY, (IN, 0), (OUT, 0), count=3)
    hand.add(0, 0, Op.SEND, (IN, 0), to=1, count=3)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0, count=3)
    plan = replace(hand.plan(sley.AllReduce(2, 3), slots=1), per_chunk=True)
    model = replace(sley.CostModel(), local_block_GBps=1)
    pair = sley.Topology.from_links("pair", 2, [(0, 1)], model=model)
    way = sley.simulate(plan, "3M", pair).critical
    assert (way.cause[0], way.turn_us[0]) == (Cause.LAUNCH, model.launch_us.simple)
    assert plan.instructions.op[way.instruction[0]] == Op.COPY


@pytest.mark.parametrize("name", ["all-pairs-alltoall", "all-pairs-allgather"])
def test_varying_counts_that_are_equal_take_another_time_than_equal_ones(name: str) -> None:
    topology = machine("dgx-a100", 2)
    found = []
    for kin in (name, f"{name}v"):
        plan = sley.compile(build(kin, ranks=topology.ranks))
        rows = map(Simulator(plan, topology), ("1K", "1M", "64M"))
        found.append([(row.time_us, row.bound.time_us, row.busbw_GBps) for row in rows])
    assert found[0] == found[1]
