"""The doctor: what a runtime makes of a directory, and why a file doesn't run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import pytest
from click.testing import CliRunner, Result

import sley
from sley.cli import main
from sley.compiler.deployment import CallAction, DeployedCall, decide, examine, runtime_named
from sley.compiler.deployment.candidates import read_head
from sley.compiler.deployment.examination import Examination
from sley.compiler.deployment.registration import SCRIPT, registered, script
from sley.compiler.deployment.runtimes import RUNTIMES
from sley.errors import Diagnostic, SleyError, recognition
from sley.errors.deployment import F504
from sley.formats import files
from support.checks.golden import Golden
from support.inputs.deployments import default_plans, edit, head_of_plan, plan, prove_nothing, xml
from support.inputs.mscclpp_plans import Made, text_of

SMALL, LARGE = "allreduce_2nodes_1K_64K.json", "allreduce_2nodes_128K_2M.json"
FOUR = "allreduce_4nodes_128K_2M.json"


PLAN_CALLS = (
    "allreduce --size 64K --dtype float16 --ranks 16 --gpus 8",
    "allreduce --size 96K --ranks 16 --gpus 8 --in-place",
    "allreduce --size 1M --ranks 16 --gpus 8 --in-place --op max",
    "allreduce --size 1M --ranks 16 --gpus 8 --in-place --dtype int64",
    "allreduce --size 1000 --ranks 16 --gpus 8 --in-place",
    "allreduce --size 1028 --ranks 16 --gpus 8 --in-place",
    "allreduce --size 64K --ranks 32 --gpus 8 --in-place",
    "allreduce --size 1M --ranks 32 --gpus 8 --in-place",
    "allreduce --size 1M --ranks 64 --gpus 4 --in-place",
    "allreduce --size 64K --ranks 8 --in-place",
    "allgather --size 64K --ranks 16 --gpus 8 --in-place",
)
"""Calls for the plans of MSCCL++."""

XML_CALLS = (
    "allreduce --size 64K --dtype float16 --ranks 4",
    "allreduce --size 128K --ranks 4 --in-place",
    "allreduce --size 512K --ranks 4 --in-place --op max",
    "allreduce --size 512K --ranks 4 --in-place --op avg",
    "allreduce --size 1001 --dtype int8 --ranks 4 --in-place",
    "allreduce --size 64K --ranks 8 --in-place",
    "allgather --size 1M --ranks 4",
)
"""Calls for the files of `xmls`."""


def xmls(target: str) -> Callable[[Path], None]:
    """Three files: AllReduces in place for small and for large sizes, and an AllGather."""

    def write(folder: Path) -> None:
        xml(folder / "01-tree.xml", "double-binary-tree-allreduce", target, max_bytes="64K")
        xml(folder / "02-ring.xml", "ring-allreduce", target, min_bytes="256K", max_bytes="1G")
        xml(folder / "03-gather.xml", "ring-allgather", target, in_place=False)

    return write


@pytest.mark.parametrize(
    ("file", "runtime", "version", "write"),
    [
        ("mscclpp-2026-08", "mscclpp", "2026-08", default_plans),
        ("executor", "executor", None, xmls("executor")),
        ("rccl-2.27.7", "rccl", "2.27.7", xmls("rccl")),
        ("rccl-2.28.3", "rccl", "2.28.3", xmls("rccl")),
    ],
)
def test_the_doctor_says_what_runs_and_why_nothing_else(
    golden: Golden, tmp_path, monkeypatch, file, runtime, version, write
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "verify_file", cache(files.verify_file))  # each command proves
    write(Path("plans"))
    whole = ["doctor", "plans", "--target", f"{runtime}@{version}" if version else runtime]
    calls = PLAN_CALLS if runtime == "mscclpp" else XML_CALLS
    lines = []
    for further in ([], *(["--collective", *call.split()] for call in calls)):
        result = CliRunner().invoke(main, [*whole, *further])
        assert isinstance(result.exception, SystemExit | None), result.exception
        command = " ".join(["$ sley", *whole, *further])
        output = result.output.replace(str(tmp_path), "/here")
        lines.append(f"{command}\n{output}(exit code {result.exit_code})\n")
    golden(f"{file}.txt", "\n".join(lines))


def _with_readme(folder: Path) -> None:
    xml(folder / "ring.xml")
    (folder / "README").write_text("Plans for our cluster.\n")


def _with_swap_file(folder: Path) -> None:
    xml(folder / "ring.xml", target="rccl")
    (folder / ".ring.xml.swp").write_text("b0VIM 9.0")


def _with_declaration(folder: Path) -> None:
    xml(folder / "ring.xml")
    edit(folder / "ring.xml", ("<algo", '<?xml version="1.0"?>\n<algo'))


def _edited(*changes: tuple[str, str], **settings: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        xml(folder / "ring.xml", **settings)  # type: ignore[arg-type]
        edit(folder / "ring.xml", *changes)

    return write


def _two(first: dict[str, object], second: dict[str, object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        xml(folder / "01.xml", **first)  # type: ignore[arg-type]
        xml(folder / "02.xml", **second)  # type: ignore[arg-type]

    return write


def _five(folder: Path) -> None:
    for number in range(5):
        sizes = {"min_bytes": (number << 20) + 1, "max_bytes": (number + 1) << 20}
        xml(folder / f"{number}.xml", target="msccl", **sizes)


def _plan(name: str = SMALL, **fields: object) -> Callable[[Path], None]:
    return lambda folder: plan(folder / name, **fields)  # type: ignore[arg-type]


def _plans(first: dict[str, object], second: dict[str, object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        plan(folder / SMALL, **first)  # type: ignore[arg-type]
        plan(folder / LARGE, **{"min_message_size": 131072, "max_message_size": 1 << 21} | second)  # type: ignore[arg-type]

    return write


def _with_nops(folder: Path) -> None:
    plan(folder / SMALL)
    document = json.loads((folder / SMALL).read_text())
    operations = document["gpus"][3]["threadblocks"][0]["ops"]
    operations += [{"name": "nop"}] * (65 - len(operations))
    (folder / SMALL).write_text(json.dumps(document))


def _without_put(folder: Path) -> None:
    plan(folder / SMALL)
    document = json.loads((folder / SMALL).read_text())
    del document["gpus"][3]["threadblocks"][0]["ops"][0]
    (folder / SMALL).write_text(json.dumps(document))


def _with_word(folder: Path) -> None:
    plan(folder / SMALL)
    edit(folder / SMALL, ('"nop"', '"nope"'))


def _cut_off(folder: Path) -> None:
    plan(folder / SMALL)
    (folder / SMALL).write_text((folder / SMALL).read_text()[:-9])


def _registered(ranks: dict[str, int]) -> Callable[[Path], None]:
    """A plan for 16 ranks with the program of packages, which registers files for their ranks."""

    def write(folder: Path) -> None:
        plan(folder / SMALL)
        rows = [(name, number, 8) for name, number in ranks.items()]
        (folder / SCRIPT).write_text(script(rows))

    return write


def _registered_cut_off(folder: Path) -> None:
    _registered({SMALL: 16})(folder)
    _cut_off(folder)


EXECUTOR, RCCL, MSCCL = "executor", "rccl", "msccl"
MSCCLPP, PYTHON = "mscclpp", "mscclpp-python"

BROKEN: dict[str, tuple[str, Callable[[Path], None], str, str]] = {
    "a README": (EXECUTOR, _with_readme, "F504", "README"),
    "an editor's hidden file": (RCCL, _with_swap_file, "F504", ".swp"),
    "an XML declaration": (EXECUTOR, _with_declaration, "F504", "<?xml"),
    "a tab": (EXECUTOR, _edited((" proto=", "\tproto=")), "F504", "tabs"),
    "no minBytes": (EXECUTOR, _edited((' minBytes="0"', "")), "F504", "minBytes"),
    "msccl's name of ReduceScatter": (
        EXECUTOR,
        lambda folder: xml(folder / "a.xml", "ring-reducescatter", "msccl") and None,
        "F504",
        "reduce_scatter",
    ),
    "too many steps": (
        EXECUTOR,
        _edited(
            ('inplace="1" outofplace="0"', 'inplace="1" outofplace="0"'), target="msccl", ranks=34
        ),
        "F505",
        "64 steps",
    ),
    "too many channels": (
        RCCL,
        _edited(('nchannels="1"', 'nchannels="129"'), target="rccl"),
        "F506",
        "nchannels=129",
    ),
    "a plan that is cut off": (MSCCLPP, _cut_off, "F506", "JSON"),
    "a plan without a place": (MSCCLPP, _plan(inplace=None), "F506", "inplace"),
    "another name": (MSCCLPP, _plan("my_allreduce.json"), "F503", "my_allreduce.json"),
    "other ranks than registered": (MSCCLPP, _plan(FOUR, ranks=32), "F508", "32 ranks"),
    "two plans of one name": (PYTHON, _plans({"name": "a"}, {"name": "a"}), "F509", "'a'"),
    "both places": (MSCCLPP, _plans({}, {"inplace": False}), "F510", SMALL),
    "ranges with a common size": (
        MSCCLPP,
        _plans({}, {"min_message_size": 65536}),
        "F511",
        "64K to 64K",
    ),
    "a file behind another": (
        RCCL,
        _two({"target": "rccl"}, {"target": "rccl", "max_bytes": "64K"}),
        "F512",
        "01.xml runs",
    ),
    "an empty range": (
        EXECUTOR,
        _edited(('minBytes="0"', 'minBytes="9"'), max_bytes=8),
        "F463",
        "9 to 8",
    ),
    "an end before any size": (
        MSCCL,
        _edited((f'maxBytes="{1 << 40}"', 'maxBytes="0"'), target="msccl"),
        "F463",
        "no size",
    ),
    "a range between two multiples": (
        EXECUTOR,
        _edited(('minBytes="0"', 'minBytes="1001"'), ('maxBytes="0"', 'maxBytes="1001"')),
        "F463",
        "1001 to 1001",
    ),
    "no place": (EXECUTOR, _edited(('inplace="1"', 'inplace="0"')), "F463", "both 0"),
    "a collective without calls": (MSCCLPP, _plan(collective="alltoall"), "F463", "alltoall"),
    "a start past 32 bits": (
        PYTHON,
        _plan(min_message_size=1 << 31, max_message_size=1 << 33),
        "F463",
        "min_message_size",
    ),
    "no chunks in XML": (
        EXECUTOR,
        _edited(('nchunksperloop="4"', 'nchunksperloop="0"')),
        "F515",
        "nchunksperloop",
    ),
    "no chunks in JSON": (
        MSCCLPP,
        lambda folder: head_of_plan(folder / SMALL, (1, 0, 4)),
        "F515",
        "rank 0",
    ),
    "65 operations": (MSCCLPP, _with_nops, "F516", "65"),
    "a missing put": (MSCCLPP, _without_put, "F517", "V2"),
    "an unknown operation": (MSCCLPP, _with_word, "F516", "F478"),
    "a chunk that isn't reduced": (
        EXECUTOR,
        _edited(('type="rrs"', 'type="rcs"')),
        "F517",
        "V206",
    ),
    "fused operations": (RCCL, lambda folder: xml(folder / "a.xml") and None, "F516", "rrs"),
    "five files for msccl": (MSCCL, _five, "F518", "5"),
    "a registered file that isn't there": (
        PYTHON,
        _registered({SMALL: 16, LARGE: 16}),
        "F504",
        LARGE,
    ),
    "a registered plan that is cut off": (PYTHON, _registered_cut_off, "F504", "JSON"),
    "a plan that is registered for other ranks": (
        PYTHON,
        _registered({SMALL: 8}),
        "F508",
        "8 ranks",
    ),
    "a ReduceScatter in place": (
        PYTHON,
        _plan(collective="reducescatter", ranks=2),
        "F527",
        "rank 0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_directory_has_the_problem_of_its_fault_alone(tmp_path, case):
    runtime, write, code, words = BROKEN[case]
    write(tmp_path)
    examined = examine(tmp_path, runtime_named(runtime))
    assert [one.code for one in examined.problems] == [code], examined.problems
    assert words in str(examined.problems[0])


@pytest.mark.parametrize("runtime", [EXECUTOR, RCCL, MSCCL, MSCCLPP, PYTHON])
def test_a_missing_directory_and_an_empty_one_are_named(tmp_path, runtime):
    for folder in (tmp_path, tmp_path / "missing"):
        examined = examine(folder, runtime_named(runtime))
        assert [one.code for one in examined.problems] == ["F503"]
        call = DeployedCall("allreduce", 1024, 8, 8)
        stops = runtime in (EXECUTOR, RCCL) and folder != tmp_path
        outcome = decide(examined, call).outcome
        assert outcome == (CallAction.NO_START if stops else CallAction.OWN)


def test_a_right_directory_has_no_problem(tmp_path):
    xmls("rccl")(tmp_path)
    examined = examine(tmp_path, runtime_named("rccl"))
    assert examined.problems == ()
    assert [one.code for one in examined.remarks] == ["F513"]
    assert examined.environment["MSCCL_ALGO_DIR"] == str(tmp_path)


def examined(folder: Path, runtime: str, version: str | None = None) -> Examination:
    return examine(folder, runtime_named(f"{runtime}@{version}" if version else runtime))


def codes(found: Iterable[Diagnostic]) -> list[str]:
    return [one.code for one in found]


def test_files_that_stop_the_start_or_the_process_are_blamed_for_every_call(tmp_path):
    BROKEN["a README"][1](tmp_path / "a")
    call = DeployedCall("allgather", 1024, 16, 8)
    decision = decide(examined(tmp_path / "a", EXECUTOR), call)
    assert (decision.outcome, decision.chosen) == (CallAction.NO_START, ())
    assert [fault.code for fault in decision.faults] == ["F504"]
    BROKEN["no chunks in XML"][1](tmp_path / "b")
    decision = decide(examined(tmp_path / "b", EXECUTOR), call)
    assert (decision.outcome, decision.chosen) == (CallAction.ENDS, ("ring.xml",))
    assert [fault.code for fault in decision.faults] == ["F515"]


def test_an_unfit_file_stops_only_communicators_of_its_ranks(tmp_path):
    BROKEN["too many steps"][1](tmp_path)
    found = examined(tmp_path, EXECUTOR)
    for ranks, outcome in ((34, CallAction.NO_START), (8, CallAction.OWN)):
        call = DeployedCall("allreduce", 34 << 10, ranks, ranks, True)
        assert decide(found, call).outcome == outcome
    skipped = decide(examined(tmp_path, MSCCL), DeployedCall("allreduce", 34 << 10, 34, 34, True))
    assert (skipped.outcome, skipped.chosen) == (CallAction.RUNS, ("ring.xml",))


def test_the_first_match_runs_and_is_the_reason_against_later_ones(tmp_path):
    _two({"target": "rccl"}, {"target": "rccl", "max_bytes": "64K"})(tmp_path)
    decision = decide(examined(tmp_path, RCCL), DeployedCall("allreduce", 4096, 4, 4, True))
    assert decision.chosen == ("01.xml",)
    assert decision.why_not["02.xml"].code == "F512"


def test_a_file_of_fewer_chunks_serves_the_sizes_that_others_can_not_divide(tmp_path):
    xml(tmp_path / "01.xml")
    xml(tmp_path / "02.xml", "double-binary-tree-allreduce")
    found = examined(tmp_path, EXECUTOR)
    assert found.problems == ()
    for elements, name in ((1024, "01.xml"), (1022, "02.xml")):
        call = DeployedCall("allreduce", 4 * elements, 4, 4, True)
        assert decide(found, call).chosen == (name,)


def test_gathers_are_compared_by_the_part_of_a_rank(tmp_path):
    xml(tmp_path / "gather.xml", "flat-gather", in_place=False, min_bytes=64)
    edit(tmp_path / "gather.xml", ('nchunksperloop="1"', 'nchunksperloop="4"'))
    found = examined(tmp_path, EXECUTOR)
    reading = found.reading
    one = replace(reading.candidates[0], stop=None, faults=())  # it has the steps of one chunk
    found = replace(found, reading=replace(reading, candidates=(one,)))
    for elements, chosen in ((12, ()), (16, ("gather.xml",)), (17, ())):
        assert decide(found, DeployedCall("gather", 4 * 4 * elements, 4, 4)).chosen == chosen


def test_the_ranks_of_a_node_are_compared_with_the_names(tmp_path):
    plan(tmp_path / SMALL)
    found = examined(tmp_path, MSCCLPP)
    for node, chosen in ((8, (SMALL,)), (16, ())):
        assert decide(found, DeployedCall("allreduce", 4096, 16, node, True)).chosen == chosen


@pytest.mark.parametrize(
    ("collective", "chunks", "multiple"),
    [
        ("allreduce", (16, 16, 4), 256),
        ("allreduce", (2, 3, 4), 96),
        ("allgather", (1, 16, 4), 256),
        ("allgather", (2, 16, 4), 512),
        ("reducescatter", (16, 2, 4), 512),
    ],
)
def test_sizes_of_plans_are_multiples_of_all_ranks_chunks(
    tmp_path, monkeypatch, collective, chunks, multiple
):
    prove_nothing(monkeypatch)  # the steps are an AllReduce's
    head_of_plan(tmp_path / "a.json", chunks)
    edit(tmp_path / "a.json", ('"allreduce"', f'"{collective}"'), ("true", "false"))
    assert examined(tmp_path, PYTHON).reading.candidates[0].multiple == multiple


def test_numbers_are_read_as_c_does(tmp_path):
    words = {"a": "0x1F", "b": "017", "c": "12k", "d": "-3", "e": "many", "f": "09"}
    text = " ".join(f'{word}="{value}"' for word, value in words.items())
    (tmp_path / "a.xml").write_text(f"<!-- a comment -->\n<algo {text}>")
    head = read_head(tmp_path / "a.xml", F504)
    assert {word: head.number(word) for word in words} == {
        "a": 31, "b": 15, "c": 12, "d": -3, "e": 0, "f": 0
    }  # fmt: skip


def test_a_plan_that_another_one_replaces_does_not_run(tmp_path):
    _plans({"name": "a"}, {"name": "a"})(tmp_path)
    found = examined(tmp_path, MSCCLPP)
    small, large = (DeployedCall("allreduce", size, 16, 8, True) for size in (1 << 12, 1 << 20))
    assert decide(found, large).chosen == (LARGE,)
    decision = decide(found, small)
    assert decision.chosen == ()
    assert decision.why_not[SMALL].code == "F509"


def test_nobody_knows_which_plan_runs_if_the_order_is_unknown(tmp_path):
    _plans({}, {"min_message_size": 65536})(tmp_path / "a")
    call = DeployedCall("allreduce", 65536, 16, 8, True)
    decision = decide(examined(tmp_path / "a", MSCCLPP), call)
    assert (decision.outcome, set(decision.chosen)) == (CallAction.ANY, {SMALL, LARGE})
    assert codes(decision.faults) == ["F511"]
    assert not decision.is_right
    _plans({}, {"inplace": False})(tmp_path / "b")
    decision = decide(examined(tmp_path / "b", MSCCLPP), call)
    assert (decision.outcome, decision.chosen) == (CallAction.UNKNOWN, (SMALL,))
    assert decision.faults[0].code == "F510"
    plan(tmp_path / "c" / "a.json", collective="reducescatter", ranks=2)
    call = DeployedCall("reducescatter", 65536, 2, 2, True)
    decision = decide(examined(tmp_path / "c", PYTHON), call)
    assert (decision.outcome, decision.faults[0].code) == (CallAction.UNKNOWN, "F527")


def test_each_of_several_plans_has_its_own_effect(tmp_path):
    plan(tmp_path / "coarse.json", ranks=2, buffer_alignment=64)
    plan(tmp_path / "fine.json", ranks=2)
    call = DeployedCall("allreduce", 1040, 2, 2, True)
    decision = decide(examined(tmp_path, PYTHON), call)
    assert decision.effects == {"coarse.json": CallAction.ENDS, "fine.json": CallAction.RUNS}
    command = ["doctor", str(tmp_path), "--target", PYTHON, "--collective", "allreduce"]
    output = answer(*command, "--size", "1040", "--ranks", "2", "--in-place").output
    assert "  ends the process: coarse.json; or runs: fine.json\n" in output


def test_the_conditions_of_the_proofs_are_said(tmp_path):
    plan(tmp_path / "a.json", ranks=2)
    plan(tmp_path / "b.json", ranks=4)
    command = ["doctor", str(tmp_path), "--target", PYTHON]
    call = ["--collective", "allreduce", "--size", "4K", "--ranks", "2", "--in-place"]
    heading, meeting = "which the runtime doesn't check:", "new allocations on all ranks at once"
    for output, of in (
        (answer(*command).output, "all files"),
        (answer(*command, *call).output, "a.json"),
    ):
        assert f"{heading}\n  {of}: " in output
        assert f"  {of}: {meeting}\n" in output
    document = json.loads(answer(*command, "--json").output)
    texts = {one["text"]: one["files"] for one in document["conditions"]}
    assert texts[meeting] == ["a.json", "b.json"]
    assert {one["about"] for one in document["conditions"]}.isdisjoint({"place", "sizes", "root"})


def test_conditions_that_a_runtime_has_or_checks_are_not_said(tmp_path):
    xmls(RCCL)(tmp_path)
    assert examined(tmp_path, RCCL).conditions == {}


def test_a_registered_file_without_permissions_has_a_remedy_of_its_own(tmp_path, monkeypatch):
    _registered({SMALL: 16})(tmp_path)

    def open_file(path: Path) -> BinaryIO:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("sley.formats.format.open_file", open_file)
    (problem,) = examined(tmp_path, PYTHON).problems
    assert (problem.code, problem.remedy) == ("F504", "Check the path and the permissions.")


def test_the_default_of_the_ranks_of_a_node_is_said(tmp_path):
    plan(tmp_path / SMALL)
    command = ["doctor", str(tmp_path), "--target", MSCCLPP, "--collective", "allreduce"]
    command += ["--size", "4K", "--ranks", "16", "--in-place"]
    words = "all 16 ranks share a node; files for --gpus 8 are left out\n"
    assert words in answer(*command).output
    assert words not in answer(*command, "--gpus", "8").output


def test_a_reason_is_said_once(tmp_path):
    _with_readme(tmp_path)
    command = ["doctor", str(tmp_path), "--target", EXECUTOR, "--collective", "allreduce"]
    output = answer(*command, "--size", "4K", "--ranks", "4", "--in-place").output
    assert output.count("F504 start-fails") == 1, output


def test_an_option_without_a_runtime_is_named(tmp_path):
    assert "--size needs --target" in answer("doctor", str(tmp_path), "--size", "4K").stderr


CALL = ("--collective", "allreduce", "--size", "256K", "--ranks", "16", "--gpus", "8", "--in-place")


def answer(*command: str) -> Result:
    return CliRunner().invoke(main, list(command))


def _nothing(folder: Path) -> None:
    folder.rmdir()


def _parent(folder: Path) -> None:
    plan(folder / "default" / LARGE, min_message_size=131072, max_message_size=1 << 21)


def _xml_files(folder: Path) -> None:
    xml(folder / "ring.xml")


@pytest.mark.parametrize(
    ("runtime", "write", "code", "words"),
    [
        (MSCCLPP, _nothing, "F503", "No such file"),
        (PYTHON, _nothing, "F503", "No such file"),
        (MSCCL, _nothing, "F503", "No such file"),
        (MSCCL, lambda folder: None, "F503", "an empty directory"),
        (MSCCLPP, _parent, "F503", "only directories: default"),
        (PYTHON, _xml_files, "F503", "not ring.xml: F506"),
        (MSCCL, _parent, "F503", "only directories: default"),
        (MSCCLPP, _cut_off, "F506", f"not {SMALL}: F506"),
    ],
)
def test_a_call_has_the_problems_of_the_directory(tmp_path, runtime, write, code, words):
    folder = tmp_path / "default"
    folder.mkdir()
    write(folder)
    command = ("doctor", str(folder), "--target", runtime, *CALL)
    result = answer(*command)
    assert result.exit_code == (1 if folder.exists() else 2)
    assert code in result.output
    assert words in result.output
    assert not json.loads(answer(*command, "--json").output)["ok"]


def test_a_call_has_the_remark_of_a_directory_that_is_not_read(tmp_path):
    plan(tmp_path / LARGE, min_message_size=131072, max_message_size=1 << 21)
    result = answer("doctor", str(tmp_path), "--target", MSCCLPP, *CALL)
    assert (result.exit_code, "note: " in result.output) == (0, True), result.output
    assert "F531" in result.output


@pytest.mark.parametrize(
    ("runtime", "version", "code"),
    [
        ("nccl", None, "F501"),
        ("ncclx", "2.31", "F501"),
        ("rccl", "2.29.1", "F501"),
        ("rccl", "2.28.9", "F501"),
        ("rccl", "2.27.7", None),
        ("rccl", "2.22.3", None),
        ("rccl", "7.2", None),
        ("rccl", "7.11", "F501"),
    ],
)
def test_a_runtime_that_reads_no_plans_says_so(tmp_path, runtime, version, code):
    xml(tmp_path / "ring.xml", target="rccl")
    found = examined(tmp_path, runtime, version)
    assert [one.code for one in found.problems] == ([code] if code else [])
    assert bool(found.environment) == (code is None)


@pytest.mark.parametrize(
    ("runtime", "version"),
    [
        ("nccl2", None),
        ("rccl", "banana"),
        ("rccl", "7.3"),
        ("mscclpp", "0.9.0"),
        (EXECUTOR, "2.27"),
    ],
)
def test_an_unknown_runtime_or_version_is_refused(runtime, version):
    with pytest.raises(SleyError) as caught:
        runtime_named(f"{runtime}@{version}" if version else runtime)
    assert caught.value.code == "F440"


@pytest.mark.parametrize(
    "values",
    [
        {"collective": "alreduce"},
        {"dtype": "float31"},
        {"op": "xor"},
        {"ranks": 6},
        {"size_bytes": 1022},
        {"collective": "allgather", "size_bytes": 4},
    ],
)
def test_an_impossible_call_is_refused(values):
    call = {"collective": "allreduce", "size_bytes": 1024, "ranks": 8, "node": 4}
    with pytest.raises(SleyError) as caught:
        DeployedCall(**{**call, **values})
    assert caught.value.code == "F525"


def test_a_file_is_examined_as_if_it_were_alone(tmp_path):
    BROKEN["a README"][1](tmp_path)
    assert examined(tmp_path / "ring.xml", EXECUTOR).problems == ()
    assert [one.code for one in examined(tmp_path / "README", EXECUTOR).problems] == ["F504"]


def test_links_are_files_for_the_runtimes_that_read_whole_folders(tmp_path):
    (tmp_path / "folder").mkdir()
    xml(tmp_path / "ring.xml")
    assert examined(tmp_path, EXECUTOR).problems == ()
    (tmp_path / "link.xml").symlink_to(tmp_path / "folder")
    assert [one.code for one in examined(tmp_path, EXECUTOR).problems] == ["F504"]


def test_unread_files_are_remarks(tmp_path):
    plan(tmp_path / SMALL)
    (tmp_path / "my_allreduce.json").write_text("{}")
    found = examined(tmp_path, MSCCLPP)
    assert found.problems == ()
    files = [(one.code, one.found) for one in found.remarks if one.code != "F531"]
    assert files == [("F507", "my_allreduce.json")]


def test_the_overview_has_a_line_for_each_runtime(tmp_path):
    xml(tmp_path / "ring.xml", target="rccl")
    result = CliRunner().invoke(main, ["doctor", str(tmp_path)])
    assert result.exit_code == 0
    lines = result.output.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [one.name for one in RUNTIMES]
    document = json.loads(CliRunner().invoke(main, ["doctor", str(tmp_path), "--json"]).output)
    assert (len(document["runtimes"]), document["ok"]) == (len(lines), True)
    text = (tmp_path / "ring.xml").read_text()
    (tmp_path / "ring.xml").write_text(text[: len(text) // 2])
    assert CliRunner().invoke(main, ["doctor", str(tmp_path)]).exit_code == 1
    broken = CliRunner().invoke(main, ["doctor", str(tmp_path), "--json"])
    assert (broken.exit_code, json.loads(broken.output)["ok"]) == (1, False)


OTHERS = {
    "machine.toml": ("gpus = 8\n", "a topology in TOML", "sley topology show"),
    "steps.xml": ("<Algo nchunkspernode='1'></Algo>", "ForestColl trees", "sley import"),
    "ring.py": ("import msccl\n", "a Python script for msccl-tools", "sley compile"),
    "sketch.json": (
        '{"intranode_sketch": {}}',
        "a TACCL sketch",
        "Import the schedule that TACCL's solver writes",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("runtime", [None, "rccl", MSCCLPP, "nccl"])
def test_a_file_that_is_no_plan_is_named_with_its_remedy(tmp_path, name, runtime):
    content, words, remedy = OTHERS[name]
    (tmp_path / name).write_text(content)
    result = answer("doctor", str(tmp_path / name), *(["--target", runtime] if runtime else []))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "F550" in result.stderr
    assert f"found:    {words}" in result.stderr
    assert f"remedy:   {remedy}" in result.stderr.replace("Use it with: ", "")


def test_a_file_of_a_directory_that_is_no_plan_is_named(tmp_path):
    for name, (content, _, _) in OTHERS.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "damaged.xml").write_text("<al")
    plan(tmp_path / "plan.json")
    notes = {name: one.notes for name, one in examined(tmp_path, "rccl").reading.left_out.items()}
    expected = {name: (f"it is {words}",) for name, (_, words, _) in OTHERS.items()}
    expected["sketch.json"] = (f"it is {recognition.TACCL_SKETCH.text}",)
    own = {"damaged.xml": (), "plan.json": ("it is an MSCCL++ execution plan",)}
    assert notes == expected | own
    # A file whose content shows nothing, and the script that registers plans, are examined.
    assert "F550" not in answer("doctor", str(tmp_path / "damaged.xml")).output
    (tmp_path / SCRIPT).write_text(script([]))
    assert "F550" not in answer("doctor", str(tmp_path / SCRIPT)).output


def test_a_plan_of_sley_in_a_directory_is_named_with_the_command_that_writes_it(tmp_path):
    sley.save(sley.compile(sley.algorithms.ring_allreduce(2)), tmp_path / "ring.plan")
    told = answer("doctor", str(tmp_path), "--target", "executor").stdout
    assert "F504 start-fails" in told
    assert "found:    a plan of sley\n" in told
    assert f"SLEY_PLAN_DIR={tmp_path}. For this runtime" in told
    assert "sley package DIR --table plans.toml --target executor." in told
    assert "codec" not in told
    told = answer("doctor", str(tmp_path)).stderr
    (command,) = re.findall(r"; sley (doctor .*) --ranks N", told)
    assert f"SLEY_PLAN_DIR={tmp_path};" in told
    assert "ring.plan, allreduce" in answer(*command.split(), "--ranks", "2").stdout


def test_an_empty_directory_is_called_so(tmp_path):
    assert "is an empty directory" in answer("doctor", str(tmp_path)).stderr
    (tmp_path / "file").write_text("")
    assert answer("doctor", str(tmp_path)).stderr == ""


@pytest.mark.parametrize(("make", "code"), [(lambda path: None, 2), (os.mkfifo, 1)])
def test_the_overview_of_a_path_without_files_fails(tmp_path, make, code):
    make(tmp_path / "plans")
    result = CliRunner().invoke(main, ["doctor", str(tmp_path / "plans")])
    assert (result.exit_code, "F503" in result.stderr) == (code, True), result.output


def test_the_effect_of_a_file_that_stops_communicators_is_said(tmp_path):
    xml(tmp_path / "ring.xml")
    text = (tmp_path / "ring.xml").read_text()
    (tmp_path / "ring.xml").write_text(text[: len(text) // 2])
    overview = CliRunner().invoke(main, ["doctor", str(tmp_path)]).output.splitlines()
    stopped = [line.split()[0] for line in overview if "no communicator of 4 ranks starts" in line]
    assert stopped == [EXECUTOR, RCCL]
    found = examined(tmp_path, EXECUTOR)
    assert (found.reading.no_start, found.spans) == ("no communicator of 4 ranks starts", {})
    reasons = decide(found, DeployedCall("allreduce", 4096, 8, 8, True)).why_not
    assert codes(reasons.values()) == ["F520"]
    (tmp_path / "README").write_text("")
    assert examined(tmp_path, EXECUTOR).reading.no_start == "no communicator starts"
    assert examined(tmp_path, MSCCL).reading.no_start == ""


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("\nPlans for our\ncluster.\n", "a file of MSCCL XML", "the text 'Plans for our'"),
        ('{"name": 1}', "a file of MSCCL XML", "the text '{\"name\": 1}'"),
        ("<!DOCTYPE html>", "a file of MSCCL XML", "the text '<!DOCTYPE html>'"),
        ("\n", "a file of MSCCL XML", "an empty file"),
        ('<algo name="x', "a first tag that ends", "within its first tag, '<algo name=\"x'"),
        ("<algo  ngpus='4'>", "one space before each attribute", "the tag"),
    ],
)
def test_a_file_without_a_first_tag_is_named_as_what_it_is(tmp_path, text, expected, found):
    (tmp_path / "file").write_text(text)
    with pytest.raises(SleyError) as caught:
        read_head(tmp_path / "file", F504)
    problem = caught.value.diagnostics[0]
    assert expected in problem.expected
    assert found in problem.found


def test_a_bad_size_leaves_the_answers_for_others(tmp_path):
    xml(tmp_path / "ring.xml")
    call = ["--target", EXECUTOR, "--collective", "allreduce", "--ranks", "4", "--in-place"]
    sizes = ["--size", "4K", "--size", "1001", "--size", "8K"]
    command = ["doctor", str(tmp_path), *call]
    result = CliRunner().invoke(main, [*command, *sizes])
    assert (result.exit_code, result.stdout.count("runs: ring.xml")) == (1, 2), result.output
    assert (result.stderr.count("F525"), "1001 bytes" in result.stderr) == (2, True)
    document = json.loads(CliRunner().invoke(main, [*command, *sizes, "--json"]).output)
    assert (document["ok"], len(document["calls"])) == (False, 2)
    assert [one["code"] for one in document["diagnostics"]] == ["F525"]
    bad = ["--size", "1001", "--root", "1"]
    assert CliRunner().invoke(main, [*command, *bad]).stdout == ""


def test_the_folders_program_says_which_plans_are_registered(tmp_path):
    plan(tmp_path / "a.json")
    plan(tmp_path / "b.json", name="b")
    call = DeployedCall("allreduce", 4096, 16, 8, True)
    found = examined(tmp_path, PYTHON)
    assert codes(found.remarks) == ["F533"]
    assert decide(found, call).chosen == ("a.json", "b.json")
    assert codes(decide(found, call).remarks) == ["F533"]
    (tmp_path / SCRIPT).write_text(script([("a.json", 16, 8)]))
    found = examined(tmp_path, PYTHON)
    assert (found.problems, codes(found.remarks)) == ((), ["F507"])
    assert decide(found, call).chosen == ("a.json",)
    assert decide(found, replace(call, node=16)).chosen == ()
    assert codes(examined(tmp_path / "b.json", PYTHON).remarks) == ["F533"]
    assert codes(examined(tmp_path / SCRIPT, PYTHON).problems) == ["F503", "F506"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "raise SystemExit\n",
        script([("a.json", 16, 8)]) + "raise SystemExit\n",
        script([("a.json", 16, 8)]).replace("rank < ranks", "rank > ranks"),
        script([("a.json", 0, 8)]),
        script([("../a.json", 16, 8)]),
        script([("a.txt", 16, 8)]),
    ],
)
def test_another_program_is_not_read(tmp_path, text):
    plan(tmp_path / "a.json")
    (tmp_path / SCRIPT).write_text(text)
    found = examined(tmp_path, PYTHON)
    assert (found.problems, codes(found.remarks)) == ((), ["F533"])


def test_rows_of_the_program_are_read_as_they_are_written():
    rows = (("a.json", 16, 8), ("it's.json", 4, 4), ('"x".json', 2, 1))
    assert registered(script(rows)) == rows
    assert registered(script([])) == ()


def test_variables_name_the_whole_path_of_a_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "default"
    plan(folder / SMALL)
    monkeypatch.chdir(folder)
    expected = {"MSCCLPP_CACHE_DIR": str(tmp_path / "cache")}
    for where in (".", "../default", SMALL):
        found = examined(Path(where), MSCCLPP)
        assert (found.environment, found.remarks) == (expected, ())
    xml(tmp_path / "plans" / "ring.xml")
    monkeypatch.chdir(tmp_path)
    found = examined(Path("plans"), EXECUTOR)
    assert found.environment["MSCCL_ALGO_DIR"] == str(tmp_path / "plans")


def test_a_folder_that_the_default_loader_does_not_read_is_a_remark(tmp_path):
    plan(tmp_path / "plans" / SMALL)
    found = examined(tmp_path / "plans", MSCCLPP)
    assert (found.problems, codes(found.remarks), found.environment) == ((), ["F531"], {})


@pytest.mark.parametrize(
    ("runtime", "words"), [(MSCCLPP, "ends the process"), (EXECUTOR, "takes the next match")]
)
def test_the_overview_says_what_a_size_that_is_no_multiple_does(tmp_path, runtime, words):
    plan(tmp_path / SMALL) if runtime == MSCCLPP else xml(tmp_path / "ring.xml")
    output = CliRunner().invoke(main, ["doctor", str(tmp_path), "--target", runtime]).output
    assert words in output


def test_json_has_the_files_the_sizes_and_the_calls(tmp_path):
    xmls("rccl")(tmp_path)
    call = ["--collective", "allreduce", "--size", "4K", "--ranks", "4", "--in-place"]
    result = CliRunner().invoke(
        main, ["doctor", str(tmp_path), "--target", "rccl", *call, "--json"]
    )
    document = json.loads(result.output)
    assert document["ok"]
    assert [file["name"] for file in document["files"]][:1] == ["double-binary-tree-allreduce"]
    assert document["spans"][1]["files"] == ["01-tree.xml"]
    assert document["calls"][0]["files"] == ["01-tree.xml"]
    assert document["calls"][0]["why_not"]["02-ring.xml"]["code"] == "F520"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--target", "rccl", "--collective", "allreduce"],
        ["--target", "rccl", "--size", "4K"],
    ],
)
def test_wrong_usage_of_the_doctor_is_refused(tmp_path, arguments):
    assert CliRunner().invoke(main, ["doctor", str(tmp_path), *arguments]).exit_code == 2


def _rooted_plan(folder: Path) -> None:
    """A Broadcast of two ranks from rank 0, out of place."""
    made = Made("broadcast", 2, (1, 1, 0), inplace=False)
    root, other = (gpu.block() for gpu in made.gpus)
    root.move("copy", [("i", 0, 1)], [("o", 0, 1)]).on("rlxwait", 1).nop()
    root.move("put", [("i", 0, 1)], [(1, "o", 0, 1)]).nop().on("signal", 1)
    other.on("rlxsignal", 0).on("wait", 0)
    (folder / "a.json").write_text(text_of(made.to_json()))


def _rooted_xml(folder: Path) -> None:
    xml(folder / "a.xml", "flat-gather", in_place=False, root=2)


@pytest.mark.parametrize(
    ("runtime", "write", "collective", "ranks", "root"),
    [(EXECUTOR, _rooted_xml, "gather", 4, 2), (PYTHON, _rooted_plan, "broadcast", 2, 0)],
)
def test_a_call_with_another_root_runs_wrongly(tmp_path, runtime, write, collective, ranks, root):
    write(tmp_path)
    found = examined(tmp_path, runtime)
    assert found.problems == ()
    assert "F530" in codes(found.remarks)
    call = DeployedCall(collective, 4096, ranks, ranks)
    decision = decide(found, call)
    assert (decision.outcome, "F530" in codes(decision.remarks)) == (CallAction.RUNS, True)
    for number, outcome in ((root, CallAction.RUNS), (1, CallAction.WRONG)):
        decision = decide(found, replace(call, root=number))
        assert (decision.outcome, "F530" in codes(decision.remarks)) == (outcome, False)
        assert [one.code for one in decision.faults] == (["F530"] if number == 1 else [])
    command = ["doctor", str(tmp_path), "--target", runtime, "--collective", collective]
    command += ["--size", "4K", "--ranks", str(ranks), "--root", "1", "--out-of-place"]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, "F530 root-not-compared" in result.output) == (1, True), result.output


@pytest.mark.parametrize(("collective", "root"), [("allreduce", 0), ("gather", 4)])
def test_an_impossible_root_is_refused(collective, root):
    with pytest.raises(SleyError) as caught:
        DeployedCall(collective, 4096, 4, 4, root=root)
    assert caught.value.code == "F525"


def test_memory_channels_between_nodes_are_reported_as_running(tmp_path: Path) -> None:
    plan(tmp_path / "pair.json", ranks=2)
    found = examined(tmp_path, PYTHON)
    outcomes = [
        decide(found, DeployedCall("allreduce", 65536, 2, node, True)).outcome for node in (2, 1)
    ]
    assert outcomes == [CallAction.RUNS, CallAction.FAILS]
