"""sley simulate and sley compare."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import sley as library
from sley.cli import main

RING = ("ring-allreduce", "--instances", 4, "--topology", "ndv4")


@pytest.fixture
def ring(plans: Mapping[str, Path]) -> Path:
    """The plan of RING, in a file."""
    return plans["ring"]


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def simulated(*arguments: object) -> list[dict[str, Any]]:
    result = sley(*arguments, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["simulations"]
    assert isinstance(rows, list)
    return rows


def test_the_command_gives_the_figures_of_the_library() -> None:
    plan = library.compile(
        library.algorithms.ring_allreduce(8, in_place=True),
        instances=4,
        topology=library.topologies.ndv4(),
    )
    own = library.simulate(plan, "16M")
    (row,) = simulated("simulate", *RING, "-b", "16M")
    assert row["time_us"] == own.time_us
    assert row["of_bound"] == own.of_bound
    assert row["bound_reason"] == own.bound.reason


def test_one_size_in_full_and_several_as_a_table(ring: Path) -> None:
    full = sley("simulate", ring, "-b", "1M").stdout
    assert "critical path" in full
    table = sley("simulate", ring, "-b", "1M", "-e", "16M", "-f", 4).stdout
    assert len(table.splitlines()) == len(
        sley("simulate", ring, "-b", "1M", "-e", "4M").stdout.splitlines()
    )
    assert "critical path" not in table


def test_what_if_is_in_the_text_in_the_json_and_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = sley("simulate", *RING, "-b", "1M", "--what-if", "--html", page).stdout
    assert "thread blocks twice as fast" in text
    made = json.loads(sley("simulate", *RING, "-b", "1M", "--what-if", "--json").stdout)
    assert len(made["what_if"]) == 7
    assert "twice the instances (8 blocks on a rank)" in text
    for change in made["what_if"]:
        assert f"{change['text']}  " in text
        assert f'"text":"{change["text"]}"'.replace(">", "\\u003e") in page.read_text()
    refused = sley("simulate", *RING, "-b", "1M", "-e", "2M", "--what-if")
    assert refused.exit_code == 2
    assert "--what-if is for one size" in refused.stderr


def test_a_trace_that_is_cut_says_so_and_one_in_gz_is_packed(
    ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole.json.gz", tmp_path / "cut.json"
    assert "note" not in sley("simulate", ring, "-b", "1M", "--trace", whole).stderr
    every = json.loads(gzip.decompress(whole.read_bytes()))["otherData"]
    monkeypatch.setattr("sley.cli.simulate.MOST_EXECUTIONS", 50)
    done = sley("simulate", ring, "-b", "1M", "--trace", cut)
    about = json.loads(cut.read_text())["otherData"]
    assert about["executions"] == every["executions"]
    assert f"{about['complete_ranks']} of 8 ranks" in done.stderr


def test_a_target_simulates_what_it_makes_of_the_file(tmp_path: Path) -> None:
    (own,) = simulated("simulate", *RING, "--generated")
    (executor,) = simulated("simulate", *RING, "--target", "executor")
    (rccl,) = simulated("simulate", *RING, "--target", "rccl")
    assert executor["interpreter"]
    assert not own["interpreter"]
    # RCCL's file has no operations that receive, reduce and send at once.
    assert rccl["time_us"] > 2 * executor["time_us"] > 2 * own["time_us"]
    file = tmp_path / "ring.xml"
    written = sley("compile", *RING, "--in-place", "--target", "rccl", "-o", file)
    assert written.exit_code == 0, written.output
    (again,) = simulated("simulate", file, "--topology", "ndv4", "--target", "rccl")
    assert again["time_us"] == rccl["time_us"]


def test_the_plan_that_is_simulated_is_told_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    written = sley("compile", *RING, "-o", file).stdout
    command = f"sley simulate {file} --target executor --topology ndv4"
    assert f"its time               {command}: as executor executes the file\n" in written
    assert sley(*command.split()[1:], "-b", "1M").exit_code == 0
    assert "sley doesn't simulate" in sley("compile", *RING, "-o", file.with_suffix(".json")).stdout
    own = sley("simulate", *RING, "-b", "1M").stdout.splitlines()[-1]
    as_file = "as generated kernels; as a file for a runtime: --target executor, rccl or msccl"
    assert own == f"# the plan {as_file}"
    of_file = sley("simulate", file, "--topology", "ndv4", "-b", "1M").stdout.splitlines()[-1]
    assert of_file == f"# {file} {as_file}"
    for option in ("--interpreter", "--target=executor"):
        assert "as generated kernels" not in sley("simulate", *RING, "-b", "1M", option).stdout


def test_the_answer_comes_first_and_parameters_only_on_request() -> None:
    lines = sley("simulate", *RING, "-b", "1M").stdout.splitlines()
    assert lines[0].startswith("plan ")
    more = sley("simulate", *RING, "-b", "1M", "-v").stdout
    for name in ("parameters of the model", "  launch_us ", "parameters of the topology"):
        assert name in more
        assert name not in "\n".join(lines)


def test_sizes_for_which_no_runtime_chooses_the_file_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    range_of = ("--min-bytes", "32K", "--max-bytes", "128K")
    assert sley("compile", *RING, "--in-place", *range_of, "-o", file).exit_code == 0
    many = ("simulate", file, "--topology", "ndv4", "-b", "16K", "-e", "256K", "-f", 4)
    for target in ((), ("--target", "executor")):
        assert "32K to 128K: no runtime chooses it for 16K, 256K" in sley(*many, *target).stderr
    assert "note" not in sley(*many[:4], "-b", "64K").stderr


def test_the_json_has_the_models_error_and_the_notes() -> None:
    arguments = ("simulate", "nccl-allreduce", "--topology", "dgx-h100", "-b", "1M")
    said = json.loads(sley(*arguments, "--json").stdout)
    text = sley(*arguments)
    (row,) = said["simulations"]
    assert re.search(f"^model's error +{re.escape(row['model_error'])}$", text.stdout, re.M)
    (note,) = said["notes"]
    assert "dgx-h100-nvls has it" in note
    assert f"note: {note}\n" == text.stderr


def test_a_target_with_one_sided_plans_is_refused() -> None:
    result = sley("simulate", *RING, "--target", "mscclpp")
    assert result.exit_code == 2
    assert "'mscclpp' is not one of 'executor', 'rccl', 'msccl'" in result.stderr


def test_the_limit_and_its_remedy_are_in_every_output(ring: Path) -> None:
    (row,) = simulated("simulate", ring)
    assert row["limit"]["factor"] == "blocks"
    assert row["limit"]["remedy"] in sley("simulate", ring).stdout
    table = sley("simulate", ring, "-b", "1K", "-e", "64M", "-f", 65536).stdout.splitlines()
    assert [line.split()[-1] for line in table[:-2]] == ["limit", "(GB/s)", "latency", "blocks"]


def test_an_algorithm_without_a_size_gets_the_clusters() -> None:
    (flat,) = simulated("simulate", "ring-allreduce", "--topology", "2x4")
    (nodes,) = simulated("simulate", "hm-allreduce", "--topology", "2x4")
    assert flat["blocks"] == 8
    assert nodes["topology"] == "2x4"
    assert (
        simulated("simulate", "ring-allreduce", "--ranks", 4, "--topology", "2x4")[0]["blocks"] == 4
    )


def test_a_function_is_said_to_get_other_sizes_than_its_own(tmp_path: Path) -> None:
    file = tmp_path / "sized.py"
    file.write_text(
        "import sley\n"
        "def needs(ranks): return sley.algorithms.build('ring-allreduce', ranks=ranks)\n"
        "def has(ranks=4): return needs(ranks)\n"
    )
    words = ("--topology", "1x2", "-b", "1K")
    assert f"{file}:has gets ranks=2 of 1x2" in sley("simulate", f"{file}:has", *words).stderr
    assert "note" not in sley("simulate", f"{file}:needs", *words).stderr


def test_parameters_of_the_model_can_be_set(ring: Path) -> None:
    (plain,) = simulated("simulate", ring, "-b", "1K")
    (later,) = simulated("simulate", ring, "-b", "1K", "--set", "launch_us=100")
    assert later["time_us"] == pytest.approx(plain["time_us"] - 8.4 + 100)
    (by_protocol,) = simulated("simulate", ring, "-b", "1K", "--set", "launch_us=1,2,100")
    assert by_protocol["time_us"] == later["time_us"]
    (tiles,) = simulated("simulate", ring, "-b", "16M", "--set", "tile_bytes=64K")
    assert tiles["tiles"] == 8
    (slower,) = simulated("simulate", ring, "-b", "16M", "--interpreter")
    assert slower["time_us"] > simulated("simulate", ring, "-b", "16M")[0]["time_us"]


def test_html_and_trace_are_written(ring: Path, tmp_path: Path) -> None:
    page, trace, plot = tmp_path / "p.html", tmp_path / "t.json", tmp_path / "p.svg"
    done = sley("simulate", ring, "--html", page, "--trace", trace, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert page.read_text().startswith("<!")
    assert json.loads(trace.read_text())["traceEvents"]
    assert "<svg" in plot.read_text()


def test_a_file_of_others_is_simulated(tmp_path: Path) -> None:
    xml = tmp_path / "ring.xml"
    assert sley("compile", "ring-allreduce", "--ranks", 8, "-o", xml).exit_code == 0
    (row,) = simulated("simulate", xml, "--topology", "ndv4", "-b", "1M")
    assert row["topology"] == "ndv4"
    table = sley("compare", xml, "ring-allreduce", "--topology", "ndv4", "-b", "1M").stdout
    assert "1M  ring.xml" in table  # without its folders, which would widen the column


def test_several_plans_are_simulated_side_by_side(tmp_path: Path) -> None:
    what = ("ring-allreduce --instances 4", "all-pairs-allreduce --protocol ll")
    rows = simulated("compare", *what, "--topology", "ndv4", "-b", "1K", "-e", "1M", "-f", 1024)
    assert [row["what"] for row in rows] == [what[0]] * 2 + [what[1]] * 2
    page = tmp_path / "p.html"
    table = sley("compare", *what, "--topology", "ndv4", "--html", page).stdout
    assert all(text in table for text in what)
    assert page.exists()
    several = ("compare", "nccl-allreduce --topology dgx1", "nccl-allreduce", "--topology", "ndv4")
    assert [row["topology"] for row in simulated(*several)] == ["dgx1", "ndv4"]
    table = sley(*several).stdout
    assert [line.split()[-1] for line in table.splitlines()[:3]] == ["topology", "dgx1", "ndv4"]


def test_a_plan_of_a_collective_that_is_also_named_is_compared_once() -> None:
    rows = simulated("compare", "ring-allreduce", "allreduce", "--topology", "1x2", "-b", "1K")
    assert [row["what"] for row in rows].count("ring-allreduce") == 1
    assert len(rows) > 2


def test_a_comparison_leaves_out_plans_with_errors_and_names_them() -> None:
    what = ("ring-allreduce", "hm-allreduce --arg nics=3", "all-pairs-allreduce")
    arguments = ("compare", *what, "--topology", "ndv4", "-b", "1K")
    result = sley(*arguments)
    assert result.exit_code == 1
    assert "not compared: hm-allreduce --arg nics=3\nerror: C308" in result.stderr
    assert "all-pairs-allreduce" in result.stdout
    result = sley(*arguments, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (1, False)
    assert [row["what"] for row in found["simulations"]] == [what[0], what[2]]
    (refused,) = found["refused"]
    assert (refused["what"], refused["diagnostics"][0]["code"]) == (what[1], "C308")


def test_what_is_true_of_all_plans_is_said_once() -> None:
    what = ("compare", "ring-allgather --topology mi250x", "all-pairs-allgather --topology mi250x")
    assert sley(*what, "-b", "1M").stderr.count("T611") == 1
    unknown = sley("compare", "ring-allgather", "all-pairs-allgather", "--topology", "ndv44")
    assert (unknown.exit_code, unknown.stderr.count("T604 unknown-topology")) == (2, 1)


def test_files_of_reports_are_named(ring: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "p.html", tmp_path / "p.svg"
    result = sley("simulate", ring, "-b", "1K", "--html", page, "--plot", picture)
    assert result.stdout.splitlines()[-2:] == [f"{'written':<23}{f}" for f in (page, picture)]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        (("simulate", "ring-allreduce", "--ranks", 4), 2, "needs --topology, such as"),
        (("simulate", *RING, "--size", "64M"), 2, "Use -b SIZE"),
        (("simulate", "ring-allreduce", "--ranks", 9, "--topology", "ndv4"), 2, "C305"),
        (("simulate", "ring-allreduce", "--ranks", 16, "--topology", "ndv4"), 2, "ndv4:2"),
        (("simulate", *RING, "-b", "0"), 2, "size from 1"),
        (("simulate", *RING, "-b", "64 apples"), 2, "size"),
        (("simulate", *RING, "-b", "2M", "-e", "1M"), 2, "less than"),
        (("simulate", *RING, "--set", "launc_us=1"), 2, "launch_us"),
        (("simulate", *RING, "--set", "launch_us=-1"), 2, "T602"),
        (("simulate", *RING, "--set", "launch_us=fast"), 2, "not a number"),
        (("simulate", *RING, "--set", "wait_us=1,2,3"), 2, "one number"),
        (("simulate", *RING, "-b", "1K", "-e", "4K", "--trace", "x.json"), 2, "one size"),
        (("simulate", *RING, "--plot", "x.bmp"), 2, "F460"),
        (("simulate", "ring-allreduce", "--topology", "ndv44"), 2, "T604"),
        (("simulate", "all-pairs-allgather", "--topology", "dgx1"), 2, "C301"),
        (("simulate", "nvls-allreduce", "--topology", "ndv4"), 2, "C315"),
        (("compare", "--topology", "ndv4"), 2, "Missing argument"),
        (("compare", "ring-allreduce", "ring-allgather", "--topology", "ndv4"), 2, "C313"),
        (("compare", "ring-allreduce", "ring-allreduce --ranks 4", "--topology", "1x8"), 2, "C313"),
        (("compare", "nccl-allreduce", "ring-allreduce --ranks 4", "--topology", "1x8"), 2, "C313"),
        (("compare", "ring-allreduce 'x", "--topology", "ndv4"), 2, "quotation"),
        (("compare", "ring-allreduce --rank 3", "--topology", "ndv4"), 2, "--rank"),
        (("compare", "--help"), 0, "side by side"),
    ],
)
def test_mistakes_end_with_their_code_and_message(
    arguments: tuple[object, ...], exit_code: int, told: str
) -> None:
    result = sley(*arguments)
    assert result.exit_code == exit_code, result.output
    assert told in result.output


def test_what_cannot_be_compared_is_refused_before_the_first_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("sley.model.simulation.Simulator.__call__")
    what = ("ring-allreduce", "ring-allreduce --ranks 4")
    result = sley("compare", *what, "--topology", "1x8")
    assert (result.exit_code, "C313" in result.stderr) == (2, True), result.output


def test_the_librarys_algorithms_are_in_place_unless_asked() -> None:
    ring = ("ring-allgather", "--topology", "1x4", "--no-fusion", "-b", "16M")
    (usual,) = simulated("simulate", *ring)
    (inside,) = simulated("simulate", *ring, "--in-place")
    (outside,) = simulated("simulate", *ring, "--out-of-place")
    assert usual["time_us"] == inside["time_us"] < outside["time_us"]


def test_the_size_is_what_is_chosen_for() -> None:
    few = ("--schedule", "auto", "--instances", 1, "--channels", 1)
    (row,) = simulated("simulate", "ring-allreduce", "--topology", "1x4", *few, "-b", "1K")
    assert row["size_bytes"] == 1024


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        (("simulate", *RING, "-b", "1", "-e", "1G", "-i", "1"), 2, "sizes"),
        (("simulate", *RING, "--set", "wait_us=1_0"), 2, "not a number"),
        (("simulate", *RING, "--set", "wait_us=1", "--set", "wait_us=2"), 2, "twice"),
        (("simulate", *RING, "--html", "/nowhere/page.html"), 2, "F461"),
        (("calibrate", "-o", "/nowhere/here.toml"), 2, "F461"),
        (("simulate", "ring-allreduce", "--topology", "x" * 5000), 2, "T604"),
    ],
)
def test_mistakes_with_files_end_with_their_code_and_message(
    arguments: tuple[object, ...], exit_code: int, told: str
) -> None:
    result = sley(*arguments)
    assert result.exit_code == exit_code, result.output
    assert told in result.output
