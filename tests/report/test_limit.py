"""Tests of the limiting factor of a simulation: what it names is what shortens the time."""

import itertools
from dataclasses import replace

import pytest

import sley
from sley import topologies
from sley.ir.cost_model import ByProtocol, CostModel
from sley.report.limit import Factor, Limit, blocks_text, limit_of
from sley.report.simulation import simulation_lines
from support.inputs.algorithm_cases import SIZED, cases_in_a_place

NODE, PAIR = topologies.ndv4(), topologies.ndv4(2)


def _simulation(
    name: str, cluster: sley.Topology, size: str, model: CostModel | None = None, **options: object
) -> sley.Simulation:
    gpus = cluster.ranks // cluster.nodes
    sizes = {"ranks": gpus} if cluster.nodes == 1 else {"nodes": cluster.nodes, "gpus": gpus}
    program = sley.algorithms.build(name, **sizes, in_place=True)
    plan = sley.compile(program, topology=cluster, **options)
    return sley.simulate(plan, size, model=model)


def _limit(*case: object, **options: object) -> Limit:
    return limit_of(_simulation(*case, **options))


def test_one_block_for_each_gpu_is_the_limit_of_a_large_ring():
    simulation = _simulation("ring-allreduce", NODE, "64M")
    found = limit_of(simulation)
    assert found.factor is Factor.BLOCK
    assert "20 GB/s" in found.detail
    times = round(1 / simulation.utilisation.max())
    assert found.remedy.endswith(f"more instances, up to {times} times as many, which fill a link")


def test_the_links_are_the_limit_of_a_ring_with_many_blocks():
    simulation = _simulation("ring-allreduce", NODE, "256M", instances=24)
    found = limit_of(simulation)
    assert found.factor is Factor.LINK
    assert "-> switch 0" in found.detail
    assert simulation.of_bound > 0.85
    assert found.time_us > 0.85 * simulation.time_us


def test_a_plan_near_its_bound_gets_no_remedy():
    simulation = _simulation("ring-allreduce", NODE, "1G", instances=24)
    assert limit_of(simulation).remedy == (
        f"none gains much: the plan reaches {simulation.of_bound:.0%} of the bound"
    )


def test_hops_are_the_limit_of_a_small_ring():
    assert _limit("ring-allreduce", NODE, "4K").factor is Factor.LATENCY


def test_the_launch_is_the_limit_of_a_small_call_by_one_thread():
    found = _limit(
        "all-pairs-allreduce",
        NODE,
        "1K",
        replace(NODE.model, launch_gpus=8),
        protocol=sley.Protocol.LL,
    )
    assert found.factor is Factor.LAUNCH
    assert "start-up" in found.detail


def test_cards_are_the_limit_between_nodes():
    found = _limit("multi-ring-allreduce", PAIR, "1G", instances=3)
    assert found.factor is Factor.LINK
    assert "NIC" in found.detail


def test_one_slot_is_the_limit_of_instances_that_could_overlap():
    few = _simulation("multi-ring-allreduce", PAIR, "64M", instances=4, slots=1)
    more = _simulation("multi-ring-allreduce", PAIR, "64M", instances=4, slots=4)
    assert limit_of(few).factor is Factor.SLOTS
    assert "1 slot" in limit_of(few).detail
    assert more.time_us < 0.95 * few.time_us


def test_a_slow_memory_is_the_limit():
    model = replace(NODE.model, memory_GBps=10)
    assert _limit("one-step-allreduce", NODE, "64M", model).factor is Factor.MEMORY
    shared = sley.topologies.find("one-h100:4")  # whose messages cross links of any rate
    assert _limit("ring-allreduce", shared, "64M", instances=32).factor is Factor.MEMORY


def test_the_text_has_the_limit_and_its_remedy():
    lines = simulation_lines(_simulation("ring-allreduce", NODE, "64M"))
    found = [line.split(maxsplit=2)[-1] for line in lines if line.startswith(("limited", "remedy"))]
    assert found[0].endswith("20 GB/s: 94% of the time")
    assert "more instances" in found[1]


def _relaxed(simulation: sley.Simulation, factor: Factor) -> sley.Simulation:
    """The same run with more of what limits it: 16 times the rate, 1/16 of the latency."""
    s = simulation
    changes, topology, slots = dict[str, object](), s.topology, None
    if factor is Factor.LAUNCH:
        changes = {"launch_us": 0.0}
    elif factor is Factor.BLOCK:
        names = ("nvlink", "pcie", "network", "local")
        changes = {f"{n}_block_GBps": 16 * getattr(s.model, f"{n}_block_GBps") for n in names}
    elif factor is Factor.LINK:
        links = replace(topology.links, GBps=16 * topology.links.GBps)
        topology = replace(topology, links=links)
    elif factor is Factor.MEMORY:
        changes = {"memory_GBps": 16 * s.model.memory_GBps}
    elif factor is Factor.SLOTS:
        slots = 64
    else:
        for name in ("nvlink", "pcie", "network"):
            old = getattr(s.model, f"{name}_latency_us")
            changes[f"{name}_latency_us"] = ByProtocol(old.ll / 16, old.ll128 / 16, old.simple / 16)
        changes["wait_us"] = s.model.wait_us / 16
    return sley.simulate(
        s.plan, s.size_bytes, topology, model=replace(s.model, **changes), slots=slots
    )


def _gains_much(name: str, arguments: dict[str, object], instances: int, size: str) -> bool:
    """Whether a plan gains at least 30 % of the time that its limit takes if that is relaxed."""
    program = sley.algorithms.build(name, **arguments)
    cluster = topologies.ndv4(-(-program.collective.ranks // 8))
    plan = sley.compile(program, topology=cluster, instances=instances)
    simulation = sley.simulate(plan, size)
    found = limit_of(simulation)
    gained = simulation.time_us - _relaxed(simulation, found.factor).time_us
    return gained > 0.3 * found.time_us


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_more_of_what_limits_a_plan_shortens_it_unless_another_limit_is_as_near(every):
    sizes = itertools.cycle(itertools.product((1, 4), ("1K", "256K", "16M")))
    cases = [
        (name, arguments, *next(sizes))
        for name, arguments in cases_in_a_place(SIZED)
        if arguments.get("ranks", arguments.get("gpus")) > 2
    ][::every]
    without = [case for case in cases if not _gains_much(*case)]
    # Blocks and links can be limits at once; then more of one gains little.
    assert len(without) <= len(cases) / 10, without


def test_a_link_that_idles_asks_for_phases_that_overlap():
    cluster = topologies.find("dgx-h100:2")
    idle = _limit("hierarchical-allreduce", cluster, "256M", instances=16)
    assert idle.factor is Factor.LINK
    assert "(62% used)" in idle.detail
    assert idle.remedy.startswith("phases that overlap")
    busy = _limit("ring-allreduce", NODE, "64M", instances=24)
    assert busy.factor is Factor.LINK
    assert "sends less over it" in busy.remedy


@pytest.mark.parametrize(
    ("blocks", "said"), [(32, ""), (108, "NCCL uses at most 32"), (109, "more than a GPU's 108")]
)
def test_more_blocks_than_nccl_uses_or_a_gpu_holds_are_remarked(blocks, said):
    assert blocks_text(blocks, CostModel()).startswith(said)
    assert bool(blocks_text(blocks, CostModel())) == bool(said)
