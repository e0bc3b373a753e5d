"""sley draw: pictures of every kind, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main

RING = ("ring-allreduce", "--ranks", "4")


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize(
    ("of", "more", "shown"),
    [
        ("chunks", (), "transfer-0"),
        ("instructions", (), "message-"),
        ("blocks", (), "block-3-0"),
        ("topology", ("--topology", "2x2"), "vertex-0"),
    ],
)
def test_draw_writes_a_picture_of_each_stage(
    of: str, more: tuple[str, ...], shown: str, tmp_path: Path
) -> None:
    result = sley("draw", *RING, *more, "--of", of, "-o", tmp_path / "ring.svg")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "ring.svg") in result.stdout
    assert f'<g id="{shown}' in (tmp_path / "ring.svg").read_text()


@pytest.mark.parametrize("name", ["2x2", "routed-torus:4"])  # which is near an algorithm's name
def test_a_topology_is_drawn_by_its_name_alone(name: str, tmp_path: Path) -> None:
    result = sley("draw", name, "--of", "topology", "-o", tmp_path / "x.svg")
    assert result.exit_code == 0, result.output
    assert '<g id="vertex-3' in (tmp_path / "x.svg").read_text()
    assert "T604" in sley("draw", "ndv9", "--of", "topology", "-o", tmp_path / "y.svg").stderr


def test_draw_writes_png_and_tells_it_as_json(tmp_path: Path) -> None:
    path = tmp_path / "ring.png"
    result = sley("draw", *RING, "--of", "chunks", "-o", path, "--json")
    told = json.loads(result.stdout)
    assert (told["ok"], told["of"], told["output"]) == (True, "chunks", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_draw_takes_plans_from_files(tmp_path: Path) -> None:
    made = sley("compile", *RING, "--instances", 2, "-o", tmp_path / "ring.xml")
    assert made.exit_code == 0
    for of in ("chunks", "instructions", "blocks"):
        result = sley("draw", tmp_path / "ring.xml", "--of", of, "-o", tmp_path / f"{of}.svg")
        assert result.exit_code == 0, result.output
        assert (tmp_path / f"{of}.svg").is_file()
    assert '<g id="block-3-1' in (tmp_path / "blocks.svg").read_text()


def test_a_rank_that_the_plan_lacks_is_refused_and_nothing_written(tmp_path: Path) -> None:
    path = tmp_path / "ring.svg"
    arguments = ("draw", "ring-allreduce", "--ranks", 24, "--of", "blocks", "-o", path)
    result = sley(*arguments)
    assert result.exit_code == 1
    assert "P801" in result.stderr
    assert not path.exists()
    assert sley(*arguments, "--rank", 23, "--rank", 0).exit_code == 0
    assert '<g id="rank-23"' in path.read_text()
    assert '<g id="rank-1"' not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*RING, "--of", "blocks", "--rank", "4"), "ranks are 0 to 3"),
        ((*RING, "--of", "topology"), "name one with --topology"),
        ((*RING, "--of", "topology", "--topology", "1x4", "--rank", "0"), "--rank is not for"),
    ],
)
def test_wrong_usage_of_draw_ends_in_code_2_and_writes_nothing(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = sley("draw", *arguments, "-o", tmp_path / "ring.svg")
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_suffix_is_told_before_anything_is_compiled(tmp_path: Path) -> None:
    result = sley("draw", "no-such-algorithm", "--of", "blocks", "-o", tmp_path / "ring.jpg")
    assert result.exit_code == 2
    assert "F460" in result.stderr
