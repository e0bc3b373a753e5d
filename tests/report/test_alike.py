"""Tests of ranks that are alike, and of the names of thread blocks."""

import dataclasses

import numpy as np
import pytest

import sley
from sley.report.analysis import alike_ranks, alike_text, block_name
from support.inputs.made_simulations import ring_simulation


def groups(simulation):
    return [group.tolist() for group in alike_ranks(simulation)]


def simulate(name, topology, size="16M", *, executions=True, **options):
    plan = sley.compile(sley.algorithms.build(name, **options), topology=topology)
    return sley.simulate(plan, size, executions=executions)


def changed(simulation, block, share):
    """The simulation with a block that waits for this share of the whole time longer."""
    message_us = simulation.blocks.message_us.copy()
    message_us[block] += share * simulation.time_us
    blocks = dataclasses.replace(simulation.blocks, message_us=message_us)
    return dataclasses.replace(simulation, blocks=blocks)


@pytest.mark.parametrize("executions", [False, True])
def test_all_ranks_of_a_symmetric_plan_are_alike_whatever_the_order_of_their_blocks(executions):
    s = simulate("hm-allreduce", "dgx-h100:2", nodes=2, gpus=8, executions=executions)
    peers = [block_name(s.plan, int(s.plan.rank_block[rank])) for rank in (0, 1)]
    assert peers[0] != peers[1]
    (group,) = groups(s)
    assert sorted(group) == list(range(16))
    assert alike_text(s) == "all 16 ranks"


def test_ranks_with_other_operations_are_not_alike():
    s = simulate("ring-broadcast", "1x8", ranks=8)
    for group in groups(s):
        assert not {0, 7} & set(group) or len(group) == 1


def test_a_rank_that_starts_later_is_not_alike():
    """In a broadcast along a ring the ranks in between do the same, one after the other."""
    s = simulate("ring-broadcast", "1x8", "1K", ranks=8)
    assert len(groups(s)) == 8


def test_a_rank_whose_executions_start_later_is_not_alike_though_its_sums_are():
    s = ring_simulation()
    e = s.executions
    later = np.where(s.plan.rank[e.instruction] == 2, 0.05 * s.time_us, 0.0)
    shifted = dataclasses.replace(s, executions=dataclasses.replace(e, start_us=e.start_us + later))
    assert (len(groups(s)), len(groups(shifted))) == (1, 2)
    assert [2] in groups(shifted)


@pytest.mark.parametrize(("share", "expected"), [(0.005, 1), (0.02, 2)])
def test_ranks_are_alike_up_to_the_tolerance(share, expected):
    s = changed(ring_simulation(), 2, share)
    assert len(groups(s)) == expected
    assert ([2] in groups(s)) == (expected == 2)


def test_the_representative_has_the_most_executions_on_the_critical_path():
    s = simulate("hm-allreduce", "dgx-h100", nodes=1, gpus=8)
    count = np.bincount(s.plan.rank[s.critical.instruction], minlength=8)
    for group in groups(s):
        assert count[group[0]] == count[group].max()
        assert group[1:] == sorted(group[1:])
    assert any(group[0] > min(group) for group in groups(s))


def test_the_text_names_the_largest_groups_first():
    s = ring_simulation()
    for rank in (1, 3):
        s = changed(s, rank, 0.05 * rank)
    assert alike_text(s) == "ranks 0 (1 more alike), 1, 3"
    assert alike_text(s, most=1) == "ranks 0 (1 more alike), 2 more in 2 groups"


def test_blocks_are_named_by_peers_and_by_channel_if_there_are_several():
    ring = ring_simulation().plan
    assert [block_name(ring, b) for b in range(2)] == ["to 1 from 3", "to 2 from 0"]
    two = simulate("ring-allreduce", "1x4", ranks=4, channels=2).plan
    assert {block_name(two, b) for b in range(2)} == {
        "to 1 from 3, channel 0",
        "to 1 from 3, channel 1",
    }
    pairs = sley.algorithms.all_pairs_allgather(8)
    merged = sley.compile(pairs, topology="1x8", allocate="state", max_blocks=1)
    assert {block_name(merged, b) for b in range(8)} == {"to 7 ranks from 7 ranks"}
