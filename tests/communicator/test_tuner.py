"""A communicator with a policy: used, refused, watched and reverted, with right results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.communicator import Call, Communicator, Network, Settings, loading
from sley.communicator.arrays import span
from sley.communicator.selection.plans import PlanChange
from sley.communicator.watch import FIRST_CALLS, PAIRS, TRIAL_CALLS, WARM_CALLS, Turns, Watch
from sley.engine.types import DATA_TYPES
from sley.errors import Diagnostic, SleyError
from sley.ir.words import ReduceOp
from sley.tuning.policy import Measured, Recipe
from support.inputs.policies import PAIRS as ALL_PAIRS
from support.inputs.policies import clock, policy_file, policy_of
from support.processes.rank_processes import start
from support.processes.threads_group import Ranks

RANKS = 4
COUNT = 500
"""Elements of float64: 4000 bytes."""

REVERTS_AT = WARM_CALLS + FIRST_CALLS + TRIAL_CALLS
"""The call at which a plan that is slower than the default from the start is reverted."""

PROMISED = (Measured(4000, 1.0, 10.0),)


def settings_of(tuner: str | None, **more: Any) -> Settings:
    return Settings(timeout_s=20, use_cache=False, tuner=tuner, **more)


@pytest.fixture
def slow_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, the policy's plan takes twice the time of the default."""
    monkeypatch.setattr(Watch, "decide", clock({0: 20.0, 1: 10.0, 2: 30.0, 3: 4.0}))


def reduce(comm: Communicator, calls: int, *, async_op: bool = False, first: int = 0) -> None:
    """Calls, with checked results."""
    data = [
        np.arange(COUNT, dtype=np.float64) + 1000 * comm.rank + turn
        for turn in range(first, first + calls)
    ]
    for work in [comm.all_reduce(one, async_op=async_op) for one in data]:
        work.wait()
    sums = RANKS * np.arange(COUNT) + 1000 * sum(range(RANKS))
    for turn, one in enumerate(data):
        assert (one == sums + RANKS * (first + turn)).all(), turn


def calls_of(comm: Communicator, kind: str = "all_reduce") -> dict[str, int]:
    return {row.origin: row.calls for row in comm.stats() if row.kind == kind}


def test_the_policy_is_used_for_its_sizes(tmp_path: Path) -> None:
    path = policy_file(tmp_path, policy_of(RANKS, sizes=(1000, 5000)))

    def calls(comm: Communicator) -> dict[tuple[str, str, str], int]:
        reduce(comm, 30)
        comm.all_reduce(np.ones(COUNT, np.int64))
        comm.all_reduce(np.ones(COUNT), op=ReduceOp.MAX)
        comm.all_reduce(np.ones(COUNT), out=np.ones(COUNT))
        comm.all_reduce(np.ones(1000))
        comm.barrier()
        assert not comm.plans.problems
        found: dict[tuple[str, str, str], int] = {}
        for row in comm.stats():  # in place and out of place
            key = row.kind, row.plan, row.origin
            found[key] = found.get(key, 0) + row.calls
        return found

    with Ranks(RANKS, settings_of(path)) as ranks:
        for found in ranks.each(calls):
            assert found == {
                ("all_reduce", "ring-allreduce", "policy"): 33,
                ("all_reduce", "one-step-allreduce", "default"): 1,
                ("barrier", "one-step-allreduce", "default"): 1,
            }


def test_a_user_plan_is_neither_replaced_nor_watched(tmp_path: Path) -> None:
    path = policy_file(tmp_path, policy_of(RANKS))

    def calls(comm: Communicator) -> None:
        reduce(comm, 10)
        comm.plans.register(sley.algorithms.recursive_halving_doubling_allreduce(4, in_place=True))
        reduce(comm, 200)
        assert calls_of(comm) == {"policy": 10, "user": 200}

    with Ranks(RANKS, settings_of(path)) as ranks:
        ranks.each(calls)


