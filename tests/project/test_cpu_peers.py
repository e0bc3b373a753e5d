"""The comparison with gloo and MPIs: its computations, without running any of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("aims", "cells", "command", "group", "launch", "measuring", "tables", "wheels", "worker")
KB, MB = 2**10, 2**20

RANK = """
import sys
from pathlib import Path
from cpu_peers.worker import Buffers, looped, serve
import numpy as np


class Alone:
    '''An engine of one rank: every collective is a copy.'''

    version = "alone  1.0"

    def empty(self, elements):
        return np.empty(elements, np.float32)

    def bound(self, collective, source, target):
        return looped(lambda: np.copyto(target, source + BIAS))

    def barrier(self):
        pass


print("words of its own", flush=True)
BEFORE
serve(Alone(), Path(sys.argv[1]), 0, 1)
"""


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    """The modules of benchmarks/cpu_peers."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield SimpleNamespace(**{name: import_module(f"cpu_peers.{name}") for name in NAMES})
    finally:
        sys.path.remove(str(BENCHMARKS))


def row(engine: str, ms: list[float], *, ranks: int = 2, size_bytes: int = KB, **other: Any) -> Any:
    """A row of results."""
    found = {
        "engine": engine,
        "collective": "AllReduce",
        "ranks": ranks,
        "size_bytes": size_bytes,
        "iterations": 1,
        "ms": ms,
        "median_ms": sorted(ms)[len(ms) // 2],
    }
    return found | other


def failed(engine: str, **other: Any) -> Any:
    found = row(engine, [1.0], **other) | {"failure": "it was tired"}
    return {key: value for key, value in found.items() if key not in ("ms", "median_ms")}


def only(peers: Any, rows: list[Any]) -> tuple[Any, Any]:
    """The times of rows, and their only cell."""
    times = peers.cells.Times(rows)
    (cell,) = times.cells
    return times, cell


def test_a_ratio_is_that_of_the_same_rounds(peers: Any) -> None:
    """Both are slower in the second and the third round; the ratio of the medians would be 2."""
    times, cell = only(peers, [row("gloo", [4, 40, 8]), row("sley", [1, 10, 4])])
    engines = peers.cells.Engine
    assert times.ms(cell, engines.GLOO) == 8
    assert times.over(cell, engines.GLOO, engines.SLEY) == 4


def test_the_best_peer_has_the_least_median(peers: Any) -> None:
    """That of the least median; sley is no peer, nor is who failed."""
    engines = peers.cells.Engine
    rows = [row("gloo", [1, 9, 9]), row("openmpi", [5, 5, 5]), row("sley", [2, 2, 2])]
    times, cell = only(peers, [*rows, failed("mpich")])
    assert times.best_peer(cell) == (engines.OPEN_MPI, 5)
    assert times.over_best_peer(cell, engines.SLEY) == 2.5
    assert times.over_best_peer(cell, engines.MPICH) is None
    assert times.over(cell, engines.MPICH, engines.SLEY) is None
    assert times.engines == [engines.GLOO, engines.OPEN_MPI, engines.MPICH, engines.SLEY]
    alone, cell = only(peers, [row("sley", [2.0])])
    assert alone.best_peer(cell) is None
    assert alone.over_best_peer(cell, engines.SLEY) is None


def test_engines_with_few_collectives_have_no_others(peers: Any) -> None:
    engines, kinds = peers.cells.Engine, peers.cells.Collective
    vllm = [kind for kind in kinds if engines.VLLM.has(kind)]
    assert vllm == [kinds.ALL_REDUCE, kinds.ALL_GATHER]
    assert all(engines.GLOO.has(kind) for kind in kinds)


def test_cells_of_a_table_stand_in_order(peers: Any) -> None:
    found = [row("sley", [1.0], ranks=r, size_bytes=s) for r in (8, 2) for s in (MB, KB)]
    found.append(row("sley", [1.0], collective="AllToAll"))
    found.append(row("sley", [1.0], ranks=16))
    found += [row("gloo", [1.0], ranks=16)]
    words = [str(cell) for cell in peers.cells.Times(found).cells]
    assert words == [
        "AllReduce, 2 ranks, 1K",
        "AllReduce, 2 ranks, 1M",
        "AllReduce, 8 ranks, 1K",
        "AllReduce, 8 ranks, 1M",
        "AllReduce, 16 ranks, 1K",
        "AllToAll, 2 ranks, 1K",
    ]


def test_memory_of_a_cell_is_that_of_its_larger_buffer(peers: Any) -> None:
    """The size is that of the larger buffer; an AllReduce has one."""
    collectives, cell = peers.cells.Collective, peers.cells.Cell
    found = {kind.value: cell(kind, 4, 4 * KB).buffers_bytes // KB for kind in collectives}
    assert found == {
        "AllReduce": 16,
        "AllGather": 20,
        "ReduceScatter": 20,
        "AllToAll": 32,
        "Broadcast": 16,
        "Reduce": 16,
        "Gather": 8,
        "Scatter": 8,
        "SendRecv": 32,
    }


def test_sizes_without_equal_parts_have_cells_where_no_parts_are_needed(peers: Any) -> None:
    collectives = peers.cells.Collective
    found = peers.cells.cells(collectives, 4, [8, 16])
    eight = {cell.collective.value for cell in found if cell.size_bytes == 8}
    assert eight == {"AllReduce", "Broadcast", "Reduce", "SendRecv"}
    assert len([cell for cell in found if cell.size_bytes == 16]) == len(collectives)


@given(ranks=st.integers(2, 9), part=st.integers(1, 150))
def test_right_results_follow_the_definition_of_the_collectives(
    peers: Any, ranks: int, part: int
) -> None:
    """What a rank should find, against the definition of the collectives."""
    worker, kinds = peers.worker, peers.cells.Collective
    whole = ranks * part
    inputs = np.stack([worker.values(rank, 0, whole) for rank in range(ranks)])
    assert inputs.dtype == np.float32
    total = inputs.sum(axis=0)
    for rank in range(ranks):
        own = slice(rank * part, (rank + 1) * part)
        is_root, has_partner = rank == 0, rank ^ 1 < ranks
        right = {
            kinds.ALL_REDUCE: total,
            kinds.REDUCE_SCATTER: total[own],
            kinds.ALL_GATHER: inputs[:, :part].ravel(),
            kinds.ALL_TO_ALL: inputs[:, own].ravel(),
            kinds.BROADCAST: inputs[0],
            kinds.REDUCE: total if is_root else None,
            kinds.GATHER: inputs[:, :part].ravel() if is_root else None,
            kinds.SCATTER: inputs[0, own],
            kinds.SEND_RECV: inputs[rank ^ 1] if has_partner else None,
        }
        assert set(right) == set(kinds)
        for kind, wanted in right.items():
            found = worker.expected(kind, rank, ranks, whole)
            if wanted is None:
                assert found is None
                continue
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, wanted)


def test_sums_that_are_checked_are_exact(peers: Any) -> None:
    """The largest that occurs, with many more ranks than anybody runs."""
    worker = peers.worker
    found = worker.expected(peers.cells.Collective.ALL_REDUCE, 0, 512, 61)
    assert found.max() == 61 * 512 * 513 / 2
    assert float(found.max()) < 2**24


AIMED = {  # how many cells of AllReduce and of AllToAll each covers
    "private buffers: not slower than the best peer": (9, 9),
    "symmetric buffers: not slower than the best peer": (9, 9),
    "AllReduce, private buffers: 1.5x the best peer from 1 MB up": (6, 0),
    "AllReduce, private buffers: 2x the best peer at 8 ranks": (3, 0),
    "AllReduce, symmetric buffers: 3x the best peer at 4 and 8 ranks from 1 MB up": (4, 0),
    "operators: not slower than the best peer": (9, 9),
    "AllReduce, operators: not slower than vLLM's shm at 2 and 4 ranks up to 1 MB": (4, 0),
    "AllReduce, through PyTorch: 1.5x the time of PyTorch's fake at 2 ranks and 1 KB": (1, 0),
    "through PyTorch: 2x gloo": (9, 9),
    "through PyTorch: 5x gloo at 1 KB": (3, 3),
}


def test_each_aim_has_its_cells(peers: Any) -> None:
    kinds, cell = peers.cells.Collective, peers.cells.Cell
    found = {
        aim.text: tuple(
            sum(aim.covers(cell(k, r, s)) for r in (2, 4, 8) for s in (KB, MB, 16 * MB))
            for k in (kinds.ALL_REDUCE, kinds.ALL_TO_ALL)
        )
        for aim in peers.aims.AIMS
    }
    assert found == AIMED


def test_aims_are_met_missed_or_unknown(peers: Any) -> None:
    """As much as is wanted is enough; less isn't; no time is neither."""
    aim = next(a for a in peers.aims.AIMS if a.text == "through PyTorch: 2x gloo")
    rows = [row("gloo", [4.0], size_bytes=s) for s in (KB, 2 * KB, 4 * KB)]
    rows += [row("openmpi", [1.0], size_bytes=KB)]
    rows += [row("sley-torch", [2.0], size_bytes=KB), row("sley-torch", [2.001], size_bytes=2 * KB)]
    rows += [failed("sley-torch", size_bytes=4 * KB)]
    found = peers.aims.verdict(aim, peers.cells.Times(rows))
    assert {cell.size_bytes: ratio for cell, ratio in found.met.items()} == {KB: 2.0}
    assert [cell.size_bytes for cell in found.missed] == [2 * KB]
    assert [cell.size_bytes for cell in found.unknown] == [4 * KB]


def test_cells_of_collectives_that_an_engine_lacks_are_not_missing(peers: Any) -> None:
    aim = next(a for a in peers.aims.AIMS if a.text == "operators: not slower than the best peer")
    rows = [row("gloo", [4.0], collective=kind) for kind in ("AllReduce", "Gather")]
    found = peers.aims.verdict(aim, peers.cells.Times(rows))
    assert [cell.collective.value for cell in found.unknown] == ["AllReduce"]


def test_tables_say_which_aims_are_met(peers: Any) -> None:
    rows = [
        row("gloo", [0.5]),
        row("mpich", [0.0012]),
        row("sley", [0.0012012]),
        row("sley-symmetric", [0.0006]),
        row("sley-torch", [0.2]),
        failed("openmpi"),
    ]
    results = {
        "machine": {"cores": 2},
        "options": {"rounds": 1},
        "rows": rows,
        "left_out": ["AllToAll, 2 ranks, 1K: 1 s were over"],
        "seconds": 3.0,
    }
    text = peers.tables.pages(results)
    assert (
        "| 2 | 1K | 0.500 | - | 0.00120 | 0.00120 | 0.00060 | 0.200 | MPICH | 0.99 | 2.00 | 2.50 |"
        in text
    )
    assert "| private buffers: not slower than the best peer | **missed** | 0 | 1 | 0 |" in text
    assert "| symmetric buffers: not slower than the best peer | met | 1 | 0 | 0 |" in text
    assert "| AllReduce | 2 | 0.99 **missed** |" in text
    assert "| AllReduce | 2 | 2.50 met |" in text
    assert "- Open MPI, AllReduce, 2 ranks, 1K: it was tired" in text
    assert "- AllToAll, 2 ranks, 1K: 1 s were over" in text
    none = "| AllReduce, private buffers: 2x the best peer at 8 ranks | not measured | 0 | 0 | 0 |"
    assert none in text
    assert "AllGather, ms" not in text
    assert (
        "| sley, private buffers | AllReduce, 2 ranks, 1K | MPICH | 0.00120 | 0.00120 | 0.99 |"
        in text
    )
    assert "| sley, symmetric buffers | AllReduce, 2 ranks, 1K |" not in text


def test_engines_without_a_collective_have_no_column_in_its_table(peers: Any) -> None:
    rows = [row("gloo", [1.0], collective="Scatter"), row("vllm", [1.0])]
    results = {"machine": {}, "options": {}, "rows": rows, "left_out": [], "seconds": 3.0}
    text = peers.tables.pages(results)
    assert "| ranks | size | gloo | vLLM's shm | best peer |" in text
    assert "| ranks | size | gloo | best peer |" in text


def test_several_runs_give_the_spread_of_each_ratio(peers: Any) -> None:
    """The smallest and the largest, and each peer that was the best one of a run."""
    runs = [
        {"rows": [row("gloo", [gloo]), row("mpich", [mpich]), row("sley", [2.0])]}
        for gloo, mpich in ((8.0, 4.0), (3.0, 9.0))
    ]
    lines = peers.tables.spreads(runs).splitlines()
    assert "| AllReduce | 2 | best peer / sley, private buffers | 1.50 to 2.00 |" in lines
    assert "| AllReduce | 2 | best peer | MPICH, gloo |" in lines
    assert "| AllReduce | 2 | gloo / sley through PyTorch | - |" in lines


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.0, "1.00"), (0.99999, "0.99"), (2.999, "2.99"), (0.29, "0.29")]
)
def test_ratios_are_rounded_down(peers: Any, ratio: float, text: str) -> None:
    """What misses an aim doesn't look as if it met it."""
    assert peers.tables.ratio_text(ratio) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(704.4, "704"), (37.26, "37.3"), (1.674, "1.67"), (0.4701, "0.470"), (0.00123, "0.00123")],
)
def test_times_have_three_digits(peers: Any, ms: float, text: str) -> None:
    assert peers.tables.ms_text(ms) == text


