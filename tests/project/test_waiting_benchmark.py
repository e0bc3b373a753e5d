"""The benchmark of waiting: its computations, without any of the engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
US = 1e-6


@pytest.fixture(scope="module")
def modules() -> Iterator[Any]:
    """The benchmark, and the modules of cpu_peers that it uses."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = {"waiting": "waiting"} | {n: f"cpu_peers.{n}" for n in ("cells", "group")}
        yield SimpleNamespace(**{name: import_module(path) for name, path in names.items()})
    finally:
        sys.path.remove(str(BENCHMARKS))


def samples(modules: Any, begin_us: Any, call_us: Any, cpu_us: Any) -> Any:
    figures = (US * np.array(figure, np.float64) for figure in (begin_us, call_us, cpu_us))
    return modules.group.Samples(*figures)


def test_a_late_call_is_timed_from_its_last_beginning_to_its_last_end(modules: Any) -> None:
    """Rank 0 begins last; in the first call it also ends last, in the second rank 1 does."""
    found = samples(modules, [[10, 110], [0, 90]], [[5, 2], [12, 27]], [1, 1])
    assert found.after_last_s() == pytest.approx([5 * US, 7 * US])


def test_cpu_time_is_that_of_ranks_that_wait(modules: Any) -> None:
    """Rank 0, which is late, doesn't count; where no rank is late, all do."""
    one = samples(modules, [[0, 50]] * 3, [[1, 2]] * 3, [100, 10, 30])
    late = modules.waiting.numbers([one, one], 0.001)
    assert late["calls"] == 4
    assert late["cpu_us"] == pytest.approx(10)
    assert late["after_us"] == pytest.approx(1.5)
    assert modules.waiting.numbers([one, one], 0.0)["cpu_us"] == pytest.approx(140 / 6)


@pytest.mark.parametrize(
    ("calls", "known"), [(9, ()), (20, ("p50_us",)), (1000, ("p50_us", "p99_us"))]
)
def test_quantiles_of_few_calls_are_missing(modules: Any, calls: int, known: Any) -> None:
    call_us = np.arange(calls, dtype=np.float64)[None]
    found = modules.waiting.numbers([samples(modules, 0 * call_us, call_us, [0])], 0.0)
    assert [n for n in ("p50_us", "p99_us", "p999_us") if found[n] is not None] == list(known)


def test_quantiles_are_those_of_all_ranks_and_rounds(modules: Any) -> None:
    """p99 of 100 x 10 calls of 1 us, 5 of which take 100 us on one rank in one round."""
    fast = np.ones((2, 250))
    slow = fast.copy()
    slow[1, :15] = 100
    rounds = [samples(modules, 0 * fast, call_us, [0, 0]) for call_us in (fast, slow)]
    found = modules.waiting.numbers(rounds, 0.0)
    assert found["p50_us"] == pytest.approx(1)
    assert found["p99_us"] == pytest.approx(100)


class FakeGroup:
    """Two ranks whose calls take 1 ms; fails_at: the lateness at which they fail."""

    def __init__(self, modules: Any, fails_at: float | None = None) -> None:
        self._modules, self._fails_at = modules, fails_at
        self.sampled: list[tuple[int, float]] = []
        self.is_open = True

    def ask(self, command: str) -> list[str]:
        return ["0.001", "0.001"] if command.startswith("time") else ["ok", "ok"]

    def sample(self, calls: int, late_s: float) -> Any:
        if late_s == self._fails_at:
            raise self._modules.group.GroupError("rank 1: oh")
        self.sampled.append((calls, late_s))
        return samples(self._modules, np.zeros((2, calls)), np.full((2, calls), 1000), [0, 0])

    def close(self) -> None:
        self.is_open = False


def run(modules: Any, groups: Any, *words: str) -> Any:
    waiting = modules.waiting
    options = waiting.parser().parse_args(["--repeat", "3", "--seconds", "0.1", *words])
    found = waiting.Waiting(options)
    found._groups = lambda ranks: groups
    found.run()
    return found


def test_each_situation_has_a_row_for_each_engine_and_lateness(modules: Any) -> None:
    """Calls fill the time of a round; of calls that are seconds late there is one round."""
    engine = modules.cells.Engine
    groups = {engine.SLEY: FakeGroup(modules), engine.GLOO: FakeGroup(modules)}
    found = run(modules, dict(groups), "--situations", "2,2+1", "--late", "0.009,5")
    rows = [(r["engine"], r["neighbours"], r["late_s"], r["calls"]) for r in found.rows]
    for name in ("sley", "gloo"):
        for neighbours in (0, 1):
            assert (name, neighbours, 0.0, 300) in rows
            assert (name, neighbours, 0.009, 30) in rows
            assert (name, neighbours, 5.0, 1) in rows
    assert len(rows) == 12
    assert not found.left_out
    assert not any(group.is_open for group in groups.values())


def test_an_engine_that_fails_is_left_out_of_its_situation_and_the_next(modules: Any) -> None:
    engine = modules.cells.Engine
    groups = {engine.SLEY: FakeGroup(modules), engine.GLOO: FakeGroup(modules, fails_at=5.0)}
    found = run(modules, dict(groups), "--situations", "2,2+1", "--late", "5")
    assert {row["engine"] for row in found.rows} == {"sley"}
    assert found.left_out == ["gloo, 2, 1K: rank 1: oh"]
    assert not groups[engine.GLOO].is_open


def test_neighbours_spin_until_the_end(modules: Any) -> None:
    popen = modules.waiting.subprocess.Popen
    started: list[Any] = []

    def start(*words: Any) -> Any:
        started.append(popen(*words))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules.waiting.subprocess, "Popen", start)
        with modules.waiting.neighbours(2):
            assert [process.poll() for process in started] == [None, None]
    assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize(
    "words",
    [
        ["--situations", "1"],
        ["--situations", "2+x"],
        ["--late", "0"],
        ["--late", "x"],
        ["--engines", "nccl"],
        ["--repeat", "0"],
        ["--cores", "0"],
    ],
)
def test_options_that_make_no_sense_end_with_exit_code_2(
    modules: Any, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        modules.waiting.main(words)
    assert exit_.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_kept_results_of_waiting_give_the_same_tables(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"engine": "gloo", "ranks": 2, "size_bytes": 1024, "calls": 100}
    quantiles = {"p50_us": 2.0, "p99_us": 30.0, "p999_us": None}
    rows = [
        {**place, "neighbours": 0, "late_s": 0.0, **quantiles, "cpu_us": 1.5},
        {**place, "neighbours": 1, "late_s": 0.0, **quantiles, "p50_us": 5.0, "cpu_us": 1.0},
        {**place, "neighbours": 1, "late_s": 0.001, "after_us": 17.0, "cpu_us": 500.0},
    ]
    waiting = modules.waiting.Waiting(modules.waiting.parser().parse_args([]), rows)
    waiting.left_out.append("vLLM's shm, 16 ranks: too many")
    results = modules.waiting.results_of(waiting, {"cores": 2}, 0.25)
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(results))
    assert modules.waiting.main(["--report", str(kept)]) == 0
    text = capsys.readouterr().out
    assert "| 2 | gloo | 2.00 | 30.0 | - | 1.50 | 1.0 |" in text
    assert "| 2+1 | gloo | 5.00 | 30.0 | - | 1.00 | 2.5 |" in text
    assert "| 2+1 | gloo | 17.0 | 500 |" in text
    assert "1 ms late: after" in text
    assert "- vLLM's shm, 16 ranks: too many" in text
