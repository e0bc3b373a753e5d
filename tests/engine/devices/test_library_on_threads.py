"""Every algorithm of the library as generated text and in the interpreter, on threads."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine
from sley.ir.words import LoopOrder
from support.devices.device_calls import executor, wrong
from support.generators.sampling import each_value
from support.inputs.algorithm_cases import SIZED, cases, label, program, sizes

PROTOCOLS = list(sley.Protocol)
ENGINES = pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)


def chosen() -> list[Any]:
    """Every algorithm with every protocol, in place and out of place in turn, at 3 to 5 ranks or 2
    nodes of 1 to 3 GPUs in turn. Slow but for two protocols of each algorithm."""
    found, turns = [], cycle((1, 2, 3))
    # Algorithms that came after TEXTS was chosen follow the others, whose cases they would shift.
    names = sorted(SIZED, key=lambda name: name.startswith(("bidirectional", "swing", "bine")))
    for number, name in enumerate(names):
        known = sizes(name)
        for k, protocol in enumerate(PROTOCOLS):
            size = known[min(next(turns), len(known) - 1)]
            case = {**size, "in_place": (number + k) % 2 == 0}
            marks = [] if (number + k) % 2 else [pytest.mark.slow]
            label = named(name, case, protocol)
            found.append(pytest.param(name, case, protocol, id=label, marks=marks))
    return found


TEXTS = """
one-step-allreduce-4-in-place-direct one-step-allreduce-3-ll128 ring-allreduce-3-direct
rank-order-allreduce-4-in-place-ll rank-order-allreduce-3-in-place-direct
rank-order-allreduce-5-ll128 three-step-alltoall-2x2-direct all-pairs-reduce-4-direct
two-level-one-step-allreduce-2x3-in-place-ll128 double-binary-tree-allreduce-5-in-place-ll
recursive-doubling-allgather-8-direct hierarchical-allreduce-2x3-simple
hierarchical-allreduce-2x3-in-place-direct two-level-reduce-2x3-in-place-ll128
two-level-one-step-allreduce-2x1-in-place-simple double-binary-tree-allreduce-4-simple
"""
"""Cases whose texts together have 108 of 150 forms of calls that texts of all cases have:
primitives, the buffers that they read and write, waits and posts. Each text is compiled."""


def generated() -> list[Any]:
    """The cases of TEXTS; the others are slow."""
    usual, every = TEXTS.split(), chosen()
    assert {case.id for case in every} >= set(usual)
    marks = {case.id: () if case.id in usual else pytest.mark.slow for case in every}
    return [pytest.param(*case.values, id=case.id, marks=marks[case.id]) for case in every]


def named(name: str, case: dict[str, Any], protocol: sley.Protocol) -> str:
    return f"{name}-{label(case)}-{protocol.name.lower()}"


def counts(plan: sley.Plan) -> list[int]:
    """Several tiles with some elements left over; fewer elements than chunks; none."""
    chunks = plan.collective.chunks
    return [150 * chunks + min(3, chunks - 1), min(3, chunks - 1), 0]


def check(plan: sley.Plan, engine: Engine) -> None:
    on = executor(plan, engine=engine)
    assert [wrong(on, count) for count in counts(plan)] == [0, 0, 0]


@pytest.mark.parametrize(("name", "case", "protocol"), chosen())
def test_every_algorithm_is_right_in_the_interpreter(
    name: str, case: dict[str, Any], protocol: sley.Protocol
) -> None:
    check(sley.compile(program(name, case), protocol=protocol), Engine.INTERPRETED)


@pytest.mark.parametrize(("name", "case", "protocol"), generated())
def test_every_algorithm_is_right_as_generated_text(
    name: str, case: dict[str, Any], protocol: sley.Protocol
) -> None:
    plan = sley.compile(program(name, case), protocol=protocol)
    check(plan, Engine.GENERATED)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), cases(SIZED), ids=label)
def test_every_size_is_right_in_both_engines(name: str, case: dict[str, Any]) -> None:
    for protocol in PROTOCOLS:
        for engine in Engine:
            check(sley.compile(program(name, case), protocol=protocol), engine)


@pytest.mark.parametrize(("protocol", "engine"), each_value(PROTOCOLS, Engine))
def test_hierarchical_mesh_is_right_at_task_level(protocol: sley.Protocol, engine: Engine) -> None:
    """HM AllReduce as ResCCL runs it: whole tasks, in blocks that serve several connections."""
    hm = build("hm-allreduce", nodes=2, gpus=4, nics=2, in_place=True)
    plan = sley.compile(hm, schedule="hpds", allocate="state", protocol=protocol)
    assert plan.loop_order is LoopOrder.INSTRUCTION
    check(plan, engine)


@pytest.mark.slow
@ENGINES
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name.lower())
@pytest.mark.parametrize("schedule", ["hpds", "round-robin"])
@pytest.mark.parametrize("name", ["hm-allgather", "hm-reducescatter", "hm-allreduce"])
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 2), (2, 4), (4, 2)])
def test_hierarchical_mesh_is_right_at_every_size(
    name: str, nodes: int, gpus: int, schedule: str, protocol: sley.Protocol, engine: Engine
) -> None:
    hm = build(name, nodes=nodes, gpus=gpus, nics=gpus, in_place=True)
    for options in ({}, {"max_blocks": 2}, {"instances": 2}):
        plan = sley.compile(hm, schedule=schedule, allocate="state", protocol=protocol, **options)
        check(plan, engine)


def test_blocks_of_more_steps_than_the_interpreter_reads_at_once_are_right() -> None:
    ring = build("ring-allreduce", ranks=3, in_place=True)
    plan = sley.compile(ring, schedule="hpds", max_blocks=1, instances=66)
    assert np.diff(plan.block_offset).max() > 512
    check(plan, Engine.INTERPRETED)