@pytest.mark.parametrize("async_op", [False, True], ids=["synchronous", "asynchronous"])
def test_a_slow_plan_is_reverted_by_all_ranks_at_the_same_call(
    async_op: bool, tmp_path: Path, slow_policy: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = policy_file(tmp_path, policy_of(RANKS, measured=PROMISED))

    def calls(comm: Communicator) -> list[PlanChange]:
        reduce(comm, 150, async_op=async_op)
        expected = {"policy": WARM_CALLS + FIRST_CALLS + PAIRS}
        assert calls_of(comm) == expected | {"default": 150 - expected["policy"]}
        return comm.plans.changes

    with caplog.at_level("WARNING", "sley"), Ranks(RANKS, settings_of(path)) as ranks:
        changes = ranks.each(calls)
    (change,) = changes[0]
    assert changes == [[change]] * RANKS
    assert (change.call, change.kind, change.size_bytes, change.in_place) == (
        REVERTS_AT,
        "all_reduce",
        4000,
        True,
    )
    assert change[4:6] == ("ring-allreduce instances=2", change.after)
    assert change.after.startswith("one-step-allreduce ")
    assert change[6:] == pytest.approx((20.0, 10.0))
    (record,) = caplog.records
    assert record.getMessage().endswith(
        f"all_reduce of 4000, since call {REVERTS_AT}: {change.after} (10.0 us) instead of "
        "ring-allreduce instances=2 (20.0 us)"
    )


def test_a_reverted_plan_stays_reverted_when_plans_are_registered(
    tmp_path: Path, slow_policy: None
) -> None:
    path = policy_file(tmp_path, policy_of(2, measured=PROMISED))

    def calls(comm: Communicator) -> tuple[int, int]:
        data = np.zeros(COUNT)
        for turn in range(300):
            if turn == 150:  # the plans of all calls are looked up again
                comm.plans.register(sley.algorithms.ring_allgather(2))
            comm.all_reduce(data)
        return len(comm.plans.changes), calls_of(comm)["policy"]

    with Ranks(2, settings_of(path)) as ranks:
        assert ranks.each(calls) == [(1, WARM_CALLS + FIRST_CALLS + PAIRS)] * 2


def test_ranks_far_ahead_of_the_others_change_at_the_same_call(
    tmp_path: Path, slow_policy: None
) -> None:
    """Rank 0 has asked for all calls before the others make the first one; some ranks wait for each
    call, others don't."""
    path = policy_file(tmp_path, policy_of(RANKS, measured=PROMISED))

    def calls(comm: Communicator) -> list[PlanChange]:
        data = [np.full(COUNT, float(turn)) for turn in range(200)]
        works = []
        if comm.rank == 0:
            works = [comm.all_reduce(one, async_op=True) for one in data]
            for other in range(1, RANKS):
                comm.send(np.ones(1), other)
        else:
            comm.recv(np.ones(1), 0)
            for turn, one in enumerate(data):
                works.append(comm.all_reduce(one, async_op=turn % (comm.rank + 1) > 0))
        for work in works:
            work.wait()
        assert all((one == RANKS * turn).all() for turn, one in enumerate(data))
        return comm.plans.changes

    with Ranks(RANKS, settings_of(path)) as ranks:
        changes = ranks.each(calls)
    assert [change.call for change in changes[0]] == [REVERTS_AT]
    assert changes == [changes[0]] * RANKS


def test_calls_that_callbacks_make_are_watched_too(tmp_path: Path, slow_policy: None) -> None:
    """In the communicator's own thread, which must not wait."""
    path = policy_file(tmp_path, policy_of(2, measured=PROMISED))

    def calls(comm: Communicator) -> int:
        data = np.ones(COUNT)
        works: list[Any] = []

        def again() -> None:
            if len(works) < 150:
                works.append(comm.all_reduce(data, op=ReduceOp.AVG, async_op=True))
                works[-1].on_done(again)

        again()
        while len(works) < 150 or not works[-1].is_completed():
            works[-1].wait(0.1)
        assert (data == 1).all()
        return comm.plans.changes[0].call

    with Ranks(2, settings_of(path)) as ranks:
        assert ranks.each(calls) == [REVERTS_AT] * 2


def test_repeated_calls_change_within_the_repetition(tmp_path: Path, slow_policy: None) -> None:
    path = policy_file(tmp_path, policy_of(RANKS, measured=PROMISED))

    def calls(comm: Communicator) -> tuple[dict[str, int], int]:
        data = np.zeros(COUNT)
        memory = (data.ctypes.data, data.nbytes)
        call = Call("all_reduce", *memory, *memory, COUNT, DATA_TYPES["float64"])
        assert comm.endpoint.time_us(call, 1000) > 0
        return calls_of(comm), comm.plans.changes[0].call

    with Ranks(RANKS, settings_of(path)) as ranks:
        policy = WARM_CALLS + FIRST_CALLS + PAIRS
        expected = ({"policy": policy, "default": 1000 - policy}, REVERTS_AT)
        assert ranks.each(calls) == [expected] * RANKS


def test_exploration_takes_a_faster_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "decide", clock({0: 20.0, 1: 25.0, 2: 30.0, 3: 4.0}))
    slow = Recipe("recursive-halving-doubling-allreduce")
    fast = Recipe("all-pairs-allreduce", options={"protocol": "Simple"})
    path = policy_file(tmp_path, policy_of(RANKS, alternatives=[slow, fast]))

    def calls(comm: Communicator) -> list[tuple[str, str, int]]:
        reduce(comm, 2500)
        assert [change.after.split()[0] for change in comm.plans.changes] == [fast.name]
        return sorted((row.plan, row.origin, row.calls) for row in comm.stats())

    with Ranks(RANKS, settings_of(path, explore=0.1)) as ranks:
        found = ranks.each(calls)
    assert found == [found[0]] * RANKS
    rows = {plan: (origin, calls) for plan, origin, calls in found[0]}
    assert rows[fast.name][0] == "policy"
    assert rows[fast.name][1] > 100
    assert rows[slow.name] == ("trial", WARM_CALLS + PAIRS)


