"""--same-bits: only plans whose sums have one order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley
from sley.cli import main
from sley.verification import SumOrder

FEW = ("--protocol", "Simple", "--schedule", "msccl", "--instances", "1", "--channels", 1)


def command(*words: object, option: str = "--same-bits") -> Result:
    return CliRunner().invoke(main, [*map(str, words), option])


def test_choose_takes_algorithms_of_the_order(tmp_path: Path) -> None:
    sizes = ("-b", "1K", "-e", "16M", "-f", 128)
    result = command(
        "choose", "allreduce", "--topology", "2x2", *FEW, *sizes, "-o", tmp_path / "plans"
    )
    assert "ring-allreduce" in result.stderr
    files = sorted((tmp_path / "plans").glob("*.xml"))
    assert len(files) > 1
    for file in files:
        assert SumOrder.of(sley.load(file)).follows([[0, 1], [2, 3]])


@pytest.mark.parametrize(
    "words", [("choose", "ring-allreduce", *FEW), ("simulate", "ring-allreduce")]
)
def test_other_orders_are_refused(words: tuple[object, ...]) -> None:
    result = command(*words, "--topology", "1x4", "-b", "1M")
    assert result.exit_code == 1
    assert "N658" in result.stderr
    assert "order of every sum: ((0+1)+2)+3" in result.stderr


def test_simulate_sums_in_order_where_the_algorithm_can() -> None:
    words = ("simulate", "two-level-allreduce", "--topology", "2x2", "--json")
    in_order = json.loads(command(*words).stdout)["simulations"][0]
    plain = json.loads(CliRunner().invoke(main, words).stdout)["simulations"][0]
    assert in_order["time_us"] != plain["time_us"]
    # NCCL's choice is a ring.
    assert "N658" in command("simulate", "nccl-allreduce", "--topology", "2x2").stderr


def packaged(folder: Path, target: str, row: str, option: str = "--same-bits") -> Result:
    (folder / "table.toml").write_text(f"[[plans]]\n{row}\nin_place = true\n")
    words = ("package", folder / "p", "--table", folder / "table.toml", "--target", target)
    return command(*words, option=option)


@pytest.mark.parametrize("target", ["sley", "rccl", "mscclpp-python"])
@pytest.mark.parametrize(
    ("row", "is_refused"),
    [
        ('what = "rank-order-allreduce"\nranks = 4', False),
        ('what = "two-level-allreduce"\nnodes = 2\ngpus = 2', False),
        ('what = "chain-allreduce"\nranks = 4', False),
        ('what = "all-pairs-allreduce"\nranks = 4', True),
    ],
)
def test_a_package_has_one_order(target: str, row: str, is_refused: bool, tmp_path: Path) -> None:
    result = packaged(tmp_path, target, row)
    assert ("N658" in result.stderr) == is_refused, result.output
    assert (tmp_path / "p").exists() != is_refused


def test_a_balanced_tree_is_another_order(tmp_path: Path) -> None:
    size = ("--topology", "1x4", "-b", "1M")
    chosen = command("choose", "allreduce", *FEW, *size, "-o", tmp_path, option="--balanced-bits")
    assert "chain-allreduce" in chosen.stderr  # which is left out
    for file in tmp_path.glob("*.xml"):
        assert SumOrder.of(sley.load(file)).follows([[0, 1], [2, 3]])
    refused = command("simulate", "chain-allreduce", *size, option="--balanced-bits")
    assert "order of every sum: (0+1)+(2+3)" in refused.stderr
    for name, is_refused in (("chain-allreduce", True), ("rank-order-allreduce", False)):
        result = packaged(tmp_path, "rccl", f'what = "{name}"\nranks = 4', "--balanced-bits")
        assert ("N658" in result.stderr) == is_refused, result.output


def test_a_copied_plan_is_proven_too(tmp_path: Path) -> None:
    for name, is_refused in (("all-pairs-allreduce", True), ("rank-order-allreduce", False)):
        program = sley.algorithms.build(name, ranks=4, in_place=True)
        sley.save(sley.compile(program, fusion=False), tmp_path / "x.json", target="mscclpp")
        result = packaged(tmp_path, "mscclpp-python", f'what = "{tmp_path / "x.json"}"')
        assert ("N658" in result.stderr) == is_refused, result.output


def test_a_machine_without_such_an_order_is_told_by_it() -> None:
    """A DGX-1 links no ring and not all pairs, but recursive halving, whose order is another."""
    words = ("choose", "allreduce", "--topology", "dgx1", "-b", "1M", "-e", "1M")
    assert "N658" in command(*words).stderr