class FakeRanks:
    """Two ranks of an engine whose calls take a known time; what is asked is written down."""

    def __init__(self, peers: Any, name: str, asked: list[str], seconds: float) -> None:
        self._error = peers.group.GroupError
        self._name, self._asked, self._seconds = name, asked, seconds
        self.right = ["right", "right"]
        self.fails_at = ""

    def ask(self, command: str) -> list[str]:
        word = command.split()[0]
        self._asked.append(f"{self._name} {command}")
        if word == self.fails_at:
            raise self._error("rank 1: oh")
        if word == "time":
            return [str(0.5 * self._seconds), str(1.5 * self._seconds)]
        return self.right if word == "check" else ["ok", "ok"]


def fakes(peers: Any, **seconds: float) -> tuple[dict[Any, FakeRanks], list[str]]:
    asked: list[str] = []
    engine = peers.cells.Engine
    return {engine(n): FakeRanks(peers, n, asked, s) for n, s in seconds.items()}, asked


def measured(peers: Any, ranks: Any, repeat: int = 3) -> dict[str, Any]:
    cell = peers.cells.Cell(peers.cells.Collective.ALL_GATHER, 2, KB)
    return {r["engine"]: r for r in peers.measuring.measure(cell, ranks, repeat, 0.1)}


def test_engines_take_turns(peers: Any) -> None:
    """All prepare, then a round after another, each begun by the next engine; then all prove it."""
    ranks, asked = fakes(peers, gloo=0.01, mpich=0.001, sley=0.0001)
    rows = measured(peers, ranks)
    timed = [f"gloo time {10} 1", f"mpich time {100} 10", f"sley time {1000} 100"]
    assert asked[-12:-3] == [*timed, *timed[1:], timed[0], timed[2], *timed[:2]]
    assert asked[-3:] == ["gloo check", "mpich check", "sley check"]
    assert asked[0] == "gloo prepare AllGather 1024"
    assert rows["mpich"]["ms"] == pytest.approx([1.0, 1.0, 1.0])
    assert rows["mpich"]["median_ms"] == pytest.approx(1.0)
    assert rows["mpich"]["iterations"] == 100


