"""sley choose and --schedule auto."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import signal
import subprocess
import sys
import warnings
from concurrent.futures import wait
from contextlib import nullcontext
from itertools import pairwise
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from click import ClickException, Context
from click.testing import CliRunner, Result

from sley import Options, load, topologies
from sley.cli import main
from sley.cli.options import executor_of
from sley.compiler import comparison, interrupts
from sley.compiler.candidates import Series
from sley.topologies.one_gpu import ONE_H100
from support.inputs.schedule_files import forest
from support.processes.meeting import wait_until

FEW = ("--topology", "ndv4", "--instances", "1,8", "--channels", 1)


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def chosen(*arguments: object) -> dict[str, Any]:
    result = sley("choose", *arguments, "--json")
    assert result.exit_code == 0, result.output
    table = json.loads(result.stdout)
    assert table["ok"]
    return dict(table)


def test_the_table_covers_the_sizes() -> None:
    sizes = ("-b", "3K", "-e", "1M", "-f", 4, "--schedule", "msccl", "--allocate", "connection")
    table = chosen("ring-allreduce", "all-pairs-allreduce", *FEW, *sizes)
    ranges = table["ranges"]
    assert ranges[0]["begin"]["size_bytes"] == 3 * 2**10
    assert ranges[-1]["end"]["size_bytes"] == 2**20  # though the factor steps over it
    result = sley("choose", "ring-allreduce", "all-pairs-allreduce", *FEW, *sizes)
    lines = [line.split() for line in result.stdout.splitlines() if not line.startswith("#")]
    assert lines[0][:3] == ["from", "to", "algorithm"]
    assert [line[2] for line in lines[1:]] == [r["algorithm"] for r in ranges]
    assert (lines[1][0], lines[-1][1]) == ("3K", "1M")
    for before, after in pairwise(lines[1:]):
        assert before[1] == "<" + after[0]


def test_only_what_is_listed_is_tried() -> None:
    listed = ("--protocol", "simple,ll128", "--schedule", "HPDS", "--allocate", "state")
    table = chosen("ring-allreduce", *FEW, *listed, "-b", "1K", "-e", "1M", "-f", 32)
    for row in table["ranges"]:
        options = row["options"]
        assert options["protocol"] in ("Simple", "LL128")
        assert (options["schedule"], options["allocate"]) == ("hpds", "state")
        assert options["instances"] in (1, 8)


def test_plans_are_written_for_their_sizes(tmp_path: Path) -> None:
    sizes = ("-b", "4K", "-e", "64M", "-f", 128)
    table = chosen("ring-allreduce", *FEW, *sizes, "-o", tmp_path / "plans")
    assert len(table["ranges"]) > 1
    for row in table["ranges"]:
        assert load(row["file"]).protocol.value == row["options"]["protocol"]
        assert f'minBytes="{row["begin"]["size_bytes"]}"' in Path(row["file"]).read_text()


def test_the_written_plans_make_a_directory_of_a_runtime(tmp_path: Path) -> None:
    line = ("choose", "ring-allreduce", *FEW, "-b", "4K", "-e", "64M", "-f", 128)
    told = sley(*line, "-o", tmp_path / "plans").stdout.splitlines()[-1]
    words = told.partition("sley ")[2].replace("DIR", str(tmp_path / "directory")).split()
    result = sley(*words)
    assert result.exit_code == 0, result.output
    files = sorted((tmp_path / "plans").glob("*.xml"))
    assert len(list((tmp_path / "directory").iterdir())) == len(files) > 1


def test_a_file_is_a_candidate_as_it_is_and_lifted(tmp_path: Path) -> None:
    plan = tmp_path / "ring.xml"
    made = ("--ranks", 4, "--protocol", "LL", "-o", plan)
    assert sley("compile", "ring-allreduce", *made).exit_code == 0
    one = ("--topology", "ndv4", "--schedule", "msccl", "--instances", 2, "--channels", 1)
    small = chosen(plan, *one, "-b", "1K", "-e", "1K")["ranges"][0]
    assert small["as_given"]
    assert (small["options"]["protocol"], small["options"]["instances"]) == ("LL", None)
    large = chosen(plan, *one, "-b", "64M", "-e", "64M")["ranges"][0]
    assert not large["as_given"]
    assert large["options"]["instances"] == 2
    shown = sley("choose", plan, *one, "-b", "1K", "-e", "1K").stdout
    assert re.search("LL +as given +-", shown), shown


def test_compile_takes_what_is_fastest(tmp_path: Path) -> None:
    auto = ("ring-allreduce", "--topology", "ndv4", "--schedule", "auto", "--instances", 4)
    small = json.loads(sley("compile", *auto, "--size", "1K", "--json").stdout)["plan"]
    assert (small["protocol"], small["channels"]) == ("LL", 4)
    written = sley("compile", *auto, "--size", "64M", "-o", tmp_path / "plan.xml")
    assert written.exit_code == 0, written.output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        (("compile", "ring-allreduce", "--ranks", 4, "--schedule", "auto"), 2, "C310"),
        (
            ("compile", "ring-allreduce", "--ranks", 4, "--schedule", "auto", "--size", "1M"),
            1,
            "S701",
        ),
        (("compile", "ring-allreduce", "--ranks", 4, "--size", "1M"), 2, "--schedule auto"),
        (("choose", "ring-allreduce"), 2, "--topology"),
        (("choose", "--topology", "ndv4"), 2, "WHAT"),
        (("choose", "ring-allreduce", "--topology", "ndv44"), 2, "T604"),
        (("choose", "ring-allreduce", "ring-allgather", "--topology", "ndv4"), 2, "C313"),
        (("choose", "ring-allreduce", *FEW, "-b", "1M", "-e", "1K"), 2, "--end"),
        (("choose", "ring-allreduce", "--topology", "ndv4", "--instances", "1,x"), 2, "'x'"),
        (("choose", "ring-allreduce", "--topology", "ndv4", "--schedule", "auto"), 2, "not one of"),
    ],
)
def test_mistakes_end_with_their_code_and_message(
    arguments: tuple[object, ...], exit_code: int, told: str
) -> None:
    result = sley(*arguments)
    assert result.exit_code == exit_code, result.output
    assert told in result.output


def test_a_long_search_tells_how_far_it_is_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ("choose", "ring-allreduce", *FEW, "--protocol", "ll", "-b", "4K", "-e", "4K")
    assert "choosing" not in sley(*line).stderr
    monkeypatch.setattr("sley.cli.output._LINE_S", 0.0)
    result = sley(*line)
    assert re.search(r"^choosing: \d+ of \d+, about \d+ s left$", result.stderr, re.MULTILINE)
    assert "choosing" not in result.stdout
    assert "choosing" not in sley(*line, "--json").stderr


def test_ctrl_c_ends_a_search_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = comparison._compare

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(comparison, "_compare", compared)
        signal.raise_signal(signal.SIGINT)
        return compared(*arguments)

    monkeypatch.setattr(comparison, "_compare", interrupted)
    before = signal.getsignal(signal.SIGINT)
    result = sley("choose", "ring-allreduce", *FEW, "-b", "4K", "-e", "4K")
    assert result.exit_code == 130
    assert "combinations not compared" in result.stdout
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_the_turns_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = list[object]()

    def interrupted(_compiler: object, task: comparison._Task) -> str:
        turns.append(task)
        signal.raise_signal(signal.SIGINT)
        return "the whole turn"

    monkeypatch.setattr(comparison, "_run", interrupted)
    monkeypatch.setattr(interrupts, "_INTERRUPTS", interrupts._Interrupts())
    series, made = (Series(0, 0, (Options(),)),), pickle.dumps("compiler")
    task = comparison._Task(series, {1024: (1.0, 1.0)}, frozenset(), {}, float("inf"))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `executor_of` starts processes
    try:
        for _ in range(2):  # the second one was on its way
            found = comparison._run_there(made, task)
            assert (found.compared, found.done, found.rest) == ([], 0, series)
        assert turns == [task]
        first = task._replace(fastest={1024: (float("inf"), float("inf"))})
        assert comparison._run_there(made, first) == "the whole turn"  # there must be a plan
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_command_with_the_exit_code_of_shells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sley.cli.choose.choose", lambda *_, **__: signal.raise_signal(2))
    monkeypatch.setattr("sley.cli.choose.first_interrupt", lambda: nullcontext(lambda: False))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs ignore it
    try:
        result = sley("choose", "ring-allreduce", *FEW, "-b", "4K", "-e", "4K")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert result.stderr.endswith("interrupted\n")


def test_a_collective_stands_for_its_algorithms_that_fit() -> None:
    few = ("--protocol", "ll", "--instances", 1, "--channels", 1, "--schedule", "msccl")
    line = ("choose", "all_gather", "--topology", "2x2", *few, "-b", "1K", "-e", "1K", "--json")
    result = sley(*line)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ranges"][0]["algorithm"].endswith("-allgather")
    assert "left out, since they don't fit: nvls-allgather (C315); sccl-" in result.stderr
    result = sley("compare", "AllGather --instances 2", "--topology", "mesh:2x2", "-b", "1M")
    assert result.exit_code == 0, result.output
    assert "1M  multi-ring-allgather --instances 2 " in result.stdout
    assert "ring-allgather, all-pairs-allgather" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        ("ring-allreduce", *FEW, "--set", "contention=0.01"),
        ("ring-allreduce", *FEW, "--out-of-place", "--target", "rccl"),
        ("{folder}/ring.py:ring", *FEW, "--arg", "shift=2", "--fusion", "--", "8"),
        ("{folder}/ring.xml", "--topology", "ndv4", "--instances", 1, "--interpreter"),
    ],
)
def test_the_command_of_each_range_gives_its_times(
    line: tuple[object, ...], tmp_path: Path
) -> None:
    sley("compile", "ring-allreduce", "--ranks", 8, "-o", tmp_path / "ring.xml")
    (tmp_path / "ring.py").write_text(
        "import sys, sley\n"
        "def ring(shift):\n"
        "    @sley.program(sley.AllReduce(ranks=int(sys.argv[1]), chunks=8, in_place=True))\n"
        "    def program(p):\n"
        "        for i in range(8):\n"
        "            c = p.chunk((i + 1 + shift) % 8, 'in', i)\n"
        "            for step in range(2, 9):\n"
        "                c = p.chunk((i + step + shift) % 8, 'in', i).reduce(c)\n"
        "            for step in range(1, 8):\n"
        "                c = c.copy((i + step + shift) % 8, 'in', i)\n"
        "    return program\n"
    )
    words = [str(word).format(folder=tmp_path) for word in line]
    end = words.index("--") if "--" in words else len(words)
    words[end:end] = ["-b", "1K", "-e", "4M", "--json"]
    result = sley("choose", *words)
    assert result.exit_code == 0, result.output
    for one in json.loads(result.stdout)["ranges"]:
        command = shlex.split(one["command"])[1:]
        end = command.index("--") if "--" in command else len(command)
        found = json.loads(sley(*command[:end], "--json", *command[end:]).stdout)["simulations"]
        assert [s["time_us"] for s in found] == [one["begin"]["time_us"], one["end"]["time_us"]]


def test_verbose_prints_the_command_of_each_range() -> None:
    line = ("choose", "ring-allreduce", *FEW, "-b", "1K", "-e", "1K", "-v")
    assert (
        "\n# 1K: sley simulate ring-allreduce --topology ndv4 --protocol LL " in sley(*line).stdout
    )


def test_trees_are_chosen_for_the_collective_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trees.xml"
    file.write_text(forest(4))
    line = ("choose", file, "ring-reducescatter", "--topology", "1x4", "--instances", 1)
    size = ("-b", "1M", "-e", "1M", "--json", "--channels", 1)
    result = sley(*line, *size, "--collective", "reducescatter")
    assert result.exit_code == 0, result.output
    result = sley(*line, *size, "--collective", "allgather")
    assert result.exit_code == 2
    assert "C313" in result.stdout


def test_an_argument_goes_to_each_algorithm_that_takes_it() -> None:
    size = ("--topology", "1x4", "--instances", 1, "--channels", 1, "-b", "1M", "-e", "1M")
    rings = ("multi-ring-allgather", "ring-allgather", *size, "--arg", "rings=2")
    found = sley("choose", *rings, "--json")
    assert found.exit_code == 0, found.output
    assert "--arg rings=2" in json.loads(found.stdout)["ranges"][0]["command"]
    refused = sley("choose", *rings, "--arg", "rows=1")
    assert refused.exit_code == 2
    assert "no WHAT takes --arg rows" in refused.stderr


def test_the_json_has_the_threads_of_sleys_kernels(tmp_path: Path) -> None:
    path, few = tmp_path / "one.toml", ("--protocol", "ll", "--allocate", "instance")
    topologies.save(ONE_H100.topology(2), path)
    for topology, expected in ((path, [128, 512]), ("ndv4", [None, None])):
        line = ("ring-allreduce", "--topology", topology, *few, "-b", "1K", "-e", "16M", "-f", 4)
        ranges = chosen(*line)["ranges"]
        assert [ranges[0]["begin"]["threads"], ranges[-1]["end"]["threads"]] == expected
    simulated = sley("simulate", "ring-allreduce", "--topology", path, *few, "-b", "1K", "--json")
    assert [row["threads"] for row in json.loads(simulated.stdout)["simulations"]] == [128]


def test_warnings_of_several_processes_are_one_note(capfd: pytest.CaptureFixture[str]) -> None:
    with Context(main), executor_of(2) as executor:
        assert executor is not None
        told = [executor.submit(warnings.warn, "Numba is not installed") for _ in range(9)]
        wait(told)
    assert capfd.readouterr().err == "note: Numba is not installed\n"


def test_processes_ignore_an_interrupt_from_their_first_moment_on() -> None:
    others = {one.pid for one in active_children()}  # of tests before it
    with executor_of(2):
        pids = {one.pid for one in active_children()} - others
        states = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    ignored = [int(re.search(r"SigIgn:\s*(\w+)", one)[1], 16) for one in states]  # type: ignore[index]
    assert len(ignored) == 2
    assert all(mask >> (signal.SIGINT - 1) & 1 for mask in ignored)


def test_a_killed_process_ends_a_search_with_what_to_do() -> None:
    others = {one.pid for one in active_children()}
    with pytest.raises(ClickException, match="--resume FILE"), executor_of(2) as executor:
        assert executor is not None
        for child in active_children():
            if child.pid not in others:
                child.kill()
        for _ in range(9):
            executor.submit(int).result()


def test_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """A memory limit or a job's end may kill it alone."""
    script = (
        "import os, signal, sys\n"
        "from multiprocessing import active_children\n"
        "from sley.cli.options import executor_of\n"
        "if __name__ == '__main__':\n"
        "    with executor_of(2) as executor:\n"
        "        [one.result() for one in [executor.submit(int) for _ in range(8)]]\n"
        "        pids = ' '.join(str(one.pid) for one in active_children())\n"
        "        open(sys.argv[1], 'w').write(pids)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    file = tmp_path / "pids"
    killed = subprocess.run([sys.executable, "-c", script, file], check=False)
    left = [Path("/proc") / pid for pid in file.read_text().split()]
    assert (killed.returncode, len(left)) == (-signal.SIGKILL, 2)
    wait_until(lambda: not any(one.exists() for one in left))
