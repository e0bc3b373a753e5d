"""The command line: output, files, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley as api
from sley.cli import main
from sley.engine.devices.measure import CheckedData
from sley.errors.catalog import all_rules
from sley.formats.files import verify_file
from support.inputs.xml_plans import exchange

GOOD = """
import sley

@sley.program(sley.AllGather(2))
def exchange(p):
    for rank in range(2):
        c = p.chunk(rank, "in", 0).copy(rank, "out", rank)
        c.copy(1 - rank, "out", rank)
"""

HEADER = """import sley

@sley.program(sley.AllReduce(4, 4))
def mistaken(p):
"""

MISTAKES = {
    "uninitialised": ("L105", '    p.chunk(0, "scratch", 0)\n'),
    "stale": (
        "L106",
        '    c = p.chunk(0, "in", 0); c.reduce(p.chunk(1, "in", 0)); c.copy(2, "out", 0)\n',
    ),
    "forgotten": ("V206", '    p.chunk(0, "in", 0).copy(0, "out", 0)\n'),
    "unequal": ("L107", '    p.chunk(0, "in", 0, 2).reduce(p.chunk(1, "in", 0))\n'),
    "rank": ("L101", '    p.chunk(7, "in", 0)\n'),
    "index": ("L103", '    p.chunk(0, "in", 4)\n'),
    "negative": ("L103", '    p.chunk(0, "in", -1)\n'),
    "overlap": ("L108", '    p.chunk(0, "in", 0, 2).copy(0, "in", 1)\n'),
    "peers": (
        "C302",
        '    p.chunk(0, "in", 0).copy(1, "out", 0, send_block=0); '
        'p.chunk(0, "in", 0).copy(2, "out", 0, send_block=0)\n',
    ),
    "raises": ("L114", "    undefined_name\n"),
}


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_code_1_names_the_line_and_writes_nothing(
    mistake: str, tmp_path: Path
) -> None:
    code, line = MISTAKES[mistake]
    program = written(tmp_path / "mistaken.py", HEADER + line)
    result = sley("compile", program, "-o", tmp_path / "plan.xml")
    assert result.exit_code == 1
    first = result.stderr.splitlines()[0]
    assert first.startswith(f"error: {program}:5")
    assert code in first
    assert "expected:" in result.stderr
    assert "remedy:" in result.stderr
    assert "Traceback" not in result.output
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".xml"] == []


def test_mistakes_are_told_as_json(tmp_path: Path) -> None:
    program = written(tmp_path / "mistaken.py", HEADER + MISTAKES["rank"][1])
    result = sley("compile", program, "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["ok"] is False
    assert said["diagnostics"][0]["code"] == "L101"
    assert said["diagnostics"][0]["places"][0]["line"] == 5


def test_a_syntax_error_is_told_with_file_and_line(tmp_path: Path) -> None:
    program = written(tmp_path / "broken.py", "import sley\ndef f(:\n")
    result = sley("compile", program)
    assert result.exit_code == 1
    assert f"{program}:2" in result.stderr
    assert f"python {program} shows the whole traceback" in result.stderr


def test_a_file_without_a_program_or_with_two_is_refused(tmp_path: Path) -> None:
    assert "L115" in sley("compile", written(tmp_path / "none.py", "x = 1\n")).stderr
    two = written(tmp_path / "two.py", GOOD + GOOD.replace("exchange", "again"))
    refused = sley("compile", two).stderr
    assert "L115" in refused
    assert f"Select one, as in {two}:exchange" in refused
    assert sley("compile", f"{two}:again").exit_code == 0
    assert "L115" in sley("compile", f"{two}:other").stderr
    assert "F404" in sley("compile", tmp_path / "missing.py").stderr
    prints = written(tmp_path / "prints.py", "print('hello')\n" + GOOD)
    assert json.loads(sley("compile", prints, "--json").stdout)["ok"] is True


def test_a_plan_goes_to_a_file_and_back(tmp_path: Path) -> None:
    program = written(tmp_path / "good.py", GOOD)
    for target in ("msccl", "executor", "rccl"):
        path = tmp_path / f"{target}.xml"
        assert sley("compile", program, "-o", path, "--target", target).exit_code == 0
        result = sley("verify", path, "--target", target)
        assert result.exit_code == 0, result.output
        assert "proven" in result.stdout


def test_a_custom_collective_goes_to_a_file_and_back(tmp_path: Path) -> None:
    text = GOOD.replace("sley.AllGather(2)", "sley.Custom('c', 2, 1, 2, lambda r, i: [(i, 0)])")
    program, path = written(tmp_path / "mine.py", text), tmp_path / "mine.xml"
    assert sley("compile", program, "-o", path, "--target", "msccl").exit_code == 0
    assert "F409" in sley("verify", path).stderr
    assert sley("verify", path, "--collective", program).exit_code == 0
    assert sley("verify", program, "--collective", program).exit_code == 2


def hanging(sends: int) -> str:
    """An MSCCL XML in which both ranks send all before they receive anything."""
    steps = [
        f'<step s="{s}" type="{"s" if s < sends else "r"}" srcbuf="i" srcoff="{s % sends}" '
        f'dstbuf="o" dstoff="{s % sends}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
        for s in range(2 * sends)
    ]
    ranks = [
        f'<gpu id="{rank}" i_chunks="{sends}" o_chunks="{2 * sends}" s_chunks="0">\n'
        f'<tb id="0" send="{1 - rank}" recv="{1 - rank}" chan="0">\n'
        + "\n".join(steps)
        + "\n</tb>\n</gpu>\n"
        for rank in range(2)
    ]
    return (
        f'<algo name="h" proto="Simple" nchannels="1" nchunksperloop="{2 * sends}" ngpus="2" '
        'coll="allgather" inplace="0" outofplace="1" minBytes="0" maxBytes="0">\n'
        + "".join(ranks)
        + "</algo>\n"
    )


def test_a_plan_that_hangs_with_the_targets_slots_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "hangs.xml", hanging(3))
    result = sley("verify", path)
    assert result.exit_code == 1
    assert "V203" in result.stderr
    assert f"{path}:" in result.stderr
    assert "waits for a free slot" in result.stderr
    # With three slots it does not hang; what is wrong then is the result.
    assert "V206" in sley("verify", path, "--slots", 3).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile"],
        ["compile", "ring-allreduce", "--ranks", "0"],
        ["compile", "ring-allreduce", "--ranks", "many"],
        ["compile", "ring-allreduce", "--ranks", "4", "--protocol", "fast"],
        ["run", "ring-allreduce", "--ranks", "2", "-b", "lots"],
        ["run", "ring-allreduce", "--ranks", "2", "-b", "4K", "-e", "1K"],
        ["run", "ring-allreduce", "--ranks", "2", "-b", "0", "-e", "1K"],
        ["explain", "V999"],
        ["frobnicate"],
    ],
)
def test_wrong_usage_ends_in_code_2(arguments: list[str]) -> None:
    assert sley(*arguments).exit_code == 2


def test_unknown_algorithms_offer_the_nearest() -> None:
    result = sley("compile", "ring-allredcue", "--ranks", "4")
    assert result.exit_code == 2
    assert "ring-allreduce" in result.stderr


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*arguments: object, **options: object) -> None:
        raise MemoryError("74.5 GiB")

    monkeypatch.setattr("sley.cli.compile.plan_and_file", exhausted)
    result = sley("compile", "ring-allreduce", "--ranks", 4)
    assert result.exit_code == 1
    assert "C306" in result.stderr
    assert "74.5 GiB" in result.stderr


def test_run_prints_the_table_and_checks() -> None:
    result = sley("run", "ring-allreduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-n", "2")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "# Out of bounds values : 0 OK" in lines
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [1024, 2048, 4096]
    assert all(row[8] == row[12] == "0" for row in rows)


def test_a_run_that_is_not_checked_says_so() -> None:
    result = sley("run", "ring-allreduce", "--ranks", "2", "-d", "half", "-n", "1", "-c", "0")
    assert result.exit_code == 0, result.output
    assert "# Out of bounds values : not checked" in result.stdout.splitlines()
    assert "float16" in result.stdout


def test_limits_are_checked_for_a_target_without_a_file() -> None:
    assert sley("compile", "ring-allreduce", "--ranks", 64).exit_code == 0
    result = sley("compile", "ring-allreduce", "--ranks", 64, "--target", "executor")
    assert result.exit_code == 1
    assert "F44" in result.stderr


def test_run_prints_json(tmp_path: Path) -> None:
    program = written(tmp_path / "good.py", GOOD)
    result = sley("run", program, "-b", "4K", "-d", "float16", "-n", "1", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["ok"] is True
    (row,) = said["rows"]
    assert row["dtype"] == "float16"
    assert row["in_place"] is None
    assert row["out_of_place"]["wrong"] == 0


def test_wrong_elements_out_of_place_end_a_run_in_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(CheckedData, "count_wrong", lambda *_: 1)
    program = written(tmp_path / "good.py", GOOD)
    result = sley("run", program, "-b", "4K", "-n", "1", "--device", "threads", "--json")
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)["ok"] is False


def test_explain_knows_every_code() -> None:
    for code in all_rules():
        result = sley("explain", code)
        assert result.exit_code == 0
        assert code in result.stdout
    assert set(json.loads(sley("explain", "--json").stdout)) == set(all_rules())
    listed = [line.split()[0] for line in sley("explain").stdout.splitlines()]
    assert listed == sorted(all_rules())


@pytest.mark.parametrize("code", ["F474", "f474"])
def test_explain_names_the_rule_in_place_of_a_former_one(code: str) -> None:
    assert sley("explain", code).stdout.startswith(
        "F474 is now a case of F412.\n\nF412 wrong-ids\n"
    )
    assert json.loads(sley("explain", code, "--json").stdout)["code"] == "F412"


def test_list_names_every_algorithm() -> None:
    listed = {row["name"] for row in json.loads(sley("list", "--json").stdout)}
    assert {"ring-allreduce", "two-step-alltoall"} <= listed
    assert all(name in sley("list").stdout for name in listed)


def test_list_prints_options_that_exist() -> None:
    printed = set(re.findall(r"--[\w-]+", sley("list").stdout))
    assert {"--ranks", "--arg", "--in-place"} <= printed
    assert printed <= set(re.findall(r"--[\w-]+", sley("compile", "--help").stdout))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    assert "_SLEY_COMPLETE" in sley("completion", shell).stdout


def test_a_stage_is_printed_after_its_pass() -> None:
    ring = ("compile", "ring-allreduce", "--ranks", 2, "--print-after", "fuse")
    printed = sley(*ring, "--print-after", "blocks").stdout.splitlines()
    assert printed[0] == "after fuse:"
    assert printed[1].split() == ["transfer", "forward"]
    assert printed[2].split() == ["0", "2"]
    assert printed[7:10] == ["after blocks:", "block  rank  rows", "    0     0  1 2 5"]
    assert "after order:" not in printed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--print-after", "fused"), "'fuse', 'channels'"),
        (("--print-after", "pipelines"), "only parallelize, copies, dependencies, links"),
        (("--print-after", "fuse", "--no-fusion"), "this pass did not run"),
        (("--print-after", "fuse", "--json"), "--json"),
    ],
)
def test_a_pass_that_cannot_be_printed_is_wrong_usage(
    arguments: tuple[object, ...], told: str
) -> None:
    refused = sley("compile", "ring-allreduce", "--ranks", 2, *arguments)
    assert refused.exit_code == 2
    assert told in " ".join(refused.stderr.split())


def test_nodes_of_an_algorithm_are_one_host_in_an_execution_plan(tmp_path: Path) -> None:
    def channels(*options: object) -> set[str]:
        path = tmp_path / "plan.json"
        given = ("hierarchical-allreduce", "--nodes", 2, "--gpus", 2, "-o", path, *options)
        assert sley("compile", *given).exit_code == 0
        gpu = json.loads(path.read_text())["gpus"][0]
        return {entry["channel_type"] for entry in gpu["channels"]}

    assert channels() == {"memory", "port"}
    assert channels("--ranks-per-node", 4) == {"memory"}
    assert channels("--zero-copy") == {"memory", "port"}


def test_options_of_execution_plans_are_ignored_for_xml(tmp_path: Path) -> None:
    given = ("ring-allreduce", "--ranks", 2, "-o", tmp_path / "ring.xml", "--zero-copy")
    result = sley("compile", *given)
    assert (result.exit_code, "--zero-copy" in result.output) == (2, True)


def test_without_a_target_a_file_is_not_proven_by_its_meaning(tmp_path: Path) -> None:
    """Where no step announces itself, waits have a meaning, but end for no runtime."""
    path = tmp_path / "plan.xml"
    given = ("hierarchical-allreduce", "--nodes", 2, "--gpus", 2, "-o", path)
    assert sley("compile", *given).exit_code == 0
    assert 'hasdep="1"' in path.read_text()
    path.write_text(path.read_text().replace('hasdep="1"', 'hasdep="0"'))
    result = sley("verify", path)
    proof, _, end = result.stdout.rstrip().rpartition("\n")
    assert end.startswith("This is what the file means; --target ")
    assert all(name in end for name in ("executor", "rccl", "msccl"))
    found = verify_file(path)
    assert (found.target, str(found)) == (None, proof)
    assert "F466" in sley("verify", path, "--target", "executor").stderr


@pytest.mark.parametrize(
    ("target", "given", "head"),
    [
        ("rccl", [], 'minBytes="64" maxBytes="792576"'),
        ("msccl", [], 'minBytes="64" maxBytes="792576"'),
        ("rccl", ["--min-bytes", "1K"], 'minBytes="1024" maxBytes="792576"'),
        ("msccl", ["--max-bytes", "64K"], 'minBytes="64" maxBytes="65537"'),
        ("rccl", ["--schedule", "msccl"], 'minBytes="0" maxBytes="0"'),
    ],
)
def test_a_file_that_is_written_again_keeps_its_range_of_sizes(
    tmp_path: Path, target: str, given: list[str], head: str
) -> None:
    old, new = tmp_path / "old.xml", tmp_path / "new.xml"
    api.save(exchange(), old, min_bytes=64, max_bytes=792576)
    sley("compile", old, "--target", target, "-o", new, *given)
    assert head in new.read_text()


def test_a_file_without_an_upper_limit_is_written_without_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old.xml", tmp_path / "new.xml"
    api.save(exchange(), old, min_bytes=64)
    assert "64 and more, as in the file" in sley("compile", old, "-o", new).stdout
    sley("compile", old, "--target", "msccl", "-o", new)
    assert f'minBytes="64" maxBytes="{1 << 40}"' in new.read_text()


def test_a_target_of_another_format_has_a_remedy_that_was_not_asked_for(tmp_path: Path) -> None:
    ring, xml, plan = "ring-allreduce", tmp_path / "ring.xml", tmp_path / "ring.json"
    for path in (xml, plan):
        sley("compile", ring, "--ranks", 4, "--protocol", "ll", "-o", path)
    for arguments, found, remedy in (
        (("compile", ring, "--ranks", 4, "-o", plan, "--target", "executor"), "executor,", ".xml"),
        (
            ("verify", xml, "--target", "mscclpp"),
            "mscclpp@2026-08,",
            f"sley compile {xml} --target mscclpp",
        ),
        (("verify", plan, "--target", "rccl"), "rccl,", "Prove the file for mscclpp.\n"),
    ):
        said = sley(*arguments).stderr
        assert f"found:    {found}" in said
        assert remedy in said.partition("remedy:")[2]
        assert "F440" in said
        assert "save" not in said


def test_a_wrong_size_has_no_remedy_about_names(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    arguments = ["compile", "ring-allreduce", "--ranks", 4, "-o", path]
    for further in (["--ranks-per-node", 3], ["--min-bytes", "2K", "--max-bytes", "1K"]):
        said = sley(*arguments, *further).stderr
        assert "F451" in said
        assert "name" not in said.partition("remedy:")[2]


def test_an_option_for_xml_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    sley("compile", "ring-allreduce", "--ranks", 4, "-o", path)
    said = sley("verify", path, "--max-bytes", "1M").stderr
    assert "--max-bytes is not for this format: MSCCL++ execution plan" in said


def test_a_root_is_refused_with_a_remedy_for_roots(tmp_path: Path) -> None:
    said = sley("compile", "flat-gather", "--ranks", 4, "-o", tmp_path / "gather.json").stderr
    assert "F443" in said
    assert "a collective without a root: an execution plan has no entry for one" in said
    assert "XML" in said.partition("remedy:")[2]