@given(exponent=st.floats(-7, 1))
def test_iterations_fill_the_time(peers: Any, exponent: float) -> None:
    """Few trials, none of which takes much longer than what is wanted, unless one call does."""
    seconds = 10**exponent
    ranks, asked = fakes(peers, gloo=seconds)
    (one,) = ranks.values()
    found = peers.measuring.calibrated(one, 0.1)
    assert found == max(1, min(peers.measuring.MOST_ITERATIONS, round(0.1 / seconds)))
    trials = [int(line.split()[2]) for line in asked]
    assert trials[0] == peers.measuring.FIRST_CALLS
    assert max(trials[1:]) * seconds <= max(0.1 + seconds, seconds)
    assert len(trials) <= 6


@pytest.mark.parametrize("step", ["prepare", "time", "check"])
def test_one_that_fails_has_no_time(peers: Any, step: str) -> None:
    ranks, asked = fakes(peers, gloo=0.01, mpich=0.01)
    ranks[peers.cells.Engine.GLOO].fails_at = step
    rows = measured(peers, ranks)
    assert rows["gloo"]["failure"] == "rank 1: oh"
    assert "ms" not in rows["gloo"]
    assert "median_ms" not in rows["gloo"]
    assert len(rows["mpich"]["ms"]) == 3
    assert [line for line in asked if line.startswith("gloo")][-1].split()[1] == step


