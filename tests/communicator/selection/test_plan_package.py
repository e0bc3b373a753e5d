"""Folders that `sley package --target sley` writes: communicators read the plans of the table from
them, and GPUs the machine code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley
from sley.algorithms import build
from sley.cli import main
from sley.communicator.selection.plans import Plans
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.kernels.prebuilt import CODE, DIGESTS, code_in, digests_of, file_of
from sley.engine.types import DATA_TYPES
from sley.errors.devices import K501
from support.devices.machine_code import skip_without_nvrtc
from support.processes.call_cases import hosts_of

RING = """
[[plans]]
what = "ring-allreduce"
ranks = 3
min_bytes = "64K"
"""
TABLE = f"""{RING}
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


@pytest.mark.parametrize(
    "table", [RING, pytest.param(TABLE, marks=pytest.mark.slow)], ids=["one", "several"]
)
def test_a_package_has_machine_code_for_the_named_gpus_types_and_reductions(tmp_path, table):
    skip_without_nvrtc()
    asked = ("--arch", "sm_80", "-d", "float32", "-d", "float64", "--op", "max")
    result = package(tmp_path, table, *asked)
    assert result.exit_code == 0, result.output
    kernels = Kernels.of(sley.compile(build("ring-allreduce", ranks=3, in_place=True)))

    def code(capability: tuple[int, int], dtype: str, op: sley.ReduceOp) -> bytes | None:
        variant = Variant(Platform.CUDA, DATA_TYPES[dtype].number, op)
        text = kernels.source(Engine.GENERATED, variant)
        return code_in(tmp_path / "plans", (99, 0), capability).get(file_of(text, ".cubin"))

    for dtype in ("float32", "float64"):
        made = code((8, 0), dtype, sley.ReduceOp.MAX)
        assert made
        assert made[:4] == b"\x7fELF"
        assert code((8, 6), dtype, sley.ReduceOp.MAX) == made
        assert code((8, 0), dtype, sley.ReduceOp.SUM) is None
    assert code((8, 0), "float16", sley.ReduceOp.MAX) is None
    with pytest.raises(sley.SleyError) as caught:
        code_in(tmp_path / "plans", (99, 0), (9, 0))
    assert caught.value.code == "K502"


def doctor(folder: Path, *further: str, ranks: int = 3) -> Result:
    command = ["doctor", str(folder), "--target", "sley", "--ranks", str(ranks), *further]
    return CliRunner().invoke(main, command)


def test_the_doctor_says_what_communicators_read(tmp_path):
    folder = tmp_path / "plans"
    assert package(tmp_path, TABLE.replace("ranks = 3\nroot", "ranks = 4\nroot")).exit_code == 0
    (folder / CODE / "sm_80").mkdir(parents=True)
    (folder / CODE / "sm_80" / DIGESTS).write_text(digests_of("sm_80", {}, 12))
    result = doctor(folder)
    lines = " ".join(result.output.split())
    assert result.exit_code == 0, result.output
    assert (
        "plan 01-ring-allreduce.plan, allreduce(3 ranks, 3 chunks, out of place), 64K and" in lines
    )
    assert "not 02-flat-gather.plan: it is for gather(4 ranks" in lines
    assert "kernels/sm_80 0 kernels" in lines
    assert "NVRTC" in lines
    assert "driver" in lines
    flip(folder / CODE / "sm_80" / DIGESTS)
    (folder / "01-ring-allreduce.plan").write_bytes(b"")
    result = doctor(folder, "--json")
    said = json.loads(result.output)
    assert (result.exit_code, said["ok"]) == (1, False)
    assert [one["code"] for one in said["diagnostics"]] == ["F550", "N653"]
    assert "needs --ranks" in CliRunner().invoke(main, ["doctor", ".", "--target", "sley"]).output
    assert "Missing argument" in CliRunner().invoke(main, ["doctor"]).output
    assert doctor(folder, "--size", "1K").exit_code == 2


def test_the_doctor_says_what_the_machine_has_and_how_to_get_the_rest(monkeypatch):
    def missing() -> tuple[int, int]:
        raise K501.error(expected="NVRTC", found="none")

    monkeypatch.setattr("sley.engine.devices.cuda.compiler.version", missing)
    result = CliRunner().invoke(main, ["doctor", "--target", "sley", "--ranks", "4"])
    assert result.exit_code == 0
    assert 'found none. Install the extra for the packages: pip install "sley[cuda]"' in " ".join(
        result.output.split()
    )


def test_a_folder_without_a_plan_for_the_ranks_is_told(tmp_path, caplog):
    assert package(tmp_path, TABLE).exit_code == 0
    assert doctor(tmp_path / "plans", ranks=4).exit_code == 1
    with caplog.at_level("INFO", "sley"):
        Plans(hosts_of(4), plan_dir=tmp_path / "plans", cache=False)
    assert "4 ranks don't run 01-ring-allreduce.plan: it is for allreduce(3 ranks" in caplog.text


def flip(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def newer(file: Path) -> None:
    file.write_text(file.read_text().replace("cuda = 12", "cuda = 13"))


DAMAGES: list[tuple[Callable[[Path, Path], object], str]] = [
    (lambda place, file: flip(file), "another one"),
    (lambda place, file: file.write_bytes(b""), "another one"),
    (lambda place, file: file.unlink(), "No such file"),
    (lambda place, file: (file.unlink(), os.mkfifo(file)), "not a regular file"),
    (lambda place, file: (place / DIGESTS).unlink(), "No such file"),
    (lambda place, file: flip(place / DIGESTS), "TOML"),
    (lambda place, file: (place / DIGESTS).write_text("sley = 1"), "a string"),
    (lambda place, file: (place / DIGESTS).write_text('sley = "0.1"'), "sley = '0.1'"),
    (lambda place, file: place.rename(place.parent / "sm_90"), "arch = 'sm_80'"),
    (lambda place, file: newer(place / DIGESTS), "CUDA 13"),
    (lambda place, file: place.parent.rename(place.parents[1] / "x"), ""),
    (lambda place, file: (flip(file), place.rename(place.parent / "sm_70")), "sm_70"),
]


@pytest.mark.parametrize(("damage", "found"), DAMAGES)
def test_damaged_machine_code_is_told(tmp_path, damage, found):
    """The driver would take it as it is."""
    place = tmp_path / CODE / "sm_80"
    place.mkdir(parents=True)
    code = {f"{name}.cubin": name.encode() * 99 for name in "ab"}
    (place / DIGESTS).write_text(digests_of("sm_80", code, 12))
    for name, content in code.items():
        (place / name).write_bytes(content)
    assert code_in(tmp_path, (12, 4), (8, 6)) == code
    damage(place, place / "b.cubin")
    if not found:
        assert code_in(tmp_path, (12, 4), (8, 6)) == {}
        return
    with pytest.raises(sley.SleyError) as caught:
        code_in(tmp_path, (12, 4), (9 if "arch" in found else 8, 0))
    assert caught.value.code == ("K502" if found in ("sm_70", "CUDA 13") else "N653")
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("table", "further", "found"),
    [
        (TABLE.replace("ring-allreduce", "no-ring"), (), "F404"),
        (TABLE, ("--arch", "../../sm_90"), "sm_90 for H100"),
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
    assert result.exit_code == (2 if further or found == "F404" else 1)
    assert found in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one_way.py", "table.toml"]
