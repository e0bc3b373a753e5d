"""NVLS: algorithms in which switches reduce and multicast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley import SleyError
from sley.ir.groups import without_groups
from sley.ir.words import RECEIVES, SENDS, WRITES_DESTINATION, Buffer
from support.generators.sampling import sampled
from support.inputs.algorithm_cases import GROUPED, cases, label, program

WAYS = (
    {"slots": 1, "instances": 2},
    {"slots": 2, "fusion": False},
    {"slots": 8, "protocol": "Direct"},
    {"slots": 2, "switches": False},
)


@pytest.mark.parametrize(
    ("name", "parameters", "turn"),
    [(*case, (k + k // 2) % 2) for k, case in enumerate(cases(GROUPED))],  # k % 2: in place
    ids=label,
)
def test_every_algorithm_with_switches_is_right(
    name: str, parameters: dict[str, Any], turn: int
) -> None:
    """Two of the ways in turn."""
    built = program(name, parameters)
    for options in WAYS[turn::2]:
        plan = sley.compile(built, **options)
        sley.verify(without_groups(plan))
        if not parameters["in_place"]:
            t = plan.instructions
            written = WRITES_DESTINATION[t.op]
            assert not (t.dst_buffer[written] == Buffer.INPUT).any(), "the caller's input changes"


@pytest.mark.parametrize(
    ("name", "sizes", "in_place"),
    sampled(
        (name, sizes, in_place)
        for name, sizes in (
            ("nvls-allreduce", {"ranks": 3, "heads": 2}),
            ("nvls-tree-allreduce", {"nodes": 3, "gpus": 2, "heads": 1}),
            ("nvls-allgather", {"nodes": 2, "gpus": 2}),
            ("nvls-reducescatter", {"nodes": 2, "gpus": 2}),
        )
        for in_place in (False, True)
    ),
)
def test_an_algorithm_with_switches_runs_on_cpus(
    name: str, sizes: dict[str, int], in_place: bool
) -> None:
    plan = sley.compile(program(name, {**sizes, "in_place": in_place}), instances=2)
    measured = sley.run(plan, ["1K", "100K"], iterations=1, warmup=0, dtype="int32")
    assert [m.wrong for m in measured] == [0, 0]


@pytest.mark.parametrize(
    ("name", "nodes", "sends"),
    [
        # Of a rank's whole buffer, or of a rank's part: into the switches of the node, to other
        # nodes, and out of the switch.
        ("nvls-allreduce", 1, (7 / 8, 0, 1 / 8)),
        ("nvls-tree-allreduce", 2, (7 / 8, 1 / 8, 1 / 8)),
        ("nvls-allgather", 2, (0, 1, 2)),
        ("nvls-reducescatter", 2, (14, 1, 0)),
    ],
)
def test_ranks_send_what_theory_says(
    name: str, nodes: int, sends: tuple[float, float, float]
) -> None:
    sizes = {"nodes": nodes, "gpus": 8} if nodes > 1 else {"ranks": 8}
    plan = sley.compile(program(name, {**sizes, "in_place": True}))
    t, ranks, node = plan.instructions, plan.collective.ranks, plan.rank // 8
    sent = SENDS[t.op]
    out = sent & (t.send_peer >= ranks)
    across = sent & ~out & (t.send_peer // 8 != node)
    for mask, wanted in zip((sent & ~out & ~across, across, out), sends, strict=True):
        chunks = np.bincount(plan.rank[mask], t.count[mask], minlength=ranks)
        assert chunks / plan.collective.chunks == pytest.approx(np.full(ranks, wanted))


@pytest.mark.parametrize("heads", [0, 5, 1.5])
def test_heads_are_gpus_of_a_node(heads: Any) -> None:
    for name in ("nvls-allreduce", "nvls-tree-allreduce"):
        with pytest.raises(SleyError) as caught:
            sley.algorithms.build(name, nodes=1, gpus=4, heads=heads)
        assert caught.value.code == "L102"


def test_every_head_has_all_others_of_its_node_in_its_group() -> None:
    plan = sley.compile(program("nvls-tree-allreduce", {"nodes": 2, "gpus": 4, "in_place": True}))
    t, ranks = plan.instructions, plan.collective.ranks
    for row in plan.grouped.tolist():
        first = plan.rank[row] // 4 * 4
        others = [r for r in range(first, first + 4) if r != plan.rank[row]]
        if RECEIVES[t.op[row]] and t.recv_peer[row] >= ranks:
            assert plan.peers(int(t.recv_peer[row])) == others
        if SENDS[t.op[row]] and t.send_peer[row] >= ranks:
            assert plan.peers(int(t.send_peer[row])) == others


def test_nvls_takes_less_time_than_the_best_ring() -> None:
    """NCCL's reason for NVLS: a ring sends 7/4 of the data over each link, the switch 9/8."""
    topology = sley.topologies.dgx_h100_nvls()
    built = program("nvls-allreduce", {"ranks": 8, "in_place": True})
    nvls = sley.compile(built, topology=topology, instances=16, slots=8)
    ring = sley.compile(
        sley.algorithms.multi_ring_allreduce(1, 8, in_place=True), topology=topology, instances=2
    )
    times = [sley.simulate(plan, "1G").time_us for plan in (nvls, ring)]
    assert times[0] < times[1]
    assert sley.simulate(nvls, "1G").of_bound < 1