def test_wrong_results_have_no_time(peers: Any) -> None:
    ranks, _ = fakes(peers, gloo=0.01, mpich=0.01)
    ranks[peers.cells.Engine.MPICH].right = ["right", "wrong"]
    rows = measured(peers, ranks)
    assert rows["mpich"]["failure"] == "a wrong result on rank 1"
    assert "median_ms" not in rows["mpich"]
    assert "median_ms" in rows["gloo"]


def test_the_fake_backend_is_not_checked(peers: Any) -> None:
    """It does nothing, so that its result is wrong."""
    ranks, asked = fakes(peers, gloo=0.01, fake=0.001)
    ranks[peers.cells.Engine.FAKE].right = ["wrong", "wrong"]
    cell = peers.cells.Cell(peers.cells.Collective.ALL_REDUCE, 2, KB)
    rows = peers.measuring.measure(cell, ranks, 3, 0.1)
    assert all("median_ms" in found for found in rows)
    assert asked[-1] == "gloo check"


Starting = Callable[..., Any]


@pytest.fixture
def start(peers: Any, tmp_path: Path) -> Starting:
    """Starts a rank that is a Python process; before: what it does first, bias: of its results."""

    def started(before: str = "", bias: float = 0) -> Any:
        script = tmp_path / "rank.py"
        script.write_text(RANK.replace("BEFORE", before).replace("BIAS", str(bias)))
        path = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])

        def commands(folder: Path) -> list[Any]:
            words = [sys.executable, str(script), str(folder)]
            return [peers.launch.Command(words, {"PYTHONPATH": path})]

        return peers.group.Group(1, commands)

    return started


