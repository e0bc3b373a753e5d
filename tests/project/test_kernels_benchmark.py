"""The benchmark of kernels: it runs on threads with tiny sizes, and its computations are right."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sley
from sley import Protocol
from sley.errors.disk_cache import cached
from support.devices.native_programs import compiler

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = (
    "kernels_plans",
    "kernels_timing",
    "kernels_runs",
    "kernels_nccl",
    "kernels_report",
    "kernels",
    "on_gpu",
)

NCCL = """
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <vector>
extern const int version, bias, windows;
using Floats = const float*;
static std::vector<std::function<void()>> calls;  // each fills the output of a rank
static std::vector<Floats> sources, sent;
static std::vector<float*> targets, received;
static int start(const void* from, void* to, size_t count, int type, int op, void* comm,
                 std::function<void(float*, int, const std::vector<Floats>&)> fill) {
    if (type != 7 || op != 0 || !comm) return 4;
    if (count > 4096) return 3;
    int rank = *static_cast<int*>(comm);
    sources.push_back(static_cast<Floats>(from));
    targets.push_back(static_cast<float*>(to));
    calls.push_back([=] { fill(targets[rank], rank, sources); });
    return 0;
}
static void sum(float* to, size_t at, size_t count, const std::vector<Floats>& all, float more) {
    std::vector<float> sums(count, more);
    for (Floats one : all)
        for (size_t i = 0; i < count; ++i) sums[i] += one[at + i];
    for (size_t i = 0; i < count; ++i) to[i] = sums[i];
}
static void copy(float* to, Floats from, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = from[i];
}
extern "C" {
int ncclGetVersion(int* version) { *version = ::version; return 0; }
const char* ncclGetErrorString(int) { return "out of luck"; }
const char* ncclGetLastError(void*) { return "at all"; }
int ncclCommInitAll(void** comms, int ranks, const int* devices) {
    if (!getenv("NCCL_MULTI_RANK_GPU_ENABLE")) return 5;
    for (int i = 0; i < ranks; ++i) {
        if (devices[i] != 0) return 4;
        comms[i] = new int(i);
    }
    return 0;
}
int ncclMemAlloc(void** place, size_t size) { return !(*place = malloc(size)); }
int ncclCommWindowRegister(void* comm, void* place, size_t size, void** window, int flags) {
    *window = place;
    return flags == 1 && windows ? 0 : 5;
}
int ncclGroupStart() {
    for (auto* all : {&sources, &sent}) all->clear();
    for (auto* all : {&targets, &received}) all->clear();
    calls.clear();
    return 0;
}
int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, void* comm, void*) {
    return start(from, to, n, type, op, comm, [=](float* out, int rank, auto& all) {
        if (rank) copy(out, targets[0], n);
        else sum(out, 0, n, all, bias);
    });
}
int ncclReduceScatter(const void* from, void* to, size_t n, int type, int op, void* comm, void*) {
    return start(from, to, n, type, op, comm,
                 [=](float* out, int rank, auto& all) { sum(out, rank * n, n, all, 0); });
}
int ncclReduce(const void* from, void* to, size_t n, int type, int op, int root, void* comm,
               void*) {
    return start(from, to, n, type, op, comm, [=](float* out, int rank, auto& all) {
        if (rank == root) sum(out, 0, n, all, 0);
    });
}
int ncclBroadcast(const void* from, void* to, size_t n, int type, int root, void* comm, void*) {
    return start(from, to, n, type, 0, comm,
                 [=](float* out, int, auto& all) { copy(out, all[root], n); });
}
int ncclAllGather(const void* from, void* to, size_t n, int type, void* comm, void*) {
    return start(from, to, n, type, 0, comm, [=](float* out, int, auto& all) {
        for (size_t i = 0; i < all.size(); ++i) copy(out + i * n, all[i], n);
    });
}
int ncclAlltoAll(const void* from, void* to, size_t n, int type, void* comm, void*) {
    return start(from, to, n, type, 0, comm, [=](float* out, int rank, auto& all) {
        for (size_t i = 0; i < all.size(); ++i) copy(out + i * n, all[i] + rank * n, n);
    });
}
int ncclSend(const void* from, size_t n, int, int, void*, void*) {
    sent.push_back(static_cast<Floats>(from));
    return n > 4096 ? 3 : 0;
}
int ncclRecv(void* to, size_t n, int type, int peer, void* comm, void*) {
    received.push_back(static_cast<float*>(to));
    size_t own = received.size() - 1, rank = *static_cast<int*>(comm);
    calls.push_back([=] {  // a rank's sends are in the order of their receivers
        size_t ranks = 1;
        while (ranks * ranks < sent.size()) ++ranks;
        copy(received[own], sent[peer * ranks + rank], n);
    });
    return type != 7;
}
int ncclGroupEnd() {
    for (auto& call : calls) call();
    return 0;
}
int ncclCommDestroy(void* comm) { delete static_cast<int*>(comm); return 0; }
}
"""


@pytest.fixture(scope="module")
def modules() -> Any:
    """The modules of benchmarks/, which are no package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: __import__(name) for name in NAMES}
    finally:
        sys.path.remove(str(BENCHMARKS))


