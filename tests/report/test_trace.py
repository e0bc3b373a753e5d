"""Tests of simulations as Chrome traces."""

import dataclasses
import gzip
import itertools
import json
from collections import defaultdict

import numpy as np
import pytest

from sley.errors import SleyError
from sley.report.analysis import alike_ranks, block_name
from sley.report.trace import trace, trace_bytes
from support.inputs.made_simulations import mesh_simulation, ring_simulation

SIMULATIONS = [ring_simulation(), mesh_simulation(2, 2)]


@pytest.fixture(params=SIMULATIONS, ids=["ring", "mesh"])
def simulation(request):
    return request.param


def events(simulation, phase):
    return [e for e in trace(simulation)["traceEvents"] if e["ph"] == phase]


def test_events_have_the_fields_of_the_format(simulation):
    made = trace(simulation)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["displayTimeUnit"] == "ns"
    times = [e["ts"] for e in made["traceEvents"]]
    assert times == sorted(times)
    assert {e["ph"] for e in made["traceEvents"]} == {"M", "X", "C", "s", "f"}
    for event in made["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "ts", "args"} <= set(event)
        assert all(type(event[key]) is int for key in ("pid", "tid"))
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["cat"]


def test_the_same_simulation_gives_the_same_trace():
    assert json.dumps(trace(ring_simulation())) == json.dumps(trace(ring_simulation.__wrapped__()))


def test_each_block_is_a_thread(simulation):
    plan = simulation.plan
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events(simulation, "M")
        if e["name"] == "thread_name"
    }
    expected = zip(plan.block_rank.tolist(), plan.block_number.tolist(), strict=True)
    assert names == {
        (r, b): f"block {b}: {block_name(plan, n)}" for n, (r, b) in enumerate(expected)
    }


def test_moves_add_up_and_never_overlap(simulation):
    spent, slices = defaultdict(float), defaultdict(list)
    for e in events(simulation, "X"):
        slices[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        if e["cat"].startswith("move"):
            spent[e["pid"], e["tid"]] += e["dur"]
    plan = simulation.plan
    for block, moving_us in enumerate(simulation.blocks.moving_us.tolist()):
        place = int(plan.block_rank[block]), int(plan.block_number[block])
        assert spent[place] == pytest.approx(moving_us)
        spans = sorted(slices[place])
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))


def test_an_execution_names_tile_line_and_cause():
    moves = [e for e in events(ring_simulation(), "X") if e["cat"].startswith("move")]
    assert len(moves) == len(ring_simulation().executions)
    last = max(moves, key=lambda e: (e["ts"] + e["dur"], "critical" in e["cat"]))
    assert last["name"] == "recv"
    assert last["cat"] == "move,critical"
    assert last["args"]["line"] == "ring_program.py:13"
    assert last["args"]["tile"] == 1
    assert last["args"]["waited_for"] == "message"


def test_an_arrow_leads_from_each_send_to_the_receive_of_its_message(simulation):
    def slices(event):
        return [
            e
            for e in events(simulation, "X")
            if (e["pid"], e["tid"], e["ts"]) == (event["pid"], event["tid"], event["ts"])
            and e["cat"].startswith("move")
        ]

    starts = {e["id"]: e for e in events(simulation, "s")}
    ends = {e["id"]: e for e in events(simulation, "f")}
    plan = simulation.plan
    assert starts.keys() == ends.keys()
    assert len(starts) == simulation.tiles * (plan.instructions.send_peer >= 0).sum()
    for number, start in starts.items():
        (send,), (receive,) = slices(start), slices(ends[number])
        assert send["args"]["tile"] == receive["args"]["tile"]
        assert "send" in send["name"]
        assert receive["name"].startswith("recv")
        assert start["ts"] <= ends[number]["ts"]
        row = next(
            row
            for row in range(len(plan.instructions))
            if (plan.rank[row], plan.block_number[plan.block[row]], plan.step[row])
            == (send["pid"], send["tid"], send["args"]["step"])
        )
        assert plan.instructions.send_peer[row] == ends[number]["pid"]


