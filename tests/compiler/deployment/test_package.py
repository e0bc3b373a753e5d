"""Packages: what is written for a runtime is what the runtime runs."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from sley.cli import main
from sley.compiler.deployment import DeployedCall, decide, examine, runtime_named
from sley.errors import SleyError
from sley.errors.formats import F461
from sley.formats import files
from sley.ir.plan_table import read_table
from sley.ir.sizes import SizeRange
from support.inputs.deployments import plan
from support.inputs.xml_plans import exchange

TABLE = """
[[plans]]
what = "double-binary-tree-allreduce"
ranks = 4
max_bytes = "64K"
options = { protocol = "LL" }

[[plans]]
what = "ring-allreduce"
ranks = 4
in_place = true
min_bytes = 65537
max_bytes = "1M"

[[plans]]
what = "flat-gather"
ranks = 4
root = 2
min_bytes = "4K"
"""
RUNTIMES = ("executor", "rccl")


def package(folder: Path, table: str, runtime: str, *further: str) -> Result:
    path = folder / "table.toml"
    path.write_text(table)
    arguments = ["package", folder / "plans", "--table", path, "--target", runtime, *further]
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.mark.parametrize(
    ("entry", "sizes"),
    [
        ("", (4096, 65536)),
        ("min_bytes = 8192", (8192, 65536)),
        ('max_bytes = "1M"', (4096, 1 << 20)),
    ],
)
def test_a_file_in_a_package_keeps_its_own_sizes(tmp_path, entry, sizes):
    files.save(exchange(), tmp_path / "old.xml", min_bytes=4096, max_bytes=65536)
    table = f'[[plans]]\nwhat = "old.xml"\n{entry}\n'
    assert package(tmp_path, table, "rccl").exit_code == 0
    (found,) = examine(tmp_path / "plans", runtime_named("rccl")).reading.candidates
    assert found.sizes == SizeRange(*sizes)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_call_of_a_package_runs_the_file_of_its_range(tmp_path, runtime):
    document = json.loads(package(tmp_path, TABLE, runtime, "--json").stdout)
    assert document["ok"]
    assert {Path(path) for path in document["files"]} == set((tmp_path / "plans").iterdir())
    assert document["environment"]["MSCCL_ALGO_DIR"] == str(tmp_path / "plans")
    examined = examine(tmp_path / "plans", runtime_named(runtime))
    assert examined.problems == ()
    for collective, size, in_place, file in (
        ("allreduce", 4096, False, "01-double-binary-tree-allreduce.xml"),
        ("allreduce", 65536, True, "01-double-binary-tree-allreduce-in-place.xml"),
        ("allreduce", 131072, True, "02-ring-allreduce-in-place.xml"),
        ("allreduce", 131072, False, None),
        ("allreduce", 2 << 20, True, None),
        ("gather", 4096, False, "03-flat-gather.xml"),
        ("gather", 4080, False, None),
    ):
        chosen = decide(examined, DeployedCall(collective, size, 4, 4, in_place)).chosen
        assert chosen == ((file,) if file else ()), (collective, size, in_place)


def test_a_package_with_a_hole_between_ranges_has_a_note(tmp_path):
    result = package(tmp_path, TABLE.replace("65537", "131072"), "rccl")
    assert result.exit_code == 0
    assert "note: allreduce, 4 ranks, in place: F513 hole-between-ranges: 65537" in result.stderr


def test_files_are_beside_the_table(tmp_path):
    package(tmp_path, TABLE, "executor")
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "plans" / "02-ring-allreduce-in-place.xml").rename(other / "ring.xml")
    result = package(other, '[[plans]]\nwhat = "ring.xml"\nmax_bytes = "128K"\n', "rccl")
    assert result.exit_code == 0, result.output
    assert [path.name for path in (other / "plans").iterdir()] == ["01-ring.xml"]


@pytest.mark.parametrize(
    ("runtime", "change", "code"),
    [
        ("rccl", ("65537", '"64K"'), "F512"),
        ("executor", ("ranks = 4", "ranks = 34"), "F444"),
        ("msccl", ("", ""), "F518"),
        ("nccl", ("", ""), "F501"),
        ("rccl", ('"LL"', '"direct"'), "F441"),
        ("rccl", ('"LL"', '"LLL"'), "C304"),
        ("rccl", ("flat-gather", "flat-gathers"), "L120"),
    ],
)
def test_nothing_is_written_if_the_doctor_or_the_proof_finds_a_problem(
    tmp_path, runtime, change, code
):
    table = TABLE.replace(*change, 2 if "ranks" in change[0] else 1)
    result = package(tmp_path, table, runtime)
    assert result.exit_code == 1
    assert code in result.stderr
    assert ".tmp" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["table.toml"]


def test_an_older_version_of_a_runtime_is_refused(tmp_path):
    assert "F501" in package(tmp_path, TABLE, "rccl@2.28.3").stderr


def test_a_folder_with_files_is_not_changed(tmp_path):
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "old.xml").write_text("old")
    assert "F461" in package(tmp_path, TABLE, "rccl").stderr
    assert [path.name for path in (tmp_path / "plans").iterdir()] == ["old.xml"]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def save(*_args, **_settings):
        raise F461.error(expected="a file that can be written", found="No space left on device")

    monkeypatch.setattr(files, "save", save)
    assert "No space left" in package(tmp_path, TABLE, "rccl").stderr
    assert [path.name for path in tmp_path.iterdir()] == ["table.toml"]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("", "[]"),
        ("plans = 3", "3"),
        ("[[plan]]\n", "'plan'"),
        ("[[plans]]\nranks = 4", "no such key"),
        ("[[plans]]", "no such key"),
        ('[[plans]]\nwhat = "x"\nranks = 4\nranks = 5\n', "'ranks = 5'"),
        ('[[plans]]\nwhat = ""', "''"),
        ('[[plans]]\nwhat = "x"\nsize = 3', "'size'"),
        ('[[plans]]\nwhat = "x"\nranks = "4"', "'4'"),
        ('[[plans]]\nwhat = "x"\nranks = -4', "-4"),
        ('[[plans]]\nwhat = "x"\nin_place = 1', "1"),
        ('[[plans]]\nwhat = "x"\nmin_bytes = "1X"', "'1X'"),
        ('[[plans]]\nwhat = "x"\nmin_bytes = 9\nmax_bytes = 8', "max_bytes = 8"),
        ('[[plans]]\nwhat = "x"\noptions = 2', "2"),
        ("[[plans", "Expected"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, table, found):
    (tmp_path / "table.toml").write_text(table)
    with pytest.raises(SleyError) as caught:
        read_table(tmp_path / "table.toml")
    assert caught.value.code == "F528"
    assert found in caught.value.diagnostics[0].found


@pytest.mark.parametrize("table", ['[[plans]]\nwhat = "ring-allreduce"\nprotocol = "LL"\n'])
def test_options_of_the_compiler_belong_into_options(tmp_path, table):
    (tmp_path / "table.toml").write_text(table)
    with pytest.raises(SleyError) as caught:
        read_table(tmp_path / "table.toml")
    assert "options = { protocol = ... }" in caught.value.diagnostics[0].remedy


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (
            'what = "double-binary-tree-allreduce"\nranks = 4\noptions = { protocol = "LL128" }',
            "F441",
        ),
        ('what = "flat-gather"\nranks = 4\nroot = 2', "F443"),
        ('what = "missing.xml"', "F404"),
    ],
)
def test_an_error_names_the_entry_of_the_table(tmp_path, row, code):
    right = '[[plans]]\nwhat = "all-pairs-allreduce"\nranks = 4\n'
    result = package(tmp_path, f"{right}[[plans]]\n{row}\n", "mscclpp-python")
    assert code in result.stderr
    assert f"  also: {tmp_path / 'table.toml'}, plan 2\n" in result.stderr
    assert code != "F441" or "options = { protocol" in result.stderr


PLANS = """
[[plans]]
what = "all-pairs-allreduce"
ranks = 4
max_bytes = "64K"
options = { protocol = "LL" }