def library(version: int = 23004, bias: int = 0, windows: int = 1) -> str:
    """A library with NCCL's functions, which work on the host when a group ends. bias: of the sums
    of an AllReduce. windows: whether memory can be registered. Its variants differ in a small file
    alone."""
    numbers = {"version": version, "bias": bias, "windows": windows}
    text = "".join(f"extern const int {name} = {value};\n" for name, value in numbers.items())
    return str(_compiled(text, ".so", "-shared", str(_compiled(NCCL, ".o", "-O0", "-c"))))


def _compiled(text: str, suffix: str, *arguments: str) -> Path:
    command = [compiler(), "-fPIC", "-x", "c++", "-", "-x", "none", *arguments]

    def build(path: Path) -> None:
        subprocess.run([*command, "-o", str(path)], input=text, text=True, check=True)

    return cached([text, *command], suffix, build)


def test_blocks_are_as_many_as_fit(modules: Any) -> None:
    plans = modules["kernels_plans"]
    for algorithm in plans.ALGORITHMS:
        case = plans.case(algorithm, 4, Protocol.SIMPLE, 16)
        assert 16 - 5 < case.plan.blocks_per_rank <= 16
    assert {plans.level(name).plan.collective.ranks for name in plans.LEVELS} == {8}
    for kind in plans.KINDS:
        blocks = [(case.plan.blocks_per_rank, case.threads) for case, _ in plans.tried(kind, 4)]
        assert set(blocks) == {(1, 128), (8, 256), (16, 512)}


def test_sizes_are_read_as_ranges_or_lists(modules: Any) -> None:
    sizes = modules["kernels"].sizes
    assert sizes("1K:256K:4") == [1024, 4096, 16384, 65536, 262144]
    assert sizes("1K:100K:10") == [1024, 10240, 102400]
    assert sizes("4,3M") == [4, 3 * 2**20]
    with pytest.raises(Exception, match="not a number"):
        sizes("6")
    assert modules["kernels"].protocols("ll,DIRECT") == [Protocol.LL, Protocol.DIRECT]
    with pytest.raises(Exception, match="LL256: no protocol"):
        modules["kernels"].protocols("LL256")


class Runs:
    """Takes its turns, as told."""

    def __init__(self, log: list[str], name: str, us: list[float], failure: str = "") -> None:
        self.label, self._log, self._us, self._failure = {"by": name}, log, us, failure

    def prepare(self, count: int) -> str:
        self.label["at"] = str(count)
        return self._failure

    def time_us(self, count: int, calls: int) -> float:
        self._log.append(f"{self.label['by']}{calls}")
        return self._us.pop(0)


def test_measurements_take_turns(modules: Any) -> None:
    log: list[str] = []
    runs = [
        Runs(log, "a", [2000, 5, 1, 9]),
        Runs(log, "b", [1, 2, 4, 8]),
        Runs(log, "c", [], "3 wrong elements"),
    ]
    found = modules["kernels_timing"].in_turn(runs, 64, 3, {"part": "x"})
    assert log == ["a2", "b2", "a2", "b20", "a2", "b20", "a2", "b20"]
    assert [one.median_us for one in found[:2]] == [5, 4]
    label = {"by": "b", "at": "64", "part": "x"}
    assert found[1].row() == {**label, "us": [2, 4, 8], "median_us": 4}
    assert found[2].row() == {**label, "by": "c", "failure": "3 wrong elements"}


