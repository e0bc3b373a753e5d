"""First contact with a GPU, rehearsed over the stand-in for NVIDIA's driver: whatever hangs, each
step ends in time, and the file of results says where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"
STEPS = [
    "facts",
    "copies",
    "smoke",
    "scope",
    "parts",
    "cells-8",
    "cells-4",
    "cells-2",
    "host",
    "communicator",
    "replays",
    "sanitizer",
    "calls",
    "tests",
]
ROOM = {"multiprocessors": 132, "memory_bytes": 8 << 30}
"""A stand-in as large as an H100, so that the blocks of all steps fit."""

END_S = 5.0
"""What starting and ending a process may take longer than its deadline, on a busy machine."""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of processes over the stand-in."""
    pytest.importorskip("cuda.bindings")
    folder = tmp_path_factory.mktemp("driver")
    sys.path.insert(0, str(TESTS / "engine" / "devices"))
    try:
        import fake_driver
    finally:
        sys.path.pop(0)
    found = fake_driver.environment(folder)
    rehearsal = TESTS / "support" / "rehearsal"
    return {**found, "PYTHONPATH": f"{rehearsal}:{found['PYTHONPATH']}"}


def rehearse(
    driver: dict[str, str], out: Path, faults: dict[str, dict[str, int]], *options: str
) -> tuple[int, list[dict[str, Any]]]:
    """Runs on_gpu.py over the stand-in; the exit code and the lines of the results."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "on_gpu.py"), "--out", str(out), *options],
        env={**driver, "REHEARSAL_FAULTS": json.dumps({"": ROOM, **faults})},
        capture_output=True,
        text=True,
        timeout=600,
    )
    files = list(out.glob("*.jsonl"))
    assert len(files) == 1, done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in files[0].read_text().splitlines()]


def of(step: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["step"] == step]


def ended(step: str, rows: list[dict[str, Any]]) -> str:
    (row,) = [row for row in of(step, rows) if "step_ended" in row]
    return str(row["step_ended"])


def is_gone(process: int) -> bool:
    """Whether a process ends within END_S."""
    status = Path(f"/proc/{process}/stat")
    until = time.monotonic() + END_S
    while status.exists() and status.read_text().split()[2] != "Z":
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_step_that_hangs_ends_with_its_children_and_says_where_it_was(tmp_path: Path) -> None:
    from first_contact.deadlines import run_within

    text = """
import subprocess, time
subprocess.Popen(["sh", "-c", "echo $$ > part; mv part child; sleep 60"])
def asleep_here():
    print("soon")
    time.sleep(60)