[[plans]]
what = "ring-allgather"
nodes = 2
gpus = 2
min_bytes = 65536
"""


def test_execution_plans_are_registered_by_the_program_beside_them(tmp_path, monkeypatch):
    document = json.loads(package(tmp_path, PLANS, "mscclpp-python", "--json").stdout)
    names = [Path(path).name for path in document["files"]]
    pairs, ring = "01-all-pairs-allreduce-in-place.json", "02-ring-allgather-in-place.json"
    assert names == [pairs, ring, "register_plans.py"]
    examined = examine(tmp_path / "plans", runtime_named("mscclpp-python"))
    assert (examined.problems, examined.remarks) == ((), ())
    remarks = document["remarks"]
    end = "a call whose size isn't a multiple of 64 bytes ends the process"
    assert f"F519 size-not-divisible: {end}" in remarks
    meeting = (
        "one size for all calls whose buffers are in the same allocations, or all ranks meet "
        "between two sizes"
    )
    assert f"proven for: {meeting}" in remarks
    assert f"{pairs}: proven for: sum" in remarks
    assert "proven for: allocations of less than 4 GiB" in remarks
    assert not any("in place" in one or "to 64K" in one for one in remarks), remarks
    assert decide(examined, DeployedCall("allreduce", 65536, 4, 4, True)).chosen == (pairs,)
    assert decide(examined, DeployedCall("allreduce", 65536, 4, 4, False)).chosen == ()
    assert decide(examined, DeployedCall("allgather", 65536, 4, 2, True)).chosen == (ring,)

    registered = []
    fake = SimpleNamespace(
        AlgorithmCollectionBuilder=lambda: SimpleNamespace(add_algorithm_builder=registered.append),
        ExecutionPlan=lambda path, rank: (path, rank),
        Algorithm=lambda **words: words,
    )
    fake.Algorithm.Constraint = lambda ranks, node: (ranks, node)
    monkeypatch.setitem(sys.modules, "mscclpp", fake)
    monkeypatch.setenv("RANK", "3")
    runpy.run_path(str(tmp_path / "plans" / "register_plans.py"))["register"]()
    assert [one["constraint"] for one in registered] == [(4, 4), (4, 2)]
    assert [one["execution_plan"] for one in registered] == [
        (str(tmp_path / "plans" / name), 3) for name in (pairs, ring)
    ]


def test_the_default_loader_gets_the_names_of_its_ranks(tmp_path):
    one = '[[plans]]\nwhat = "double-binary-tree-allreduce"\nnodes = 2\ngpus = 8\n'
    table = f'{one}max_bytes = "64K"\n{one}min_bytes = 65552\nmax_bytes = "1M"'
    result = package(tmp_path, table, "mscclpp")
    assert result.exit_code == 0, result.output
    assert f"note: {tmp_path / 'plans'}: F531 not-the-default-folder" in result.stderr
    assert "tmp" not in result.stderr.replace(str(tmp_path), "")
    small, large = "allreduce_2nodes_1K_64K.json", "allreduce_2nodes_128K_2M.json"
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {small, large}
    examined = examine(tmp_path / "plans", runtime_named("mscclpp"))
    for size, name in ((4096, small), (131072, large)):
        assert decide(examined, DeployedCall("allreduce", size, 16, 8, True)).chosen == (name,)


def test_a_plan_gets_the_name_with_the_most_of_its_sizes(tmp_path):
    one = '[[plans]]\nwhat = "double-binary-tree-allreduce"\nnodes = 2\ngpus = 8\n'
    result = package(tmp_path, f'{one}min_bytes = "64K"\nmax_bytes = "2M"', "mscclpp")
    assert result.exit_code == 0, result.output
    names = [path.name for path in (tmp_path / "plans").iterdir()]
    assert names == ["allreduce_2nodes_128K_2M.json"]


def test_too_many_plans_for_the_default_loader_are_counted_by_ranks(tmp_path):
    one = '[[plans]]\nwhat = "double-binary-tree-allreduce"\nnodes = 2\ngpus = 8\n'
    rows = [f"{one}min_bytes = {n << 20}\nmax_bytes = {n + 1 << 20}\n" for n in (1, 3, 5)]
    result = package(tmp_path, "".join(rows), "mscclpp")
    assert "found:    other plans have allreduce_2nodes_1K_64K.json and" in result.stderr


def test_an_execution_plan_is_copied_for_mscclpp(tmp_path):
    plan(tmp_path / "own.json", ranks=4)
    rows = '[[plans]]\nwhat = "own.json"\nnodes = 1\ngpus = 4\nmax_bytes = "4K"\n'
    rows += '[[plans]]\nwhat = "own.json"\nmin_bytes = 4097\n'
    result = package(tmp_path, rows, "mscclpp-python")
    assert result.exit_code == 0, result.output
    examined = examine(tmp_path / "plans", runtime_named("mscclpp-python"))
    assert (examined.problems, examined.remarks) == ((), ())
    for size, name in ((4096, "01-own.json"), (8192, "02-own.json"), (65552, None)):
        chosen = decide(examined, DeployedCall("allreduce", size, 4, 4, True)).chosen
        assert chosen == ((name,) if name else ())


@pytest.mark.parametrize(
    "word", ["ranks = 3", "nics = 4", "in_place = false", 'options = { protocol = "LL" }']
)
def test_a_copied_plan_says_its_own_values(tmp_path, word):
    plan(tmp_path / "own.json", ranks=4)
    result = package(tmp_path, f'[[plans]]\nwhat = "own.json"\n{word}\n', "mscclpp-python")
    assert (result.exit_code, "F528" in result.stderr) == (1, True), result.output
    assert f"also: {tmp_path / 'table.toml'}, plan 1" in result.stderr


def test_a_wrong_copied_plan_is_refused(tmp_path):
    plan(tmp_path / "own.json", ranks=4)
    text = (tmp_path / "own.json").read_text()
    (tmp_path / "own.json").write_text(text.replace('"signal"', '"nop"', 1))
    result = package(tmp_path, '[[plans]]\nwhat = "own.json"\n', "mscclpp-python")
    assert (result.exit_code, (tmp_path / "plans").exists()) == (1, False), result.output
    assert "F517" in result.stderr or "F516" in result.stderr
    assert "F499" in package(tmp_path, '[[plans]]\nwhat = "own.json"\n', "rccl").stderr


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (4, 4)])
def test_ranks_without_a_name_of_the_default_loader_are_refused(tmp_path, nodes, gpus):
    what = '[[plans]]\nwhat = "double-binary-tree-allreduce"'
    result = package(tmp_path, f"{what}\nnodes = {nodes}\ngpus = {gpus}", "mscclpp")
    assert result.exit_code == 1
    assert "F507" in result.stderr
    assert "allreduce_4nodes_1K_64K.json for 32 ranks, 8 a node" in result.stderr
    assert not (tmp_path / "plans").exists()


def test_plans_of_both_places_are_not_deployed_together(tmp_path):
    table = PLANS.replace("min_bytes = 65536", "in_place = false")
    result = package(tmp_path, table, "mscclpp-python")
    assert "F510" in result.stderr
    assert not (tmp_path / "plans").exists()
