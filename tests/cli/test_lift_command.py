"""sley lift: from a plan to a file with a program, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main

OWN = """
import sley

@sley.program(sley.Custom("own", 2, 1, 2, lambda rank, index: [(index, 0)]), protocol="LL")
def exchange(p):
    for rank in range(2):
        c = p.chunk(rank, "in", 0).copy(rank, "out", rank)
        c.copy(1 - rank, "out", rank)
"""


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def compiled(what: object) -> dict[str, object]:
    """What `sley compile` says of a plan, but for the time that it took."""
    result = sley("compile", what, "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)["plan"]
    assert isinstance(plan, dict)
    return plan


def test_an_algorithm_through_xml_becomes_a_program_again(tmp_path: Path) -> None:
    xml, program = tmp_path / "ring.xml", tmp_path / "ring.py"
    assert sley("compile", "ring-allreduce", "--ranks", 4, "-o", xml).exit_code == 0
    result = sley("lift", xml, "-o", program)
    assert result.exit_code == 0, result.output
    assert "proven" in result.stdout
    assert str(program) in result.stdout
    said = compiled(program)
    assert said["name"] == "ring-allreduce"
    assert said["collective"] == "allreduce"
    # Lifting what has been lifted changes nothing.
    again = tmp_path / "again.py"
    assert sley("lift", program, "-o", again).exit_code == 0
    assert sorted(again.read_text().splitlines()) == sorted(program.read_text().splitlines())


def test_without_a_file_only_the_program_is_on_standard_output(tmp_path: Path) -> None:
    result = sley("lift", "ring-allgather", "--ranks", 3)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("import sley\n")
    assert "proven" not in result.stdout
    assert "proven" in result.stderr
    program = tmp_path / "piped.py"
    program.write_text(result.stdout)
    assert compiled(program)["collective"] == "allgather"


def test_a_plan_of_a_users_program_is_lifted(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    program = tmp_path / "lifted.py"
    result = sley("lift", tmp_path / "own.py", "-o", program, "-v")
    assert result.exit_code == 0, result.output
    assert "lifting" in result.stderr
    said = compiled(program)
    assert (said["collective"], said["chunks"], said["protocol"]) == ("own", 1, "LL")


def test_lift_prints_json(tmp_path: Path) -> None:
    said = json.loads(sley("lift", "ring-allgather", "--ranks", 3, "--json").stdout)
    assert said["ok"] is True
    assert said["output"] is None
    assert said["text"].startswith("import sley\n")
    assert said["program"]["transfers"] == said["text"].count(".copy(")
    assert set(said["seconds"]) > {"lifting", "proof of the program", "writing"}
    path = tmp_path / "ring.py"
    other = json.loads(sley("lift", "ring-allgather", "--ranks", 3, "--json", "-o", path).stdout)
    assert other["program"] == said["program"]
    assert other["output"] == str(path)
    assert path.read_text() == said["text"]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('type="rrc"', 'type="r"', "V206"),
        ('srcbuf="i" srcoff="1"', 'srcbuf="i" srcoff="0"', "V206"),
        ('depid="1"', 'depid="-1"', "V204"),
    ],
)
def test_a_wrong_plan_is_refused_and_nothing_written(
    tmp_path: Path, old: str, new: str, code: str
) -> None:
    xml, program = tmp_path / "ring.xml", tmp_path / "ring.py"
    sley("compile", "ring-allreduce", "--ranks", 2, "--no-fusion", "-o", xml)
    text = xml.read_text()
    assert old in text
    xml.write_text(text.replace(old, new, 1))
    result = sley("lift", xml, "-o", program)
    assert result.exit_code == 1
    assert f": {code}" in result.stderr  # maybe behind notes
    assert not program.exists()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    result = sley("lift", "ring-allgather", "--ranks", 2, "-o", tmp_path / "missing" / "x.py")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_files_of_others_are_lifted_to_programs_that_compile(
    data_dir: Path, tmp_path: Path
) -> None:
    xml, program = data_dir / "msccl-xml" / "ndv4-ap2ll.xml", tmp_path / "lifted.py"
    result = sley("lift", xml, "-o", program, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)["program"]
    # Its messages and its local instructions, one transfer each.
    assert (said["transfers"], said["local_transfers"]) == (1120, 896)
    assert compiled(program)["collective"] == said["collective"]