def test_an_all_to_all_whose_counts_vary_is_not_counted(tmp_path: Path, slow_policy: None) -> None:
    policy = policy_of(RANKS, collective="alltoall", recipe=ALL_PAIRS, measured=PROMISED)
    path = policy_file(tmp_path, policy)

    def calls(comm: Communicator) -> int:
        for turn in range(160):
            data = np.arange(RANKS * 100) + 1000 * comm.rank
            out = np.zeros_like(data)
            if turn % 3 == 0 and turn % 20 >> comm.rank & 1:
                comm.all_to_all_v(list(data.reshape(RANKS, -1)), list(out.reshape(RANKS, -1)))
            else:
                spans = data.ctypes.data, data.nbytes, out.ctypes.data, out.nbytes
                call = Call("all_to_all", *spans, 100, DATA_TYPES["int64"], may_vary=True)
                work = comm.endpoint.submit(call, async_op=turn % 5 == 0, owners=(data, out))
                work.wait()
            own = np.arange(100 * comm.rank, 100 * comm.rank + 100)
            for rank in range(RANKS):
                assert (out[100 * rank : 100 * rank + 100] == own + 1000 * rank).all()
            if turn % 5 == 0:
                comm.barrier()
        return comm.plans.changes[0].call

    with Ranks(RANKS, settings_of(path)) as ranks:
        assert ranks.each(calls) == [REVERTS_AT] * RANKS


def refused(
    caplog: pytest.LogCaptureFixture,
    settings: Settings | Sequence[Settings],
    *,
    in_call: bool = False,
) -> list[str]:
    """The codes of the problems of each rank, and the default runs. The first one with a problem
    has logged it, once; each rank if a call finds it."""

    def calls(comm: Communicator) -> Diagnostic:
        reduce(comm, 80)
        assert calls_of(comm) == {"default": 80}
        (problem,) = comm.plans.problems
        return problem

    with caplog.at_level("WARNING", "sley"), Ranks(RANKS, settings) as ranks:
        problems = ranks.each(calls)
    logged = [record.getMessage() for record in caplog.records]
    texts = {str(problem) for problem in problems}
    times = RANKS if in_call else 1
    assert len(logged) == len(texts) * times
    assert all(sum(line.endswith(text) for line in logged) == times for text in texts)
    assert in_call or ("all ranks: " in logged[0]) == (len(texts) == 1)
    if in_call:
        assert sorted(line.partition(", ")[2][:6] for line in logged) == [
            f"rank {rank}" for rank in range(RANKS)
        ]
    return [problem.code for problem in problems]


