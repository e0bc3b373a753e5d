"""Tests of simulations as text."""

import dataclasses
import itertools

import numpy as np
import pytest

import sley
from sley.errors import SleyError
from sley.ir.tables import NONE, Edges
from sley.report.analysis import critical_steps, link_classes, times_by_line
from sley.report.simulation import (
    bytes_text,
    comparison_table,
    parameter_lines,
    parameters,
    simulation_lines,
    size_table,
)
from support.inputs.made_simulations import LAUNCH_US, mesh_simulation, ring_simulation, simulated


def test_the_text_of_a_ring_equals_the_golden_file(golden):
    # Another test covers the model's parameters.
    own = parameter_lines(ring_simulation())
    lines = simulation_lines(ring_simulation())
    lines += own[: own.index("parameters of the model")]
    golden("ring.txt", "\n".join(lines))


def test_the_start_of_one_gpu_after_another_is_named():
    model = dataclasses.replace(sley.topologies.ndv4().model, launch_gpus=8)
    plan = sley.compile(sley.algorithms.ring_allreduce(8), topology=sley.topologies.ndv4())
    lines = simulation_lines(sley.simulate(plan, "4K", model=model))
    (time,) = (line for line in lines if line.startswith("time "))
    assert time.endswith("us for the launch (29.4 of them to start one GPU after another)")
    assert not any("one GPU after another" in line for line in simulation_lines(ring_simulation()))


def test_the_table_of_sizes_equals_the_golden_file(golden):
    table = size_table([ring_simulation(2**k) for k in (10, 20, 28)])
    golden("sizes.txt", "\n".join(table) + "\n")


def test_the_comparison_equals_the_golden_file(golden):
    sizes = (2**20, 2**24)
    ring, mesh = [ring_simulation(s) for s in sizes], [mesh_simulation(2, 2, s) for s in sizes]
    golden("comparison.txt", "\n".join(comparison_table([("ring", ring), ("mesh", mesh)])) + "\n")


def test_the_ratio_is_above_1_for_the_faster_plan():
    fast, slow = mesh_simulation(2, 2, 2**20), ring_simulation(2**20)
    assert fast.time_us < slow.time_us
    last = comparison_table([("slow", [slow]), ("fast", [fast])])[-2].split()
    assert float(last[4]) == pytest.approx(slow.time_us / fast.time_us, abs=1e-3)


def test_a_comparison_has_no_line_for_a_size_that_a_plan_lacks():
    *lines, errors = comparison_table(
        [("a", [ring_simulation(2**20)]), ("b", [ring_simulation(2**20), ring_simulation(2**24)])]
    )
    assert "model's error" in errors
    assert [line.split()[:2] for line in lines[1:]] == [["1M", "a"], ["1M", "b"], ["16M", "b"]]
    assert lines[-1].split()[4] == "1.000"  # the first plan of that size


def test_a_comparison_of_machines_has_the_errors_of_each():
    a100 = ring_simulation(2**20)
    model = dataclasses.replace(a100.model, architecture=90)
    others = dataclasses.replace(a100.topology, name="others", model=model)
    h100 = dataclasses.replace(a100, topology=others, model=model)
    lines = comparison_table([("a", [a100]), ("b", [h100])])[-2:]
    assert f"error on {a100.topology.name}, " in lines[0]
    assert "A100s" in lines[0]
    assert "error on others, " in lines[1]
    assert "H100s" in lines[1]


def test_steps_cover_the_time_from_launch_to_end():
    for simulation in (ring_simulation(), mesh_simulation(2, 4)):
        steps = critical_steps(simulation)
        assert steps[0].start_us == LAUNCH_US
        assert steps[-1].end_us == simulation.time_us
        assert all(a.end_us == b.start_us for a, b in itertools.pairwise(steps))
        assert all(0 <= s.moving_us <= s.duration_us * (1 + 1e-9) for s in steps)
        assert sum(s.times for s in steps) == len(simulation.critical)
        by_line = times_by_line(steps)
        total = sum(time_us for _, time_us in by_line.values())
        assert total == pytest.approx(simulation.time_us - LAUNCH_US)


def test_consecutive_executions_of_a_line_are_one_step():
    steps = critical_steps(ring_simulation())
    assert [(s.line, s.times) for s in steps] == [
        ("ring_program.py:11", 4),
        ("ring_program.py:13", 3),
    ] * 2
    assert steps[0].ranks == (3, 0, 1, 2)


def test_a_line_of_a_function_is_a_step_for_each_call_of_it():
    def round_trip(p, first, second):
        p.chunk(first, "in", 0).copy(second, "in", 0)

    def body(p):
        round_trip(p, 0, 1)
        round_trip(p, 1, 2)

    collective = sley.Broadcast(ranks=3, chunks=1, root=0, in_place=True)
    plan = sley.compile(sley.trace(collective, body, name="there"))
    steps = critical_steps(sley.simulate(plan, "1M", topology="1x4"))
    lines = [step.line.split(" from ") for step in steps]
    assert {line for line, _ in lines} == {lines[0][0]}
    assert [caller for _, caller in lines] == sorted({caller for _, caller in lines})


