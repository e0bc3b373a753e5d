"""Wrong usage ends in exit code 2, with a message in words of the command line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sley.cli import main
from sley.cli.compile import compile_command
from sley.cli.examples import EXAMPLES
from sley.cli.main import SECTIONS
from support.inputs.schedule_files import forest
from support.inputs.topology_texts import CLOUD


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="sley")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sim", "there is no command 'sim'. Did you mean simulate?"),
        ("verfiy", "Did you mean verify"),
        ("frobnicate", "sley --help lists them"),
        ("list allredcue", "Did you mean allreduce"),
        ("topology shw", "there is no command 'shw'. Did you mean show?"),
        ("tune nothing", "there is no command 'nothing'. Did you mean train?"),
        ("run ring-allreduce --ranks 2 --op smu", "Did you mean sum?"),
        ("choose allreduce --topology ndv4 --protocol ll,dirct", "Did you mean direct?"),
        ("topology show one-h100:0", "C308 bad-cluster"),
        ("explain V999", "there is no code 'V999'. Did you mean V2"),
        ("explain wrong-resul", "Did you mean wrong-result"),
        ("explain d945", "d945 went with workload files"),
        ("verify ring-allreduce", "ring-allreduce needs --ranks, or --topology"),
        ("verify a.xml b.xml --json", "are for one WHAT"),
        ("compile hm-allreduce", "hm-allreduce needs --nodes and --gpus, or --topology"),
        ("compile hm-allreduce --nodes 2", "hm-allreduce needs --gpus, or --topology"),
        (
            "compile hm-allreduce --ranks 4",
            "takes no --ranks. It takes --nodes, --gpus",
        ),
        ("compile ring-allreduce --root 1 --ranks 4", "takes no --root. It takes --ranks"),
        ("simulate hm-allreduce --topology ndv4 --nodes 4", "--topology ndv4:NODES needs no other"),
        ("compare ring-allreduce", "ring-allreduce needs --ranks, or --topology"),
        ("simulate ring-allreduce", "needs --ranks, or --topology, such as --topology ndv4:2, wh"),
        (
            "compare 'ring-allreduce --rank 4' --topology 1x4",
            "Usage: sley compare [OPTIONS] WHAT...\nTry 'sley compare --help' for help.\n\n"
            "Error: 'ring-allreduce --rank 4': No such option '--rank'. Did you mean '--ranks'?",
        ),
        ("simulate ring-allreduce --ranks 4", "ring-allreduce needs --topology"),
        ("compile ring-allreduce --ranks 4 --size 1M", "--size is for --schedule auto"),
        ("simulate ring-allreduce --topology 1x4 -b 64M 128M", "unexpected extra argument (128M)"),
        ("simulate ring-allreduce --topology 1x4 --set foo=3", "'foo' is not a parameter. There"),
        ("simulate ring-allreduce --topology 1x4 --set slots=3", "Did you mean posts or slices?"),
        ("run ring-allreduce --ranks 2 -b 1Q", "'1Q' is not a size from 1, such as 4096, 64K"),
        ("run ring-allreduce --ranks 2 -b 64Mb", "such as 4096, 64K, 16M or 1G, in bytes (B), not"),
        ("run ring-allreduce --ranks 2 -b 2M -e 1M", "--end 1048576 is less than --begin 2097152"),
        ("run ring-allreduce --ranks 0", "'--ranks': expected a whole number from 1, found 0"),
        ("run ring-allreduce --ranks two", "expected a whole number from 1, found two"),
        ("run ring-allreduce --ranks 2 --threads 2K", "expected a whole number from 32 to 1024"),
        ("run ring-allreduce --ranks 2 --dtype bf17", "'bf17' is not one of 'bfloat16'"),
        ("run ring-allreduce --ranks 2 --protocol ll3", "one of 'simple', 'll', 'll128'"),
        ("run ring-allreduce --ranks 2 --root 9", "takes no --root. It takes --ranks"),
        (
            "compile ring-allreduce --rank 4",
            "no --rank. Did you mean --ranks or --show-rank? Com",
        ),
        ("compile ring-allreduce --ranks 4 --target nvidia -o x.xml", "one of 'executor', 'rccl'"),
        *(
            (f"{line} --size 1M", f"sley {line} has no --size: give -b SIZE -e SIZE, the same for")
            for line in ("bound", "choose", "compare", "tune train", "tune sweep")
        ),
        ("compile", "Missing argument 'WHAT'"),
        ("draw ring-allreduce --ranks 4", "Missing option '-o'"),
        ("choose ring-allreduce", "Missing option '--topology'"),
        ("choose ring-allreduce --topology 1x2 --collective allgather", "--collective is for XML"),
        ("compile ring-allreduce --ranks 2 --show-rank 2", "--show-rank: ranks are 0 to 1"),
        ("run ring-allreduce --ranks 2 -f 1", "expected a number above 1, found 1"),
        ("run ring-allreduce --ranks 2 -f two", "expected a number above 1, found two"),
        ("run ring-allreduce --ranks 2 -e 1G -f 1.0001", "--factor 1.0001 makes more than 10000"),
        ("simulate ring-allreduce --topology 1x4 -e 1G -f 2 -i 1M", "--factor or --step, not both"),
        ("simulate ring-allreduce --topology 1x4 -f 4", "--factor needs --end"),
        ("run ring-allreduce --ranks 2 -i 1M", "--step needs --end"),
        ("compile ring-allreduce --ranks 4 --target nccl -o x.xml", "nccl: it loads no plans"),
        ("tune train", "Give --topology for a cluster, or --live for this machine"),
        ("tune sweep ring", "'ring' is not one of 'allreduce'"),
        ("calibrate --from x.txt -o x.toml", "--from and --topology belong together"),
        ("doctor . --target sley@3", "sley takes no version"),
        ("doctor . --target msccls", "'msccls' is not one of 'sley', 'mscclpp'"),
        ("calibrate --ranks 1 -o x.toml", "expected a whole number from 2 to 64, found 1"),
        ("list nothing-like-this", "no algorithm has 'nothing-like-this' in its name"),
        ("simulate hm-allreduce --topology 2x4 --ranks 8", "hm-allreduce takes no --ranks"),
        ("--verison", "Did you mean '--version'?"),
        ("topology show ndv4 --limit 3", "topology show has no --limit. Commands with it: syn"),
        ("bound --limit 3", "Commands with it: synthesize, replan, choose"),
        ("tune show x -j 2", "Commands with it: choose, tune train, tune sweep"),
        ("explain V203 --topology 1x2", "No such option '--topology'"),  # many commands have it
        ("synthesize allreduce --topolgy 1x2", "Did you mean '--topology'?"),
        ("compare ring-allreduce --schedule=hpds", "quote --schedule=hpds with its WHAT"),
        ("synthesize allreduce --topology 1x2 --size 1K --size 2M", "give --size once"),
        ("simulate ring-allreduce --topology 1x2 -b 1K --begin 2K", "give --begin once"),
        (
            "compile ring-allreduce --in-place --out-of-place",
            "give one of --in-place and --out-of-place, not both",
        ),
        (
            "package d --same-bits --balanced-bits",
            "give one of --same-bits and --balanced-bits, not both",
        ),
    ],
)
def test_wrong_usage_is_told_in_options(line: str, told: str) -> None:
    result = sley(*shlex.split(line))
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "Schedule." not in result.stderr  # nor any other value as Python writes it


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run ring-alreduce --ranks 2", "Did you mean ring-allreduce"),
        ("choose allredcue --topology ndv4", "Did you mean allreduce or"),
        ("choose alltoal --topology ndv4", "Did you mean alltoall or"),
        (
            "run All_Reduce --nodes 2 --gpus 4 -b 1M",
            "its algorithms: sley run ring-allreduce --nodes 2 --gpus 4 -b 1M. They are ring-allre",
        ),
        (
            "compile broadcast --ranks 4 --root 1",
            "its algorithms: sley compile ring-broadcast --ranks 4 --root 1. They are multi-ring",
        ),
        ("verify alltoall", "sley choose alltoall --topology ndv4 finds the fastest of all"),
        ("compare sendrecv --topology 1x4", "'sendrecv': neither"),
        ("run ring-allreduce --ranks 1", "2 ranks or more"),
        ("run ring-allreduce --ranks 2 --device gpu", "expected: threads, cuda"),
        ("verify nofile", "'nofile': neither"),
        ("verify nofile.xml", "found:    No such file or directory"),
        ("verify .", "sley doctor FOLDER examines a directory"),
        ("verify /dev/null", "a plan, a program or a schedule"),
        ("simulate ring-allreduce --topology ndv", "Did you mean ndv5 or ndv4"),
        (
            "simulate ring-allreduce --topology cluster",
            "T604 unknown-topology\n  expected: MACHINE[:NODES], NODESxGPUS[:NICS], mesh:4x4,",
        ),
        ("simulate ring-allreduce --topology nothing.toml", "No such file or directory"),
        ("simulate ring-allgather --topology torus:2x3", "error: ring-allgather: C301 unlinked"),
        ("simulate ring-allreduce --topology 2x3x4", "found:    '2x3x4'"),
        ("simulate ring-allreduce --topology 1x4 --ranks 6", "at least 6 ranks"),
        ("simulate ring-allreduce --topology 1x4 --html no/a.html", "a folder that exists"),
        ("compile ring-allreduce --ranks 4 -o x.txt", "ends in .plan, .xml"),
        ("compile ring-allreduce --ranks 4 -o no/x.xml", "No such file or directory"),
        ("compile ring-allreduce --ranks 4 --slots 0", "slots to be an integer from 1 to 4,096"),
        (
            "choose ring-allreduce ring-allgather --topology 1x2",
            "error: ring-allgather: C313 different-collectives\n  expected: programs for allreduce("
            "2 ranks, 2 chunks, in place), as ring-allreduce\n  found:    ring-allgather for allga",
        ),
        ("compare ring-allreduce ring-allgather --topology 1x2", "ring-allgather: allgather"),
        ("calibrate --from no.txt --topology 1x2 -o x.toml", "No such file or directory"),
        ("tune show nofile", "No such file or directory"),
        ("package d --table nofile --target rccl", "No such file or directory"),
        ("doctor nodir", "No such file or directory"),
    ],
)
def test_a_wrong_file_or_value_is_told_in_plain_words(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sley(*line.split())
    names = re.search(
        r"(L1|T6|K510|F404|F460|C30[145]|C31[35])[0-9]* [a-z-]+$", result.stderr, re.MULTILINE
    )
    is_usage = names is not None or "found:    No such file or directory" in result.stderr
    if line.startswith("compare "):  # which tells several errors, and goes on without a WHAT
        is_usage = "C313" in result.stderr
    assert result.exit_code == (2 if is_usage else 1), result.output
    assert told in result.stderr
    assert "Errno" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_ranks_that_are_fewer_than_the_gpus_are_told() -> None:
    line = ["simulate", "ring-allreduce", "--topology", "1x4", "-b", "1K"]
    told = "note: ring-allreduce: its 2 ranks are the first 2 of 4 GPUs"
    assert told in sley(*line, "--ranks", 2).stderr
    line[3] = "2x4"
    assert "first 4 of 8 GPUs, on 1 of 2 nodes; give" in sley(*line, "--ranks", 4).stderr
    assert "first 6 of 8 GPUs; give" in sley(*line, "--ranks", 6).stderr
    line[3] = "1x4"
    assert "note" not in sley(*line).stderr


def test_a_word_selects_algorithms_of_the_list() -> None:
    names = [line.split()[0] for line in sley("list", "alltoallv").stdout.splitlines()]
    assert names == ["all-pairs-alltoallv", "two-step-alltoallv"]


def test_a_name_of_one_rule_explains_it() -> None:
    assert sley("explain", "bad-argument").stdout == sley("explain", "L112").stdout


def test_the_help_has_every_command_in_one_section() -> None:
    listed = [command.name for commands in SECTIONS.values() for command in commands]
    assert sorted(listed) == sorted(main.commands)
    text = sley("--help").stdout
    assert all(f"{title}:" in text for title in SECTIONS)
    assert "sley run ring-allreduce --ranks 4 -b 1K -e 1M" in text
    assert "..." not in text.replace("[ARGS]...", "")


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """All commands, by their words."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(("words", "command"), list(commands(main, "sley")))
def test_the_help_of_a_command_ends_with_examples_of_it(words: str, command: click.Command) -> None:
    text = sley(*words.split()[1:], "--help").stdout
    assert text.index("Options:") < text.index("Examples:")
    for _, line in EXAMPLES[words]:
        assert f"  sley {line}\n" in text
        path, rest = words.split()[1:], shlex.split(line)[len(words.split()) - 1 :]
        assert shlex.split(line) == [*path, *rest]
        with command.make_context(words, rest):  # parses the line, with its values
            pass


