"""The live back end and `sley tune train --live`: real calls of two ranks, whose times no test
compares."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sley.cli import main
from sley.communicator import Call, Settings
from sley.communicator.endpoint import Endpoint
from sley.communicator.jobs import Job
from sley.communicator.jobs.commands import BenchCall, CountWrong, Load, Setup, Turn
from sley.communicator.jobs.worker import Worker
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.machine import machine_here
from sley.communicator.selection.plans import Plans
from sley.engine.measure import Sweep
from sley.engine.outcomes import Report
from sley.errors import Place, SleyError
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.sizes import SizeRange
from sley.ir.tables import FloatArray
from sley.ir.words import ReduceOp
from sley.tuning import policy as policies
from sley.tuning.arms import IN_PLACE, LIVE
from sley.tuning.live import Live
from sley.tuning.training import Training

SIZES = (1 << 10, 1 << 17)
HOSTS = Hosts.of(["here"] * 2)


def live(collective: str = "allreduce", **given: Any) -> Live:
    given = {"sizes": SIZES, "algorithms": [], "settings": Settings(timeout_s=20)} | given
    return Live(collective, 2, **given)


@pytest.fixture(scope="module")
def backend() -> Iterator[Live]:
    with live(algorithms=["ring-allreduce"]) as made:
        yield made


def code_of(call: Any) -> str:
    with pytest.raises(SleyError) as caught:
        call()
    return caught.value.code


def test_measured_times_are_positive(backend: Live) -> None:
    for cell, default in enumerate(backend.default.tolist()):
        for arm in (default, 0, len(backend.arms) // 2):
            assert 0 < backend.measure(cell, arm) < 1e7


def test_every_arm_gives_the_right_result(backend: Live) -> None:
    for cell in range(len(SIZES)):
        for arm in np.flatnonzero(backend.mask[cell]).tolist()[::3]:
            assert backend.measure(cell, arm) > 0, "D926 otherwise"


def test_the_shape_of_the_back_end(backend: Live) -> None:
    arms = len(backend.arms)
    assert backend.mask.shape == backend.expected.shape == (2, arms)
    assert backend.features.shape[0] == len(backend.recipes) == arms
    assert np.isfinite(backend.features).all()
    assert len({digest(arm.plan) for arm in backend.arms}) == arms
    assert backend.mask[np.arange(2), backend.default].all()


def test_equal_plans_are_one_choice() -> None:
    """A single step has nothing to fuse, and its channels are its parallel parts."""
    made = live(algorithms=["one-step-allreduce"])
    digests = [digest(arm.plan) for arm in made.arms]
    assert len(set(digests)) == len(digests) < 24


@pytest.mark.parametrize("collective", LIVE)
def test_defaults_are_the_communicators_plans(collective: str) -> None:
    sizes = [1 << 10, 1 << 15, 1 << 16, 1 << 26]
    plans = Plans(HOSTS, cache=False)
    call = {"allreduce": "all_reduce", "alltoall": "all_to_all", "allgather": "all_gather"}.get(
        collective, "reduce_scatter"
    )
    made = live(collective, sizes=sizes)
    for size, arm in zip(sizes, made.default.tolist(), strict=True):
        found = plans.library(call, size, in_place=IN_PLACE[collective])
        assert digest(made.arms[arm].plan) == found.digest


def test_a_default_with_stages_is_no_choice_at_other_sizes(backend: Live) -> None:
    stages = [index for index, arm in enumerate(backend.arms) if arm.has_stages]
    assert stages == [backend.default[1]], "all pairs with two stages, for large calls"
    assert not backend.mask[0, stages].any()


@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_decisions_compile_to_the_measured_plans(collective: str) -> None:
    names = {"allreduce": ["ring-allreduce"], "alltoall": ["all-pairs-alltoall"]}[collective]
    made = live(collective, algorithms=names)
    for arm in made.arms[::2]:
        if arm.has_stages:
            continue
        one = policies.PlanRow(arm.recipe, SizeRange(), collective)
        policy = policies.Policy((one,), machine=made.machine)
        tuned = Plans(HOSTS, cache=False, policy=policy)
        kind = "all_reduce" if collective == "allreduce" else "all_to_all"
        found = tuned.find(kind, 1 << 20, in_place=IN_PLACE[collective])
        assert found.tuned is not None, tuned.problems
        assert found.digest == digest(arm.plan)


class Imitation:
    """A job whose times are known: the first plan, the default, takes 50 us, others 100 us; and
    each turn takes longer than the one before."""

    def __init__(self, wrong: int = 0) -> None:
        self.wrong, self.plans, self.slow = wrong, 0, 1.0

    def load(self, _plan: Plan) -> SimpleNamespace:
        self.plans += 1
        return SimpleNamespace(number=self.plans - 1, count_wrong=lambda _count, _sweep: self.wrong)

    def times_us(self, turns: Sequence[Turn], _count: int, _sweep: Sweep) -> FloatArray:
        times = []
        for turn in turns:
            self.slow *= 1.2
            times.append(self.slow * (100.0 if turn.plan else 50.0))
        return np.array([times, times]) * [[0.1], [1.0]]  # the slower rank's count


def imitated(made: Live, **given: int) -> Live:
    made.__dict__["job"] = Imitation(**given)
    return made


def test_times_relate_to_the_defaults_in_turn() -> None:
    made = imitated(live(algorithms=["ring-allreduce"]))
    default = made.measure(0, int(made.default[0]))
    rival = made.measure(0, 0)
    assert made.measure(0, int(made.default[0])) == pytest.approx(default)
    assert rival == pytest.approx(2 * default)


def test_a_wrong_result_stops_the_tuner() -> None:
    made = imitated(live(), wrong=3)
    assert code_of(lambda: made.measure(0, int(made.default[0]))) == "D926"


def test_workers_count_wrong_elements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repeat = Endpoint.repeat

    def spoil(end: Endpoint, call: Call, iterations: int) -> tuple[float, Report | None]:
        found = repeat(end, call, iterations)
        if end.rank == 1:
            ctypes.memset(call.input + 28, 1, 4)
        return found

    plan = live().arms[0].plan
    command = CountWrong(BenchCall(0, 1000, "float32", ReduceOp.SUM))
    with ThreadPoolExecutor(2) as threads:
        setups = [Setup(rank, 2, str(tmp_path), Settings(timeout_s=20), 20.0) for rank in (0, 1)]
        ranks = list(threads.map(Worker, setups))

        def answers(command: object) -> list[object]:
            return list(threads.map(lambda rank: rank.do(command, None), ranks))

        answers(Load(0, pickle.dumps(plan)))
        assert answers(command) == [0, 0]
        monkeypatch.setattr(Endpoint, "repeat", spoil)
        assert answers(command) == [0, 1]
        list(threads.map(lambda rank: rank.close(), ranks))


def test_an_error_of_the_ranks_keeps_its_diagnostic() -> None:
    plan = next(arm.plan for arm in live(algorithms=["ring-allreduce"]).arms)
    with Job([plan], Settings(timeout_s=20, slots=2)) as job:
        assert code_of(lambda: job.load(replace(plan, slots=3))) == "N652"


def test_a_dead_rank_ends_the_measurement_with_a_diagnostic(tmp_path: Path) -> None:
    with live() as made:
        arm = int(made.default[1])
        made.measure(1, arm)
        os.kill(made.job.pids[1], signal.SIGKILL)
        with pytest.raises(SleyError) as caught:
            made.measure(1, arm)
        assert caught.value.code == "R501"
        assert "rank 1" in str(caught.value)
        assert code_of(lambda: made.measure(1, arm)) == "R508"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"collective": "alltonext"}, "D921"),
        ({"sizes": []}, "D923"),
        ({"sizes": [4]}, "D923"),
        ({"algorithms": ["ring-alreduce"]}, "D921"),
    ],
)
def test_unusable_settings_are_refused(given: dict[str, Any], code: str) -> None:
    assert code_of(lambda: live(**given)) == code


def test_one_rank_has_nothing_to_tune() -> None:
    assert code_of(lambda: Live("allreduce", 1, SIZES)) == "D923"


def test_training_chooses_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    with live(algorithms=["ring-allreduce"]) as made:

        def measure(_self: Live, cell: int, arm: int) -> float:
            return 50.0 if arm == 3 and cell == 1 else 100.0

        monkeypatch.setattr(Live, "measure", measure)
        training = Training(made, seed=1)
        training.run(60)
        (one,) = training.rows()
        assert one.recipe == made.recipes[3]
        assert one.sizes.begin_bytes > SIZES[0]
        assert one.sizes.end_bytes == SIZES[1]


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tune", "train", *map(str, arguments)])


def test_the_command_writes_a_policy_for_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    sizes = ("-b", "1K", "-e", "4K", "--samples", 4)
    done = sley("alltoall", "--live", "--ranks", 2, *sizes, "-o", path, "--json")
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert [row["size_bytes"] for row in result["sizes"]] == [1024, 4096]
    assert all(row["time_us"] > 0 for row in result["sizes"])
    policies.read(path).machine.check(machine_here(HOSTS), Place())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--live"], "--live needs --ranks"),
        ([], "Give --topology"),
        (["--live", "--ranks", 2, "--topology", "ndv4"], "--topology is not for --live"),
        (["--live", "--ranks", 2, "--actions", "nccl"], "--actions is not for --live"),
        (["--ranks", 2, "--topology", "ndv4"], "--ranks is for --live"),
        (["alltonext", "--live", "--ranks", 2], "not alltonext"),
    ],
)
def test_options_of_the_other_kind_are_usage_errors(arguments: list[object], words: str) -> None:
    done = sley(*arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_a_folder_of_plans_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "ring.py").touch()
    done = sley("--live", "--ranks", 2, "--plans", tmp_path)
    assert done.exit_code == 2
    assert "is not empty" in done.output
