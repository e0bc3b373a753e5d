"""Every command takes a plan file, with the topology in it, or says which command does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley as library
from sley.cli import main
from sley.formats import read

NAMES = ("ring", "small-ring", "two-levels", "pairs", "rooted", "varying")


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_file_is_proven_and_lifted(name: str, plans: Mapping[str, Path]) -> None:
    proven = sley("verify", plans[name])
    assert proven.exit_code == 0, proven.output
    assert proven.stdout.startswith("proven: ")
    assert f"\nmade from: {name}\n" in proven.stdout
    assert json.loads(sley("verify", plans[name], "--json").stdout)["recipe"] == {"what": name}
    assert sley("lift", plans[name]).stdout.startswith("import sley\n")


def test_compile_writes_a_file_that_loads_as_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    ring = ("ring-allreduce", "--topology", "ndv4", "--protocol", "ll")
    assert f"written                {path}\n" in sley("compile", *ring, "-o", path).stdout
    program = library.algorithms.ring_allreduce(8)
    assert library.load(path) == library.compile(program, topology="ndv4", protocol="LL")
    recipe = {"what": "ring-allreduce", "arguments": "topology=ndv4", "options": "protocol=LL"}
    assert read(path).recipe == recipe
    again = tmp_path / "again.plan"
    assert sley("compile", path, "-o", again).exit_code == 0
    assert again.read_bytes() == path.read_bytes()


def test_a_recipe_names_no_folder_of_the_user(tmp_path: Path) -> None:
    program, path = tmp_path / "own.py", tmp_path / "x.plan"
    program.write_text(
        "import sley\n\n@sley.program(sley.AllGather(1))\ndef own(p):\n"
        '    p.chunk(0, "in", 0).copy(0, "out", 0)\n'
    )
    done = sley("compile", program, "-o", path, "--", f"--file={tmp_path}/private", "x")
    assert done.exit_code == 0, done.output
    assert str(tmp_path).encode() not in path.read_bytes()
    assert read(path).recipe == {"what": "own.py", "arguments": "--file=private x", "options": ""}


def test_a_plan_with_a_topology_needs_no_other(plans: Mapping[str, Path], tmp_path: Path) -> None:
    own = sley("simulate", plans["ring"], "-b", "1M", "--json")
    (row,) = json.loads(own.stdout)["simulations"]
    assert (row["topology"], row["blocks"]) == ("ndv4", 32)
    (wide,) = json.loads(
        sley("simulate", plans["ring"], "-b", "1M", "--topology", "1x8", "--json").stdout
    )["simulations"]
    assert wide["topology"] == "1x8"
    assert "needs --topology" in sley("simulate", plans["pairs"], "-b", "1M").stderr
    compared = sley("compare", plans["two-levels"], "hm-allreduce", "--topology", "2x2", "-b", "1M")
    assert f"1M  {plans['two-levels'].name}" in compared.stdout
    target = sley("simulate", plans["ring"], "--target", "msccl", "-b", "1M")
    assert "S702" not in target.stderr
    assert "topology" not in target.stderr


def test_a_plan_file_runs_and_is_measured(plans: Mapping[str, Path]) -> None:
    few = ("-b", "1K", "-e", "1K", "-n", "1", "-w", "0")
    ran = sley("run", plans["small-ring"], *few, "--json")
    assert [row["in_place"]["wrong"] for row in json.loads(ran.stdout)["rows"]] == [0]
    bench = sley(
        "run", plans["small-ring"], *few, "--engine", "both", "--device", "threads", "--json"
    )
    assert bench.exit_code == 0, bench.output


def test_a_plan_file_is_drawn_and_written_for_runtimes(
    plans: Mapping[str, Path], tmp_path: Path
) -> None:
    for of in ("chunks", "instructions", "blocks"):
        picture = tmp_path / f"{of}.svg"
        drawn = sley("draw", plans["pairs"], "--of", of, "-o", picture)
        assert drawn.exit_code == 0, drawn.output
        assert "<svg" in picture.read_text()
    for target, suffix in (("msccl", ".xml"), ("mscclpp", ".json")):
        file = tmp_path / f"pairs{suffix}"
        written = sley("compile", plans["pairs"], "--target", target, "-o", file)
        assert written.exit_code == 0, written.output
        assert sley("verify", file, "--target", target).exit_code == 0
    limits = sley("verify", plans["pairs"], "--target", "msccl")
    assert limits.stdout.endswith("within the limits of msccl\n")
    table = tmp_path / "plans.toml"
    table.write_text(f'[[plans]]\nwhat = "{plans["pairs"]}"\n')
    package = sley("package", "--table", table, "--target", "rccl", tmp_path / "made")
    assert package.exit_code == 0, package.output


def test_options_of_the_compiler_need_a_schedule(plans: Mapping[str, Path], tmp_path: Path) -> None:
    refused = sley("compile", plans["pairs"], "--protocol", "ll")
    assert (refused.exit_code, "already compiled" in refused.stderr) == (2, True)
    again = sley("compile", plans["pairs"], "--schedule", "hpds", "-o", tmp_path / "hpds.plan")
    assert again.exit_code == 0, again.output
    assert library.load(tmp_path / "hpds.plan") != library.load(plans["pairs"])
    assert "C309" in sley("verify", plans["pairs"], "--in-place").stderr
    assert sley("verify", plans["small-ring"], "--slots", "9").stdout.count("9 slots") == 2


def test_a_damaged_file_is_named_with_its_fault(plans: Mapping[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.plan"
    damaged.write_bytes(plans["ring"].read_bytes()[:-1])
    for command in ("verify", "simulate", "run", "lift"):
        refused = sley(command, damaged)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"error: {damaged}: F425 damaged-plan-file")
    assert "a plan of sley" in sley("doctor", plans["ring"]).stderr


def test_choose_takes_a_plan_file_as_given_alone_and_beside_another(
    plans: Mapping[str, Path], tmp_path: Path
) -> None:
    few = ("--topology", "ndv4", "-b", "1M", "-e", "1M", "--protocol", "simple", "--channels", "1")
    few = (*few, "--instances", "1", "--schedule", "msccl")
    for what in ([plans["ring"]], [plans["ring"], "ring-allreduce"]):
        chosen = sley("choose", *what, *few)
        assert chosen.exit_code == 0, chosen.output
        assert "as given" in chosen.stdout
    damaged = tmp_path / "damaged.plan"
    damaged.write_bytes(plans["ring"].read_bytes()[:-1])
    assert "F425" in sley("choose", damaged, *few).stderr


def test_no_command_approves_a_plan_whose_messages_hang_at_the_target(tmp_path: Path) -> None:
    path = tmp_path / "h.plan"
    program = library.algorithms.build("hierarchical-allreduce", nodes=2, gpus=4, in_place=True)
    library.save(library.compile(program, topology="2x4"), path)
    written = sley("compile", path, "-o", tmp_path / "h.xml").stderr
    assert "V203 hang" in written
    for command in ("verify", "simulate", "compile"):
        refused = sley(command, path, "--target", "executor")
        assert refused.exit_code == 1, refused.output
        assert refused.stderr == written
    assert "with --schedule msccl if WHAT is a file with a plan" in " ".join(written.split())
    again = sley("compile", path, "--schedule", "msccl", "-o", tmp_path / "h.xml")
    assert again.exit_code == 0, again.output


def test_the_topology_of_a_plan_stays_when_it_is_compiled_again(
    plans: Mapping[str, Path], tmp_path: Path
) -> None:
    one = ("-b", "1M", "--json")
    for schedule in ("hpds", "auto"):
        again = sley("simulate", plans["small-ring"], "--schedule", schedule, *one)
        assert again.exit_code == 0, again.output
        assert json.loads(again.stdout)["simulations"][0]["topology"] == "1x2"
    plan = library.load(plans["small-ring"])
    assert library.choose(plan, ["1M"], instances=1).topology == plan.topology
    for name, topology in (("two-levels", "2x2"), ("pairs", "NAME")):
        for options in ((), ("--schedule", "msccl")):
            written = sley("compile", plans[name], *options, "-o", tmp_path / "made.xml")
            assert f"--target executor --topology {topology}: as" in written.stdout, written.output