@pytest.mark.parametrize(
    ("machine", "word"),
    [
        ({"fingerprint": "f00d"}, "fingerprint"),
        ({"nodes": 2, "gpus": 2}, "nodes"),
        ({"gpus": 8}, "gpus"),
        ({"engine": "simulator"}, "engine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_policy_for_another_machine_is_refused(
    machine: dict[str, Any], word: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = policy_file(tmp_path, policy_of(RANKS, **machine))
    assert refused(caplog, settings_of(path)) == ["D903"] * RANKS
    assert f"{word} " in caplog.text


def test_a_policy_is_refused_on_ranks_in_another_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = policy_file(tmp_path, policy_of(RANKS))
    environs = [{"SLEY_HOST_ID": host, "SLEY_NICS": "lo"} for host in "abab"]
    with Ranks(RANKS, settings_of(path, network=Network.TCP), environs) as ranks:
        ranks.each(lambda comm: reduce(comm, 3))
        problems = ranks.each(lambda comm: comm.plans.problems)
    assert [[problem.code for problem in one] for one in problems] == [["D903"]] * RANKS


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 no more", b"\x80\x04.", b"{}"])
def test_a_file_that_is_no_policy_is_refused(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.toml"
    if content is not None:
        path.write_bytes(content)
    assert refused(caplog, settings_of(str(path))) == ["D901"] * RANKS


def test_an_algorithm_that_does_not_exist_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = policy_file(tmp_path, policy_of(RANKS))
    text = Path(path).read_text()
    Path(path).write_text(text.replace("ring-allreduce", "star-allreduce"))
    assert refused(caplog, settings_of(path)) == ["D904"] * RANKS


def test_a_plan_that_does_not_fit_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide = Recipe("ring-allreduce", options={"instances": 16})
    path = policy_file(tmp_path, policy_of(RANKS, recipe=wide))
    assert refused(caplog, settings_of(path, channels=8), in_call=True) == ["D904"] * RANKS


@pytest.mark.parametrize("lacking", [0, 2])
def test_no_rank_uses_a_policy_that_one_does_not_have(
    lacking: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = policy_file(tmp_path, policy_of(RANKS))
    settings = [settings_of(None if rank == lacking else path) for rank in range(RANKS)]
    assert refused(caplog, settings) == ["N604"] * RANKS
    assert (
        f"no valid policy on {f'rank {lacking}' if lacking else ''}" in caplog.text or not lacking
    )


def test_a_rank_whose_file_is_broken_reports_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = policy_file(tmp_path, policy_of(RANKS))
    settings = [settings_of(path)] * (RANKS - 1) + [settings_of(str(tmp_path / "missing.toml"))]
    assert refused(caplog, settings) == ["N604"] * (RANKS - 1) + ["D901"]


@pytest.mark.parametrize("what", ["policy", "explore"])
def test_ranks_with_different_policies_use_none(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    path = policy_file(tmp_path, policy_of(RANKS))
    other = policy_file(tmp_path / "other", policy_of(RANKS, sizes=(0, 1 << 30)))
    first = settings_of(other if what == "policy" else path, explore=0.1 * (what == "explore"))
    assert refused(caplog, [first] + [settings_of(path)] * (RANKS - 1)) == ["N604"] * RANKS
    assert f"{what} " in caplog.text


def test_ranks_agree_what_is_watched_though_one_made_a_call_with_its_own_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_MOST_WATCHED", 4)
    policy = policy_of(2, collective="alltoall", recipe=ALL_PAIRS, measured=())

    def calls(comm: Communicator) -> None:
        for count in range(1, 12):
            data = np.arange(2 * count)
            if count == 1 and comm.rank == 0:
                out = np.zeros_like(data)
                comm.all_to_all_v(list(data.reshape(2, -1)), list(out.reshape(2, -1)))
                continue
            out = np.zeros_like(data)
            may_vary = count in (1, 9)
            call = Call(
                "all_to_all",
                *span(data),
                *span(out),
                count,
                DATA_TYPES["int64"],
                may_vary=may_vary,
            )
            comm.endpoint.submit(call, owners=(data, out)).wait()

    with Ranks(2, settings_of(policy_file(tmp_path, policy))) as ranks:
        ranks.each(calls)


@given(st.integers(1, 1 << 40))
def test_few_sizes_are_watched_of_calls_that_ranks_may_make_with_varying_counts(
    size_bytes: int,
) -> None:
    bits = bin(size_bytes)[2:].rstrip("0")
    assert loading._significant_bits(size_bytes) == len(bits)
    assert loading._significant_bits(0) == 0


def dies_in_between(comm: Communicator, async_op: bool) -> None:
    data = np.ones(COUNT)
    for turn in range(300):
        if comm.rank == 1 and turn == REVERTS_AT - 10:
            os._exit(1)
        comm.all_reduce(data, op=ReduceOp.MAX, async_op=async_op).wait()


def test_a_rank_that_dies_in_a_trial_is_an_error_on_the_others(tmp_path: Path) -> None:
    path = policy_file(tmp_path, policy_of(3, measured=()))
    ends = start(3, dies_in_between, True, settings=settings_of(path)).ends()
    for end in (ends[0], ends[2]):
        assert "N620" in end.error, end
        assert end.seconds < 10


def dies_in_the_decision(comm: Communicator, async_op: bool) -> None:
    data = np.zeros(1000, np.float32)
    decide = Watch.decide

    def die(watch: Watch, seconds: Sequence[float]) -> Turns:
        if comm.rank == 1:
            os._exit(1)
        return decide(watch, seconds)

    Watch.decide = die  # type: ignore[method-assign]
    for _ in range(400):
        comm.all_reduce(data, op=ReduceOp.MAX, async_op=async_op).wait()


@pytest.mark.parametrize("async_op", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_rank_that_dies_in_a_decision_is_an_error_on_the_others(
    async_op: bool, tmp_path: Path
) -> None:
    path = policy_file(tmp_path, policy_of(3, measured=()))
    ends = start(3, dies_in_the_decision, async_op, settings=settings_of(path)).ends()
    for end in (ends[0], ends[2]):
        assert "N620" in end.error, end


def differs_in_between(comm: Communicator) -> None:
    for turn in range(300):
        comm.all_reduce(np.ones(COUNT + (comm.rank == 1 and turn == 20)))


def test_another_call_on_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    """While the plan of the calls is tried; their numbers count the agreements, too."""
    path = policy_file(tmp_path, policy_of(3, measured=()))
    for end in start(3, differs_in_between, settings=settings_of(path)).ends():
        assert "N622" in end.error, end


def test_hosts_agree_over_the_network(tmp_path: Path, slow_policy: None) -> None:
    path = policy_file(tmp_path, policy_of(2, 2, measured=PROMISED))
    environs = [{"SLEY_HOST_ID": host, "SLEY_NICS": "lo"} for host in "aabb"]
    with Ranks(RANKS, settings_of(path, network=Network.TCP), environs) as ranks:
        ranks.each(lambda comm: reduce(comm, 120))
        changes = ranks.each(lambda comm: comm.plans.changes)
    assert [change.call for change in changes[0]] == [REVERTS_AT]
    assert changes == [changes[0]] * RANKS


def test_a_policy_cuts_data_into_smaller_tiles(tmp_path: Path) -> None:
    path = policy_file(tmp_path, policy_of(2, recipe=Recipe("ring-allreduce", tile=0.25)))

    def slots(comm: Communicator) -> dict[str, int]:
        data = np.arange(300_000, dtype=np.float64)
        comm.all_reduce(data)
        assert (data == 2 * np.arange(300_000)).all()
        assert comm.endpoint._core is not None
        runs = comm.endpoint._core.loader.runs()
        return {f"{kind} {origin}": one.loaded.wiring.slot_bytes for kind, origin, one in runs}

    with Ranks(2, settings_of(path)) as ranks:
        found = ranks.each(slots)[0]
    assert 4 * found["all_reduce policy"] == found["all_reduce trial"]


def test_a_plan_whose_messages_do_not_fit_the_slots_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_LARGEST_ELEMENT_BYTES", 1 << 20)
    path = policy_file(tmp_path, policy_of(RANKS))
    assert refused(caplog, settings_of(path), in_call=True) == ["D904"] * RANKS
    assert "bytes for one element of each chunk" in caplog.text


def test_calls_beyond_the_most_watched_ones_run_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "_MOST_WATCHED", 2)
    path = policy_file(tmp_path, policy_of(2))

    def calls(comm: Communicator) -> dict[str, int]:
        for count in (3, 4, 5, 6, 3):
            comm.all_reduce(data := np.ones(count))
            assert (data == 2).all()
        return calls_of(comm)

    with caplog.at_level("WARNING", "sley"), Ranks(2, settings_of(path)) as ranks:
        assert ranks.each(calls) == [{"policy": 3, "default": 2}] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "sley: 2 different calls use the policy; further ones use the default"
    ] * 2


def test_a_signal_in_the_decision_ends_the_call_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = policy_file(tmp_path, policy_of(2))
    decide, decided = Watch.decide, []

    def interrupted(watch: Watch, seconds: Sequence[float]) -> Turns:
        decided.append(watch)
        if len(decided) == 1:
            raise KeyboardInterrupt
        return decide(watch, seconds)

    monkeypatch.setattr(Watch, "decide", interrupted)

    def calls(comm: Communicator) -> str:
        try:
            for _ in range(200):
                comm.all_reduce(np.ones(COUNT))
        except KeyboardInterrupt:
            return "interrupted"
        except SleyError as error:
            return error.code
        return "nothing"

    with Ranks(2, settings_of(path)) as ranks:
        assert sorted(ranks.each(calls)) == ["N608", "interrupted"]
        again = ranks.each(calls)  # would never return if it ran no call of the turn that has ended
        assert all(end.startswith("N6") for end in again), again