def test_a_program_is_compiled_once_for_each_command_and_content(
    peers: Any, tmp_path: Path
) -> None:
    """A stand-in for the compiler copies the source and counts its runs."""
    source, count = tmp_path / "one.cpp", tmp_path / "count"
    source.write_text("content")
    header = tmp_path / "one.hpp"
    header.write_text("header")
    script = tmp_path / "compile.sh"
    script.write_text(f"#!/bin/sh\necho run >> {count}\nwhile [ $1 != -o ]; do shift; done\n")
    script.write_text(script.read_text() + f"cp {source} $2\n")
    script.chmod(0o755)
    compiled = [
        peers.wheels.compiled(source, [header], [str(script), flag], tmp_path)
        for flag in ("-a", "-a", "-b")
    ]
    assert [program.read_text() for program in compiled] == ["content"] * 3
    assert compiled[0] == compiled[1] != compiled[2]
    assert count.read_text().split() == ["run", "run"]
    header.write_text("changed")
    assert peers.wheels.compiled(source, [header], [str(script), "-a"], tmp_path) != compiled[0]


def test_a_command_that_fails_makes_its_engine_unavailable(peers: Any) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no such wheel')"]
    with pytest.raises(peers.wheels.UnavailableError, match="ended with 1: no such wheel"):
        peers.wheels.run(failing)
    with pytest.raises(peers.wheels.UnavailableError, match="no-such-program"):
        peers.wheels.run(["no-such-program"])


