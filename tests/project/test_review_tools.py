"""What proves changed plans before and in a pull request: the hook of pre-commit, the action, and
the annotations that services for code review read."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import sley
from sley.cli import main
from sley.cli.annotations import annotation_lines
from sley.errors import Diagnostic, Place
from sley.errors.verifier import V206

ROOT = Path(__file__).resolve().parents[2]
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def verify(*words: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, words)])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a plan; a change adds a right plan and a broken one."""

    def git(*words: str) -> None:
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True, capture_output=True)

    plan = sley.compile(sley.algorithms.ring_allreduce(3))
    git("init", "-q")
    sley.save(plan, tmp_path / "old.xml")
    (tmp_path / "old-broken.xml").write_text("<algo")
    git("add", ".")
    git("commit", "-qm", "old")
    sley.save(plan, tmp_path / "right one.xml")
    text = (tmp_path / "old.xml").read_text()
    (tmp_path / "broken.xml").write_text(text.replace('type="rrs"', 'type="rcs"', 1))
    git("add", ".")
    return tmp_path


def test_what_is_after_a_mistake_is_proven_too(repository: Path) -> None:
    right, broken = repository / "old.xml", repository / "old-broken.xml"
    said = verify(right, "ring-allreduce", broken, right)
    assert said.exit_code == 2
    assert f"{broken}:" in said.stderr
    assert "Error: ring-allreduce: " in said.stderr
    heads = [line for line in said.stdout.splitlines() if line.startswith("# ")]
    assert heads == [f"# {right}", "# ring-allreduce", f"# {broken}", f"# {right}"]


def bash(script: str, folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script, *words],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_hook_refuses_a_broken_plan(repository: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    files = ["right one.xml", "broken.xml", "old.xml"]
    status, told = bash(shlex.join([*shlex.split(hook["entry"]), *files]), repository)
    assert (status, told.count("proven:")) == (1, 2)
    assert "error: broken.xml:" in told
    assert bash(shlex.join([*shlex.split(hook["entry"]), files[0]]), repository)[0] == 0


def test_the_action_annotates_what_a_change_breaks(repository: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    assert set(step["env"]) == {"BASE", "FILES"}
    found = {"BASE": "HEAD", "FILES": action["inputs"]["files"]["default"]}
    status, told = bash(step["run"], repository, **found)
    assert (bool(status), told.count("proven:")) == (True, 1), "old files aren't proven again"
    (line,) = (line for line in told.splitlines() if line.startswith("::error "))
    assert line.startswith("::error file=broken.xml,line=")
    subprocess.run([*GIT, "rm", "-qf", "broken.xml"], cwd=repository, check=True)
    assert bash(step["run"], repository, **found)[0] == 0


def test_problems_of_a_folder_are_annotated(tmp_path: Path) -> None:
    (tmp_path / "broken.xml").write_text("<algo")
    doctor = ("doctor", str(tmp_path), "--output-format", "github")
    result = CliRunner().invoke(main, [*doctor, "--target", "rccl"])
    assert result.exit_code == 1
    assert result.stdout.startswith(f"::error file={tmp_path}/broken.xml,title=F504 start-fails::")
    assert CliRunner().invoke(main, doctor).exit_code == 2  # without --target


def test_annotations_hold_what_ends_others() -> None:
    error = Diagnostic(V206, (Place("a:b,c%.py", 3, 4, "rank 0"),), "x\ny", "50 %", "Mend it.")
    (line,) = annotation_lines("github", [error])
    assert line == (
        "::error file=a%3Ab%2Cc%25.py,line=3,col=4,title=V206 wrong-result::rank 0: expected x%0Ay;"
        " found 50 %25. Mend it."
    )
    assert annotation_lines("github", [], [error])[0].startswith("::notice ")
    spaced = Diagnostic(V206, (Place("a b#1%.py"),), "x", "y", "z")
    assert '"uri": "a%20b%231%25.py"' in "\n".join(annotation_lines("sarif", [spaced]))


def test_a_sarif_log_has_results_with_rules_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "forgetful.py"
    path.write_text(
        "import sley\n\n\n@sley.program(sley.AllGather(ranks=2))\ndef forgetful(p):\n    pass\n"
    )
    result = verify(path, "--output-format", "sarif")
    assert (result.exit_code, result.stderr) == (1, "")
    log: dict[str, Any] = json.loads(result.stdout)
    (run,) = log["runs"]
    (one,) = run["results"]
    assert log["version"] == "2.1.0"
    assert (one["ruleId"], one["level"]) == ("V206", "error")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["V206"]
    (location,) = one["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == str(path)
    assert location["physicalLocation"]["region"] == {"startLine": 4}
    right = verify("ring-allreduce", "--ranks", 3, "--output-format", "sarif")
    assert right.exit_code == 0
    assert (
        verify("ring-allreduce", "--ranks", 3, "--output-format", "sarif", "--json").exit_code == 2
    )
    assert json.loads(right.stdout)["runs"][0]["results"] == []
    plain = verify("ring-allreduce", "--ranks", 3).stdout
    assert verify("ring-allreduce", "--ranks", 3, "--output-format", "github").stdout == plain
