"""Every file is recognised by its content, and a command that doesn't take it says what it is."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.cli.main import main
from sley.errors import recognition
from sley.errors.recognition import Kind, kind_of, kind_of_content
from sley.formats import chakra
from support.generators.examples import examples

XML_HEAD = '<?xml version="1.0"?>\n<!-- of a tool -->\n'
MATRIX = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV12\t0-7\nGPU1\tNV12\t X \t0-7\n"
PROGRAM = "N = 4\nimport sley\n\n@sley.program(sley.AllGather(ranks=N))\ndef ring(p):\n    pass\n"


def _zip(member: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(member, "{}")
    return content.getvalue()


def chakra_trace() -> bytes:
    plan = sley.compile(sley.algorithms.build("ring-allgather", ranks=2))
    return chakra.write(plan, size=1024)[0]


SMALL: dict[str, tuple[bytes | str, Kind]] = {
    "sley's plan": ("sleyplan\1", recognition.SLEY_PLAN),
    "plan": ('<algo name="a" proto="LL"><gpu id="0"/></algo>', recognition.MSCCL_XML),
    "plan after comments": (XML_HEAD + '<algo name="a">', recognition.MSCCL_XML),
    "trees": (XML_HEAD + '<Algo nchunkspernode="1">', recognition.FORESTCOLL),
    "NCCL": (XML_HEAD + '<system version="1">', recognition.NCCL_TOPOLOGY),
    "hwloc": (
        XML_HEAD + '<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">',
        recognition.HWLOC,
    ),
    "list": ("<msccl_algos><load path=''/></msccl_algos>", recognition.MSCCL_LIST),
    "other XML": ("<html5></html5>", recognition.XML),
    "picture": (XML_HEAD + '<svg xmlns="http://www.w3.org/2000/svg">', recognition.PAGE),
    "report": ("<!doctype html>\n<html>", recognition.PAGE),
    "document": ("%PDF-1.7\n", recognition.PDF),
    "PNG": (b"\x89PNG\r\n\x1a\n", recognition.PICTURE),
    "page": ('<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 4.01//EN">', recognition.PAGE),
    "comment without an end": ("<!-- <algo>", recognition.XML),
    "MSCCL++": ('{"name": "x", "collective": "allreduce", "gpus": [{', recognition.MSCCLPP),
    "a table of tests": ('{"collective": "allreduce", "gpus": 8}', recognition.JSON),
    "keys in another object": ('{"x": {"collective": 1, "gpus": []}}', recognition.UNKNOWN_JSON),
    "TE-CCL": ('{"1-Epoch_Duration": 2.5e-07, "7-Flows": []}', recognition.TECCL),
    "TE-CCL input": (
        '{"TopologyParams": {"name": "Mesh"}, "GurobiParams": {',
        recognition.TECCL_INPUT,
    ),
    "SyCCL": ('{"coll": {"name": "allgather"}, "hosts": {', recognition.SYCCL_CONFIG),
    "graphs": (XML_HEAD + '<graphs version="1">', recognition.NCCL_GRAPHS),
    "TACCL schedule": ('{"sccl_type": "algorithm", "name": "x"}', recognition.TACCL_SCHEDULE),
    "TACCL sketch": ('{"nnodes": 2, "intranode_sketch": {', recognition.TACCL_SKETCH),
    "TACCL profile": ('{"gpus_per_node": 8, "alpha": 0.7}', recognition.TACCL_TOPOLOGY),
    "JSON": ('{"a": "1-Epoch_Duration"}', recognition.UNKNOWN_JSON),
    "a plan without a collective": ('{"gpus": [], "a": 1}', recognition.JSON),
    "a string without an end": ('{"1-Epoch_Dur', recognition.JSON),
    "matrix": (MATRIX, recognition.NVIDIA_SMI),
    "ResCCLang": ('ResCCLAlgo(nRanks=4, OpType="Allreduce"):\n', recognition.RESCCLANG),
    "ResCCLang with def": ("# one\ndef ResCCLAlgo(nRanks=4):\n", recognition.RESCCLANG),
    "Python": (PROGRAM, recognition.PYTHON),
    "Python with ResCCLang": (PROGRAM + "'''\nResCCLAlgo()'''\n", recognition.PYTHON),
    "msccl-tools": ("import sys\nfrom msccl.language import *\n", recognition.MSCCL_TOOLS),
    "MSCCL++'s language": (
        "import argparse\nfrom mscclpp.language.rank import *\n",
        recognition.MSCCLPP_SCRIPT,
    ),
    "both languages": (PROGRAM + "from mscclpp.language.rank import Rank\n", recognition.PYTHON),
    "kernels": ("// Kernels of ring\n#include <x>\n", recognition.KERNELS),
    "tuner": ("# a comment\nallreduce,0,65536,tree,ll,2,1,8\n", recognition.TUNER_CSV),
    "machine": ('name = "x"\ngpus = 8\n[nvlink]\n', recognition.SLEY_TOPOLOGY),
    "graph": ('name = "x"\nvertices = [["gpu", 0]]\n', recognition.SLEY_TOPOLOGY),
    "package": ('[[plans]]\nwhat = "ring-allreduce"\n', recognition.PACKAGE_TABLE),
    "TOML": ('[project]\nname = "x"\n', recognition.TOML),
    "Markdown": ("# Title\n\n```python\nimport sley\n```\n", recognition.TEXT),
    "prose": ("import duties rise\nwith the tide\nfrom here to there\n", recognition.TEXT),
    "policy": ('[machine]\nfingerprint = "f00d"\n[[plans]]\n', recognition.POLICY),
    "old policy": (_zip("policy.json"), recognition.OLD_POLICY),
    "other archive": (_zip("text.txt"), recognition.BINARY),
    "trace": (chakra_trace(), recognition.CHAKRA),
    "binary": (b"\x7fELF\x02\x01\x01\x00", recognition.BINARY),
    "empty": (b"", recognition.EMPTY),
    "blank": (b"\xef\xbb\xbf \n\n", recognition.EMPTY),
}


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


@pytest.mark.parametrize("case", SMALL)
def test_a_small_file_of_each_kind_is_recognised_under_any_name(case: str, tmp_path: Path) -> None:
    content, kind = SMALL[case]
    for name in ("file", "file.json", "file.xml"):
        (tmp_path / name).write_bytes(_bytes(content))
        assert kind_of(tmp_path / name) == kind


def test_the_command_that_takes_a_file_exists() -> None:
    kinds = [kind for kind in vars(recognition).values() if isinstance(kind, Kind)]
    commands = [shlex.split(kind.command) for kind in kinds if kind.command]
    assert commands
    for program, name, *words in commands:
        assert program == "sley"
        options = {opt for param in main.commands[name].params for opt in param.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_a_python_file_may_begin_with_another_text(tmp_path: Path) -> None:
    text = '"""A text:\n\nResCCLAlgo(nRanks=4):\n"""\n' + PROGRAM
    (tmp_path / "a.py").write_text(text)
    assert kind_of(tmp_path / "a.py") is recognition.PYTHON


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert kind_of(tmp_path) is recognition.FOLDER
    assert kind_of(tmp_path / "pipe") is recognition.SPECIAL
    assert kind_of("/dev/zero") is recognition.SPECIAL
    assert kind_of(tmp_path / "missing") is recognition.MISSING
    assert kind_of(tmp_path / "a\0b") is recognition.MISSING
    (tmp_path / "file").write_text("x")
    assert kind_of(tmp_path / "file" / "below") is recognition.MISSING


def test_a_file_whose_reader_would_wait_is_named() -> None:
    if not Path("/proc/kmsg").exists():
        pytest.skip("no /proc/kmsg here, a regular file without an end")
    words = "import sley.errors.recognition as r; print(r.kind_of('/proc/kmsg').text)"
    found = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip() == recognition.UNREADABLE.text


FOLDERS = {
    "teccl": recognition.TECCL,
    "forestcoll": recognition.FORESTCOLL,
    "taccl-topologies": recognition.TACCL_TOPOLOGY,
    "mscclpp-plans": recognition.MSCCLPP,
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_real_files_are_recognised(folder: str, data_dir: Path) -> None:
    files = list((data_dir / folder).iterdir())
    assert files
    assert {kind_of(file) for file in files} == {FOLDERS[folder]}


def test_inputs_of_synthesisers_are_recognised(data_dir: Path) -> None:
    folder = data_dir / "users-3"
    assert kind_of(folder / "teccl-input-mesh.json") == recognition.TECCL_INPUT
    assert kind_of(folder / "syccl-config.json") == recognition.SYCCL_CONFIG
    assert kind_of(folder / "azure-ncv4-graph.xml") == recognition.NCCL_GRAPHS


def test_real_plans_are_recognised(data_dir: Path) -> None:
    files = [*(data_dir / "msccl-xml").glob("*.xml"), *(data_dir / "examined").glob("*.xml")]
    assert {kind_of(file) for file in files} == {recognition.MSCCL_XML}


HOSTILE = [
    b'{"' + b'\\"' * 500_000,
    b'"' * 10**6,
    b"{" * 10**6,
    b'{"' + b" " * 10**6,
    b"<!--" * 250_000,
    b"<?x?>" * 200_000,
    b" " * 10**6 + b"x",
    b"\x1b[" * 500_000,
    b"with " + b":" * 10**6,
    b"@" + b"a." * 500_000,
    b"GPU0" + b" " * 10**6,
    b"#" + b" " * 10**6,
    "€".encode() * 400_000,
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_content_takes_little_time(number: int) -> None:
    start = time.process_time()
    kind_of_content(HOSTILE[number])
    assert time.process_time() - start < 5


PIECES = [_bytes(content) for content, _ in SMALL.values()]


@given(st.lists(st.one_of(st.binary(max_size=8), st.sampled_from(PIECES)), max_size=4))
def test_any_content_has_a_kind(parts: list[bytes]) -> None:
    assert kind_of_content(b"".join(parts)).text


@examples(14)
@given(st.sampled_from(sorted(SMALL)), st.integers(0, 60))
def test_a_cut_file_has_a_kind(case: str, length: int) -> None:
    assert kind_of_content(_bytes(SMALL[case][0])[:length]).text


def _output(*arguments: object, code: int = 1) -> str:
    found = CliRunner().invoke(main, [str(a) for a in arguments])
    assert found.exit_code == code, found.output
    return found.output


NO_PLAN = ["NCCL", "list", "TACCL sketch", "TACCL profile", "matrix", "kernels", "tuner", "machine"]
NO_PLAN += ["TE-CCL input", "SyCCL", "graphs"]
NO_PLAN += ["package", "policy", "TOML", "prose", "binary", "empty", "other XML", "report"]


@pytest.mark.parametrize("case", NO_PLAN)
def test_a_file_without_a_plan_is_named_and_no_algorithms_are(case: str, tmp_path: Path) -> None:
    content, kind = SMALL[case]
    file = tmp_path / "file"
    file.write_bytes(_bytes(content))
    for command in ("verify", "compile", "simulate"):
        output = _output(command, file)
        assert f"found:    {kind.text}" in output
        assert "F550" in output
        assert kind.advice(str(file)) in output
        assert "ring-allreduce" not in output


@pytest.mark.parametrize("what", ["nofile", "missing.txt", ".", "/etc/passwd", "a/b", "~/x"])
def test_a_path_is_never_answered_with_a_list_of_algorithms(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = _output("verify", what, code=1 if Path(what).exists() else 2)
    assert "L120" not in output
    assert "ring-allreduce" not in output


def test_a_misspelt_algorithm_is_answered_with_similar_ones() -> None:
    output = _output("compile", "ring-alreduce", "--ranks", 4, code=2)
    assert "L120" in output
    assert "Did you mean ring-allreduce" in output


NO_TOPOLOGY = ["plan", "MSCCL++", "TE-CCL", "trees", "TACCL sketch", "Python"]
NO_TOPOLOGY += ["TE-CCL input", "SyCCL", "graphs", "PNG", "document", "report"]


@pytest.mark.parametrize("case", NO_TOPOLOGY)
def test_a_file_without_a_topology_is_named(case: str, tmp_path: Path) -> None:
    content, kind = SMALL[case]
    file = tmp_path / "file.json"
    file.write_bytes(_bytes(content))
    for arguments in (("topology", "show", file), ("compile", "alltonext", "--topology", file)):
        output = _output(*arguments)
        assert f"found:    {kind.text}" in output
        assert "F550" in output


@pytest.mark.parametrize("name", ["folder", "folder.toml", "."])
def test_a_folder_is_no_topology_whatever_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir(exist_ok=True)
    for line in (("bound", "--topology", name), ("topology", "show", name)):
        output = _output(*line)
        assert "F550" in output
        assert "found:    a folder" in output


NO_TABLE = ["PNG", "document", "picture", "plan", "Python", "sley's plan"]


@pytest.mark.parametrize("case", [*NO_TABLE, "old policy"])
def test_a_file_without_a_table_is_named(case: str, tmp_path: Path) -> None:
    content, kind = SMALL[case]
    file = tmp_path / "table.toml"
    file.write_bytes(_bytes(content))
    package = ("package", tmp_path / "d", "--target", "rccl", "--table", file)
    for arguments, code in ((package, "F528"), (("tune", "show", file), "D901")):
        output = _output(*arguments)
        assert code in output
        assert f"found:    {kind.text}" in output
        assert kind.advice(str(file)) in output


def test_text_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    file.write_bytes(_bytes(SMALL["PNG"][0]) + b"\xff")
    output = _output("calibrate", "--from", file, "--topology", "1x4", "-o", tmp_path / "x.toml")
    assert f"found:    {recognition.PICTURE.text}" in output


def test_a_plan_is_read_under_any_name(tmp_path: Path) -> None:
    program = sley.algorithms.build("ring-allreduce", ranks=2)
    sley.save(sley.compile(program, per_chunk=True), tmp_path / "plan.xml")
    named = (tmp_path / "plan.xml").rename(tmp_path / "plan")
    assert sley.load(named).collective == program.collective
    assert CliRunner().invoke(main, ["verify", str(named)]).exit_code == 0
    assert sley.verify_file(named).proofs


@pytest.mark.parametrize("command", ["verify", "compile", "simulate"])
def test_a_command_looks_once_what_a_file_is(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ring.resccl").write_text(sley.algorithms.resccl_text("hm-allgather"))
    looked_at = []

    def count(path: str) -> Kind:
        looked_at.append(path)
        return kind_of(path)

    monkeypatch.setattr(recognition, "kind_of", count)
    size = ["-b", "1M", "-e", "1M", "--topology", "2x2"] if command == "simulate" else []
    arguments = [command, str(tmp_path / "ring.resccl"), "--nodes", "2", "--gpus", "2", *size]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert looked_at == [str(tmp_path / "ring.resccl")]
