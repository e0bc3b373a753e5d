"""Wrong usage ends in exit code 2, with a message in words of the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main
from sley.cli.main import SECTIONS


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="sley")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sim", "there is no command 'sim'. Did you mean simulate?"),
        ("verfiy", "Did you mean verify"),
        ("frobnicate", "sley --help lists them"),
        ("topology shw", "there is no command 'shw'. Did you mean show?"),
        ("policy nothing", "sley policy --help lists them"),
        ("explain V999", "there is no code 'V999'. Did you mean V2"),
        ("explain wrong-resul", "Did you mean wrong-result"),
        ("explain too-few-slots", "too-few-slots is the name of V207 and R505"),
        ("verify ring-allreduce", "ring-allreduce needs --ranks, or --topology"),
        ("compile hm-allreduce", "hm-allreduce needs --nodes and --gpus, or --topology"),
        ("compile hm-allreduce --nodes 2", "hm-allreduce needs --gpus, or --topology"),
        (
            "compile hm-allreduce --ranks 4",
            "takes no --ranks. It takes --nodes, --gpus",
        ),
        ("compile ring-allreduce --root 1 --ranks 4", "takes no --root. It takes --ranks"),
        ("compare ring-allreduce", "ring-allreduce needs --ranks, or --topology"),
        ("simulate ring-allreduce --ranks 4", "ring-allreduce names no topology"),
        ("simulate ring-allreduce --topology ndv4 --size 1M", "--size is for --schedule auto"),
    ],
)
def test_wrong_usage_is_told_in_options(line: str, told: str) -> None:
    result = sley(*line.split())
    assert result.exit_code == 2, result.output
    assert told in result.stderr


def test_a_name_of_one_rule_explains_it() -> None:
    assert sley("explain", "bad-argument").stdout == sley("explain", "L112").stdout


def test_the_help_has_every_command_in_one_section() -> None:
    listed = [name for _, names in SECTIONS for name in names]
    assert sorted(listed) == sorted(main.commands)
    text = sley("--help").stdout
    assert all(f"{title}:" in text for title, _ in SECTIONS)
    assert "sley run ring-allreduce --ranks 4 -b 1K -e 1M" in text
    assert "..." not in text.replace("[ARGS]...", "")


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