def test_means_and_ratios_are_reckoned_right(modules: Any) -> None:
    report = modules["kernels_report"]
    assert report.geometric_mean([1, 4]) == 2
    assert math.isnan(report.geometric_mean([]))
    rows = [
        {
            "part": "engines",
            "algorithm": "ring",
            "protocol": "LL",
            "ranks": 4,
            "blocks": 3,
            "engine": engine,
            "size_bytes": size,
            "median_us": us,
        }
        for engine, size, us in [
            ("generated", 1024, 10.0),
            ("interpreted", 1024, 11.0),
            ("generated", 4096, 20.0),
            ("interpreted", 4096, 88.0),
        ]
    ]
    results = {"machine": {}, "options": {}, "seconds": 1, "rows": rows, "left_out": ["this"]}
    page = report.pages(results)
    assert "| ring | LL | 4 | 3 | 1.10 (10.0) | 4.40 (20.0) | 2.200 |" in page
    assert "interpretation costs 120.0 % here" in page
    assert "- this" in page


def test_cells_are_compared_and_the_worst_is_first(modules: Any) -> None:
    label = {"part": "cells", "kind": "all_gather", "ranks": 2, "blocks": 1, "threads": 128}
    ours = {**label, "by": "sley", "algorithm": "its choice", "protocol": "LL", "plan": "ring"}
    nccl = {**label, "by": "NCCL", "algorithm": "Ring", "buffer_bytes": 4 << 20}
    rows = []
    for count, us, theirs in ((128, 10.0, 8.0), (131, 11.0, 8.9), (1024, 20.0, 30.0)):
        at = {"count": count, "size_bytes": 8 * count}
        rows += [
            {**ours, **at, "launching": "by-rank", "median_us": us},
            {**ours, **at, "launching": "together", "median_us": us - 1},
            {**nccl, **at, "protocol": "LL", "median_us": theirs},
            {**nccl, **at, "protocol": "Simple", "median_us": 2 * theirs},
        ]
    rows.append({**nccl, "algorithm": "windows", "failure": "no"})
    results = {"machine": {}, "options": {}, "seconds": 1, "rows": rows, "left_out": []}
    page = modules["kernels_report"].pages(results)
    assert "| all_gather | 0.80 | 2 ranks, 1K | 2 of 3 | 0.99 | 1.10 (2 ranks, 1K) |" in page
    lines = [line for line in page.splitlines() if line.startswith("| 2 ranks")]
    first = "| 2 ranks, 1K | 10.0 | ring LL 1x128 | 9.00 | - | 8.00 Ring LL | windows | - | 0.80 |"
    assert lines[0] == first
    assert [line.split(" | ")[-1] for line in lines] == ["0.80 |", "0.80 |", "1.50 |"]


def test_results_with_former_parts_have_their_tables(modules: Any) -> None:
    label = {"part": "peers", "ranks": 4, "size_bytes": 1024, "protocol": "LL", "blocks": 2}
    ours = {**label, "by": "sley", "algorithm": "ring", "launching": "together in a graph"}
    nccl = {**label, "by": "NCCL", "algorithm": "Tree", "launching": "by-rank", "median_us": 8.0}
    level = {**ours, "part": "levels", "engine": "generated", "median_us": 20.0}
    rows = [{**ours, "median_us": 10.0}, nccl, level]
    results = {"machine": {}, "options": {}, "seconds": 1, "rows": rows, "left_out": []}
    page = modules["kernels_report"].pages(results)
    assert "| all_reduce | 0.80 | 4 ranks, 1K | 1 of 1 | 0.80 | - |" in page
    assert "| 10.0 ring LL 2, graph | 8.00 Tree LL | - | - | 0.80 |" in page
    assert "| ring | LL | 4 | 2 | - (20.0) |" in page


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all", "reduce"])
def test_wrong_results_are_found(kind: str, modules: Any) -> None:
    runs = modules["kernels_runs"]
    from sley.engine.devices import ThreadsDevice
    from support.machines.meaning import results

    device, ranks, count = ThreadsDevice(), 2, 3 * runs.CHECKED_BYTES // 4
    data = runs.Data(device, ranks, 4 * count * ranks)
    data.fill(kind, count)
    arrays = data.arrays(kind, count)
    inputs = [array[0].astype(float) for array in arrays]
    for own, right in zip(arrays, results(kind, inputs, sley.ReduceOp.SUM, 0), strict=True):
        own[-1][:] = right
    assert data.wrong(kind, count) == 0
    arrays[0][-1][0] *= 2
    arrays[0][-1][-1] *= 2
    arrays[1][-1][-1] += 1
    assert data.wrong(kind, count) == (2 if kind == "reduce" else 3)
    data.fill(kind, count)
    for (array, *_), before in zip(arrays, inputs, strict=True):
        assert (array[:100] == before[:100]).all()
        assert (array[-100:] == before[-100:]).all()