def test_pipelined_slices_take_no_negative_time():
    # An execution of the path may start to move data before its predecessor ends.
    simulation = ring_simulation()
    path = simulation.critical
    earlier = dataclasses.replace(path, start_us=np.maximum(path.start_us - 60, LAUNCH_US))
    steps = critical_steps(dataclasses.replace(simulation, critical=earlier))
    assert all(s.moving_us <= s.duration_us * (1 + 1e-9) for s in steps)
    assert sum(s.duration_us for s in steps) == pytest.approx(simulation.time_us - LAUNCH_US)


def test_steps_without_source_lines_are_grouped_by_operation():
    simulation = ring_simulation()
    table = simulation.plan.instructions
    bare = dataclasses.replace(table, source=np.full(len(table), NONE))
    plan = dataclasses.replace(simulation.plan, instructions=bare)
    text = "\n".join(simulation_lines(dataclasses.replace(simulation, plan=plan)))
    assert "no source line  recv reduce send on ranks" in text


def test_only_the_longest_steps_are_listed_and_all_are_summed_by_line():
    program = sley.algorithms.hm_allreduce(2, 4, in_place=True)
    simulation = simulated(sley.compile(program), sley.Topology.cluster(2, 4), 2**24, 16)
    steps = critical_steps(simulation)
    assert len(steps) > 12
    lines = simulation_lines(simulation)
    rest = next(line for line in lines if "all shorter steps" in line).split()
    shown = sorted((s.duration_us for s in steps), reverse=True)[:12]
    total = simulation.time_us - LAUNCH_US
    assert float(rest[0]) == pytest.approx(total - sum(shown), abs=0.06)
    assert any("all steps by source line" in line for line in lines)


def test_the_text_has_every_parameter():
    simulation = ring_simulation()
    text = "\n".join(parameter_lines(simulation))
    for name, value in simulation.model.items().items():
        assert f"  {name:<22} {value}" in text
    assert ("topology", "nvlink links", "8 links, 230 GB/s each (nominal 300)") in parameters(
        simulation
    )


def test_links_are_grouped_by_ends_and_rate():
    simulation = mesh_simulation(2, 2)
    classes = link_classes(simulation)
    assert {c.ends for c in classes} == {
        "GPU -> switch", "switch -> GPU", "GPU -> NIC", "NIC -> GPU", "NIC -> network",
        "network -> NIC",
    }  # fmt: skip
    rows = np.sort(np.concatenate([c.links for c in classes]))
    assert rows.tolist() == list(range(len(simulation.topology.links)))


def test_a_class_of_links_has_its_median_and_its_busiest_link():
    """Of a broadcast along a ring, in which the last card sends nothing."""
    plan = sley.compile(sley.algorithms.ring_broadcast(4), topology=sley.Topology.cluster(4, 1))
    simulation = sley.simulate(plan, "1M")
    (c,) = (c for c in link_classes(simulation) if c.ends == "NIC -> network")
    used = simulation.utilisation[c.links]
    assert (len(c.links), c.used) == (4, 3)
    assert (c.average, c.median, c.most) == (used.mean(), np.median(used), used.max())
    assert c.average < c.median
    assert simulation.utilisation[c.busiest] == c.most
    assert simulation.topology.link_label(c.busiest) in "\n".join(simulation_lines(simulation))


def test_a_plan_without_blocks_has_a_report():
    simulation = ring_simulation()
    plan = simulation.plan
    empty = dataclasses.replace(
        simulation,
        plan=dataclasses.replace(
            plan,
            instructions=_first_rows(plan.instructions, 0),
            waits=Edges.from_pairs(0, np.zeros(0, int), np.zeros(0, int)),
            block_rank=plan.block_rank[:0],
            block_offset=plan.block_offset[:1],
        ),
        blocks=_first_rows(simulation.blocks, 0),
        critical=_first_rows(simulation.critical, 0),
        executions=_first_rows(simulation.executions, 0),
        links=dataclasses.replace(
            simulation.links,
            moved_bytes=simulation.links.moved_bytes * 0,
            load_GBps=simulation.links.load_GBps * 0,
        ),
    )
    assert "thread blocks          none" in simulation_lines(empty)
    assert len(comparison_table([("a", [empty])])) == 3


def _first_rows(table, count):
    return type(table)(*(getattr(table, n)[:count] for n in table.column_names()))


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1000, "1e+03 bytes"), (1536, "1.5 KiB"), (2**21, "2 MiB"), (2**31, "2 GiB")],
)
def test_bytes_text_has_three_digits_and_a_unit(size, text):
    assert bytes_text(size) == text


def test_tables_without_simulations_are_refused():
    for call in (lambda: size_table([]), lambda: comparison_table([]),
                 lambda: comparison_table([("a", [])])):  # fmt: skip
        with pytest.raises(SleyError) as error:
            call()
        assert error.value.code == "P810"


def test_different_collectives_are_not_compared():
    gather = sley.compile(sley.algorithms.ring_allgather(4))
    other = simulated(gather, sley.Topology.cluster(1, 4), 2**20, 1)
    with pytest.raises(SleyError, match="ring: allreduce, gather: allgather") as error:
        comparison_table([("ring", [ring_simulation()]), ("gather", [other])])
    assert error.value.code == "C313"
