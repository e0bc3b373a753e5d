"""The command line: schedules, thread blocks, texts of ResCCLang, and lifted files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import sley as api
from sley.algorithms import hierarchical_allreduce, resccl_text
from sley.cli import main

GRID = ("--nodes", 2, "--gpus", 4)
SHARED = ("--arg", "nics=2", "--arg", "stage_channels=0,1,1,2")


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def compiled(*arguments: object) -> dict[str, Any]:
    result = sley("compile", *arguments, "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)["plan"]
    assert isinstance(plan, dict)
    return plan


def test_without_switches_several_rings_go_along_the_links_of_the_topology() -> None:
    assert compiled("multi-ring-allgather", "--topology", "dgx1")["channels"] == 6
    own = ("--arg", "orders=[[0,3,2,1,5,6,7,4]]")
    assert compiled("multi-ring-allgather", "--topology", "dgx1", *own)["channels"] == 1
    assert compiled("multi-ring-allgather", "--topology", "ndv4")["channels"] == 8


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mine.resccl"
    path.write_text(resccl_text("hm-allreduce"))
    return path


def test_a_text_compiles_at_its_own_size_and_at_another(text: Path) -> None:
    assert compiled(text)["ranks"] == 32
    said = compiled(text, *GRID, "--in-place")
    assert (said["ranks"], said["in_place"], said["name"]) == (8, True, "hm-allreduce")
    assert compiled(text, "--ranks", 16)["ranks"] == 16
    assert compiled(text, "--arg", "nRanks=16", "--arg", "nics=2")["ranks"] == 16
    assert "L112" in sley("compile", text, "--nodes", 2).stderr


def test_a_text_runs_in_and_out_of_place(text: Path) -> None:
    result = sley("run", text, "--nodes", 2, "--gpus", 2, "-b", "1K", "-n", 1, "--schedule", "hpds")
    assert result.exit_code == 0, result.output
    assert "0 OK" in result.stdout
    row = next(line for line in result.stdout.splitlines() if line.startswith("  "))
    assert "-  " not in row.replace("-1", "")  # both sides were run


def test_mistakes_in_a_text_name_line_and_column_and_write_nothing(tmp_path: Path) -> None:
    path, plan = tmp_path / "wrong.resccl", tmp_path / "plan.xml"
    path.write_text('ResCCLAlgo(nRanks=4, OpType="Allgather"):\n    transfer(0, 4, 0, 0, recv)\n')
    result = sley("compile", path, "-o", plan)
    assert result.exit_code == 1
    assert f"{path}:2:" in result.stderr
    assert "L101" in result.stderr
    assert not plan.exists()


def test_schedule_and_allocation_decide_the_plan() -> None:
    what = ("hm-allreduce", *GRID, "--in-place", *SHARED)
    depth = compiled(*what, "--no-fusion")
    assert (depth["blocks_per_rank"], depth["loop_order"]) == (14, "tile")
    assert "sub_pipelines" not in depth
    tasks = compiled(*what, "--schedule", "hpds")
    assert (tasks["blocks_per_rank"], tasks["loop_order"]) == (14, "instruction")
    state = compiled(*what, "--schedule", "HPDS", "--allocate", "state")
    assert state["blocks_per_rank"] == 8
    few = compiled(*what, "--schedule", "round-robin", "--max-blocks", 3, "--loop-order", "tile")
    assert (few["blocks_per_rank"], few["loop_order"]) == (3, "tile")


def test_sub_pipelines_can_be_looked_at() -> None:
    what = ("hm-allgather", "--nodes", 2, "--gpus", 2, "--in-place", "--schedule", "hpds")
    result = sley("compile", *what, "--show-pipelines")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    start = lines.index("sub-pipeline 0")
    transfers = [line for line in lines[start:] if "->" in line]
    assert len(transfers) == 4 * (1 + 1 + 1)


def test_msccl_xml_refuses_task_order_and_takes_the_tile_plan(tmp_path: Path) -> None:
    what = ("hm-allreduce", *GRID, "--in-place", "--schedule", "hpds")
    plan = tmp_path / "plan.xml"
    refused = sley("compile", *what, "--loop-order", "instruction", "-o", plan)
    assert refused.exit_code == 1
    assert "F441" in refused.stderr
    assert "--loop-order tile" in refused.stderr
    assert not plan.exists()
    left_open = sley("compile", *what, "-o", plan, "--json")
    assert json.loads(left_open.stdout)["plan"]["loop_order"] == "tile"
    assert sley("verify", plan).exit_code == 0


def test_msccl_xml_refuses_blocks_that_serve_several_peers(tmp_path: Path) -> None:
    plan = tmp_path / "plan.xml"
    what = ("hm-allreduce", *GRID, "--schedule", "hpds", "--loop-order", "tile", "--max-blocks", 2)
    result = sley("compile", *what, "-o", plan)
    assert result.exit_code == 1
    assert "F4" in result.stderr
    assert not plan.exists()


def test_a_file_is_lifted_and_scheduled_anew(tmp_path: Path) -> None:
    xml = tmp_path / "ring.xml"
    assert sley("compile", "ring-allreduce", "--ranks", 4, "-o", xml).exit_code == 0
    said = compiled(xml, "--schedule", "hpds", "--allocate", "state")
    assert said["loop_order"] == "instruction"
    assert said["sub_pipelines"] > 0
    run = sley("run", xml, "--schedule", "hpds", "-b", "4K", "-n", 1)
    assert run.exit_code == 0, run.output
    assert "0 OK" in run.stdout


def test_a_cluster_is_named_by_its_numbers(tmp_path: Path) -> None:
    xml = tmp_path / "mesh.xml"
    assert sley("compile", "hm-allreduce", *GRID, "-o", xml).exit_code == 0
    own = compiled(xml, "--schedule", "hpds", "--topology", "2x4")
    shared = compiled(xml, "--schedule", "hpds", "--topology", "2x4:1")
    assert shared["estimate"]["time_us"] > own["estimate"]["time_us"]
    small = sley("compile", xml, "--schedule", "hpds", "--topology", "1x4")
    assert small.exit_code == 2
    assert "C305" in small.stderr
    assert sley("compile", xml, "--schedule", "hpds", "--topology", "2y4").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("hm-allreduce", *GRID, "--schedule", "fifo"),
        ("hm-allreduce", *GRID, "--loop-order", "sideways"),
        ("ring-allreduce", "--ranks", 4, "--arg", "stage_channels=0,1"),
        ("ring-allreduce", "--ranks", 4, "--arg", "nics=1"),
    ],
)
def test_options_that_mean_nothing_are_wrong_usage(arguments: tuple[object, ...]) -> None:
    assert sley("compile", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("hm-allreduce", *GRID, "--loop-order", "instruction"), "C309"),
        (("hm-allreduce", *GRID, "--schedule", "hpds", "--fusion"), "C309"),
        (("hm-allreduce", *GRID, "--max-blocks", 0), "C304"),
        (("hm-allreduce", *GRID, "--arg", "nics=3"), "C308"),
        (("hm-allreduce", *GRID, "--arg", "stage_channels=0,1"), "L102"),
        (("hm-allreduce", *GRID, "--arg", "stage_channels=7"), "L102"),
        (("multi-ring-allreduce", *GRID, "--arg", "orders=[[0,1,2],[2,1,0]]"), "L136"),
        (("multi-ring-allreduce", *GRID, "--arg", "orders=x"), "L136"),
        (("multi-ring-allreduce", "--topology", "dgx1", "--arg", "rings=1"), "C301"),
    ],
)
def test_options_that_dont_fit_are_refused(arguments: tuple[object, ...], code: str) -> None:
    result = sley("compile", *arguments)
    assert result.exit_code == 2
    assert code in result.stderr


def test_instances_cut_the_whole_and_node_instances_the_phases_within_nodes() -> None:
    what = ("hierarchical-allreduce", "--nodes", 2, "--gpus", 2, "--in-place")
    build = partial(hierarchical_allreduce, 2, 2, in_place=True)
    whole = api.compile(build(), instances=2)
    within = api.compile(build(node_instances=2))
    assert len(whole.instructions) != len(within.instructions)
    for option, plan in ((("--instances", 2), whole), (("--arg", "node_instances=2"), within)):
        found = compiled(*what, *option)
        assert found["instructions"] == len(plan.instructions)
        assert (found["chunks"], found["channels"]) == (plan.collective.chunks, plan.channels)


def test_what_a_file_says_itself_is_wrong_usage(text: Path, tmp_path: Path) -> None:
    xml = tmp_path / "ring.xml"
    assert sley("compile", "ring-allreduce", "--ranks", 4, "-o", xml).exit_code == 0
    for arguments in (
        (text, "--root", 1),
        (text, "--arg", "stage_channels=0"),
        (text, "--arg", "node_instances=2"),
        (xml, "--allocate", "state"),
        (xml, "--max-blocks", 2),
        (xml, "--ranks", 2, "--schedule", "hpds"),
    ):
        assert sley("compile", *arguments).exit_code == 2, arguments
