"""Loops: the plain and the compiled function of every loop in the passes give the same result.

Numba compiles each function once on a machine and caches the result on disk.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import all_pairs_broadcast, hm_allreduce
from sley.compiler.passes import cuts, loops, merging, pipelines, timeline
from sley.compiler.passes.loops import Loop
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.generators.random_transfers import RandomTransfers, clusters, random_transfers

ALL = {
    f"{module.__name__.rpartition('.')[2]}.{name}": value
    for module in (cuts, merging, pipelines, timeline)
    for name, value in vars(module).items()
    if isinstance(value, Loop)
}

FEW = examples(10)


@st.composite
def ways(draw: st.DrawFn) -> dict[str, Any]:
    """Options that take different ways through the loops."""
    return {
        "schedule": draw(st.sampled_from(["msccl", "hpds", "round-robin"])),
        "allocate": draw(st.sampled_from(["connection", "state"])),
        "max_blocks": draw(st.sampled_from([None, 1, 2])),
    }


def compiled(program: sley.Program, large: float, **way: Any) -> sley.Plan:
    """The plan, with loops compiled from `large` rows on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "LARGE", large)
        return sley.compile(program, verify=False, **way)


def check_both(program: sley.Program, **way: Any) -> None:
    plain, fast = compiled(program, float("inf"), **way), compiled(program, 0, **way)
    assert plain.instructions == fast.instructions
    assert plain.waits == fast.waits
    assert plain.block_rank.tolist() == fast.block_rank.tolist()
    assert plain.block_offset.tolist() == fast.block_offset.tolist()
    if plain.estimate is None or fast.estimate is None:
        assert plain.estimate is fast.estimate
        return
    assert plain.estimate.time_us == fast.estimate.time_us
    assert plain.estimate.unmerged_us == fast.estimate.unmerged_us
    assert plain.estimate.busy_us.tolist() == fast.estimate.busy_us.tolist()


def test_every_loop_of_the_passes_is_known_here() -> None:
    assert sorted(ALL) == [
        "cuts._pair",
        "merging._colour",
        "merging._measure_overlaps",
        "merging._merge_least",
        "pipelines._join",
        "pipelines._schedule",
        "timeline._run",
    ]


def test_each_loop_fills_the_same_columns_in_both_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On what the passes really call it with, one call after another."""
    names = {id(loop): name for name, loop in ALL.items()}
    calls, plainly = Counter[str](), Loop.__call__

    def both(self: Loop[Any, Any], size: int, /, *arguments: Any) -> None:
        calls[name := names[id(self)]] += 1
        copies = [copied(argument) for argument in arguments]
        plainly(self, 0, *arguments)
        self.compiled(*copies)
        for one, two in zip(columns(arguments), columns(copies), strict=True):
            assert np.array_equal(one, two), name

    monkeypatch.setattr(Loop, "__call__", both)
    for nics in (1, 3):
        program = hm_allreduce(2, 3, nics=nics)
        sley.compile(program)
        for schedule in ("hpds", "round-robin"):
            sley.compile(program, schedule=schedule, allocate="state", max_blocks=2)
            sley.compile(all_pairs_broadcast(4), schedule=schedule)
    assert all(calls[name] >= 4 for name in ALL), calls


def copied(argument: Any) -> Any:
    """An argument of a loop, with copies of the arrays that may be written."""
    if isinstance(argument, tuple):
        return type(argument)(*map(copied, argument))
    writable = isinstance(argument, np.ndarray) and argument.flags.writeable
    return argument.copy() if writable else argument


def columns(arguments: Any) -> list[Any]:
    """What arguments consist of: those of named tuples one after the other."""
    parts = [columns(a) if isinstance(a, tuple) else [a] for a in arguments]
    return [column for part in parts for column in part]


def test_a_loop_is_compiled_for_large_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def double(values: np.ndarray, result: np.ndarray) -> None:
        """Doubles."""
        ran.append(type(values))
        for k in range(len(values)):
            result[k] = 2 * values[k]

    loop = Loop(double)
    loop.__dict__["compiled"] = double
    monkeypatch.setattr(loops, "LARGE", 3)
    values = np.arange(3)
    values.flags.writeable = False
    for size in (2, 3):
        result = np.zeros(3, np.int64)
        loop(size, values, result)
        assert result.tolist() == [0, 2, 4]
    assert ran == [list, np.ndarray]
    assert loop.__doc__ == "Doubles."


class Numbers(NamedTuple):
    values: np.ndarray
    results: np.ndarray
    factor: int


def times(numbers: Numbers, k: int) -> None:
    numbers.results[k] = numbers.factor * numbers.values[k]


def times_all(numbers: Numbers) -> None:
    for k in range(len(numbers.values)):
        times(numbers, k)


def test_a_loop_takes_named_tuples_and_calls_functions_of_its_module_in_both_speeds() -> None:
    loop = Loop(times_all)
    for work in (0, loops.LARGE):
        numbers = Numbers(np.arange(3), np.zeros(3, np.int64), 5)
        loop(work, numbers)
        assert numbers.results.tolist() == [0, 5, 10]
    assert times_all.__globals__["times"] is times, "compiling changed the module"


@FEW
@given(random_transfers(), ways())
def test_transfers_become_the_same_plan_in_both_speeds(
    random: RandomTransfers, way: dict[str, Any]
) -> None:
    check_both(random.program, topology=random.topology, **way)


@FEW
@given(random_programs(), ways(), st.data())
def test_chunk_programs_become_the_same_plan_in_both_speeds(
    random: RandomProgram, way: dict[str, Any], data: st.DataObject
) -> None:
    check_both(random.program, topology=data.draw(clusters(random.ranks)), **way)


@pytest.mark.parametrize("schedule", ["msccl", "hpds", "round-robin"])
def test_a_hierarchical_mesh_becomes_the_same_plan_in_both_speeds(schedule: str) -> None:
    program = hm_allreduce(2, 4, nics=2)
    for max_blocks in (None, 3):
        check_both(program, schedule=schedule, allocate="state", max_blocks=max_blocks)
    check_both(program, schedule=schedule, instances=2)


def test_without_numba_large_loops_run_plainly_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(loops, "LARGE", 0)
    loops._has_numba.cache_clear()
    loops._tell_once.cache_clear()
    program = hm_allreduce(2, 4)
    monkeypatch.setattr(loops, "TOLD", 1 << 62)  # whatever this process has compiled before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sley.compile(program, schedule="hpds", allocate="state")
    monkeypatch.setattr(loops, "TOLD", 0)
    with pytest.warns(UserWarning, match=r'pip install "sley\[large\]"') as warned:
        found = sley.compile(program, schedule="hpds", allocate="state")
    assert len(warned) == 1
    loops._has_numba.cache_clear()
    monkeypatch.undo()
    assert (
        found.instructions == sley.compile(program, schedule="hpds", allocate="state").instructions
    )
