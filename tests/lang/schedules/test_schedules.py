"""Schedules of synthesisers: read, followed, compared with their claims, and run as programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sley
from sley.cli.main import main
from sley.communicator import jobs
from sley.engine.measure import Sweep
from sley.formats import program_source
from sley.ir.program import Program, Transfers
from sley.lang import schedules
from sley.lang.schedules import forestcoll, taccl, teccl
from sley.model.bounds.loads import busiest_link
from support.inputs.schedule_files import (
    forest,
    halves,
    numbered_forest,
    ring_flows,
    taccl_schedule,
    teccl_allgather,
    teccl_alltoall,
)
from support.processes import rank_threads

EACH = 7
"""Elements of a chunk in runs."""


def wanted(name: str, data: np.ndarray) -> list[np.ndarray]:
    """The outputs of a collective for the inputs `data` (ranks, elements)."""
    ranks = len(data)
    if name == "allgather":
        return [data.reshape(-1)] * ranks
    if name == "allreduce":
        return [data.sum(0)] * ranks
    parts = data.reshape(ranks, ranks, -1)
    if name == "alltoall":
        return [parts[:, rank].reshape(-1) for rank in range(ranks)]
    return [parts[:, rank].sum(0) for rank in range(ranks)]


def assert_runs(program: Program) -> None:
    """The compiled program is proven and runs without a wrong element."""
    plan = sley.compile(program)
    sley.verify(plan)
    c = plan.collective
    rng = np.random.default_rng(1)
    # Whole numbers in random bits: an element in a wrong place is wrong.
    full = rng.integers(0, 1 << 20, (c.ranks, int(c.input_chunks.max()) * EACH)).astype(np.float64)
    outputs = rank_threads.execute(plan, list(full))
    expected = wanted(c.name, full)
    assert all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))


def assert_same(found: Program, origin: Program) -> None:
    """Equal up to the source lines."""
    for name in Transfers.column_names():
        if name != "source":
            one, other = getattr(found.transfers, name), getattr(origin.transfers, name)
            assert one.tolist() == other.tolist(), name
    assert (found.collective, found.name) == (origin.collective, origin.name)
    assert found.scratch_chunks.tolist() == origin.scratch_chunks.tolist()


def through_text(program: Program) -> Program:
    """The program of the text that `sley import -o` writes."""
    names: dict[str, Any] = {}
    exec(compile(program_source.write(program), "program.py", "exec"), names)
    return names["algorithm"]  # type: ignore[no-any-return]


GATHER = [
    *ring_flows(3),
    (0, 2, 1, 0, 2, ""),  # brings what rank 0 already has
]
A_STEP = [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0]]
REDUCE = [[[k, k, 1 - k, 0, 0, "rrc"] for k in (1, 0)], [[k, 1 - k, k, 9, 0, None] for k in (0, 1)]]
DOUBLING = [
    [[0, a, b, 0, 0, "rrc"] for a, b in pairs]
    for pairs in (((0, 1), (1, 0), (2, 3), (3, 2)), ((0, 2), (2, 0), (1, 3), (3, 1)))
]
TWO_STEPS = [
    [
        [3, 0, 1, 0, 0],
        [6, 0, 1, 0, 0],
        [1, 1, 0, 0, 0],
        [7, 1, 2, 0, 0],
        [2, 2, 0, 0, 0],
        [5, 2, 0, 0, 0],
    ],
    [[6, 1, 2, 5, 0], [5, 0, 1, 5, 0]],
]

SMALL: dict[str, tuple[Callable[[str], Any], str, tuple[str, ...]]] = {
    "TE-CCL ring": (teccl.read, teccl_allgather(ring_flows(4, 2), 3), ("allgather",)),
    "TE-CCL with a spare flow": (teccl.read, teccl_allgather(GATHER, 2), ("allgather",)),
    "TE-CCL halves": (teccl.read, teccl_alltoall(halves(3), 2), ("alltoall",)),
    "ForestColl star": (forestcoll.read, forest(4, 2), forestcoll.COLLECTIVES),
    "ForestColl numbers": (forestcoll.read, numbered_forest(3), forestcoll.COLLECTIVES),
    "ForestColl star and chain": (forestcoll.read, forest(3, 1, 2), forestcoll.COLLECTIVES),
    "TACCL AllGather": (taccl.read, taccl_schedule("Allgather(n=2)", 2, [A_STEP]), ("allgather",)),
    "TACCL AllReduce": (taccl.read, taccl_schedule("Allreduce(n=2)", 2, REDUCE), ("allreduce",)),
    "TACCL ranks that exchange in one step": (
        taccl.read,
        taccl_schedule(
            "Allreduce(n=4)",
            4,
            [[[k, *send[1:]] for k in range(4) for send in step] for step in DOUBLING],
        ),
        ("allreduce",),
    ),
    "TACCL AllToAll": (taccl.read, taccl_schedule("Alltoall(n=3)", 3, TWO_STEPS), ("alltoall",)),
}


@pytest.mark.parametrize("case", SMALL)
def test_a_small_schedule_runs_and_its_program_survives_the_text(case: str) -> None:
    read, text, collectives = SMALL[case]
    schedule = read(text)
    assert schedule.facts()
    assert schedule.check()
    for collective in collectives:
        for in_place in (False, True) if collective != "alltoall" else (False,):
            program = schedule.program(collective, in_place=in_place)
            assert program.collective.name == collective
            assert program.collective.in_place == in_place
            assert_same(through_text(program), program)
            if not in_place:
                assert_runs(program)
            else:
                sley.verify(sley.compile(program))


@pytest.mark.parametrize("collective", forestcoll.COLLECTIVES)
def test_trees_run_in_place(collective: str) -> None:
    plan = sley.compile(forestcoll.read(forest(3)).program(collective, in_place=True))
    assert [row.wrong for row in jobs.run(plan, Sweep([4096], iterations=1, warmup=0))] == [0]


# Real files

FINISHING = {
    "DGX2_output-2_chassis-AllGather-Fast-1MB": (43, "F555"),
    "DGX2_output-2_chassis-AllGather-Fast_Early_Stop-1MB": (39, "F555"),
    "NDv2_output-2_chassis-AllGather-Fast-16KB": (222, "F554 F555"),
    "NDv2_output-2_chassis-AllGather-Slow-1MB": (14, "F554 F555"),
    "NDv2_output-2_chassis-AlltoAll-Fast-64KB": (271, "F554"),
    "NDv2_output-4_chassis-AllGather-Fast-1MB": (111, "F555"),
}
"""The finishing epoch of each file, and why it is not imported as it is."""


def test_every_teccl_file_is_known(data_dir: Path) -> None:
    assert {path.stem for path in (data_dir / "teccl").glob("*.json")} == set(FINISHING)


@pytest.mark.parametrize("name", FINISHING)
def test_a_teccl_file_is_replayed_to_its_finishing_epoch(name: str, data_dir: Path) -> None:
    path = data_dir / "teccl" / f"{name}.json"
    epochs, codes = FINISHING[name]
    schedule = teccl.read(path)
    found = schedule.replay()
    assert found.epochs == epochs == json.loads(path.read_text())["3-Epochs_Required"]
    assert schedule.machine is not None
    with pytest.raises(sley.SleyError) as caught:
        schedule.program()
    assert [d.code for d in caught.value.diagnostics] == codes.split()
    remedies = [d.remedy for d in caught.value.diagnostics]
    allow = {"F554": "--allow incomplete", "F555": "--allow multicast"}
    assert all(allow[code] in remedy for code in codes.split() for remedy in remedies)


@pytest.mark.parametrize("name", FINISHING)
def test_a_teccl_file_with_its_faults_allowed_runs(name: str, data_dir: Path) -> None:
    schedule = schedules.read(data_dir / "teccl" / f"{name}.json")
    program = schedule.program(allow=schedules.ALLOWED)
    assert program.collective.ranks == (15 if "NDv2_output-2" in name else 32)
    assert_same(through_text(program), program)
    assert_runs(program)
    told = dict(schedule.changes(schedules.ALLOWED))
    # On its own machine it takes no longer than claimed, but for many copies.
    plan = sley.compile(program, topology=schedule.topology, slots=64, fusion=False)
    time_us = sley.simulate(plan, schedule.size_bytes).time_us
    few = "NDv2_output-2" in name
    assert 0.6 <= time_us / (schedule.claims.time_s * 1e6) <= (1.001 if few else 2)
    assert told.keys() == {
        {"F554": "left out", "F555": "changed"}[code] for code in FINISHING[name][1].split()
    }


def test_a_lost_gpu_and_the_ranks_that_remain_are_named(data_dir: Path) -> None:
    path = data_dir / "teccl" / "NDv2_output-2_chassis-AllGather-Slow-1MB.json"
    with pytest.raises(sley.SleyError) as caught:
        schedules.read(path).program(allow=["multicast"])
    assert "GPU 0; 15 GPUs send" in caught.value.diagnostics[0].found
    assert "all 16 GPUs" in caught.value.diagnostics[0].expected


def test_early_stop_files_have_twice_the_size_of_their_name(data_dir: Path) -> None:
    name = "DGX2_output-2_chassis-AllGather-Fast_Early_Stop-1MB.json"
    facts = dict(teccl.read(data_dir / "teccl" / name).facts())
    assert facts["data"].startswith("2000000 bytes, 62500 of each of 32 ranks")


CHASSIS = "NDv2_output-4_chassis-AllGather-Fast-1MB.json"


def test_the_one_flow_that_no_known_machine_links_is_named(data_dir: Path) -> None:
    text = (data_dir / "teccl" / CHASSIS).read_text().replace("over 1->2", "over 1->17", 1)
    schedule = teccl.read(text)
    near = "NDv2 with 4 chassis has all links but 1->17 (line 3082)"
    assert near in dict(schedule.facts())["machine"]
    with pytest.raises(sley.SleyError) as caught:
        schedule.check()
    assert near in caught.value.diagnostics[0].notes[0]


def test_early_sends_name_the_claim_that_may_be_wrong_instead(data_dir: Path) -> None:
    text = (data_dir / "teccl" / CHASSIS).read_text()
    claimed = next(line for line in text.splitlines() if "5-Algo_Bandwidth" in line)
    with pytest.raises(sley.SleyError) as caught:
        teccl.read(text.replace(claimed, '"5-Algo_Bandwidth": 20.0,')).check()
    assert caught.value.code == "F556"
    assert "5-Algo_Bandwidth" in caught.value.diagnostics[0].notes[0]


Rates = Callable[[Any, Any], float]
MI250 = {
    (0, 1): 4, (0, 4): 2, (0, 8): 1, (1, 5): 1, (1, 9): 1, (1, 10): 1, (2, 3): 4, (2, 6): 1,
    (2, 9): 1, (2, 10): 1, (3, 7): 2, (3, 11): 1, (4, 5): 4, (4, 6): 1, (5, 6): 1, (5, 7): 1,
    (6, 7): 4, (8, 9): 4, (8, 12): 2, (9, 13): 1, (10, 11): 4, (10, 14): 1, (11, 15): 2,
    (12, 13): 4, (12, 14): 1, (13, 14): 1, (13, 15): 1, (14, 15): 4,
}  # fmt: skip
"""The xGMI links of 50 GB/s between the GPUs of a node with MI250."""


def _a100(src: Any, dst: Any) -> float:
    return 300.0 if "NVSwitch" in (src[1], dst[1]) else 25.0


def _mi250(src: Any, dst: Any) -> float:
    return 50.0 * MI250[min(src[2], dst[2]), max(src[2], dst[2])]


FORESTS: dict[str, tuple[Rates, float]] = {
    "tree-a100-2x8-k1": (_a100, 342.86),
    "tree-mi250-1x16-k1": (_mi250, 266.67),
}
"""Of each file, the rates of the links and the bandwidth that ForestColl printed with it."""


@pytest.mark.parametrize("name", FORESTS)
def test_congestion_of_trees_equals_the_bandwidth_printed_with_them(
    name: str, data_dir: Path
) -> None:
    rate, bandwidth = FORESTS[name]
    found = forestcoll.read(data_dir / "forestcoll" / f"{name}.xml")
    rates = {link: rate(*link) for link in found.loads}
    assert found.bandwidth(rates) == pytest.approx(bandwidth, abs=0.005)


def test_the_busiest_link_of_trees_allows_the_bandwidth_printed_with_them(data_dir: Path) -> None:
    cluster = sley.Topology.cluster(2, 8, nvlink_GBps=(300, 300), nic_GBps=(25, 25))
    program = schedules.read(data_dir / "forestcoll" / "tree-a100-2x8-k1.xml").program()
    busiest = busiest_link(program, cluster)
    assert busiest is not None
    assert busiest.algbw_GBps == pytest.approx(342.857, abs=0.005)
    doubled = sley.Topology.cluster(2, 8, nvlink_GBps=(600, 600), nic_GBps=(25, 25))
    assert "NIC" in busiest_link(program, doubled).name  # type: ignore[union-attr]


@pytest.mark.parametrize("collective", forestcoll.COLLECTIVES)
@pytest.mark.parametrize("name", FORESTS)
def test_real_trees_run(name: str, collective: str, data_dir: Path) -> None:
    program = schedules.read(data_dir / "forestcoll" / f"{name}.xml").program(collective)
    assert_same(through_text(program), program)
    assert_runs(program)


@pytest.mark.parametrize(("name", "bandwidth"), [("ring4", 8 / 3), ("uneven5", 15 / 8)])
def test_real_trees_of_an_adjacency_table_run(name: str, bandwidth: float, data_dir: Path) -> None:
    """bandwidth: with links of 1 GB/s."""
    found = forestcoll.read(data_dir / "users-3" / f"forestcoll-{name}-trees.xml")
    assert found.bandwidth(dict.fromkeys(found.loads, 1.0)) == pytest.approx(bandwidth)
    for collective in forestcoll.COLLECTIVES:
        assert_runs(found.program(collective))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FINISHING, *FORESTS])
def test_real_schedules_run_in_processes(name: str, data_dir: Path) -> None:
    folder, suffix = ("forestcoll", "xml") if name in FORESTS else ("teccl", "json")
    allow = () if name in FORESTS else schedules.ALLOWED
    program = schedules.read(data_dir / folder / f"{name}.{suffix}").program(allow=allow)
    rows = jobs.run(sley.compile(program), Sweep([64 * 1024, 100_001], iterations=1, warmup=0))
    assert [row.wrong for row in rows] == [0, 0]


# Refusals


def code_of(text: str, **settings: Any) -> str:
    """The code with which the schedule of a text is refused."""
    with pytest.raises(sley.SleyError) as caught:
        read = forestcoll.read if text.startswith("<") else teccl.read
        read = taccl.read if '"sccl_type"' in text else read
        read(text).program(**settings)
    return caught.value.code


def gather(*flows: Any, epochs: int = 2, **changes: object) -> str:
    return teccl_allgather(flows or ring_flows(3), epochs, **changes)


RING = ring_flows(3)
VIA = " via switches 9"
COPIES = [(0, 0, 0, 1, 0, VIA), (0, 0, 0, 2, 0, VIA), *(f for f in RING if f[1] != 0)]
LATE = {"GPU 1": {"GPU 0": {"Chunk 0": 3e-6}}}
WAYS = halves(3)
FIRST = next(iter(WAYS))
BAD_TEXTS: dict[str, tuple[str, str]] = {
    "cut off": ('{"1-Epoch_Duration": 1, "7-Fl', "F551"),
    "deep": ('{"1-Epoch_Duration":' + "[" * 100_000, "F551"),
    "NaN": ('{"1-Epoch_Duration": NaN}', "F551"),
    "a list": ("[1]", "F404"),
    "no flows": ('{"1-Epoch_Duration": 1e-6}', "F551"),
    "empty flows": (gather(**{"7-Flows": []}), "F551"),
    "flows of another type": (gather(**{"7-Flows": {}}), "F551"),
    "a number as flow": (gather(**{"7-Flows": [3]}), "F551"),
    "half a flow": (gather(**{"7-Flows": ["Chunk 0 from 3 traveled over 3->"]}), "F551"),
    "a flow to itself": (gather((0, 0, 0, 0, 0, "")), "F551"),
    "a large node": (gather((0, 0, 0, 5000, 0, "")), "F403"),
    "a large chunk": (gather((10**8, 0, 0, 1, 0, "")), "F403"),
    "a late epoch": (gather((0, 0, 0, 1, 10**8, "")), "F403"),
    "no epochs": (gather(**{"3-Epochs_Required": None}), "F551"),
    "half an epoch": (gather(**{"3-Epochs_Required": 2.5}), "F551"),
    "a huge number": (gather(**{"1-Epoch_Duration": 10**400}), "F551"),
    "negative time": (gather(**{"4-Collective_Finish_Time": -1}), "F551"),
    "another time": (gather(**{"4-Collective_Finish_Time": 5e-6}), "F557"),
    "arrivals of another type": (gather(**{"6-Demand_Met": {"GPU 0": 3}}), "F551"),
    "arrivals of no GPU": (gather(**{"6-Demand_Met": {"CPU 0": {}}}), "F551"),
    "another arrival": (gather(epochs=3, **{"6-Demand_Met": LATE}), "F556"),
    "a missing flow": (gather(*RING[:-1]), "F554"),
    "sent too early": (gather(*[(*f[:4], 0, f[5]) for f in RING]), "F556"),
    "copies": (gather(*COPIES), "F555"),
    "no paths": (teccl_alltoall(WAYS, 2).replace("chunk paths", "paths"), "F551"),
    "another target": (teccl_alltoall({**WAYS, FIRST: WAYS[FIRST][::-1][:1] * 2}, 2), ""),
    "a part only": (teccl_alltoall({**WAYS, FIRST: WAYS[FIRST][:1]}, 2), "F554"),
    "a missing demand": (teccl_alltoall({k: w for k, w in WAYS.items() if k != FIRST}, 2), "F554"),
    "a path of another end": (
        teccl_alltoall({**WAYS, FIRST: [[[0, "0->2 with volume 1.0 in epoch 0"]]]}, 2),
        "F551",
    ),
    "a fine volume": (teccl_alltoall(WAYS, 2).replace("volume 0.5", "volume 0.500031"), "F403"),
    "a volume of 2": (teccl_alltoall(WAYS, 2).replace("volume 0.5", "volume 2"), "F551"),
    "no number": (teccl_alltoall(WAYS, 2).replace("volume 0.5", "volume 1.e.5"), "F551"),
    "early on a path": (teccl_alltoall(WAYS, 2).replace("epoch 1", "epoch 0"), "F556"),
}
del BAD_TEXTS["another target"]
TREES = forest(3)
BAD_TREES: dict[str, tuple[str, str]] = {
    "cut off": (TREES[:200], "F551"),
    "DOCTYPE": ('<!DOCTYPE Algo [<!ENTITY a "b">]>' + TREES, "F551"),
    "text": (TREES.replace("</tree>", "x</tree>", 1), "F551"),
    "another element": (TREES.replace("<send ", "<recv ", 1), "F551"),
    "no trees": ('<Algo nchunkspernode="1"></Algo>', "F551"),
    "one GPU": (forest(1).replace('height="1"', 'height="0"'), "F551"),
    "no chunks": (TREES.replace("nchunkspernode", "n"), "F551"),
    "zero chunks": (TREES.replace('nchunks="1"', 'nchunks="0"', 1), "F551"),
    "many chunks": (TREES.replace('nchunks="1"', 'nchunks="99999"', 1), "F403"),
    "more chunks": (TREES.replace('nchunks="1"', 'nchunks="2"', 1), "F557"),
    "another height": (TREES.replace('height="1"', 'height="2"', 1), "F557"),
    "code as node": (TREES.replace("\"(0, 'GPU', 0)\"", '"__import__(1)"', 1), "F551"),
    "a path elsewhere": (TREES.replace(",(0, 'GPU', 1)\"", ",(0, 'GPU', 2)\"", 1), "F551"),
    "no path": (TREES.replace("path=", "way=", 1), "F551"),
    "a missing send": ("\n".join(TREES.split("\n")[:2] + TREES.split("\n")[3:]), "F554"),
    "two parents": (TREES.replace("</tree>", TREES.split("\n")[2] + "</tree>", 1), "F554"),
    "a signed number": (numbered_forest(3).replace('dst="1"', 'dst="-1"', 1), "F551"),
    "a number without a tree": (numbered_forest(3).replace('dst="1"', 'dst="9"', 1), "F551"),
    "a node without a tree": (TREES.replace("'GPU', 2)", "'GPU', 7)", 2), "F551"),
}


def steps(*sends: Any) -> str:
    return taccl_schedule("Allgather(n=2)", 2, [list(sends)])


BAD_TACCL: dict[str, tuple[str, str]] = {
    "Scan": (taccl_schedule("Scan(n=2)", 2, [A_STEP]), "F424"),
    "a number as name": (steps(*A_STEP).replace('"Allgather(n=2)"', "3"), "F551"),
    "a lone surrogate in its name": (steps(*A_STEP).replace("-topo", r"\ud800"), "F551"),
    "a terminal's code in its name": (steps(*A_STEP).replace("-topo", r"\u001b[2J"), "F551"),
    "one rank": (taccl_schedule("Allgather(n=1)", 1, [A_STEP]), "F551"),
    "many ranks": (taccl_schedule("Allgather(n=9)", 10**6, [A_STEP]), "F403"),
    "many chunks": (taccl_schedule("Allgather(n=9),chunks=999999", 9, [A_STEP]), "F403"),
    "a number as step": (steps().replace('"steps": [{', '"steps": [1, {'), "F551"),
    "two numbers": (steps([0, 0]), "F551"),
    "an unknown address": (steps([2, 0, 1]), "F551"),
    "an unknown rank": (steps([0, 0, 2]), "F551"),
    "to itself": (steps([0, 0, 0]), "F551"),
    "a reduction": (steps([0, 0, 1, 0, 0, "rrc"]), "F551"),
    "another operation": (steps([0, 0, 1, 0, 0, "max"]), "F551"),
    "what it doesn't have": (steps([1, 0, 1], [0, 0, 1]), "F556"),
    "a missing send": (steps([0, 0, 1]), "F554"),
    "no sums": (taccl_schedule("Allreduce(n=4096)", 4096, []), "F554"),
    "no sums of many chunks": (taccl_schedule("Allreduce(n=2),chunks=999999", 2, []), "F554"),
    "a sum that isn't sent back": (taccl_schedule("Allreduce(n=2)", 2, REDUCE[:1]), "F554"),
    "a sum sent in the step that makes it": (
        taccl_schedule("Allreduce(n=2)", 2, [REDUCE[0] + REDUCE[1]]), "F554",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_a_wrong_teccl_schedule_is_refused(case: str) -> None:
    text, code = BAD_TEXTS[case]
    assert code_of(text) == code


@pytest.mark.parametrize("case", BAD_TREES)
def test_wrong_trees_are_refused(case: str) -> None:
    text, code = BAD_TREES[case]
    assert code_of(text) == code


@pytest.mark.parametrize("encoding", ["foo", "gbk", "utf-16"])
def test_trees_are_read_as_utf_8_whatever_they_declare(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n' + TREES
    assert forestcoll.read(text).gpus == forestcoll.read(TREES).gpus


@pytest.mark.parametrize("case", BAD_TACCL)
def test_a_wrong_taccl_schedule_is_refused(case: str) -> None:
    text, code = BAD_TACCL[case]
    assert code_of(text) == code


def test_other_collectives_and_places_are_refused() -> None:
    assert code_of(gather(), collective="allreduce") == "F424"
    assert code_of(teccl_alltoall(WAYS, 2), in_place=True) == "F424"
    assert code_of(TREES, collective="alltoall") == "F424"
    assert code_of(taccl_schedule("Alltoall(n=3)", 3, TWO_STEPS), in_place=True) == "F424"
    assert code_of(steps(*A_STEP), collective="alltoall") == "F424"


def test_copies_are_messages_of_their_own_if_allowed() -> None:
    program = teccl.read(gather(*COPIES)).program(allow=["multicast"])
    assert int(program.transfers.remote.sum()) == 6
    assert_runs(program)


def test_a_mistake_points_at_the_line_of_the_flow() -> None:
    text = gather(*[(*f[:4], 0, f[5]) for f in RING])
    with pytest.raises(sley.SleyError) as caught:
        teccl.read(text, file="x.json").replay()
    place = caught.value.diagnostics[0].places[0]
    assert "in epoch 0" in text.split("\n")[place.line - 1]
    assert place.file == "x.json"


def test_a_transfer_points_at_the_line_of_its_flow() -> None:
    text = gather()
    program = teccl.read(text).program()
    lines = text.split("\n")
    for row in program.transfers:
        if row.src != row.dst:
            line = lines[program.sources.line[row.source] - 1]
            assert f"over {row.src}->{row.dst}" in line


# The command line


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_import_writes_a_program_that_compiles(tmp_path: Path) -> None:
    (tmp_path / "trees").write_text(forest(4))
    output = tmp_path / "program.py"
    found = run("import", tmp_path / "trees", "--collective", "reducescatter", "-o", output)
    assert found.exit_code == 0, found.output
    assert "ForestColl trees" in found.output
    assert "at the height that the file says" in found.output
    assert "reducescatter" in run("verify", output).output


def test_import_writes_python_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "trees").write_text(forest(4))
    found = run("import", tmp_path / "trees", "-o", tmp_path / "program.xml")
    assert "F460" in found.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["trees"]


def test_import_keeps_to_itself_which_gpu_becomes_which_rank(tmp_path: Path) -> None:
    later = [(0, s + 3, a + 3, b + 3, e, via) for _, s, a, b, e, via in ring_flows(3)]
    (tmp_path / "x").write_text(teccl_allgather(later, 2))
    assert "GPU 3 is rank 0, GPU 4 is rank 1, " in run("import", tmp_path / "x").output


def test_sends_of_what_a_rank_has_become_transfers() -> None:
    again = taccl.read(taccl_schedule("Allgather(n=2)", 2, [A_STEP, A_STEP])).program()
    once = taccl.read(taccl_schedule("Allgather(n=2)", 2, [A_STEP])).program()
    assert len(again.transfers) == len(once.transfers)


def test_import_prints_json(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(gather())
    found = json.loads(run("import", tmp_path / "x", "--json").output)
    assert found["schedule"]["collective"] == "allgather"
    assert "2 epochs" in found["replay"]["replayed"]
    assert found["program"]["ranks"] == 3


def test_a_refused_schedule_is_described_first(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(gather(*COPIES))
    found = run("import", tmp_path / "x")
    assert found.exit_code == 1
    assert "a TE-CCL schedule" in found.stdout
    assert "F555" in found.stderr
    assert run("import", tmp_path / "x", "--allow", "multicast").exit_code == 0


def test_allow_is_refused_where_it_would_do_nothing(tmp_path: Path) -> None:
    (tmp_path / "trees").write_text(forest(3))
    (tmp_path / "steps").write_text(steps(*A_STEP))
    for name in ("trees", "steps"):
        for word in schedules.ALLOWED:
            found = run("import", tmp_path / name, "--allow", word)
            assert found.exit_code == 1, name
            assert "F560" in found.stderr, name
    (tmp_path / "flows").write_text(gather())
    with pytest.raises(sley.SleyError) as caught:
        schedules.read(tmp_path / "flows").program(allow=["multicat"])
    assert caught.value.code == "F560"


def test_a_schedule_is_what_other_commands_take(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(teccl_alltoall(halves(3), 2))
    (tmp_path / "y").write_text(forest(3))
    for name in ("x", "y"):
        assert run("verify", tmp_path / name).exit_code == 0
        assert run("compile", tmp_path / name).exit_code == 0
    assert "in place" in run("verify", tmp_path / "y", "--in-place").output
    assert run("compile", tmp_path / "y", "--ranks", 3).exit_code == 2
    summed = run("verify", tmp_path / "y", "--collective", "allreduce")
    assert "a correct allreduce" in summed.output
    assert run("verify", tmp_path / "y", "--collective", "y.py").exit_code == 2


def test_import_writes_the_machine_of_a_schedule(tmp_path: Path, data_dir: Path) -> None:
    program, machine = tmp_path / "program.py", tmp_path / "machine.toml"
    where = ("-o", program, "--machine", machine, "--topology", machine)
    assert "T605" in run("import", data_dir / "teccl" / CHASSIS, *where).stderr
    allowed = (data_dir / "teccl" / CHASSIS, "--allow", "multicast", *where[:4])
    found = run("import", *allowed)
    assert found.exit_code == 0, found.output
    words = found.stdout.splitlines()[-1].partition("sley ")[2].split()
    assert "TE-CCL's model, 32 GPUs" in run(*words).stdout
    (tmp_path / "trees").write_text(forest(3))
    assert "F560" in run("import", tmp_path / "trees", "--machine", machine).stderr


def test_what_is_no_schedule_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("<algo/>")
    found = run("import", tmp_path / "plan")
    assert found.exit_code == 1
    assert "found:    an MSCCL XML plan" in found.stderr
    assert "F404" in run("import", tmp_path / "missing").stderr