@pytest.mark.parametrize("windows", [False, True])
def test_nccl_is_timed_in_a_process_of_its_own(windows: bool, modules: Any) -> None:
    nccl = modules["kernels_nccl"]
    setting = nccl.Setting(3, 4, windows=windows)
    peer = nccl.Peer.start(setting, library(), ["--device", "threads"], 1 << 16)
    try:
        assert peer.ready(), peer.failure
        assert peer.version == "2.30.4"
        for kind in nccl.WAYS:
            for way in setting.ways(kind):
                run = nccl.Way(peer, kind, way)
                assert run.prepare(1000) == "", way
                assert run.time_us(1000, 3) > 0
        run = nccl.Way(peer, "all_reduce", "ncclAllReduce")
        assert run.prepare(5000) == "NCCL: ncclAllReduce: out of luck at all"
        assert run.prepare(1000) == ""
    finally:
        peer.close()
    assert peer.process.returncode == 0


def test_an_nccl_whose_process_is_gone_is_told(modules: Any) -> None:
    nccl, timing = modules["kernels_nccl"], modules["kernels_timing"]
    peer = nccl.Peer.start(nccl.Setting(2, 4), library(), ["--device", "threads"], 1 << 12)
    try:
        assert peer.ready(), peer.failure
        peer.process.kill()
        peer.process.wait()
        run = nccl.Way(peer, "reduce", "ncclReduce")
        with pytest.raises(timing.TurnError, match="process"):
            run.time_us(1 << 10, 3)
        (found,) = timing.in_turn([run], 1 << 10, 2, {})
        assert "process" in found.failure
    finally:
        peer.close()


@pytest.mark.parametrize(
    ("made", "windows", "failure"),
    [
        ({"version": 22909}, False, "need 2.30"),
        (None, False, "cannot open"),
        ({"windows": 0}, True, "ncclCommWindowRegister: out of luck"),
    ],
)
def test_what_a_library_can_not_do_is_told(
    made: Any, windows: bool, failure: str, modules: Any, tmp_path: Path
) -> None:
    nccl = modules["kernels_nccl"]
    path = library(**made) if made else str(tmp_path / "none.so")
    setting = nccl.Setting(2, 4, windows=windows)
    peer = nccl.Peer.start(setting, path, ["--device", "threads"], 1 << 12)
    try:
        assert not peer.ready()
        assert failure in peer.failure
        assert nccl.Way(peer, "reduce", "ncclReduce").prepare(4) == peer.failure
    finally:
        peer.close()


