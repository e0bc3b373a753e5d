"""Folders that `sley package --target sley` writes: communicators read the plans of the table from
them, and GPUs the machine code."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley
from sley.algorithms import build
from sley.cli import main
from sley.communicator.selection.plans import Plans
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.kernels.prebuilt import code_in
from sley.engine.types import DATA_TYPES
from support.devices.machine_code import skip_without_nvrtc
from support.processes.call_cases import hosts_of

TABLE = """
[[plans]]
what = "ring-allreduce"
ranks = 3
min_bytes = "64K"

[[plans]]
what = "flat-gather"
ranks = 3
root = 1
in_place = false
"""


def package(folder: Path, table: str, *further: str) -> Result:
    path = folder / "table.toml"
    path.write_text(table)
    arguments = ["package", folder / "plans", "--table", path, "--target", "sley", *further]
    return CliRunner().invoke(main, [str(one) for one in arguments])


def test_communicators_run_the_plans_of_a_package_for_its_sizes(tmp_path):
    result = package(tmp_path, TABLE)
    assert result.exit_code == 0, result.output
    plans = Plans(hosts_of(3), plan_dir=tmp_path / "plans", cache=False)
    assert plans.folder_problems == ()
    for in_place in (False, True):
        assert plans.find("all_reduce", 65536, in_place=in_place).origin == "registered"
        assert plans.find("all_reduce", 65532, in_place=in_place).origin != "registered"
    assert plans.find("gather", 12, root=1).origin == "registered"
    assert plans.find("gather", 12, root=0).origin != "registered"
    assert f"SLEY_PLAN_DIR={tmp_path / 'plans'}" in result.output


def test_a_package_has_machine_code_for_the_named_gpus_types_and_reductions(tmp_path):
    skip_without_nvrtc()
    asked = ("--arch", "sm_80", "-d", "float32", "-d", "float64", "--op", "max")
    result = package(tmp_path, TABLE, *asked)
    assert result.exit_code == 0, result.output
    kernels = Kernels.of(sley.compile(build("ring-allreduce", ranks=3, in_place=True)))

    def code(capability: tuple[int, int], dtype: str, op: sley.ReduceOp) -> bytes | None:
        variant = Variant(Platform.CUDA, DATA_TYPES[dtype].number, op)
        text = kernels.source(Engine.GENERATED, variant)
        return code_in(tmp_path / "plans", capability, text)

    for dtype in ("float32", "float64"):
        made = code((8, 0), dtype, sley.ReduceOp.MAX)
        assert made
        assert made[:4] == b"\x7fELF"
        assert code((8, 6), dtype, sley.ReduceOp.MAX) == made
        assert code((9, 0), dtype, sley.ReduceOp.MAX) is None
        assert code((8, 0), dtype, sley.ReduceOp.SUM) is None
    assert code((8, 0), "float16", sley.ReduceOp.MAX) is None


@pytest.mark.parametrize(
    ("table", "further", "found"),
    [
        (TABLE.replace("ring-allreduce", "no-ring"), (), "F404"),
        (TABLE, ("--arch", "../../sm_90"), "R514"),
        ('[[plans]]\nwhat = "all-pairs-alltoallv"\nranks = 3\nmin_bytes = 9\n', (), "S702"),
        ("[[plans]]\nwhat = 'one_way.py'\n", (), "N651"),
    ],
)
def test_nothing_is_written_of_a_table_that_communicators_could_not_read(
    tmp_path, table, further, found
):
    (tmp_path / "one_way.py").write_text(
        "import sley\n\n\n@sley.program(sley.Custom('turn', 2, 1, 1, "
        "lambda r, i: [(1 - r, i)]))\ndef one_way(p):\n    for r in range(2):\n"
        '        p.chunk(r, "in", 0).copy(1 - r, "out", 0)\n'
    )
    result = package(tmp_path, table, *further)
    assert result.exit_code == 1
    assert found in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one_way.py", "table.toml"]
