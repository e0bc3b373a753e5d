"""Tests of changes: what weakens the limiting factor gains most."""

from dataclasses import replace

import numpy as np
import pytest

import sley
from sley.ir.cost_model import ByProtocol, CostModel
from sley.report.limit import Factor, limit_of, what_if, what_if_lines


def simulate(name, topology, size, model=None, *, slots=None, **options):
    of = {"ranks": topology.ranks} if topology.nodes == 1 else {"nodes": 2, "gpus": 8}
    program = sley.algorithms.build(name, **of, in_place=True)
    plan = sley.compile(program, topology=topology, **options)
    return sley.simulate(plan, size, model=model, slots=slots)


NDV4 = sley.topologies.ndv4()
CASES = {
    Factor.BLOCK: ("ring-allreduce", NDV4, "64M"),
    Factor.LATENCY: ("ring-allreduce", NDV4, "4K"),
    Factor.LAUNCH: (
        "one-step-allreduce", NDV4, "4K", replace(NDV4.model, launch_us=ByProtocol.same(500)),
    ),
    Factor.MEMORY: (
        "one-step-allreduce", NDV4, "64M", replace(NDV4.model, memory_GBps=10),
    ),
}  # fmt: skip


@pytest.mark.parametrize("factor", CASES)
def test_the_change_of_the_limiting_factor_gains_most(factor):
    s = simulate(*CASES[factor])
    assert limit_of(s).factor is factor
    changes = what_if(s)
    assert {change.factor for change in changes} == set(Factor)
    assert changes[0].factor is factor
    assert changes[0].share < -0.2
    assert [c.time_us for c in changes] == sorted(c.time_us for c in changes)


def test_faster_links_are_all_that_a_message_crosses_in_turn():
    """Over the network each message crosses four links of the same rate."""
    s = simulate("ring-allreduce", sley.topologies.find("dgx-h100:2"), "64M", instances=24)
    first = what_if(s)[0]
    assert first.factor is Factor.LINK
    assert first.text.endswith(": GPU -> NIC, NIC -> GPU, NIC -> network, network -> NIC")
    assert first.share == pytest.approx(-0.5, abs=0.05)


def test_the_network_is_a_change_of_its_own_if_other_links_are_busier():
    s = simulate("hierarchical-allreduce", sley.topologies.find("ndv4:2"), "64M")
    texts = {change.text: change.share for change in what_if(s)}
    assert -0.5 < texts["the network twice as fast"] < 0
    assert sum(text.startswith("links twice as fast: GPU -> switch") for text in texts) == 1


def test_a_change_is_the_simulation_with_that_change():
    s = simulate("ring-allreduce", NDV4, "1M", slots=4)
    found = {change.factor: change for change in what_if(s)}
    twice = sley.simulate(s.plan, "1M", slots=8)
    assert found[Factor.SLOTS].text == "twice the slots (8)"
    assert found[Factor.SLOTS].time_us == twice.time_us
    half = replace(NDV4.model, launch_us=ByProtocol.same(NDV4.model.launch_us.simple / 2))
    assert found[Factor.LAUNCH].time_us == pytest.approx(
        sley.simulate(s.plan, "1M", model=half).time_us, abs=1e-6
    )
    assert found[Factor.LAUNCH].share == found[Factor.LAUNCH].time_us / s.time_us - 1


def test_links_with_a_latency_of_their_own_get_half_of_it():
    links = NDV4.links
    own = replace(NDV4, links=replace(links, latency_us=np.full(len(links), 50.0)))
    plan = sley.compile(sley.algorithms.ring_allreduce(8, in_place=True), topology=own)
    s = sley.simulate(plan, "4K")
    first = what_if(s)[0]
    assert (first.factor, s.time_us > 1000) == (Factor.LATENCY, True)
    assert first.share < -0.4


def test_the_model_of_the_simulation_counts_and_not_the_topologys():
    slow = CostModel(nvlink_block_GBps=1.0)
    s = simulate("ring-allreduce", NDV4, "64M", slow)
    first = what_if(s)[0]
    assert first.factor is Factor.BLOCK
    assert first.time_us > 10 * simulate("ring-allreduce", NDV4, "64M").time_us / 2


def test_the_text_has_a_line_for_each_change():
    changes = what_if(simulate(*CASES[Factor.BLOCK]))
    head, *lines = what_if_lines(changes)[1:]
    assert head.split() == ["what", "if", "time", "us", "change"]
    assert [line.split("  ")[1] for line in lines] == [c.text for c in changes]
    assert lines[0].endswith(f"{changes[0].share:+.1%}")
    assert lines[-1].endswith(" -")


def test_the_rate_over_each_kind_of_links_is_a_change_of_its_own():
    cluster = sley.topologies.find("ndv4:2")
    s = simulate("hierarchical-allreduce", cluster, "64M")
    shares = {change.text: change.share for change in what_if(s)}
    nvlink = shares["thread blocks twice as fast over NVLink (nvlink_block_GBps)"]
    network = shares["thread blocks twice as fast over the network (network_block_GBps)"]
    faster = replace(cluster.model, nvlink_block_GBps=40)
    assert nvlink == pytest.approx(
        sley.simulate(s.plan, "64M", model=faster).time_us / s.time_us - 1
    )
    assert shares["thread blocks twice as fast"] < nvlink < network < 0
    assert not any(
        "over NVLink" in c.text for c in what_if(simulate("ring-allreduce", NDV4, "64M"))
    )


def test_twice_the_instances_is_a_change_if_their_plan_is_given():
    s = simulate("ring-allreduce", NDV4, "64M", instances=2)
    twice = simulate("ring-allreduce", NDV4, "64M", instances=4)
    found = {c.text: c.time_us for c in what_if(s, twice.plan)}
    assert found["twice the instances (4 blocks on a rank)"] == twice.time_us