def test_counters_have_the_load_of_links(simulation):
    """The integral of a counter is the number of bytes on the link."""
    by_name = defaultdict(list)
    for e in events(simulation, "C"):
        assert e["pid"] == simulation.plan.collective.ranks
        by_name[e["name"]].append((e["ts"], e["args"]["GB/s"]))
    moved = simulation.links.moved_bytes
    labels = [f"{simulation.topology.link_label(n)} (link {n})" for n in range(len(moved))]
    assert set(by_name) == {label for label, size in zip(labels, moved, strict=True) if size}
    for link in np.flatnonzero(moved).tolist():
        points = by_name[labels[link]]
        assert points[-1][1] == 0
        area = sum(v * (b - a) for (a, v), (b, _) in itertools.pairwise(points))
        assert area * 1e3 == pytest.approx(moved[link])


def test_a_trace_without_executions_is_refused():
    with pytest.raises(SleyError) as error:
        trace(dataclasses.replace(ring_simulation(), executions=None))
    assert error.value.code == "P810"


def executed(made):
    """The executions in a trace: (rank, block, step, tile)."""
    return {
        (e["pid"], e["tid"], e["args"]["step"], e["args"]["tile"])
        for e in made["traceEvents"]
        if e["ph"] == "X"
    }


def test_a_trace_with_a_limit_has_whole_ranks_and_the_critical_path():
    simulation = mesh_simulation(2, 2)
    whole, rank = trace(simulation), simulation.plan.rank[simulation.executions.instruction]
    assert whole["otherData"]["left_out"] == 0
    most = int(np.bincount(rank).max()) + 1
    made = trace(simulation, most)
    about = made["otherData"]
    (first, *_), *_ = alike_ranks(simulation)
    assert about["complete_ranks"] == 1
    critical = {
        (int(simulation.plan.rank[row]), int(tile), int(simulation.plan.step[row]))
        for row, tile in zip(simulation.critical.instruction, simulation.critical.tile, strict=True)
    }
    shown, all_ = executed(made), executed(whole)
    assert {one for one in all_ if one[0] == first} <= shown < all_
    assert {(r, tile, step) for r, _, step, tile in shown if r != first} <= critical
    assert critical <= {(r, tile, step) for r, _, step, tile in shown}
    assert len(shown) == about["executions"] - about["left_out"] == len(all_) - about["left_out"]


def test_a_trace_shows_one_rank_of_each_group_before_others():
    simulation = mesh_simulation(2, 2)
    groups = alike_ranks(simulation)
    rank = simulation.plan.rank[simulation.executions.instruction]
    made = trace(simulation, int(np.bincount(rank).max()) * len(groups))
    named = {
        e["pid"]: sum(o["pid"] == e["pid"] for o in made["traceEvents"] if o["ph"] == "X")
        for e in made["traceEvents"]
        if e["name"] == "process_name"
    }
    heads = {int(group[0]) for group in groups}
    assert made["otherData"]["complete_ranks"] == len(groups) == 2
    assert min(named[r] for r in heads) > max(named[r] for r in set(range(4)) - heads)


def test_a_trace_with_too_little_room_for_a_rank_begins_with_its_first_executions():
    made = trace(ring_simulation(), 3)
    about = made["otherData"]
    critical = len(ring_simulation().critical)
    assert about["complete_ranks"] == 0
    assert 3 <= about["executions"] - about["left_out"] <= 3 + critical
    assert about["left_out"] > 0


def test_a_packed_trace_is_the_same_each_time_and_a_tenth_of_the_size():
    made = trace(mesh_simulation(2, 2))
    plain, packed = trace_bytes(made, packed=False), trace_bytes(made, packed=True)
    assert json.loads(plain) == made
    assert gzip.decompress(packed) == plain
    assert packed == trace_bytes(made, packed=True)
    assert len(packed) < len(plain) / 10
