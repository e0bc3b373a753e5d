"""Choosing by simulation: the fastest plan for each size, and a table that covers all sizes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, count, islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler import comparison, pipeline
from sley.compiler.candidates import LEAST_BLOCKS, CandidateCompiler, candidates
from sley.compiler.options import Options
from sley.compiler.passes.channels import assign_channels
from sley.compiler.search import (
    MARGIN,
    SIZE_BITS,
    TIE,
    _CandidateSearch,
    _Row,
    compiler_for,
    search_ranges,
)
from sley.compiler.space import Space
from sley.formats import files
from sley.ir.plan_table import read_table
from sley.ir.sizes import SizeRange
from sley.ir.words import Allocation, LoopOrder, Schedule
from sley.model.simulation import Simulator
from sley.topologies import link_rings
from sley.topologies.one_gpu import ONE_H100
from support.generators.examples import examples

NDV4 = sley.topologies.ndv4()
RING = sley.algorithms.ring_allreduce(8)
ALL_PAIRS = sley.algorithms.all_pairs_allreduce(8)
SMALL = {"instances": [1, 8], "channels": [1]}
SIZES = ["1K", "1M", "64M"]
BY_CONNECTION = {"schedule": "msccl", "allocate": "connection"}
INSTANCES = {"instances": [1, 4], "channels": 1}


def code(call: Any) -> str:
    with pytest.raises(sley.SleyError) as caught:
        call()
    return caught.value.code


@pytest.fixture(scope="module")
def table() -> sley.Choices:
    return sley.choose([RING, ALL_PAIRS], SIZES, NDV4, **SMALL)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_no_tried_plan_is_much_faster_than_the_chosen_one(table: sley.Choices, every: int) -> None:
    chosen = [sley.simulate(table.plan_for(size), size).time_us for size in SIZES]
    space = Space({"instances": (1, 8), "channels": (1,)})
    for program in (RING, ALL_PAIRS):
        for options in islice(chain.from_iterable(space.series(program)), 0, None, every):
            plan = sley.compile(program, options, topology=NDV4, verify=False)
            if np.bincount(plan.block_rank).max() <= 108:
                simulator = Simulator(plan)
                for size, least in zip(SIZES, chosen, strict=True):
                    assert least <= simulator(size).time_us * (1 + MARGIN)


def test_ranges_cover_all_sizes_and_differ(table: sley.Choices) -> None:
    assert table.sizes == SizeRange(2**10, 2**26)
    for before, after in pairwise(table.ranges):
        assert before.end.size_bytes + 1 == after.begin.size_bytes
        assert (before.algorithm, before.options) != (after.algorithm, after.options)
        assert table.at(before.end.size_bytes) is before
        assert table.at(after.begin.size_bytes) is after


def test_borders_are_where_the_faster_one_changes(table: sley.Choices) -> None:
    assert len(table.ranges) > 1
    for before, after in pairwise(table.ranges):
        for choice, other, size in (
            (before, after, before.begin.size_bytes),
            (after, before, after.begin.size_bytes),
        ):
            own = sley.simulate(choice.plan, size).time_us
            assert own <= sley.simulate(other.plan, size).time_us * (1 + MARGIN)


def test_no_two_neighbours_could_be_one_range_within_the_models_error(table: sley.Choices) -> None:
    sizes = [2**k for k in (10, 12, 14, 16, 18, 20, 22, 24, 26)]
    assert len(table.ranges) < len(sizes)
    for before, after in pairwise(table.ranges):
        far = [
            sley.simulate(before.plan, size).time_us / sley.simulate(after.plan, size).time_us - 1
            for size in sizes
            if after.sizes.covers(size)
        ]
        assert max(far) > MARGIN


def test_a_range_ends_at_a_given_size_with_what_a_search_up_to_it_chooses() -> None:
    options = {"instances": [1, 4, 16], "channels": 1, "protocol": "LL", "schedule": "msccl"}
    space = Space.of(None, options, None)
    compiler = CandidateCompiler([(RING, None)], NDV4, space, interpreter=False)
    whole = search_ranges(compiler, [4 << 10, 8 << 10, 64 << 10], ends=[4 << 10])
    parts = [sley.choose(RING, sizes, NDV4, **options) for sizes in ("4K", ["8K", "64K"])]
    chosen = [choice for part in parts for choice in part.ranges]
    assert [one.options for one in whole.ranges] == [one.options for one in chosen]
    assert [one.end for one in whole.ranges] == [one.end for one in chosen]
    assert whole.ranges[1].begin.size_bytes == (4 << 10) + 1


def test_borders_have_few_significant_bits(table: sley.Choices) -> None:
    for choice in table.ranges[1:]:
        size = choice.begin.size_bytes
        assert size % (1 << size.bit_length() - SIZE_BITS) == 0


def test_what_is_chosen_is_what_its_options_make(table: sley.Choices) -> None:
    for choice in table.ranges:
        plan = sley.compile(choice.program, choice.options, topology=NDV4)
        assert plan.instructions == choice.plan.instructions
        assert sley.verify(choice.plan).slots == choice.plan.slots
        assert choice.plan.blocks_per_rank == np.bincount(choice.plan.block_rank).max()
        assert choice.end.time_us == sley.simulate(plan, choice.end.size_bytes).time_us
        assert 0 < choice.end.of_bound <= 1


def test_a_program_that_is_never_chosen_is_told_with_its_best_place() -> None:
    few = {"instances": 1, "protocol": "LL", **BY_CONNECTION}
    found = sley.choose([RING, ALL_PAIRS], ["1K", "2K"], NDV4, **few)
    (choice,), (other,) = found.ranges, found.others
    ring_us, best_us = (
        sley.simulate(sley.compile(program, topology=NDV4, **few), other.size_bytes).time_us
        for program in (RING, ALL_PAIRS)
    )
    assert (choice.algorithm, other.algorithm) == (ALL_PAIRS.name, RING.name)
    assert other.slower == pytest.approx(ring_us / best_us - 1, abs=0.01)
    assert f"# not chosen: {RING.name} ({other.slower:.0%} slower at " in str(found.show())


def test_small_calls_take_ll_and_large_ones_another_protocol() -> None:
    choices = sley.choose(RING, ["1K", "1G"], NDV4, **BY_CONNECTION)
    first, last = choices.ranges[0], choices.ranges[-1]
    assert first.plan.protocol is sley.Protocol.LL
    assert last.plan.protocol is not sley.Protocol.LL
    assert last.plan.blocks_per_rank >= first.plan.blocks_per_rank


def test_the_table_has_the_threads_of_sleys_kernels() -> None:
    """The kernels of other models have numbers of their own."""
    programs = [sley.algorithms.ring_allreduce(2)]
    found = sley.choose(programs, ["1K", "16M"], ONE_H100.topology(2), protocol="LL", **INSTANCES)
    head, *rows = [line.split() for line in str(found.show()).splitlines() if line[0] != "#"]
    assert head[head.index("blocks") + 1] == "threads"
    assert rows[0][-7:-4] == ["128", "to", "512"]
    assert rows[-1][-5] == "512"
    assert "threads" not in str(sley.choose(RING, "1K", NDV4, protocol="LL", **INSTANCES).show())


def test_equally_fast_ones_are_told_by_their_blocks() -> None:
    # At 1 KB latency is all that counts, and instances bring less than the tie.
    few = {"protocol": "LL", "instances": [8, 4, 2], "channels": 1}
    choice = sley.choose(RING, "1K", NDV4, **few).ranges[0]
    assert choice.plan.blocks_per_rank == 2
    assert choice.runner_up is not None
    assert 0 > choice.runner_up.slower >= -TIE
    fastest = sley.choose(RING, "1K", NDV4, tie=0, **few).ranges[0]
    assert fastest.plan.blocks_per_rank > 2
    assert fastest.begin.time_us < choice.begin.time_us


def test_only_plans_under_a_known_time_are_compared() -> None:
    options = {"protocol": ["LL", "Simple"], "instances": [1, 2, 4], "channels": 1, **BY_CONNECTION}
    compiler, size = compiler_for(RING, NDV4, **options), 16 << 20
    found = search_ranges(compiler, [size])
    (best,) = found.ranges
    longer = search_ranges(compiler, [size], under_us=best.begin.time_us * 1.1)
    assert longer.ranges[0].options == best.options
    assert longer.simulations <= found.simulations
    none = search_ranges(compiler, [size], under_us=best.begin.time_us * 0.9)
    assert (none.ranges, none.others, none.candidates) == ((), (), found.candidates)


def test_choosing_twice_gives_the_same_table() -> None:
    tables = [
        sley.choose([RING, ALL_PAIRS], SIZES, NDV4, channels=1, **BY_CONNECTION) for _ in range(2)
    ]
    told = [
        [(r.begin, r.end, r.algorithm, r.options, r.runner_up) for r in c.ranges] for c in tables
    ]
    assert told[0] == told[1]


def test_a_plan_that_is_fast_only_by_accident_is_not_chosen() -> None:
    def candidate(time_us: float, varied_us: float) -> SimpleNamespace:
        """A candidate that takes `varied_us` if all rates change a little."""
        return SimpleNamespace(
            plan=SimpleNamespace(blocks_per_rank=1),
            simulator=SimpleNamespace(
                with_rates=lambda _factor: SimpleNamespace(time_us=lambda _size: varied_us)
            ),
            time_us=time_us,
        )

    for lucky_us, expected in ((105.0, 1), (101.5, 0)):
        made = [candidate(100.0, lucky_us), candidate(102.0, 101.5)]
        row = _Row(2**20, {k: one.time_us for k, one in enumerate(made)})
        assert _CandidateSearch(made, TIE)._choose_row([row]) == expected  # type: ignore[arg-type]


def test_a_slower_network_changes_the_choice() -> None:
    slow = sley.CostModel(nvlink_block_GBps=0.5, local_block_GBps=0.5)
    usual = sley.choose(RING, "64K", NDV4, protocol="LL", **BY_CONNECTION).ranges[0]
    again = sley.choose(RING, "64K", NDV4, protocol="LL", model=slow, **BY_CONNECTION)
    other = again.ranges[0]
    assert other.begin.time_us > usual.begin.time_us
    assert other.plan.blocks_per_rank > usual.plan.blocks_per_rank


@given(
    fixed=st.fixed_dictionaries(
        {"instances": st.sampled_from([1, 3]), "channels": st.sampled_from([1, 2])},
        optional={
            "protocol": st.sampled_from(list(sley.Protocol)),
            "allocate": st.sampled_from(list(Allocation)),
            "loop_order": st.sampled_from(list(LoopOrder)),
            "fusion": st.just(False),
            "max_blocks": st.sampled_from([2, 5]),
            "slots": st.sampled_from([1, 9]),
        },
    ),
    size=st.sampled_from(["4K", "1M"]),
)
@examples(4)
def test_auto_keeps_what_is_given(fixed: dict[str, Any], size: str) -> None:
    program = sley.algorithms.ring_allreduce(4)
    plan = sley.compile(program, topology=NDV4, schedule="auto", size=size, **fixed)
    sley.verify(plan)
    if "protocol" in fixed:
        assert plan.protocol is fixed["protocol"]
    if "loop_order" in fixed:
        assert plan.loop_order is fixed["loop_order"]
    assert plan.collective.chunks == 4 * fixed["instances"]
    if "max_blocks" in fixed:
        assert np.bincount(plan.block_rank).max() <= fixed["max_blocks"]
    if "slots" in fixed:
        assert plan.slots == fixed["slots"]


def test_a_programs_own_protocol_is_kept() -> None:
    @sley.program(sley.AllGather(2), protocol="LL128")
    def two(p: Any) -> None:
        for rank in range(2):
            p.chunk(rank, "in", 0).copy(rank, "out", rank).copy(1 - rank, "out", rank)

    plan = sley.compile(two, topology=NDV4, schedule="auto", size="1K")
    assert plan.protocol is sley.Protocol.LL128


def test_blocks_given_by_hand_are_kept() -> None:
    @sley.program(sley.AllGather(2))
    def two(p: Any) -> None:
        for rank in range(2):
            c = p.chunk(rank, "in", 0).copy(rank, "out", rank)
            c.copy(1 - rank, "out", rank, send_block=0, recv_block=1)

    choice = sley.choose(two, "1M", NDV4).ranges[0]
    assert choice.options.allocate is Allocation.CONNECTION


def test_more_blocks_than_fit_on_a_gpu_are_left_out() -> None:
    crowding: dict[str, Any] = {"schedule": "hpds", "protocol": "Simple", "channels": 1}
    choice = sley.choose(ALL_PAIRS, "256K", NDV4, **crowding).ranges[0]
    assert 56 <= choice.plan.blocks_per_rank <= 108
    small = replace(NDV4.model, multiprocessors=50)
    choice = sley.choose(ALL_PAIRS, "256K", NDV4, model=small, **crowding).ranges[0]
    assert choice.plan.blocks_per_rank <= 50
    # The least that this one takes is 14 for each instance; so much has to be enough.
    crowded = sley.choose(ALL_PAIRS, "256K", NDV4, instances=[16], **crowding).ranges[0]
    assert crowded.plan.blocks_per_rank > 108


@pytest.mark.parametrize(
    ("program", "topology", "interpreter"),
    [
        (ALL_PAIRS, NDV4, False),
        (sley.algorithms.hm_allreduce(2, 4), sley.topologies.resccl_4gpu(2), True),
        (sley.algorithms.two_step_alltoall(2, 4), sley.topologies.resccl_4gpu(2), False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_least_time_is_a_bound(
    program: sley.Program, topology: sley.Topology, interpreter: bool
) -> None:
    space = Space({"instances": (1, 4)}, Options(channels=1))
    contenders = [(program, None)]
    found = candidates(
        contenders, topology, space, interpreter=interpreter, progress=lambda done, total: None
    )
    nearest = 0.0
    for candidate in found:
        least = candidate.least
        for size in (2**10, 2**20, 2**25):
            time_us = candidate.simulator(size).time_us
            assert least(size) <= time_us * (1 + 1e-9)
            nearest = max(nearest, least(size) / time_us)
    assert nearest > 0.7  # and worth something


def test_plans_for_a_target_are_written(tmp_path: Path) -> None:
    choices = sley.choose(RING, ["4K", "64M"], NDV4, target="executor", **INSTANCES)
    paths = choices.save(tmp_path / "plans", target="executor")
    assert len(paths) == len(choices.ranges) > 1
    for path, choice in zip(paths, choices.ranges, strict=True):
        plan = sley.load(path)
        sley.verify(plan, per_chunk=True)
        assert plan.protocol is choice.plan.protocol
        text = path.read_text()
        assert f'minBytes="{choice.begin.size_bytes}"' in text
        assert f'maxBytes="{choice.end.size_bytes}"' in text
    assert "nodes" not in (tmp_path / "plans" / "plans.toml").read_text()
    # MSCCL++ finds a plan's resources by its name.
    assert [sley.load(path).name for path in paths] == [path.stem for path in paths]


def test_a_table_of_plans_for_several_nodes_says_so(tmp_path: Path) -> None:
    """A runtime asks for the ranks of a node; by default all are on one."""
    program = sley.algorithms.ring_allreduce(16, in_place=True)
    few: dict[str, Any] = {"instances": [1], "channels": 1, "protocol": "Simple"}
    few |= {"target": "mscclpp", **BY_CONNECTION}
    choices = sley.choose(program, "1M", sley.topologies.ndv4(2), **few)
    choices.save(tmp_path, target="mscclpp")
    (row,) = read_table(tmp_path / "plans.toml").rows
    assert row.recipe.arguments == {"nodes": 2, "gpus": 8}


def test_a_target_that_can_run_nothing_says_why() -> None:
    many = {"instances": [64], "channels": 1, "protocol": "LL"}
    assert code(lambda: sley.choose(RING, "1K", NDV4, target="msccl", **many)).startswith("F4")


def test_only_plans_that_are_fast_enough_are_checked_for_a_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked, check = list[tuple[sley.Protocol, int]](), files.check

    def noted(plan: sley.Plan, target: Any) -> None:
        checked.append((plan.protocol, plan.blocks_per_rank))
        check(plan, target)

    monkeypatch.setattr(files, "check", noted)
    sley.choose(RING, "64M", NDV4, target="mscclpp", **INSTANCES, **BY_CONNECTION)
    assert (sley.Protocol.SIMPLE, 4) in checked
    assert (sley.Protocol.LL, 1) not in checked


def test_faster_plans_that_a_target_cannot_run_leave_the_slower_ones() -> None:
    """RCCL runs 64 blocks, and 6 instances have 78."""
    only: dict[str, Any] = {"channels": 1, "protocol": "Simple", **BY_CONNECTION}
    found = sley.choose(ALL_PAIRS, "64M", NDV4, instances=[1, 2, 6, 8], target="rccl", **only)
    assert found.ranges[0].options.instances == 2


def test_progress_reaches_its_end() -> None:
    seen: list[tuple[int, int]] = []
    note: Any = lambda done, total: seen.append((done, total))  # noqa: E731
    sley.choose(RING, SIZES, NDV4, progress=note, instances=[1, 8], **BY_CONNECTION)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[0][0] == 0
    assert {total for _, total in seen} == {seen[-1][0]}


@pytest.mark.parametrize("by", [{"limit_s": 1e-9}, {"progress": lambda _done, _all: True}])
def test_a_search_that_is_ended_gives_the_best_so_far(
    table: sley.Choices, by: dict[str, Any]
) -> None:
    found = sley.choose([RING, ALL_PAIRS], SIZES, NDV4, **SMALL, **by)
    assert found.sizes == table.sizes
    assert found.left > table.left == 0
    assert f"{found.left} combinations not compared" in str(found.show())
    assert "slower than the fastest that was compared;" in str(found.show())
    assert (table.untried, found.untried) == ((), (ALL_PAIRS.name,))
    assert f"not compared, none of {ALL_PAIRS.name}\n" in str(found.show())
    last = found.ranges[-1]
    assert last.plan == sley.compile(last.program, last.options, topology=NDV4)
    assert last.end.time_us > table.ranges[-1].end.time_us


def test_every_program_is_tried_before_more_options_of_one() -> None:
    found = sley.choose([RING, ALL_PAIRS], SIZES, NDV4, **SMALL, progress=lambda done, _: done > 1)
    assert (found.candidates, found.untried) == (2, ())


def test_a_program_whose_bounds_rule_it_out_has_been_tried() -> None:
    """Its least time is above those of the others, so nothing of it was simulated."""
    programs = [RING, ALL_PAIRS, sley.algorithms.one_step_allreduce(8)]
    fixed: dict[str, Any] = {"instances": [8, 16], "protocol": "Direct", **BY_CONNECTION}
    found = sley.choose(programs, "1G", NDV4, progress=lambda done, _: done > 2, **fixed)
    assert found.left
    assert "one-step-allreduce" not in {one.algorithm for one in (*found.ranges, *found.others)}
    assert found.untried == ()


def test_the_time_also_ends_within_a_series_of_instances() -> None:
    only = {"schedule": "msccl", "protocol": "Simple", "channels": 1, "allocate": "connection"}
    found = sley.choose(RING, SIZES, NDV4, instances=[1, 2, 4], limit_s=0, **only)
    assert (found.left, found.candidates) == (2, 1)


def test_switches_are_tried_with_direct_too() -> None:
    """It spares the copies into slots, and out of them."""
    cluster = sley.topologies.dgx_h100_nvls(1)
    program = sley.algorithms.build("nvls-allreduce", nodes=1, gpus=8)
    only = {"schedule": "msccl", "instances": 4}
    found = sley.choose(program, "256M", cluster, **only).at("256M")
    assert found.plan.protocol is sley.Protocol.DIRECT
    simple = sley.compile(program, topology=cluster, protocol="Simple", **only)
    assert found.end.time_us < 0.95 * sley.simulate(simple, "256M").time_us


@pytest.mark.parametrize("plan_first", [True, False])
def test_a_plan_beside_its_own_program_stays_a_candidate(plan_first: bool) -> None:
    plan = sley.compile(RING, topology=NDV4, instances=4, channels=1, **BY_CONNECTION)
    both = [plan, RING] if plan_first else [RING, plan]
    found = sley.choose(
        both, SIZES, NDV4, instances=4, channels=1, protocol="Simple", **BY_CONNECTION
    )
    alone = sley.choose(
        plan, SIZES, NDV4, instances=4, channels=1, protocol="Simple", **BY_CONNECTION
    )
    assert [r.end for r in found.ranges] == [r.end for r in alone.ranges]
    assert all(r.as_given for r in found.ranges)


def test_an_executor_serves_several_searches_in_turns_of_any_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: dict[str, Any] = {"instances": [1, 4], "channels": [1, 2], "schedule": "msccl"}
    tables = []
    with ThreadPoolExecutor(1) as executor:
        for turn_s in (1e9, 0.0):
            monkeypatch.setattr("sley.compiler.comparison._TURN_S", turn_s)
            found = sley.choose([RING, ALL_PAIRS], SIZES, NDV4, executor=executor, **tried)
            tables.append([(r.begin, r.end, r.options, r.runner_up) for r in found.ranges])
    assert tables[0] == tables[1]


def test_an_executor_is_free_soon_after_a_search_was_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sley.compiler.comparison._TURN_S", 0.0)
    with ThreadPoolExecutor(1) as executor:
        found = sley.choose(RING, "1M", NDV4, executor=executor, progress=lambda done, _: done > 0)
    assert found.left >= found.candidates


def test_turns_that_run_when_a_search_ends_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn runs alone, then two. Both have begun when the first of them ends the search:
    they wait for one another."""
    monkeypatch.setattr("sley.compiler.comparison._TURN_S", 0.0)
    both, run = threading.Barrier(2), comparison._run_there
    turns = count()

    def _run_there(made: bytes, task: Any) -> Any:
        if next(turns) in (1, 2):
            both.wait(timeout=60)
        return run(made, task)

    monkeypatch.setattr(comparison, "_run_there", _run_there)
    only = {"schedule": "msccl", "allocate": "connection", "instances": [1, 2], "channels": [1, 2]}
    done = list[int]()
    with ThreadPoolExecutor(2) as executor:
        found = sley.choose(
            [RING, ALL_PAIRS],
            "1M",
            NDV4,
            executor=executor,
            progress=lambda so_far, _: done.append(so_far) or so_far > 1,
            **only,
        )
    assert next(turns) == 3
    assert found.left == 2 * 2 * 2 * 3 - 3  # of two programs; each turn had one combination


