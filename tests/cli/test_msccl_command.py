"""sley msccl: output, files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main

SCRIPTS = Path(__file__).resolve().parents[1] / "lang" / "msccl_scripts"
RING = SCRIPTS / "ring.py"


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_standard_output_has_the_xml_and_standard_error_the_verdict(tmp_path: Path) -> None:
    result = sley("msccl", RING, 4, 2, "--protocol", "LL", "--instances", 2)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == (
        "proven: ring is a correct allreduce on 4 ranks; no race; no hang with 8 slots or more, "
        "one for each chunk of a message\n"
    )
    file = tmp_path / "ring.xml"
    file.write_text(result.stdout)
    assert sley("verify", file, "--target", "msccl").exit_code == 0
    # -o writes what XML() prints.
    written = tmp_path / "written.xml"
    again = sley("msccl", "-o", written, RING, 4, 2, "--protocol", "LL", "--instances", 2)
    assert again.stdout == written.read_text() == result.stdout


@pytest.mark.parametrize("suffix", [".json", ".cu", ".cpp", ".py"])
def test_programs_are_written_in_every_format(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"ring{suffix}"
    result = sley("msccl", "-o", file, RING, 2, 1, "--protocol", "Simple")
    assert result.exit_code == 0, result.stderr
    assert "ring" in file.read_text()
    if suffix in (".json", ".py"):
        assert sley("verify", file).exit_code == 0


def test_traces_need_the_size_of_a_call(tmp_path: Path) -> None:
    file = tmp_path / "ring.et"
    assert "C310" in sley("msccl", "-o", file, RING, 2, 1).stderr
    assert sley("msccl", "-o", file, "--size", "1M", RING, 2, 1).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring.0.et", "ring.1.et"]
    for wrong in (["--size", "1M"], ["--size", "1M", "-o", tmp_path / "a.xml"]):
        result = sley("msccl", *wrong, RING, 2, 1)
        assert result.exit_code == 2
        assert "--size is" in result.stderr


def test_a_target_has_its_limits() -> None:
    result = sley("msccl", "--target", "executor", SCRIPTS / "alltonext.py", 2, 2)
    assert result.exit_code == 1
    assert "F443" in result.stderr
    assert sley("msccl", "--target", "rccl", RING, 2, 1).exit_code == 0


def test_json_has_all_programs() -> None:
    result = sley("msccl", "--json", SCRIPTS / "gathers.py")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert [row["name"] for row in said["programs"]] == ["gather", "scatter"]
    assert [row["collective"] for row in said["programs"]] == ["allgather", "reducescatter"]
    printed = sley("msccl", "--json", RING, 2, 1)
    assert json.loads(printed.stdout)["ok"]
    assert printed.stderr.startswith("<algo")


def test_every_program_of_a_script_is_proven(tmp_path: Path) -> None:
    result = sley("msccl", SCRIPTS / "gathers.py")
    assert result.stderr.count("proven: ") == 2
    refused = sley("msccl", "-o", tmp_path / "a.xml", SCRIPTS / "gathers.py")
    assert refused.exit_code == 1
    assert "L115 which-program" in refused.stderr
    assert "2 programs: gather, scatter" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_program_is_refused_even_if_it_prints_nothing(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        "from msccl.language import *\nfrom msccl.language.collectives import AllReduce\n"
        "from msccl.topologies import *\n"
        "with MSCCLProgram('wrong', fully_connected(2), AllReduce(2, 1, True), 1):\n"
        "    chunk(0, Buffer.input, 0).copy(1)\n    print(Check())\n"
    )
    result = sley("msccl", script)
    assert (result.exit_code, result.stdout) == (1, "False\n")
    assert f"{script}:4: V206" in result.stderr


def test_the_scripts_own_usage_is_shown() -> None:
    result = sley("msccl", RING, "four", 2)
    assert result.exit_code == 1
    assert "usage: ring.py" in result.stderr
    assert "argument size: invalid int value: 'four'" in result.stderr
    assert "L114 program-raised" in result.stderr


def test_the_scripts_own_help_is_no_mistake(tmp_path: Path) -> None:
    shown = sley("msccl", RING, "--help")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "usage: ring.py" in shown.stdout
    # Where a program is asked for, or begun, or given up with another code, none is a mistake.
    for option in (("-o", tmp_path / "ring.xml"), ("--json",)):
        assert "L113" in sley("msccl", *option, RING, "--help").output
    begun = "with MSCCLProgram('p', fully_connected(2), AllReduce(2, 1, True), 1):\n    exit(0)\n"
    for code, end in {"L113": begun, "L114": "raise SystemExit(0.0)\n"}.items():
        script = tmp_path / "script.py"
        script.write_text(
            "from msccl.language import *\nfrom msccl.language.collectives import AllReduce\n"
            f"from msccl.topologies import *\n{end}"
        )
        refused = sley("msccl", script)
        assert (refused.exit_code, code in refused.stderr) == (1, True), end
    script.write_text("import msccl\n")
    assert "L113" in sley("msccl", script).stderr


def test_a_script_that_calls_none_of_its_functions_names_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    body = "    MSCCLProgram('p', fully_connected(2), AllReduce(2, 1, True), 1)\n"
    script.write_text(
        "from msccl.language import *\nfrom msccl.language.collectives import AllReduce\n"
        f"from msccl.topologies import *\ndef size(): return 2\ndef ring():\n{body}# ring()\n"
    )
    refused = sley("msccl", script)
    assert (refused.exit_code, "L113" in refused.stderr) == (1, True)
    assert "no call of ring makes one" in refused.stderr
    assert "Let the script call ring, or give the arguments" in refused.stderr


def test_wrong_usage_of_the_command_ends_with_2(tmp_path: Path) -> None:
    assert sley("msccl").exit_code == 2
    assert sley("msccl", "--target", "nobody", RING, 2, 1).exit_code == 2
    assert sley("msccl", tmp_path / "none.py").exit_code == 1
    assert "F460" in sley("msccl", "-o", tmp_path / "ring.txt", RING, 2, 1).stderr


def test_a_target_that_does_not_read_the_file_is_refused_before_the_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import msccl\nprint('it runs')\n")
    for target, name, code, words in (
        ("mscclpp", "x.xml", 1, "F440"),
        ("msccl", "x.json", 1, "F440"),
        ("mscclpp", "x.cu", 2, "--target is not for this format"),
        ("msccl", "x.txt", 1, ".xml, .json, .cu, .cpp, .et or .py"),
    ):
        refused = sley("msccl", "--target", target, "-o", tmp_path / name, script)
        assert (refused.exit_code, refused.stdout) == (code, ""), name
        assert words in refused.stderr, name
    written = tmp_path / "x.xml"
    assert sley("msccl", "--target", "rccl", "-o", written, RING, 2, 1).exit_code == 0


def test_a_python_file_does_not_lose_that_a_script_asks_for_no_fusion(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from msccl.language import *\nfrom msccl.language.collectives import AllReduce\n"
        "from msccl.topologies import *\n"
        "with MSCCLProgram(\n"
        "    'p', fully_connected(2), AllReduce(2, 1, True), 1, instr_fusion=False\n"
        "):\n"
        "    chunk(1, Buffer.input, 0).reduce(chunk(0, Buffer.input, 0))\n"
        "    chunk(1, Buffer.input, 0).copy(0)\n"
    )
    refused = sley("msccl", "-o", tmp_path / "p.py", script)
    assert refused.exit_code == 1
    assert f"{script}:4: C309" in refused.stderr
    assert "found:    instr_fusion=False" in refused.stderr
    assert not (tmp_path / "p.py").exists()
    for text in (script.read_text(), script.read_text().replace(", instr_fusion=False", "")):
        script.write_text(text)
        assert sley("msccl", "-o", tmp_path / "p.xml", script).exit_code == 0
        fused = 'type="rrcs"' in (tmp_path / "p.xml").read_text()
        assert fused == ("instr_fusion" not in text)


def test_files_of_other_kinds_name_their_command(tmp_path: Path) -> None:
    refused = sley("verify", RING)
    assert "F550" in refused.stderr
    assert f"sley msccl {RING}" in refused.stderr
    plan = tmp_path / "plan.xml"
    plan.write_text("<algo></algo>")
    refused = sley("msccl", plan)
    assert refused.exit_code == 1
    assert "found:    an MSCCL XML plan" in refused.stderr
    text = tmp_path / "text.py"
    text.write_text("no Python at all")
    assert "L114" in sley("msccl", text).stderr


def test_a_program_of_sley_is_named_with_its_commands(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    assert sley("msccl", "-o", file, RING, 2, 1, "--protocol", "Simple").exit_code == 0
    result = sley("msccl", file)
    assert "L113" in result.stderr
    assert f"sley compile {file}" in result.stderr


def test_a_script_that_is_to_name_a_collective_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    assert sley("msccl", "-o", file, RING, 2, 1).exit_code == 0
    result = sley("verify", file, "--collective", RING)
    assert "F550" in result.stderr
    assert f"sley msccl {RING}" in result.stderr


@pytest.mark.parametrize("command", ["msccl", "verify"])
def test_a_script_for_the_other_language_is_told_of_its_plan(command: str, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("from mscclpp.language.program import *\n\nprint(JSON())\n")
    result = sley(command, file)
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
