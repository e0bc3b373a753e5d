"""A policy among the plans of a communicator: for its sizes, under user plans, and refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import CATALOG
from sley.communicator.selection.kinds import BARRIER, CALLS, Request
from sley.communicator.selection.machine import machine_here
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.rules import default_rows
from sley.communicator.settings import Settings
from sley.communicator.tuner import Tuner
from sley.errors import SleyError
from sley.ir.sizes import SizeRange
from sley.ir.words import Protocol
from sley.tuning.policy import Measured, PlanRow, Policy, Recipe
from support.inputs.policies import RING, policy_of
from support.processes.call_cases import hosts_of

HOSTS = hosts_of(4)


def plans(policy: Policy, **options: object) -> Plans:
    return Plans(HOSTS, cache=False, policy=policy, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_place", [True, False])
def test_the_policy_chooses_within_its_sizes(in_place: bool) -> None:
    made = plans(policy_of(4, sizes=(1000, 5000)))
    for size_bytes in (999, 1000, 5000, 5001, 1 << 20):
        found = made.find("all_reduce", size_bytes, in_place=in_place)
        default = made.library("all_reduce", size_bytes, in_place=in_place)
        assert default.tuned is None
        if 1000 <= size_bytes <= 5000:
            assert found.plan.name == "ring-allreduce"
            assert found.plan.collective.in_place is in_place
            assert found.row.sizes == SizeRange(1000, 5000)
        else:
            assert found.tuned is None
            assert found.digest == default.digest


TUNED = [
    (kind, name)
    for kind, row in CALLS.items()
    if kind != BARRIER and not row.roles and not row.varies
    for name, algorithm in CATALOG.items()
    if algorithm.collective == row.name
]


@pytest.mark.parametrize(("kind", "name"), TUNED, ids=[name for _, name in TUNED])
def test_every_algorithm_of_the_library_can_be_chosen(kind: str, name: str) -> None:
    made = plans(policy_of(4, collective=CALLS[kind].name, recipe=Recipe(name)))
    found = made.find(kind, 4096, in_place=True)
    if not made.problems:  # some need another number of ranks or nodes
        assert found.plan.name == name
    assert {problem.code for problem in made.problems} <= {"D904"}


def test_other_calls_keep_the_default() -> None:
    made = plans(policy_of(4))
    assert made.find("all_reduce", 0, in_place=True).tuned is None, "nothing to tune"
    assert made.find("barrier", 1, in_place=True).tuned is None
    assert made.find("all_gather", 1 << 20).tuned is None
    rooted = Recipe("flat-broadcast")
    assert (
        plans(policy_of(4, collective="broadcast", recipe=rooted))
        .find("broadcast", 4096, in_place=True)
        .tuned
        is None
    )
    one = Plans(hosts_of(1), cache=False, policy=policy_of(1))
    assert one.find("all_reduce", 4096).plan.name == "local-copy"
    assert not one.problems


@pytest.mark.parametrize("order", ["first", "later"])
def test_a_user_plan_takes_precedence(order: str) -> None:
    made = plans(policy_of(4))
    if order == "later":
        assert made.find("all_reduce", 2048, in_place=True).tuned is not None
    tree = sley.algorithms.double_binary_tree_allreduce(4, in_place=True)
    made.register(tree, min_bytes=2000, max_bytes=3000)
    names = [made.find("all_reduce", n, in_place=True).plan.name for n in (1999, 2048, 3001)]
    assert names == ["ring-allreduce", tree.name, "ring-allreduce"]
    assert made.find("all_reduce", 2048).plan.name == "ring-allreduce", "out of place"


def test_the_choice_and_its_reason_are_in_words() -> None:
    made = plans(policy_of(4, measured=[Measured(4096, 10.0, 15.0)]))
    lines = made.considered(Request("all_reduce", HOSTS, 4096, in_place=True))
    assert lines[0].startswith("all_reduce of 4K on 4 ranks: ring-allreduce (Simple, compiled), ")
    assert lines[0].endswith(
        "the tuner's policy (agent ucb), measured 1.50 times as fast as the default"
    )
    assert "not one-step-allreduce: the tuner's policy takes precedence" in lines


@pytest.mark.parametrize(
    ("ranks", "collective", "recipe", "found"),
    [
        (4, "allreduce", Recipe("ring-allreduce", options={"instances": 24}), "N652: "),
        (3, "allgather", Recipe("recursive-doubling-allgather"), "L"),
    ],
)
def test_a_plan_that_cannot_run_is_a_problem_and_the_default_runs(
    ranks: int, collective: str, recipe: Recipe, found: str
) -> None:
    policy, hosts = policy_of(ranks, collective=collective, recipe=recipe), hosts_of(ranks)
    made = Plans(hosts, cache=False, policy=policy, channels=2)
    kind = {"allreduce": "all_reduce", "allgather": "all_gather"}[collective]
    for size_bytes in (4096, 4096, 1 << 20):
        default = made.library(kind, size_bytes, in_place=True)
        ready = made.find(kind, size_bytes, in_place=True)
        assert (ready.digest, ready.tuned) == (default.digest, None)
    (problem,) = made.problems
    assert problem.code == "D904"
    assert problem.found.startswith(found)
    lines = made.considered(Request(kind, hosts, 4096, in_place=True))
    assert any(line.startswith(f"not {recipe.name}, the tuner's policy: ") for line in lines)


def test_a_plan_of_another_collective_never_runs() -> None:
    """However it came into the policy, which refuses it: the calls' results would be wrong."""
    policy = policy_of(4)
    row = replace(policy.rows[0], recipe=Recipe("ring-allgather"))
    object.__setattr__(policy, "rows", (row,))
    made = plans(policy)
    assert made.find("all_reduce", 4096, in_place=True).plan.name == "one-step-allreduce"
    assert [(one.code, one.found[:4]) for one in made.problems] == [("D904", "N651")]


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ('what = "ring-allgather"', "D904"),
        ('what = "direct-alltonext"', "D904"),
        ('what = "local-copy"', "D904"),
        ('what = "ring.py"', "D904"),
        ('what = "ring-allreduce"\nranks = 7', "D901"),
        ('what = "ring-allreduce"\nroot = 3', "D901"),
        ('what = "ring-allreduce"\ntile = 0.3', "D901"),
        ('what = "ring-allreduce"\narguments = { hosts = [0, 0] }', "D901"),
        ('what = "two-level-allreduce"\narguments = { hosts = [[0], [1]] }', "D901"),
        ('what = "ring-allreduce"\noptions = { channels = 1979-05-27 }', "D901"),
        ('what = "ring-allreduce"\n[facts]\nday = 1979-05-27', "D901"),
        ('what = "ring-allreduce"\nalternatives = [{ what = "local-copy" }]', "D904"),
    ],
)
def test_a_communicator_refuses_the_rows_that_no_policy_has(
    tmp_path: Path, entries: str, code: str
) -> None:
    path = tmp_path / "policy.toml"
    machine = Policy((), machine=machine_here(HOSTS)).text()
    path.write_text(f'{machine}\n[[plans]]\ncollective = "allreduce"\n{entries}\n')
    tuner = Tuner(Settings(tuner=str(path)))
    policy, problems = tuner.agree([tuner.words] * 4, HOSTS)
    assert policy is None
    assert [problem.code for problem in problems] == [code]


