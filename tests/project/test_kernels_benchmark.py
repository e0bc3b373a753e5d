"""The benchmark of kernels: it runs on threads with tiny sizes, and its computations are right."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sley import Protocol

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
#include <vector>
struct Part { const float* from; float* to; size_t count; };
static std::vector<Part> parts;
extern "C" {
int ncclGetVersion(int* version) { *version = VERSION; return 0; }
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
int ncclGroupStart() { parts.clear(); return 0; }
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void*, void*) {
    if (type != 7 || op != 0) return 4;
    parts.push_back({static_cast<const float*>(from), static_cast<float*>(to), count});
    return 0;
}
int ncclGroupEnd() {
    if (parts[0].count > 4096) return 3;
    for (size_t i = 0; i < parts[0].count; ++i) {
        float sum = BIAS;
        for (const Part& p : parts) sum += p.from[i];
        for (const Part& p : parts) p.to[i] = sum;
    }
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


def library(folder: Path, version: int = 23004, bias: int = 0) -> str:
    """A library with NCCL's functions, which sum on the host when a group ends."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = folder / "libnccl.so.2"
    command = [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    command += [f"-DVERSION={version}", f"-DBIAS={bias}"]
    subprocess.run(command, input=NCCL, text=True, check=True)
    return str(path)


def test_the_bytes_that_a_plan_moves_are_counted(modules: Any) -> None:
    """A ring: each of 2 N (N - 1) messages is written and read (all but those to keep once more),
    which makes (6 N - 4) b; what the receiver reads where it lies saves a write and a read."""
    plans = modules["kernels_plans"]

    def traffic(algorithm: str, ranks: int, protocol: Protocol) -> float:
        return float(plans.traffic(plans.case(algorithm, ranks, protocol, 1).plan))

    for ranks in (2, 4, 8):
        assert traffic("ring", ranks, Protocol.SIMPLE) == 6 * ranks - 4
        messages = 2 * (ranks - 1)
        extra = 2 * messages * (128 / 120 - 1)
        assert traffic("ring", ranks, Protocol.LL128) == pytest.approx(6 * ranks - 4 + extra)
        assert traffic("ring", ranks, Protocol.LL) == 6 * ranks - 4 + 2 * messages
        # Sums on their way go through slots; the last of them, and every copy, is pulled.
        assert traffic("ring", ranks, Protocol.DIRECT) == 5 * (ranks - 1)
        assert plans.compulsory(ranks) == 2 * ranks
    # All pairs: everybody reads the others' part and its own, and writes; then the same to copy.
    assert traffic("all-pairs", 4, Protocol.DIRECT) == 15


def test_blocks_are_as_many_as_fit(modules: Any) -> None:
    plans = modules["kernels_plans"]
    for algorithm in plans.ALGORITHMS:
        case = plans.case(algorithm, 4, Protocol.SIMPLE, 16)
        assert 16 - 5 < case.plan.blocks_per_rank <= 16
    assert {plans.level(name).plan.collective.ranks for name in plans.LEVELS} == {8}


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

    def prepare(self, size_bytes: int) -> str:
        return self._failure

    def time_us(self, size_bytes: int, calls: int) -> float:
        self._log.append(f"{self.label['by']}{calls}")
        return self._us.pop(0)


def test_measurements_take_turns(modules: Any) -> None:
    log: list[str] = []
    runs = [
        Runs(log, "a", [2000, 5, 1, 9]),
        Runs(log, "b", [1, 2, 4, 8]),
        Runs(log, "c", [], "3 wrong elements"),
    ]
    found = modules["kernels_timing"].in_turn(runs, 64, 3)
    assert log == ["a2", "b2", "a2", "b20", "a2", "b20", "a2", "b20"]
    assert [one.median_us for one in found[:2]] == [5, 4]
    assert found[1].row() == {"by": "b", "size_bytes": 64, "us": [2, 4, 8], "median_us": 4}
    assert found[2].row() == {"by": "c", "size_bytes": 64, "failure": "3 wrong elements"}


def test_means_and_ratios_are_reckoned_right(modules: Any) -> None:
    report = modules["kernels_report"]
    assert report.geometric_mean([1, 4]) == 2
    assert math.isnan(report.geometric_mean([]))
    rows = [
        {
            "part": "engines",
            "algorithm": "ring",
            "protocol": "LL",
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
    assert "| ring | LL | 3 | 1.10 (10.0) | 4.40 (20.0) | 2.200 |" in page
    assert "interpretation costs 120.0 % here" in page
    assert "- this" in page


def test_wrong_sums_are_found(modules: Any) -> None:
    runs = modules["kernels_runs"]
    from sley.engine.devices import ThreadsDevice

    device = ThreadsDevice()
    size = 3 * runs.CHECKED_BYTES
    data = runs.Data(device, 2, size)
    inputs = [array.copy() for array in data.arrays(size)]
    for array in data.arrays(size):
        array[:] = inputs[0] + inputs[1]
    assert data.wrong(size) == 0
    data.arrays(size)[1][-1] *= 2
    data.arrays(size)[0][0] *= 2
    assert data.wrong(size) == 2
    data.fill(size)
    for array, wanted in zip(data.arrays(size), inputs, strict=True):
        assert (array[:100] == wanted[:100]).all()
        assert (array[-100:] == wanted[-100:]).all()


def test_nccl_is_timed_in_a_process_of_its_own(modules: Any, tmp_path: Path) -> None:
    nccl = modules["kernels_nccl"]
    peer = nccl.Peer.start(
        nccl.Setting(3, 4, "Ring", "LL"), library(tmp_path), ["--device", "threads"], 1 << 16
    )
    try:
        assert peer.ready(), peer.failure
        assert peer.version == "2.30.4"
        assert peer.prepare(1 << 12) == ""
        assert peer.time_us(1 << 12, 3) > 0
        assert peer.prepare(1 << 16) == "NCCL: out of luck at all"
        assert peer.prepare(1 << 10) == ""
    finally:
        peer.close()
    assert peer.process.returncode == 0


def test_an_nccl_whose_process_is_gone_is_told(modules: Any, tmp_path: Path) -> None:
    nccl, timing = modules["kernels_nccl"], modules["kernels_timing"]
    peer = nccl.Peer.start(nccl.Setting(2, 4), library(tmp_path), ["--device", "threads"], 1 << 12)
    try:
        assert peer.ready(), peer.failure
        peer.process.kill()
        peer.process.wait()
        with pytest.raises(timing.TurnError, match="process"):
            peer.time_us(1 << 12, 3)
        (found,) = timing.in_turn([peer], 1 << 12, 2)
        assert "process" in found.failure
    finally:
        peer.close()


@pytest.mark.parametrize(
    ("made", "failure"),
    [({"version": 22909}, "need 2.30"), (None, "cannot open")],
)
def test_a_library_that_is_no_nccl_is_told(
    made: Any, failure: str, modules: Any, tmp_path: Path
) -> None:
    nccl = modules["kernels_nccl"]
    path = library(tmp_path, **made) if made else str(tmp_path / "none.so")
    peer = nccl.Peer.start(nccl.Setting(2, 4), path, ["--device", "threads"], 1 << 12)
    try:
        assert not peer.ready()
        assert failure in peer.failure
        assert peer.prepare(4) == peer.failure
    finally:
        peer.close()


def test_nccl_is_tried_with_all_its_settings(modules: Any) -> None:
    nccl = modules["kernels_nccl"]
    found = [s.environment() for s in nccl.settings(4, 16, quick=False)]
    assert len(found) == 10
    assert all(e["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" for e in found)
    assert all(e["NCCL_MAX_CTAS"] == "16" for e in found)
    chosen = [tuple(e.get(f"NCCL_{k}") for k in ("ALGO", "PROTO", "BUFFSIZE")) for e in found]
    assert chosen[0] == (None, None, None)
    assert chosen[1] == ("Ring", "Simple", None)
    assert chosen[-1] == ("Ring", "Simple", str(2 << 20))
    assert len(set(chosen)) == 10


def test_every_part_of_the_benchmark_runs_on_threads(
    modules: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every part, on threads, with a library in NCCL's place whose sums are wrong in one run."""
    kernels, settings = modules["kernels"], modules["kernels_nccl"].settings
    two = lambda *sizes, quick: settings(*sizes, quick=quick)[:2]  # noqa: E731
    monkeypatch.setattr(modules["kernels_nccl"], "settings", two)
    options = "--device threads --sizes 1K,4K --ranks 2 --blocks 1 --nccl-ranks 2 --rounds 1"
    options += " --protocols SIMPLE --parts engines,peers,sweep --quick"
    wrong = library(tmp_path, bias=1)
    done = kernels.main([*options.split(), "--nccl", wrong, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert done == 0
    (path,) = (tmp_path / "out").iterdir()
    results = json.loads(path.read_text())
    parts = {row["part"] for row in results["rows"] if "median_us" in row}
    assert parts == {"engines", "peers", "sweep"}
    failures = {row["by"]: row["failure"] for row in results["rows"] if "failure" in row}
    assert failures.keys() == {"NCCL"}
    assert "wrong elements" in failures["NCCL"]
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
    assert commands["peers"][-2:] == ["--nccl", "libnccl.so.2"]
    names = [name for name in commands if any("failures" in word for word in commands[name])]
    assert names == ["failures"]
    assert "-n" not in commands["failures"], "its time limits need a GPU to itself"