def test_a_search_goes_on_where_it_ended(
    tmp_path: Path, table: sley.Choices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After lines that have no series of it, of which a killed process wrote a part, too."""
    file, turns = tmp_path / "search", list[Any]()
    programs = [RING, ALL_PAIRS]
    first = sley.choose(programs, SIZES, NDV4, **SMALL, resume=file, progress=lambda n, _: n > 20)
    assert first.left > 0
    before = file.read_text()
    with file.open("a") as end:
        end.write(
            "no JSON\n[]\n" + '{"series": 3}\n{"series": [0, 9], "plans": [[0, "", 1, []]]}\n'
        )
        times = [f'[[0, "00", 1, {{"1024": {time}}}]]' for time in ('"x"', "-1.0", "NaN", "null")]
        others = ["{}", '[[0, "00", "x", {}]]', '[[0.0, "00", 1, {}]]', '[[99, "00", 1, {}]]']
        for plans in times + others:
            end.write(f'{{"series": [0, 9], "plans": {plans}}}\n')
        end.write('{"series": [0, 9], "plans": [[0, "00", 1, {"77": 0.1}]]}\n{"series": [0, 9')
    run = comparison._run
    monkeypatch.setattr(comparison, "_run", lambda *task: turns.append(task) or run(*task))
    found = sley.choose(programs, SIZES, NDV4, **SMALL, resume=file)
    assert (found.ranges, found.left) == (table.ranges, 0)
    made, turns[:] = len(turns), []
    again = sley.choose(programs, SIZES, NDV4, **SMALL, resume=file)
    assert (again.ranges, len(turns)) == (table.ranges, 0)
    assert file.read_text().startswith(before)
    sley.choose(programs, SIZES, NDV4, **SMALL)
    assert 0 < made < len(turns)


def test_a_record_that_lost_a_line_leads_to_the_same_table(tmp_path: Path) -> None:
    """Also if it was the only line with the times of a plan that several series have."""
    file, few = tmp_path / "search", {"instances": [1, 2], "channels": 1, "protocol": "Simple"}
    table = sley.choose(RING, ["1K", "4K"], NDV4, resume=file, **few)
    head, *lines = file.read_text().splitlines(keepends=True)
    cut = ["".join([head, *lines[:at], *lines[at + 1 :]]) for at in range(len(lines))]
    for text in (head.removesuffix("\n"), *cut):
        file.write_text(text)
        assert sley.choose(RING, ["1K", "4K"], NDV4, resume=file, **few).ranges == table.ranges


def test_a_search_that_goes_on_keeps_given_plans_and_refusals(tmp_path: Path) -> None:
    fast = sley.compile(RING, topology=NDV4, instances=24, protocol="LL128", **BY_CONNECTION)
    only: dict[str, Any] = {"instances": [1, 2], "channels": 1, "protocol": "LL128"}
    only |= {"resume": tmp_path / "plan", **BY_CONNECTION}
    found = sley.choose([fast, RING], ["1M", "256M"], NDV4, **only)
    again = sley.choose([fast, RING], ["1M", "256M"], NDV4, limit_s=1e-9, **only)
    assert found.ranges == again.ranges
    assert found.ranges[-1].as_given
    alone = sley.choose(fast, "256M", NDV4, **only | {"resume": None}).ranges[-1]
    assert alone.runner_up is not None
    whole = {"loop_order": "instruction", "target": "executor", "resume": tmp_path / "refused"}
    for _ in range(2):
        assert code(lambda: sley.choose(RING, "1M", NDV4, instances=1, **whole)) == "F441"


@pytest.mark.parametrize(
    "change",
    [
        lambda _file: {"sizes": ["1K", "2M"]},
        lambda _file: {"programs": ALL_PAIRS},
        lambda _file: {"topology": NDV4.degraded("gpu0-switch0", 0.5)},
        lambda _file: {"instances": 8},
        lambda file: file.write_text("mine\n") and {},
        lambda file: file.write_text("mine\nand\nyours\n") and {},
    ],
)
def test_a_search_does_not_go_on_with_another_one(tmp_path: Path, change: Any) -> None:
    file = tmp_path / "search"
    given: dict[str, Any] = {"programs": RING, "sizes": ["1K", "1M"], "topology": NDV4}
    given |= {"instances": 4, "channels": 1, "resume": file, **BY_CONNECTION}
    sley.choose(**given)
    given |= change(file)
    before = file.read_text()
    assert code(lambda: sley.choose(**given)) == "C317"
    assert file.read_text() == before
    assert code(lambda: sley.choose(**given | {"resume": tmp_path})) == "F461"


def test_each_program_is_tried_before_one_is_tried_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a search that ends early has compared them all."""
    tried, run = list[int](), comparison._run

    def _run(compiler: Any, task: Any) -> Any:
        tried.extend(series.contender for series in task.series)
        return run(compiler, task)

    monkeypatch.setattr(comparison, "_run", _run)
    sley.choose([RING, ALL_PAIRS], "1M", NDV4, **BY_CONNECTION, instances=1, channels=[1, 2])
    assert tried[:2] == [0, 1]
    assert len(tried) > 2


@given(st.sets(st.integers(1, 10_000), min_size=1))
def test_sizes_between_others_leave_these_close_together(sizes: set[int]) -> None:
    between = comparison._between(sorted(sizes))
    others = sorted(sizes - set(between))
    assert sizes.issuperset(between)
    for size, (before, after) in between.items():
        assert (before, after) == (
            max(n for n in others if n < size),
            min(n for n in others if n > size),
        )
        assert after <= 4 * before


def test_lower_bounds_need_fewer_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the table stays as it is."""
    sizes = [1 << n for n in range(10, 29)]
    programs, few = [RING, ALL_PAIRS], {"instances": [1, 2, 8], "channels": 1, **BY_CONNECTION}
    found = sley.choose(programs, sizes, NDV4, **few)
    monkeypatch.setattr(comparison._Timed, "least", lambda *_: 0.0)
    every = sley.choose(programs, sizes, NDV4, **few)
    assert found.simulations < every.simulations
    assert replace(found, simulations=0) == replace(every, simulations=0)


@pytest.mark.parametrize("most_blocks", [108, pytest.param(20, marks=pytest.mark.slow)])
def test_plans_that_share_blocks_are_left_out_only_where_they_would_not_be_chosen(
    monkeypatch: pytest.MonkeyPatch, most_blocks: int
) -> None:
    program = sley.algorithms.hierarchical_allreduce(2, 4, in_place=True)
    tried = {"allocate": ["connection", "state"], "instances": [1, 8, 16], "channels": 1}

    def table(reach: float, least_blocks: float) -> list[object]:
        monkeypatch.setattr(comparison, "_REACH", reach)
        monkeypatch.setattr("sley.compiler.candidates.LEAST_BLOCKS", least_blocks)
        found = sley.choose(
            program, SIZES, "2x4", schedule="msccl", most_blocks=most_blocks, **tried
        )
        return [(r.begin, r.end, r.options) for r in found.ranges]

    reach = comparison._REACH
    expected = table(reach, LEAST_BLOCKS)
    assert expected == table(float("inf"), 0.0), "none would have been chosen"
    assert expected != table(0.0, LEAST_BLOCKS), "without any the choice would be another"
    assert expected != table(reach, float("inf")), "nor with the first instance alone"


@pytest.mark.parametrize(("constant", "value"), [("_MERGED", 1.0), ("_FEW", 1.0)])
def test_plans_of_too_many_blocks_reach_further(
    monkeypatch: pytest.MonkeyPatch, constant: str, value: float
) -> None:
    """A ring of 96 blocks on 80 multiprocessors is the fastest once they are merged."""
    topology = sley.topologies.find("dgx1")
    rings = link_rings(topology).orders.tolist()
    ring = sley.algorithms.multi_ring_allgather(1, 8, orders=rings, in_place=True)
    programs = [ring, sley.synthesize("allgather", topology, in_place=True)]
    given = {"channels": 1, "protocol": "LL128", "instances": [4, 8], "schedule": ["msccl", "hpds"]}

    def chosen() -> Allocation | None:
        return sley.choose(programs, "8M", topology, **given).ranges[0].options.allocate

    assert chosen() is Allocation.STATE
    monkeypatch.setattr(comparison, constant, value)
    assert chosen() is Allocation.CONNECTION


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: sley.compile(RING, topology=NDV4, schedule="auto"), "C310"),
        (lambda: sley.compile(RING, schedule="auto", size="1M"), "S701"),
        (lambda: sley.compile(RING, topology=NDV4, size="1M"), "C309"),
        (lambda: sley.compile(RING, topology=NDV4, schedule="auto", size="x"), "S702"),
        (
            lambda: sley.compile(RING, topology=NDV4, schedule="auto", size="1M", channels=0),
            "C304",
        ),
        (
            lambda: sley.compile(RING, topology=NDV4, schedule="auto", size="1M", allocate="x"),
            "C304",
        ),
        (lambda: sley.choose(RING, "1M"), "S701"),
        (lambda: sley.choose([], "1M", NDV4), "C304"),
        (lambda: sley.choose("ring", "1M", NDV4), "C307"),
        (lambda: sley.choose([RING, "ring"], "1M", NDV4), "C307"),
        (lambda: sley.choose(RING, "1M", 8), "C307"),
        (lambda: sley.choose(RING, "1M", NDV4, limit_s=float("nan")), "R514"),
        (lambda: sley.choose(RING, "1M", NDV4, limit_s=-1), "R514"),
        (lambda: sley.choose(RING, "1M", NDV4, tie=-0.1), "R514"),
        (lambda: sley.choose(RING, "1M", NDV4, tie=0.1), "R514"),
        (lambda: sley.choose(RING, "1M", NDV4, limit_s="a minute"), "R514"),
        (lambda: sley.choose(RING, "1M", "ndv44"), "T604"),
        (lambda: sley.choose(RING, [], NDV4), "S702"),
        (lambda: sley.choose(RING, [1024, -1], NDV4), "S702"),
        (lambda: sley.choose(RING, 1.5, NDV4), "S702"),
        (lambda: sley.choose(RING, "1M", NDV4, protocol="fast"), "C304"),
        (lambda: sley.choose(RING, "1M", NDV4, protocol=[]), "C304"),
        (lambda: sley.choose(RING, "1M", NDV4, protocol=["LL", None]), "C304"),
        (lambda: sley.choose(RING, "1M", NDV4, protocols=["LL"]), "C304"),
        (lambda: sley.choose(RING, "1M", NDV4, schedule=["auto"]), "C304"),
        (lambda: sley.choose(RING, "1M", NDV4, instances=[1.5]), "C304"),
        (lambda: sley.choose(RING, "1M", NDV4, instances="4"), "C304"),
        (lambda: sley.choose(RING, "1M", NDV4, {"instances": 4}), "C307"),
        (lambda: sley.choose(RING, "1M", NDV4, target="nccl"), "F440"),
        (lambda: sley.choose(RING, "1M", NDV4, schedule="hpds", fusion=True), "C309"),
        (lambda: sley.choose(RING, "1M", sley.topologies.cluster(1, 4)), "C305"),
        (
            lambda: sley.choose([RING, sley.algorithms.ring_allgather(8)], "1M", NDV4),
            "C313",
        ),
        (
            lambda: sley.choose(
                [RING, sley.algorithms.ring_allreduce(8, in_place=True)], "1M", NDV4
            ),
            "C313",
        ),
    ],
)
def test_questions_without_an_answer_are_refused_by_their_rule(call: Any, expected: str) -> None:
    assert code(call) == expected


def test_programs_of_which_one_is_in_place_get_a_remedy() -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.choose([RING, sley.algorithms.ring_allreduce(8, in_place=True)], SIZES, NDV4)
    assert "--out-of-place" in caught.value.diagnostics[0].remedy


def test_a_size_outside_the_table_is_refused(table: sley.Choices) -> None:
    assert code(lambda: table.plan_for("512")) == "C312"
    assert code(lambda: table.at("1G")) == "C312"
    assert code(lambda: table.at("many")) == "C312"


def test_each_value_of_a_listed_option_is_tried() -> None:
    one = {"instances": 1, "channels": 1, "schedule": "msccl", "allocate": "connection"}
    space = Space.of(
        Options(slots=4), {**one, "protocol": ["LL128", "LL"], "fusion": [True, False]}, None
    )
    tried = [options for series in space.series(RING) for options in series]
    protocols = (sley.Protocol.LL, sley.Protocol.LL128)
    assert [(o.fusion, o.protocol) for o in tried] == [
        (fusion, protocol) for fusion in (False, True) for protocol in protocols
    ]
    assert {(o.slots, o.instances) for o in tried} == {(4, 1)}


def test_choose_takes_what_auto_leaves_open() -> None:
    options = Options(schedule="auto", protocol="LL", instances=2)  # type: ignore[arg-type]
    choice = sley.choose(RING, "1K", NDV4, options).ranges[0]
    assert choice.options.schedule in (Schedule.MSCCL, Schedule.HPDS)
    assert (choice.options.protocol, choice.options.instances) == (sley.Protocol.LL, 2)


def test_plans_of_too_many_blocks_are_left_out() -> None:
    few = sley.choose(RING, "64M", NDV4, most_blocks=4, channels=[1], schedule="msccl").ranges[0]
    assert few.plan.blocks_per_rank == few.options.instances == 4, "none was merged"
    pairs = sley.algorithms.all_pairs_allreduce(8)
    least = sley.choose(pairs, "1K", NDV4, most_blocks=4, allocate="connection").ranges[0]
    assert least.plan.blocks_per_rank == sley.compile(pairs).blocks_per_rank > 4


@pytest.mark.parametrize("options", [{}, {"per_chunk": True, "slots": 2}])
def test_candidates_are_the_plans_that_their_options_compile_to(options: dict[str, Any]) -> None:
    tried = {"instances": (1, 2), "channels": (1, 2)}
    found = candidates(
        [(sley.algorithms.ring_allreduce(4), None)],
        sley.topologies.ndv4(),
        Space(tried, Options.of(None, options)),
        interpreter=False,
        progress=lambda done, total: None,
    )
    assert {"msccl", "hpds"} <= {c.options.schedule and c.options.schedule.value for c in found}
    for one in found:
        alone = sley.compile(one.program, one.options, topology=sley.topologies.ndv4())
        assert alone == one.plan


def test_passes_that_do_the_same_for_several_candidates_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = []
    monkeypatch.setattr(
        pipeline,
        "assign_channels",
        lambda dag, *rest: runs.append(1) or assign_channels(dag, *rest),
    )
    tried = {"instances": [1, 2], "allocate": ["connection", "instance"]}
    sley.choose(RING, "1M", NDV4, channels=[1], schedule="msccl", **tried)
    assert len(runs) == 2  # not for both allocations