def test_a_rank_does_as_it_is_told(peers: Any, start: Starting) -> None:
    group = start()
    try:
        assert group.version == "alone 1.0"
        for collective in peers.cells.Collective:
            assert group.ask(f"prepare {collective.value} 4096") == ["ok"]
            assert float(group.ask("time 3 1")[0]) > 0
            samples = group.sample(3)
            assert (samples.call_s > 0).all()
            assert (np.diff(samples.begin_s) >= samples.call_s[:, :-1]).all()
            assert (samples.cpu_s > 0).all()
            assert group.ask("check") == ["right"]
    finally:
        group.close()


def test_shared_memory_that_ranks_leave_behind_is_removed(
    peers: Any, start: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other groups it stays."""
    shared = tmp_path / "shm"
    shared.mkdir()
    (shared / "cpu-peers-of-others_0").touch()
    monkeypatch.setattr(peers.group, "SHARED_MEMORY", shared)
    group = start(f"(Path({str(shared)!r}) / f'left_{{Path(sys.argv[1]).name}}_0').touch()")
    assert len(list(shared.iterdir())) == 2
    group.close()
    assert [left.name for left in shared.iterdir()] == ["cpu-peers-of-others_0"]


def test_rank_0_is_late_before_each_sampled_call(start: Starting) -> None:
    group = start()
    try:
        group.ask("prepare AllReduce 64")
        samples = group.sample(3, late_s=0.02)
        assert (np.diff(samples.begin_s) >= 0.02).all()
        assert (samples.call_s < 0.02).all()
    finally:
        group.close()


def test_a_wrong_rank_says_so(start: Starting) -> None:
    group = start(bias=1)
    try:
        group.ask("prepare AllGather 4096")
        assert group.ask("check") == ["wrong"]
    finally:
        group.close()


def test_a_rank_says_why_it_ends(peers: Any, start: Starting) -> None:
    group = start()
    try:
        with pytest.raises(peers.group.GroupError, match="rank 0: ValueError: time before prepare"):
            group.ask("time 1 0")
    finally:
        group.close()


def test_a_rank_that_dies_is_named(peers: Any, start: Starting) -> None:
    with pytest.raises(peers.group.GroupError, match="ended with 3: words of its own"):
        start("sys.exit(3)")


def test_a_silent_rank_is_named_and_ended(
    peers: Any, start: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for, named, and ended by force."""
    monkeypatch.setattr(peers.group, "START_S", 0.1)
    monkeypatch.setattr(peers.group, "START_RANK_S", 0.0)
    monkeypatch.setattr(peers.group, "END_S", 0.1)
    with pytest.raises(peers.group.GroupError, match=r"no answer of rank 0 in 0\.1 s"):
        start("import time; time.sleep(600)")


@pytest.mark.parametrize(
    "words",
    [
        ["--sizes", "1K,x"],
        ["--sizes", "10"],
        ["--ranks", "1"],
        ["--engines", "gloo,nccl"],
        ["--collectives", "Multicast"],
        ["--repeat", "0"],
        ["--seconds", "0"],
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(
    peers: Any, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        peers.command.main(words)
    assert exit_.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_kept_results_give_the_same_tables(
    peers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = peers.command.parser().parse_args(["--note", "noisy", "--sizes", "1K"])
    comparison = peers.command.Comparison(options, rows=[row("gloo", [1.0])])
    assert comparison.is_whole()
    results = peers.command.results_of(comparison, {"cores": 2}, 0.25)
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(results))
    assert peers.command.main(["--report", str(kept)]) == 0
    text = capsys.readouterr().out
    assert text == peers.tables.pages(results) + "\n"
    assert "| note | noisy |" in text
    assert "| part of the cores' time taken by others | 25% |" in text
    comparison.rows.append(failed("mpich"))
    assert not comparison.is_whole()