def test_alternatives_that_cannot_run_are_left_out() -> None:
    wide = Recipe("ring-allreduce", options={"instances": 24})
    direct = Recipe("all-pairs-allreduce", options={"protocol": Protocol.DIRECT})
    made = plans(policy_of(4, alternatives=[wide, direct]), channels=4)
    chosen = made.find("all_reduce", 4096, in_place=True)
    (ready,) = made.alternatives(chosen)
    assert (ready.plan.name, ready.plan.protocol) == ("all-pairs-allreduce", Protocol.DIRECT)
    assert [problem.code for problem in made.problems] == ["D904"]


def test_another_tile_is_another_plan_to_the_ranks() -> None:
    whole = plans(policy_of(4)).find("all_reduce", 4096)
    half = plans(policy_of(4, recipe=replace(RING, tile=0.5)))
    ready = half.find("all_reduce", 4096)
    assert ready.row.recipe.tile == 0.5
    assert len(ready.digest) == len(whole.digest)
    assert ready.digest != whole.digest


@given(st.sets(st.integers(0, 200_000), min_size=2, max_size=10), st.integers(0, 250_000))
def test_every_size_has_one_range_without_gaps(cuts: set[int], size_bytes: int) -> None:
    ends = sorted(cuts)
    ranges = tuple(
        PlanRow(RING, SizeRange(begin, end), "allreduce")
        for begin, end in zip(ends[::2], ends[1::2], strict=False)
    )
    made = plans(Policy(ranges, machine=machine_here(HOSTS)))
    found = made._kind_table("all_reduce", True, 0)[1]
    assert found[0].row.sizes.begin_bytes == 0
    assert found[-1].row.sizes.end_bytes is None
    for before, after in pairwise(found):
        assert before.row.sizes.end_bytes == after.row.sizes.begin_bytes - 1
    chosen = made._range("all_reduce", size_bytes, True, 0)
    covered = any(one.sizes.covers(size_bytes) for one in ranges)
    assert (chosen.tuned is not None) is (covered and size_bytes > 0)
    rows = default_rows("all_reduce", HOSTS, in_place=True)
    default = next(row for row in rows if row.sizes.covers(size_bytes))
    assert replace(chosen.default, sizes=default.sizes) == default


def test_only_grids_of_hosts_are_machines() -> None:
    assert machine_here(hosts_of(2, 2)).ranks == 4
    assert machine_here(hosts_of(2, 2)).fingerprint != machine_here(HOSTS).fingerprint
    with pytest.raises(SleyError, match="numbered host by host") as caught:
        machine_here(hosts_of(1, 3))
    assert caught.value.code == "D903"


def test_programs_that_name_their_cluster_are_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path))
    policy = policy_of(4, recipe=Recipe("hm-allreduce"))
    origins = [
        Plans(HOSTS, policy=policy).find("all_reduce", 4096, in_place=True).origin for _ in range(2)
    ]
    assert origins == ["compiled", "disk"]
