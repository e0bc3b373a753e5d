"""sley tune: export."""

from __future__ import annotations

import ctypes
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main
from sley.ir.sizes import SizeRange
from sley.tuning import policy as policies
from sley.tuning.policy import Machine, PlanRow, Policy, Recipe, exports

MACHINE = Machine("simulator", "2x2", "f00d", 2, 2)
POLICY = Policy(
    (
        PlanRow(
            Recipe("double-binary-tree-allreduce", options={"protocol": "LL"}),
            SizeRange(0, 4096),
            "allreduce",
        ),
        PlanRow(Recipe("all-pairs-allreduce"), SizeRange(4097, None), "allreduce"),
    ),
    machine=MACHINE,
)


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    policies.write(POLICY, path)
    return path


@pytest.mark.parametrize(
    ("target", "name", "text"),
    [
        ("nccl", "tuner.conf", exports.nccl_csv(POLICY).text),
        ("ncclx", "tuner", exports.ncclx_csv(POLICY).text),
        ("rccl", "tuner.csv", exports.rccl_csv(POLICY).text),
        ("nccl", "tuner.c", exports.nccl_plugin(POLICY).text),
    ],
)
def test_a_text_is_written_and_what_it_lacks_is_named(
    file: Path, target: str, name: str, text: str
) -> None:
    output = file.parent / name
    result = sley("tune", "export", file, "--target", target, "-o", output)
    assert result.exit_code == 0, result.output
    assert output.read_text() == text
    assert "note: allreduce, 4097 and more: left out" in result.stderr
    assert str(output) in result.stdout


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_plug_in_is_compiled(file: Path) -> None:
    output = file.parent / "tuner.so"
    result = sley("tune", "export", file, "--target", "nccl", "-o", output)
    assert result.exit_code == 0, result.output
    assert ctypes.CDLL(str(output)).ncclTunerPlugin_v7


@pytest.mark.parametrize("target", [None, "executor"])
def test_plans_are_written_to_a_folder(file: Path, target: str | None) -> None:
    folder = file.parent / "plans"
    given = () if target is None else ("--target", target)
    said = json.loads(sley("tune", "export", file, *given, "-o", folder, "--json").stdout)
    assert said["ok"]
    assert said["remarks"] == []
    assert {Path(path) for path in said["files"]} == set(folder.iterdir())
    first = "01-double-binary-tree-allreduce-in-place.xml"
    assert (folder / first).is_file() == (target is not None)
    assert (folder / "plans.toml").is_file() == (target is None)


@pytest.mark.parametrize(
    ("target", "name"),
    [("nccl", "tuner.csv"), ("ncclx", "tuner.csv"), ("rccl", "tuner.csv"), ("nccl", "tuner.c")],
)
def test_a_policy_without_an_algorithm_of_nccl_writes_nothing(
    tmp_path: Path, target: str, name: str
) -> None:
    rows = (PlanRow(Recipe("all-pairs-allreduce"), SizeRange(0, None), "allreduce"),)
    policies.write(Policy(rows, machine=MACHINE), tmp_path / "policy.toml")
    output = tmp_path / name
    result = sley("tune", "export", tmp_path / "policy.toml", "--target", target, "-o", output)
    assert result.exit_code == 1
    assert "D905" in result.stderr
    assert not output.exists()


def test_a_file_that_is_no_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.pkl"
    path.write_bytes(b"\x80\x04cposix\nsystem\n.")
    result = sley("tune", "export", path, "--target", "nccl", "-o", tmp_path / "x", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["diagnostics"][0]["code"] == "D901"
