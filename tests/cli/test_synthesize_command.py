"""sley synthesize: a program for a topology, as a file and as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main
from sley.compiler import tree_search


@pytest.fixture(autouse=True)
def _few_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options don't matter here, and all of them take seconds."""
    few = {"schedule": "msccl", "protocol": ["Simple", "LL", "Direct"], "instances": [1, 4]}
    monkeypatch.setattr(tree_search, "COMPARED", {**tree_search.COMPARED, **few})


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce", "alltoall"])
def test_the_program_is_written_and_compiled_again(collective: str, tmp_path: Path) -> None:
    file = tmp_path / "trees.py"
    made = ("synthesize", collective, "--topology", "2x2", "--size", "1M", "-o", file)
    result = sley(*made, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    program = "routed-alltoall" if collective == "alltoall" else f"forest-{collective}"
    assert found["program"] == program
    assert found["algbw_GBps"] <= found["bound_GBps"] * (1 + 1e-9)
    assert 0 < found["simulated"]["of_bound"] <= 1
    again = sley("compile", file, "--json")
    assert again.exit_code == 0, again.output
    ways = 2 if collective == "allreduce" else 1
    numbers = {"chunks": found["chunks"] // 4}
    numbers |= {} if collective == "alltoall" else {"height": found["height"]}
    one = {"sends": found["height"] * ways, "chunks": found["chunks"]}
    assert one in [{word: row[word] for word in one} for row in found["front"]]
    words = [word for name, value in numbers.items() for word in ("--arg", f"{name}={value}")]
    named = sley("compile", program, "--topology", "2x2", "--in-place", "--json", *words)
    plans = [json.loads(one.stdout)["plan"] for one in (again, named)]
    assert plans[0]["instructions"] == plans[1]["instructions"]


def test_a_topology_without_room_for_trees_is_refused() -> None:
    for made in (("synthesize", "allgather"), ("compile", "forest-allgather")):
        result = sley(*made, "--topology", "torus:12x12")
        assert result.exit_code == 2
        assert "T612" in result.stderr
        assert "144" in result.stderr


@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_one_rank_is_refused_in_words_of_the_command(collective: str) -> None:
    result = sley("synthesize", collective, "--topology", "1x1")
    assert result.exit_code == 2
    assert "error: T612" in result.stderr
    assert "found:    1 on 1x1" in result.stderr


@pytest.mark.parametrize("name", ["trees.plan", "trees.xml", "trees.json"])
def test_the_fastest_plan_is_written(name: str, tmp_path: Path) -> None:
    """With its options, and for a runtime one that the runtime takes."""
    file = tmp_path / name
    made = ("synthesize", "allgather", "--topology", "2x2", "--size", "1M", "--json", "-o", file)
    found = json.loads(sley(*made).stdout)
    assert sley("verify", file).exit_code == 0
    if file.suffix == ".plan":
        again = json.loads(sley("simulate", file, "-b", "1M", "--json").stdout)
        assert again["simulations"][0]["time_us"] == pytest.approx(found["simulated"]["time_us"])


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name, code in (("trees.doc", "F460"), ("none/x.py", "F461")):
        result = sley("synthesize", "all_gather", "--topology", "2x2", "-o", tmp_path / name)
        assert (result.exit_code, code in result.stderr) == (2, True)


def test_more_blocks_than_a_gpu_holds_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('name = "small"\nlike = "ndv4"\n[model]\nmultiprocessors = 1\n')
    groups = sley("groups", "0-3:allgather:1M", "0-3:alltoall:1M", "--topology", file)
    compiled = sley("compile", "ring-allreduce", "--topology", file, "--instances", 4)
    plan = ("ring-allreduce", "--topology", "ndv4", "--instances", "2")
    one = sley("simulate", *plan, "--set", "multiprocessors=1")
    assert "more than a GPU's 1 multiprocessors" in one.stderr
    assert "note" not in sley("simulate", *plan).stderr
    for result in (compiled, groups):
        assert "more than a GPU's 1 multiprocessors" in result.stderr


def test_trees_share_blocks_where_all_have_more_than_a_gpu_holds() -> None:
    result = sley("synthesize", "allreduce", "--topology", "one-h100:16", "--size", "1M")
    assert result.exit_code == 0, result.output
    assert "8 blocks on a rank" in result.output
    assert "more than a GPU's" not in result.stderr


def test_a_picture_of_the_trees_is_written(tmp_path: Path) -> None:
    file = tmp_path / "trees.svg"
    result = sley("synthesize", "allgather", "--topology", "2x2", "-o", file)
    assert result.exit_code == 0, result.output
    assert "tree-0-rank-3" in file.read_text()
    result = sley("synthesize", "alltoall", "--topology", "2x2", "-o", tmp_path / "routes.svg")
    assert result.exit_code == 2
    assert "routes.py" in result.stderr


def test_names_of_collectives_are_those_of_other_commands() -> None:
    assert sley("synthesize", "all_gather", "--topology", "2x2", "--chunks", 1).exit_code == 0
    result = sley("synthesize", "broadcast", "--topology", "2x2")
    assert result.exit_code == 2
    assert "T612" in result.stderr


def test_trees_of_several_heights_are_compared() -> None:
    result = sley("compare", "allgather", "--topology", "dgx1", "-b", "16K", "--json")
    assert result.exit_code == 0, result.output
    times = {row["what"]: row["time_us"] for row in json.loads(result.stdout)["simulations"]}
    low = [times[name] for name in times if name.startswith("forest-allgather --arg")]
    assert len(low) > 2
    assert min(low) == min(times.values())


def test_equal_trees_are_compared_once() -> None:
    """The trees of forest-allgather on ndv4:2 are the low ones of 2 sends and a chunk."""
    result = sley("compare", "allgather", "--topology", "ndv4:2", "-b", "16K", "--json")
    names = [row["what"] for row in json.loads(result.stdout)["simulations"]]
    low = [f"--arg chunks={chunks} --arg height={height}" for chunks, height in ((1, 1), (2, 2))]
    assert {"forest-allgather", *(f"forest-allgather {one}" for one in low)} <= {*names}
    assert "forest-allgather --arg chunks=1 --arg height=2" not in names


@pytest.mark.parametrize(
    ("size", "height"), [("1K", 2), pytest.param("1G", 3, marks=pytest.mark.slow)]
)
def test_the_table_shows_the_fastest_trees(size: str, height: int) -> None:
    result = sley("synthesize", "all_gather", "--topology", "dgx1", "--size", size)
    assert result.exit_code == 0, result.output
    table = result.stdout.partition("compared")[2].splitlines()
    (row,) = (line.split() for line in table if line.startswith("fastest"))
    assert int(row[1]) == height
