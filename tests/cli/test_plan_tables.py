"""Tables of plans: the folder that one command writes, every other part reads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sley.cli import main
from sley.communicator.selection.plans import Plans
from sley.compiler.deployment import examine, runtime_named
from sley.ir.plan_table import TABLE, Machine, Measured, PlanRow, PlanTable, Recipe, read_table
from sley.ir.sizes import SizeRange
from sley.tuning import policy as policies
from sley.tuning.policy import Policy
from support.generators.examples import examples
from support.processes.call_cases import hosts_of

BEGIN, END = 1 << 20, (1 << 21) - 1
RING = ("ring-allreduce", "--topology", "1x2", "--in-place", "--instances", "1", "--channels", "1")
SIZES = ("-b", BEGIN, "-e", END, "--protocol", "simple")


def sley(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_plans_of_several_nodes_make_a_package(tmp_path: Path) -> None:
    """The table tells the nodes, which the plans' files have already."""
    sley("choose", "ring-allreduce", "--topology", "2x2", *RING[3:], *SIZES, "-o", tmp_path / "a")
    table = tmp_path / "a" / TABLE
    assert "nodes = 2" in table.read_text()
    sley("package", tmp_path / "b", "--table", table, "--target", "executor")
    assert len([*(tmp_path / "b").glob("*.xml")]) == 1


def chosen(folder: Path) -> None:
    sley("choose", *RING, *SIZES, "-o", folder)


def exported(folder: Path, *target: str) -> None:
    machine = Machine("simulator", "1x2", "f00d", 1, 2)
    recipe = Recipe("ring-allreduce", options={"protocol": "Simple"})
    one = PlanRow(recipe, SizeRange(BEGIN, END), "allreduce")
    path = folder.parent / "policy.toml"
    policies.write(Policy((one,), machine=machine), path)
    sley("tune", "export", path, *target, "-o", folder)


def exported_as_plans(folder: Path) -> None:
    exported(folder, "--target", "executor")


def packaged(folder: Path) -> None:
    table = folder.parent / "own.toml"
    row = PlanRow(Recipe("ring-allreduce"), SizeRange(BEGIN, END), ranks=2)
    table.write_text(PlanTable((row,)).text())
    sley("package", folder, "--table", table, "--target", "rccl")


def test_a_folder_with_files_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    table = tmp_path / "own.toml"
    table.write_text(PlanTable((PlanRow(Recipe("ring-allreduce"), SizeRange(), ranks=2),)).text())
    words = ["package", str(tmp_path), "--table", str(table), "--target", "rccl"]
    told = CliRunner().invoke(main, words).stderr
    assert "F461" in told
    assert "remedy:   Name a new folder" in told


WRITERS: list[Callable[[Path], None]] = [chosen, exported, exported_as_plans, packaged]


@pytest.mark.parametrize("write", WRITERS)
def test_a_communicator_runs_the_plans_of_every_folder(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / "plans")
    found = Plans(hosts_of(2), slots=8, channels=32, plan_dir=tmp_path / "plans", cache=False)
    assert found.problems == ()
    for size in (BEGIN - 1, BEGIN, END, END + 1):
        ready = found.find("all_reduce", size, in_place=True)
        assert (ready.origin == "registered") == (BEGIN <= size <= END), size


@pytest.mark.parametrize("write", [chosen, exported])
def test_every_table_makes_a_package(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "plans")
    sley("package", tmp_path / "p", "--table", tmp_path / "plans" / TABLE, "--target", "rccl")
    examined = examine(tmp_path / "p", runtime_named("rccl"))
    assert examined.problems == ()
    assert {one.sizes for one in examined.reading.candidates} == {SizeRange(BEGIN, END)}


RANK = """
import sys
import numpy as np
from sley.communicator import Communicator, FolderStore

with Communicator(FolderStore(sys.argv[1]), int(sys.argv[2]), 2) as comm:
    data = np.ones(1 << 18, np.float32)
    comm.all_reduce(data)
    assert (data == 2).all()
    print([(row.plan, row.origin) for row in comm.stats()])
"""


@pytest.mark.parametrize("strict", ["0", "1"])
def test_two_processes_run_what_choose_wrote(
    strict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(tmp_path / "plans")
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("SLEY_PLAN_DIR", str(tmp_path / "plans"))
    monkeypatch.setenv("SLEY_PLAN_DIR_STRICT", strict)
    command = [sys.executable, "-c", RANK, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert said == ["[('01-ring-allreduce', 'user')]\n"] * 2


TEXTS = st.text("abc é\"\\'#=[]{}\u007e", max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers(-(1 << 40), 1 << 40) | TEXTS | st.floats(-1e6, 1e6),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=4,
)
NAMED = st.dictionaries(TEXTS, VALUES, max_size=3)
RECIPES = st.builds(
    Recipe,
    st.sampled_from(["ring-allreduce", "rings", "own_one"]),
    NAMED | st.fixed_dictionaries({"nodes": st.integers(1, 9), "gpus": st.integers(1, 9)}),
    NAMED,
    st.sampled_from([1.0, 0.5, 0.015625]),
)
RANGES = st.tuples(st.integers(0, 1 << 50), st.none() | st.integers(0, 1 << 40)).map(
    lambda ends: SizeRange(ends[0], None if ends[1] is None else ends[0] + ends[1])
)
ROWS = st.builds(
    PlanRow,
    RECIPES,
    RANGES.filter(lambda sizes: sizes.end_bytes != 0),
    collective=st.sampled_from(["", "allreduce"]),
    ranks=st.none() | st.integers(1, 99),
    in_place=st.sampled_from([None, True, False]),
    root=st.none() | st.integers(0, 9),
    note=TEXTS,
    measured=st.lists(
        st.builds(Measured, st.integers(1, 1 << 40), st.floats(1e-3, 1e9), st.floats(1e-3, 1e9)),
        max_size=2,
    ).map(tuple),
    alternatives=st.lists(RECIPES, max_size=2).map(tuple),
    refused=st.lists(TEXTS, max_size=2).map(tuple),
)


@examples(30)
@given(
    st.lists(ROWS, min_size=1, max_size=3).map(tuple),
    st.none() | st.builds(Machine, TEXTS, TEXTS, TEXTS, st.integers(1, 9), st.integers(1, 9)),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
)
def test_a_table_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: tuple[PlanRow, ...],
    machine: Machine | None,
    facts: dict[str, str],
) -> None:
    path = tmp_path_factory.mktemp("table") / TABLE
    table = PlanTable(rows, machine, facts)
    path.write_text(table.text(), "utf-8")
    assert read_table(path) == table