asleep_here()
"""
    begin, deadline_s = time.monotonic(), 2.0
    end = run_within(
        [sys.executable, "-S", "-c", text],
        deadline_s,
        tmp_path / "log",
        cwd=tmp_path,
        environment=os.environ,
    )
    assert time.monotonic() - begin < deadline_s + END_S
    assert end.code is None
    assert "soon" in end.last
    assert "in asleep_here" in end.last
    assert is_gone(int((tmp_path / "child").read_text())), "its child runs on"


def test_a_step_that_ends_leaves_no_child(tmp_path: Path) -> None:
    from first_contact.deadlines import run_within

    text = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    end = run_within(
        [sys.executable, "-c", text], 20.0, tmp_path / "log", cwd=tmp_path, environment=os.environ
    )
    assert end.is_good
    assert is_gone(int(end.last)), "its child runs on"


def test_a_run_that_is_ended_leaves_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from first_contact import deadlines

    def ended(file: Any) -> None:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(deadlines, "_show", ended)
    text = "echo $$ > part; mv part pid; sleep 60"
    with pytest.raises(KeyboardInterrupt):
        deadlines.run_within(
            ["sh", "-c", text], 20.0, tmp_path / "log", cwd=tmp_path, environment=os.environ
        )
    assert is_gone(int((tmp_path / "pid").read_text())), "the step runs on"


def test_what_was_measured_is_in_the_file_when_a_later_measurement_fails(tmp_path: Path) -> None:
    from first_contact.lines import DeviceLostError, Lines, read_lines

    def fails(words: str) -> dict[str, Any]:
        raise ValueError(words)

    lines = Lines(tmp_path / "lines", "it")
    assert lines.attempt({"n": 1}, lambda: {"us": 3})
    assert not lines.attempt({"n": 2}, lambda: {"wrong": 3})
    assert not lines.attempt({"n": 3}, lambda: fails("so"))
    with pytest.raises(DeviceLostError):
        lines.attempt({"n": 4}, lambda: fails("the process can no longer use the device"))
    with lines.path.open("a") as file:
        file.write('{"step": "it", "cut o')
    rows = list(read_lines(lines.path))
    assert [row["begins"]["n"] for row in rows if "begins" in row] == [1, 2, 3, 4]
    found = {row["n"]: row for row in rows if "n" in row}
    assert (found[1]["us"], found[2]["wrong"]) == (3, 3)
    assert found[3]["failure"] == "ValueError: so"
    assert "no longer" in found[4]["failure"]


def test_a_sample_of_tests_is_written_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(40))\ndef test_it(n): assert n % 2\n"
    )
    file = tmp_path / "lines"
    options = ["--lines", str(file), "--step", "tests", "--share", "0.25", "--seed", "3"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run(
        [*command, "-p", "first_contact.outcomes", *options, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        cwd=tmp_path,
        capture_output=True,
    )
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    told = [row for row in rows if "test" in row]
    assert len(told) == 10
    assert [row["begins"] for row in rows if "begins" in row] == [row["test"] for row in told]
    failed = [row for row in told if int(row["test"].split("[")[1][:-1]) % 2 == 0]
    assert failed
    assert all(("failure" in row) == (row in failed) for row in told)
    assert rows[-1]["pytest_ended"] == 1


def test_the_commit_and_what_differs_from_it_are_facts(tmp_path: Path) -> None:
    from common.machine import commit_of

    assert "not a git repository" in commit_of(tmp_path)["commit"]
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (tmp_path / "a.py").write_text("1")
    for command in (["init", "-q"], ["add", "a.py"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], check=True)
    found = commit_of(tmp_path)
    assert (len(found["commit"]), found["changed"]) == (40, [])
    (tmp_path / "a.py").write_text("2")
    assert commit_of(tmp_path) == {"commit": found["commit"], "changed": [" M a.py"]}
    (tmp_path / "inner").mkdir()
    assert "not a git repository" in commit_of(tmp_path / "inner")["commit"]


@pytest.mark.parametrize(("ends", "good"), [("exit 0", True), ("echo no GPU >&2; exit 1", False)])
def test_the_lines_of_the_parts_of_a_call_are_kept(
    ends: str, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from first_contact import parts
    from first_contact.lines import Lines, read_lines

    lines = Lines(tmp_path / "lines", "parts")
    monkeypatch.setattr(parts.shutil, "which", lambda *name, **more: None)
    assert parts.step(lines), "nothing fails without a compiler"
    program = f"#!/bin/sh\necho '{{\"us\": 3}}'\n{ends}\n"
    (tmp_path / "program").write_text(program)
    compiler = tmp_path / "nvcc"
    copies = f'cp {tmp_path}/program "$made"; chmod +x "$made"'
    compiler.write_text(f"#!/bin/sh\nfor made; do :; done\n{copies}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(parts.shutil, "which", lambda *name, **more: str(compiler))
    assert parts.step(lines) == good
    rows = list(read_lines(lines.path))
    assert rows[0]["left_out"] == "no nvcc"
    assert [row["us"] for row in rows if "us" in row] == [3]
    assert [row["failure"] for row in rows if "failure" in row] == ["no GPU\n"] * (not good)


def test_without_a_gpu_the_run_says_so_and_fails(tmp_path: Path) -> None:
    from sley.engine.devices.cuda import CudaDevice
    from sley.errors import SleyError

    try:
        CudaDevice.open(0)
    except SleyError:
        command = [sys.executable, str(BENCHMARKS / "on_gpu.py"), "--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "No GPU answers" in done.stderr
        assert "K501" in done.stdout
        assert not list(tmp_path.glob("*.jsonl"))
        return
    pytest.skip("there is a GPU")


def test_a_kernel_that_never_ends_is_told_with_its_counters(
    driver: dict[str, str], tmp_path: Path
) -> None:
    import on_gpu

    faults = {"first_contact.smoke": {"endless": 1}}
    code, rows = rehearse(driver, tmp_path, faults, "--only", "smoke", "--slowness", "0.8")
    assert code == 1
    told = of("smoke", rows)
    (hung,) = [row for row in told if "doesn't end" in row.get("failure", "")]
    assert (hung["protocol"], hung["engine"]) == ("SIMPLE", "interpreted")
    assert hung["state"]["connections"] == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert ended("smoke", rows) == "failed"
    assert on_gpu.Run(next(tmp_path.glob("*.jsonl")), tmp_path).sound() == []


def test_a_protocol_that_hung_with_one_engine_is_not_measured(tmp_path: Path) -> None:
    import on_gpu

    calls = [
        {"protocol": protocol, "engine": engine}
        for protocol in ("SIMPLE", "LL")
        for engine in ("generated", "interpreted")
    ]
    rows = [row for call in calls for row in ({"begins": call}, {**call, "wrong": 0})]
    lines = tmp_path / "lines"
    for number, sound in ((len(rows), ["SIMPLE", "LL"]), (len(rows) - 1, ["SIMPLE"])):
        lines.write_text("".join(json.dumps({"step": "smoke", **r}) + "\n" for r in rows[:number]))
        assert on_gpu.Run(lines, tmp_path).sound() == sound


def test_every_step_that_hangs_is_ended_and_told(
    driver: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import on_gpu
    from first_contact.lines import read_lines

    for name, value in driver.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("REHEARSAL_FAULTS", json.dumps({"": {"asleep": 1}}))
    monkeypatch.setattr(on_gpu, "_answers", lambda run: True)
    run = on_gpu.Run(tmp_path / "lines", tmp_path, slowness=0.004)
    monkeypatch.setattr(on_gpu.Run, "sound", lambda run: ["LL"])
    begin = time.monotonic()
    assert on_gpu.run_steps(run, on_gpu.STEPS) == dict.fromkeys(STEPS, False)
    total = sum(step.deadline_s for step in on_gpu.STEPS)
    assert total <= 600
    assert time.monotonic() - begin < total * run.slowness + len(STEPS) * END_S
    rows = list(read_lines(run.lines))
    assert [row["step"] for row in rows if "step_begins" in row] == STEPS
    for step in STEPS:
        assert ended(step, rows) == "over its deadline"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["endless", "lame", "lost"])
@pytest.mark.parametrize(
    "step", [step for step in STEPS if step not in ("facts", "sanitizer", "parts")]
)
def test_a_fault_of_the_device_in_each_step_is_told(
    step: str, fault: str, driver: dict[str, str], tmp_path: Path
) -> None:
    """From its second launch on a step's kernels don't end, lack a block, or lose the device."""
    import on_gpu

    found = next(each for each in on_gpu.STEPS if each.name == step)
    words = {"scope": "--scope sys", "calls": "--step calls"}
    words |= {"tests": "exec(eval"}  # workers of xdist
    words |= {step: "kernels.py" for step in STEPS if step.startswith("cells")}
    faults = {words.get(step, f"first_contact.{step}"): {fault: 1}}
    options = ["--only", f"{step},copies", "--most-bytes", "1024", "--share", "0.01"]
    begin = time.monotonic()
    code, rows = rehearse(driver, tmp_path, faults, *options, "--slowness", "0.4")
    assert time.monotonic() - begin < 0.4 * (found.deadline_s + 15) + 3 * 30
    assert code == 1
    assert ended(step, rows) in ("failed", "over its deadline")
    told = of(step, rows)
    begun = [row["begins"] for row in told if "begins" in row]
    failures = [row for row in told if row.get("failure") or row.get("wrong")]
    assert begun, "nothing says where it was"
    assert failures or ended(step, rows) == "over its deadline"


@pytest.mark.slow
def test_a_communicator_is_measured(driver: dict[str, str], tmp_path: Path) -> None:
    options = ("--most-bytes", "1024", "--slowness", "4")
    code, rows = rehearse(driver, tmp_path, {}, "--only", "host,replays,communicator", *options)
    assert code == 0
    timed = [(row["what"], row["in"]) for row in of("host", rows) if "p50_us" in row]
    whats = ("a call", "a call in C++", "a bare launch")
    assert timed == [(what, place) for place in ("a stream", "a capture") for what in whats]
    (asked,) = [row["asked"] for row in of("host", rows) if "asked" in row]
    assert asked["cuLaunchKernelEx"] == 1
    for step, checked in (("replays", 5), ("communicator", 6)):
        assert [row["wrong"] for row in of(step, rows) if "wrong" in row] == [0] * checked


@pytest.mark.slow
def test_time_lines_are_told(driver: dict[str, str], tmp_path: Path) -> None:
    code, rows = rehearse(driver, tmp_path, {}, "--only", "smoke", "--slowness", "4")
    assert code == 0
    found = [row for row in of("smoke", rows) if "executions" in row]
    assert [row["plan"] for row in found] == ["ring-allreduce", "one-step-allreduce"]
    for row in found:
        ends = [end for *_, end in row["executions"]]
        assert (
            0 < row["begin_us"] < ends[0] <= ends[-1] <= max(row["exits_us"]) <= row["us"] + 0.001
        )