def test_the_help_of_options_has_sections_with_the_compiler_last() -> None:
    text = sley("compile", "--help").stdout
    titles = re.findall(r"(?m)^(\w[\w ]*):$", text)
    assert titles == ["Options", "WHAT", "Output", "Compiler", "Examples"]
    assert text.index("Compiler:") < text.index("--protocol") < text.index("Examples:")
    for option in compile_command.params:
        assert isinstance(option, click.Argument) or option.opts[-1] in text


@pytest.mark.slow
def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each but two, which need NCCL and a table of nccl-tests."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trees.xml").write_text(forest(8))
    (tmp_path / "dump.xml").write_text(CLOUD)
    (tmp_path / "plans.toml").write_text('[[plans]]\nwhat = "ring.xml"\n')
    for line in (line for examples in EXAMPLES.values() for _, line in examples):
        if not line.startswith(("exec", "calibrate --from")):
            result = sley(*shlex.split(line))
            assert result.exit_code == 0, f"{line}: {result.output}"


def test_a_run_without_ranks_has_one_for_each_core() -> None:
    cores = max(2, len(os.sched_getaffinity(0)))
    result = sley("run", "ring-allreduce", "-n", 1, "-w", 0)
    assert f"note: {cores} ranks, since --ranks is not given" in result.stderr
    assert f"allreduce on {cores} ranks" in result.stdout


def test_a_run_of_more_ranks_than_cores_says_that_they_share_them() -> None:
    cores = len(os.sched_getaffinity(0))
    result = sley("run", "ring-allreduce", "--ranks", cores + 1, "-n", 1, "-w", 0)
    assert f"note: {cores + 1} ranks share" in result.stderr


def test_a_file_without_switches_says_what_becomes_of_groups(tmp_path: Path) -> None:
    line = ("compile", "nvls-allreduce", "--ranks", 4, "-o", tmp_path / "x.xml")
    said = "note: MSCCL XML has no switches: groups get a message for each rank\n"
    assert sley(*line).stderr == said
    assert sley(*line, "--no-switches").stderr == ""
