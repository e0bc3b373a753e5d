"""The plans of a communicator: found quickly, made once, and user plans before the library's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import compiler
from sley.communicator.selection.kinds import Request
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.ready_plans import ReadyPlan
from sley.errors import SleyError
from sley.ir.words import Protocol
from sley.lang import ChunkProgram, trace
from support.generators.examples import examples
from support.inputs.policies import policy_of
from support.processes import rank_threads
from support.processes.call_cases import hosts_of

HOSTS = hosts_of(4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path / "cache"))


def ring(*, in_place: bool = True, ranks: int = 4) -> sley.Program:
    return sley.algorithms.ring_allreduce(ranks, in_place=in_place)


def plans(**options: Any) -> Plans:
    return Plans(HOSTS, cache=False, **options)


def test_a_plan_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_plan = compiler.compile

    def counting(program: sley.Program, options: sley.Options) -> sley.Plan:
        compiled.append(program.name)
        return compile_plan(program, options)

    monkeypatch.setattr(compiler, "compile", counting)
    made = plans()
    first = made.find("all_reduce", 100, in_place=True)
    for size in (0, 100, 1000):
        assert made.find("all_reduce", size, in_place=True) is first
    barrier = made.find("barrier", 1, in_place=True)
    assert barrier.plan is first.plan, "a barrier is an AllReduce"
    assert compiled == ["one-step-allreduce"]
    large = made.find("all_reduce", 1 << 30, in_place=True)
    assert large.plan.name == "all-pairs-allreduce"
    assert large.digest != first.digest
    assert made.find("all_reduce", 100).plan.collective.in_place is False
    assert made.find("reduce", 100, root=2).plan.collective.root == 2
    assert len(made.stats()) == 5


def test_unknown_kinds_sizes_and_roots_are_refused() -> None:
    made = plans()
    calls = [("allreduce", 1, 0), ("reduce", 1, 4), ("all_reduce", -3, 0), ("all_reduce", "1K", 0)]
    for kind, size_bytes, root in calls:
        with pytest.raises(SleyError) as caught:
            made.find(kind, size_bytes, root=root)  # type: ignore[arg-type]
        assert caught.value.code == "N650"


def test_rows_say_what_was_made_ready() -> None:
    made = plans()
    made.find("all_reduce", 1 << 20, in_place=True)
    (ready,) = made.stats()
    assert (ready.row.collective, ready.row.in_place) == ("allreduce", True)
    assert ready.row.sizes.covers(1 << 20)
    assert (ready.plan.name, ready.origin) == ("all-pairs-allreduce", "compiled")
    assert ready.ready_ms > 0


def test_threads_that_want_one_plan_get_one() -> None:
    made, found = plans(), []
    barrier = threading.Barrier(8)

    def find() -> None:
        barrier.wait(30)
        found.append(made.find("all_gather", 1000))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len({id(chosen) for chosen in found}) == 1


def test_options_may_be_a_dict() -> None:
    made = Plans(hosts_of(4), cache=False)
    made.register(ring(), options={"protocol": "Direct"})
    assert made.find("all_reduce", 1000, in_place=True).plan.protocol is Protocol.DIRECT
    with pytest.raises(SleyError, match="Did you mean protocol"):
        made.register(ring(), options={"protocoll": "Direct"})


def test_a_user_plan_wins_within_its_sizes() -> None:
    made = plans()
    before = made.find("all_reduce", 1 << 20, in_place=True)
    lines = made.register(ring(), min_bytes="64K", max_bytes="2M")
    assert lines == ["ring-allreduce, allreduce(4 ranks, 4 chunks, in place), 64K to 2M"]

    def name(size: int) -> str:
        return made.find("all_reduce", size, in_place=True).plan.name

    assert name((64 << 10) - 1) == name((2 << 20) + 1) == "all-pairs-allreduce"
    assert name(64 << 10) == name(2 << 20) == "ring-allreduce"
    chosen = made.find("all_reduce", 1 << 20, in_place=True)
    assert chosen.origin == "registered"
    assert (chosen.row.sizes.begin_bytes, chosen.row.sizes.end_bytes) == (64 << 10, 2 << 20)
    assert made.find("all_reduce", 1 << 20).plan.name == "all-pairs-allreduce", "out of place"
    after = made.find("all_reduce", 4 << 20, in_place=True)
    assert after.plan is before.plan, "what was compiled stays"


def test_the_latest_user_plan_wins() -> None:
    made = plans()
    made.register(ring(), min_bytes=10)
    made.register(sley.algorithms.double_binary_tree_allreduce(4, in_place=True), max_bytes=100)
    names = [made.find("all_reduce", size, in_place=True).plan.name for size in (5, 10, 100, 101)]
    assert names == ["double-binary-tree-allreduce"] * 3 + ["ring-allreduce"]


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)), max_size=4),
    sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=5),
)
@examples(10)
def test_every_size_gets_the_first_user_plan_that_is_for_it(
    ranges: list[tuple[int, int]], sizes: list[int]
) -> None:
    made, plain = plans(), plans()
    plan = sley.compile(ring())
    named = [sley.Plan(**{**vars_of(plan), "name": str(n)}) for n in range(len(ranges))]
    spans = [tuple(sorted(ends)) for ends in ranges]
    for own, (least, most) in zip(named, spans, strict=True):
        made.register(own, min_bytes=least, max_bytes=most)
    for size in sizes:
        fitting = [n for n, (least, most) in enumerate(spans) if least <= size <= most]
        library = plain.find("all_reduce", size, in_place=True)
        chosen = made.find("all_reduce", size, in_place=True)
        assert chosen.plan.name == (str(fitting[-1]) if fitting else library.plan.name)
        assert chosen.row.sizes.covers(size)


def vars_of(plan: sley.Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_considered_says_why_each_plan_runs_or_not() -> None:
    made = plans(slots=8)
    made.register(ring(), min_bytes="1M")
    made.register(sley.algorithms.ring_allgather(4))
    small, *others = made.considered(Request("all_reduce", HOSTS, 1024, True))
    assert small.startswith("all_reduce of 1K on 4 ranks: one-step-allreduce (Simple, compiled), ")
    assert any(line.startswith("not all-pairs-allreduce: ") for line in others)
    assert "not ring-allreduce: it is for 1M and more" in others
    assert any(line.startswith("not ring-allgather: it is for allgather(") for line in others)
    large, *others = made.considered(Request("all_reduce", HOSTS, 1 << 20, True))
    assert "ring-allreduce (Simple, registered), 1M and more: a user plan" in large
    assert "not all-pairs-allreduce: a user plan takes precedence" in others
    made.register(ring())
    lines = made.considered(Request("all_reduce", HOSTS, 1 << 20, True))
    assert "not ring-allreduce: another user plan takes precedence" in lines


def test_user_plans_for_one_root_are_for_that_root() -> None:
    made = plans()
    made.register(sley.algorithms.binomial_broadcast(4, root=2, in_place=True))
    names = [made.find("broadcast", 10, in_place=True, root=r).plan.name for r in range(4)]
    assert names == ["flat-broadcast"] * 2 + ["binomial-broadcast", "flat-broadcast"]


def wrong_plan() -> sley.Plan:
    """One whose first wait is gone."""
    plan = sley.compile(sley.algorithms.all_pairs_allreduce(4, in_place=True))
    waits = sley.ir.tables.Edges.empty(len(plan.instructions))
    return sley.Plan(**{**vars_of(plan), "waits": waits})


def _reduces_in_input(p: ChunkProgram) -> None:
    total = p.chunk(0, "in", 0).reduce(p.chunk(1, "in", 0))
    for rank in range(2):
        total.copy(rank, "out", 0)


WRITES_INPUT = trace(sley.AllReduce(2, 1), _reduces_in_input, name="reduces-in-input")


@pytest.mark.parametrize(
    ("source", "options", "code"),
    [
        (ring(ranks=8), {}, "N651"),
        (sley.algorithms.direct_alltonext(4), {}, "N651"),
        (ring(), {"in_place": False}, "N651"),
        (ring(ranks=8), {"in_place": "a"}, "R514"),
        (ring(), {"root": "a"}, "R514"),
        (ring(), {"options": 5}, "C304"),
        (ring(), {"options": "LL"}, "C304"),
        (sley.algorithms.binomial_broadcast(4, root=2), {"root": 1}, "N651"),
        (sley.compile(ring(), slots=9), {}, "N652"),
        (sley.compile(sley.algorithms.ring_allreduce(4, channels=4, in_place=True)), {}, "N652"),
        (ring(), {"min_bytes": 10, "max_bytes": 9}, "S702"),
        (ring(), {"min_bytes": "ten"}, "S702"),
        (ring(), {"max_bytes": -1}, "S702"),
        (ring(), {"max_bytes": True}, "S702"),
        (sley.algorithms.all_pairs_alltoallv(4), {"min_bytes": 10}, "S702"),
        ("ring.json", {}, "F404"),
        (17, {}, "N654"),
        ("not-there.xml", {}, "F404"),
        ("not-there.py", {}, "F404"),
    ],
)
def test_a_plan_that_is_refused_changes_nothing(
    source: Any, options: dict[str, Any], code: str
) -> None:
    made = plans(slots=8, channels=3)
    chosen = made.find("all_reduce", 10, in_place=True)
    with pytest.raises(SleyError) as caught:
        made.register(source, **options)
    assert caught.value.code == code
    assert made.find("all_reduce", 10, in_place=True) is chosen


def test_a_user_plan_may_not_write_its_input() -> None:
    """A call with an `out` must not change its `data`."""
    made = Plans(hosts_of(2), cache=False)
    for source in (WRITES_INPUT, sley.compile(WRITES_INPUT)):
        with pytest.raises(SleyError) as caught:
            made.register(source)
        assert caught.value.code == "F454"
        assert "test_plans.py" in str(caught.value), "the line that writes"
    assert made.find("all_reduce", 10).origin == "compiled"


def test_a_policy_may_not_choose_a_plan_that_writes_its_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_plan = compiler.compile

    def compile_writer(program: sley.Program, options: sley.Options) -> sley.Plan:
        return compile_plan(WRITES_INPUT if program.name == "ring-allreduce" else program, options)

    monkeypatch.setattr(compiler, "compile", compile_writer)
    made = Plans(hosts_of(2), cache=False, policy=policy_of(2))
    assert made.find("all_reduce", 10).tuned is None
    assert [problem.found[:5] for problem in made.problems] == ["F454:"]


def test_user_plans_are_proven() -> None:
    made = plans()
    with pytest.raises(SleyError) as caught:
        made.register(wrong_plan())
    assert caught.value.code.startswith("V2")


def test_programs_are_compiled_with_the_options_given() -> None:
    made = plans()
    made.register(ring(), options=sley.Options(protocol="LL", instances=2))
    chosen = made.find("all_reduce", 10, in_place=True)
    assert chosen.plan.protocol is sley.Protocol.LL
    assert chosen.plan.channels == 2


def run(chosen: ReadyPlan) -> np.ndarray[Any, Any]:
    data = [np.arange(10.0) * rank for rank in range(4)]
    return rank_threads.execute(chosen.plan, data)[3]


def test_user_plans_run() -> None:
    made = plans()
    made.register(ring())
    np.testing.assert_array_equal(
        run(made.find("all_reduce", 80, in_place=True)), np.arange(10) * 6.0
    )
