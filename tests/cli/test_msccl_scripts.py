"""Scripts for msccl-tools as WHAT: what commands make of them, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley as api
from sley.cli import main

SCRIPTS = Path(__file__).resolve().parents[1] / "lang" / "msccl_scripts"
RING = SCRIPTS / "ring.py"
HEAD = (
    "from msccl.language import *\nfrom msccl.language.collectives import AllReduce\n"
    "from msccl.topologies import *\n"
)


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize("suffix", [".xml", ".json", ".cu", ".cpp"])
def test_the_program_of_a_script_is_written_in_every_format(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"ring{suffix}"
    result = sley("compile", RING, "-o", file, "--", 2, 1, "--protocol", "Simple")
    assert result.exit_code == 0, result.stderr
    assert "ring" in file.read_text()
    if suffix == ".xml":
        assert "for msccl" in result.stdout, "scripts are written for this runtime"
        assert sley("verify", file, "--target", "msccl").exit_code == 0
    assert sley("compile", RING, "--target", "rccl", "--", 2, 1).exit_code == 0


def test_a_script_is_what_every_command_takes(tmp_path: Path) -> None:
    assert "correct allreduce on 4 ranks" in sley("verify", RING, "--", 4, 2).stdout
    timed = sley("simulate", RING, "--topology", "1x4", "-b", "1M", "--", 4, 2)
    assert timed.exit_code == 0, timed.stderr
    program = tmp_path / "ring.py"
    assert sley("lift", RING, "-o", program, "--", 2, 1).exit_code == 0
    assert sley("verify", program).exit_code == 0
    plan = tmp_path / "ring.xml"
    assert sley("compile", RING, "-o", plan, "--", 2, 1).exit_code == 0
    assert sley("verify", plan, "--collective", RING, "--", 2, 1).exit_code == 0
    assert api.load(RING, script=["2", "1"]).ranks == 2


def test_a_target_has_its_limits() -> None:
    script = SCRIPTS / "alltonext.py"
    result = sley("compile", script, "--target", "executor", "--", 2, 2)
    assert result.exit_code == 1
    assert "F443" in result.stderr


def test_one_of_several_programs_is_named() -> None:
    script = SCRIPTS / "gathers.py"
    refused = sley("verify", script)
    assert refused.exit_code == 1
    assert "L115 which-program" in refused.stderr
    assert "2 programs: gather, scatter" in refused.stderr
    assert f"Select one, as in {script}:gather" in refused.stderr
    assert "correct reducescatter" in sley("verify", f"{script}:scatter").stdout
    assert "a program called other" in sley("verify", f"{script}:other").stderr


def test_a_wrong_program_is_refused_at_its_line(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        f"{HEAD}with MSCCLProgram('wrong', fully_connected(2), AllReduce(2, 1, True), 1):\n"
        "    chunk(0, Buffer.input, 0).copy(1)\n    print(Check())\n"
    )
    result = sley("verify", script)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("False\n")
    assert f"{script}:4: V206" in result.stderr


def test_the_scripts_own_usage_is_shown() -> None:
    result = sley("verify", RING, "--", "four", 2)
    assert result.exit_code == 1
    assert "L114 program-raised" in result.stderr


def test_a_script_that_calls_none_of_its_functions_names_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    body = "    MSCCLProgram('p', fully_connected(2), AllReduce(2, 1, True), 1)\n"
    script.write_text(f"{HEAD}def size(): return 2\ndef ring():\n{body}# ring()\n")
    refused = sley("verify", script)
    assert (refused.exit_code, "L115" in refused.stderr) == (1, True)
    assert "no call of ring makes one" in refused.stderr
    assert "Let the script call ring, or give the arguments" in refused.stderr


def test_a_script_may_import_msccl_in_a_module_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HEAD)
    script = tmp_path / "script.py"
    script.write_text(
        "from own import *\n"
        "with MSCCLProgram('p', fully_connected(2), AllReduce(2, 1, True), 1):\n"
        "    chunk(1, Buffer.input, 0).reduce(chunk(0, Buffer.input, 0)).copy(0)\n"
    )
    assert sley("verify", script).exit_code == 0


def test_a_script_that_asks_for_no_fused_instructions_gets_none(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = (
        f"{HEAD}with MSCCLProgram(\n"
        "    'p', fully_connected(2), AllReduce(2, 1, True), 1, instr_fusion=False\n"
        "):\n"
        "    chunk(1, Buffer.input, 0).reduce(chunk(0, Buffer.input, 0))\n"
        "    chunk(1, Buffer.input, 0).copy(0)\n"
    )
    plan = tmp_path / "p.xml"
    for content, fused, option in (
        (text, False, ()),
        (text, True, ("--fusion",)),
        (text.replace(", instr_fusion=False", ""), True, ()),
    ):
        script.write_text(content)
        assert sley("compile", script, "-o", plan, *option).exit_code == 0
        assert ('type="rrcs"' in plan.read_text()) == fused


def test_a_script_for_the_other_language_is_told_of_its_plan(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("from mscclpp.language.program import *\n\nprint(JSON())\n")
    result = sley("verify", file)
    assert "F550" in result.stderr
    assert "sley verify PLAN.json" in result.stderr


def test_json_without_a_key_of_a_plan_lacks_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "any.json"
    file.write_text('{"a": 1, "b": [2]}')
    found = sley("verify", file).stderr
    assert "F550" in found
    assert "F472" not in found
    file.write_text('{"gpus": []}')
    assert "F472" in sley("verify", file).stderr