def test_nccl_is_tried_with_all_its_settings(modules: Any) -> None:
    nccl = modules["kernels_nccl"]
    settings = nccl.settings(4, 16, quick=False)
    found = [s.environment() for s in settings]
    assert len(found) == 11
    assert all(e["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" for e in found)
    assert all(e["NCCL_MAX_CTAS"] == "16" for e in found)
    chosen = [tuple(e.get(f"NCCL_{k}") for k in ("ALGO", "PROTO", "BUFFSIZE")) for e in found]
    assert [s.windows for s in settings[:3]] == [False, True, False]
    assert chosen[:3] == [(None, None, None)] * 2 + [("Ring", "Simple", None)]
    assert chosen[-1] == ("Ring", "Simple", str(2 << 20))
    assert len(set(chosen[1:])) == 10
    assert [len(s.ways("all_to_all")) for s in settings] == [2, 1] + [0] * 9
    assert [s.algorithm for s in settings if not s.ways("reduce")] == ["Tree"] * 3


def test_every_part_of_the_benchmark_runs_on_threads(
    modules: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every part, on threads, with a library in NCCL's place whose sums are wrong, and which can't
    register windows."""
    kernels, settings = modules["kernels"], modules["kernels_nccl"].settings
    two = lambda *sizes, quick: settings(*sizes, quick=quick)[:2]  # noqa: E731
    monkeypatch.setattr(modules["kernels_nccl"], "settings", two)
    plans = modules["kernels_plans"]
    tried = plans.tried
    monkeypatch.setattr(plans, "tried", lambda *which: [next(tried(*which))])
    monkeypatch.setattr(plans, "LEVELS", ())
    options = "--device threads --sizes 1K,4K --ranks 2 --blocks 1 --rounds 1 --quick"
    options += " --protocols SIMPLE --kinds all_reduce,all_to_all"
    wrong = library(bias=1, windows=0)
    done = kernels.main([*options.split(), "--nccl", wrong, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert done == 0
    (path,) = (tmp_path / "out").iterdir()
    results = json.loads(path.read_text())
    parts = {row["part"] for row in results["rows"] if "median_us" in row}
    assert parts == {"cells", "engines", "sweep"}
    timed = [row for row in results["rows"] if row["part"] == "cells" and "median_us" in row]
    assert {(row["by"], row["kind"]) for row in timed} == {
        ("NCCL", "all_to_all"),
        *(("sley", kind) for kind in ("all_reduce", "all_to_all")),
        *(("copy", kind) for kind in ("all_reduce", "all_to_all")),
    }
    sizes = {row["size_bytes"] for row in timed if row["kind"] == "all_to_all"}
    assert sizes == {1024, 1024 + 2 * 12, 4096}
    failures = {
        (r["algorithm"], r["kind"]): r["failure"] for r in results["rows"] if "failure" in r
    }
    assert failures.keys() == {
        ("its choice", "all_reduce"),
        *(("windows", kind) for kind in ("all_reduce", "all_to_all")),
    }
    assert "wrong elements" in failures["its choice", "all_reduce"]
    assert kernels.main(["--report", str(path)]) == 0
    assert capsys.readouterr().out == printed
    assert "Geometric mean over all" in printed


def test_the_benchmark_ends_when_its_time_is_up(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--device threads --sizes 1K --ranks 2 --blocks 1 --parts engines --limit-s 0"
    assert modules["kernels"].main([*options.split(), "--out", str(tmp_path)]) == 0
    assert "engines: 0 s were over" in capsys.readouterr().out


def test_the_benchmark_says_that_there_is_no_gpu(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sley.engine.devices.cuda import CudaDevice
    from sley.errors import SleyError

    try:
        CudaDevice.open(0)
    except SleyError:
        assert modules["kernels"].main(["--out", str(tmp_path)]) == 1
        assert "K5" in capsys.readouterr().err
        return
    pytest.skip("there is a GPU")


def test_the_steps_on_a_gpu_are_named_and_need_packages(modules: Any, tmp_path: Path) -> None:
    on_gpu = modules["on_gpu"]
    with pytest.raises(SystemExit):
        on_gpu.main(["--only", "nothing", "--out", str(tmp_path)])
    assert on_gpu._is_there("numpy")
    assert not on_gpu._is_there("numpy.none.such")
    run = on_gpu.Run(tmp_path / "lines", tmp_path, nccl="libnccl.so.2")
    commands = {step.name: step.command(run) for step in on_gpu.STEPS}
    assert commands["cells-8"][-2:] == ["--nccl", "libnccl.so.2"]
    assert sum(step.deadline_s for step in on_gpu.STEPS) <= 600
    further = {step.name: step.command(run) for step in on_gpu.FURTHER}
    names = [name for name in further if any("failures" in word for word in further[name])]
    assert names == ["failures"]
    assert "-n" not in further["failures"], "its time limits need a GPU to itself"
