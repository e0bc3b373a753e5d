"""Programs with arguments: functions of Python files, and the arguments of the files themselves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main

FILE = '''
import argparse
import sley

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="unnamed")
name = parser.parse_args().name
print("this runs")


def gather(ranks=2, chunks: int = 1, *, suffix="", in_place=False, **others):
    """An AllGather in which every rank sends to every other."""

    @sley.program(sley.AllGather(ranks, chunks, in_place), name=f"{name}{suffix}")
    def program(p):
        for rank in range(ranks):
            own = p.chunk(rank, "in", 0, chunks)
            for other in range(ranks):
                if other != rank or not in_place:
                    own.copy(other, "out", rank * chunks, **others)

    return program


def grid(nodes, gpus, channels=1):
    @sley.program(sley.AllGather(nodes * gpus), name=f"grid-{nodes}-{gpus}-{channels}")
    def program(p):
        for rank in range(nodes * gpus):
            for other in range(nodes * gpus):
                p.chunk(rank, "in", 0).copy(other, "out", rank, channel=rank % channels)

    return program


def wrong(rank):
    @sley.program(sley.AllGather(2))
    def program(p):
        p.chunk(rank, "in", 0)  # here

    return program


def raises(text):
    return int(text)  # raised


def returns(value):
    return value


@sley.program(sley.AllGather(2))
def good(p):
    for rank in range(2):
        p.chunk(rank, "in", 0).copy(rank, "out", rank).copy(1 - rank, "out", rank)


@sley.program(sley.AllGather(2))
def outside(p):
    p.chunk(7, "in", 0)  # outside


@sley.program(sley.AllGather(2))
def unknown(p):
    undefined_name  # unknown
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "own.py"
    path.write_text(FILE)
    return path


def sley(line: str, file: Path) -> Result:
    words = [word.replace("own.py", str(file)) for word in line.split()]
    return CliRunner().invoke(main, words, prog_name="sley")


def line_of(mark: str) -> int:
    return FILE[: FILE.index(f"# {mark}\n")].count("\n") + 1


@pytest.mark.parametrize(
    ("given", "chunks"),
    [
        ("", 4 * 8),  # a butterfly for each direction along each side
        ("--ranks 8", 4 * 8),
        ("--arg ranks=8", 4 * 8),
        ("--nodes 1 --gpus 8", 4 * 8),
        ("--ranks 8 --arg sides=[8]", 2 * 8),
        ("--ranks 4", 4),  # on some of the torus
    ],
)
def test_swing_takes_the_sides_of_a_torus_that_it_fills(given: str, chunks: int) -> None:
    line = f"compile swing-allreduce --topology routed-torus:4x2 --json {given}"
    result = CliRunner().invoke(main, line.split())
    assert json.loads(result.stdout)["plan"]["chunks"] == chunks


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("own.py:gather", "unnamed is a correct allgather on 2 ranks"),
        ("own.py:gather --ranks 3", "allgather on 3 ranks"),
        ("own.py:gather --arg ranks=3", "allgather on 3 ranks"),
        ("own.py:gather --topology 1x4", "allgather on 4 ranks"),
        ("own.py:gather --arg ranks=3 --topology 1x4", "allgather on 3 ranks"),
        ("own.py:gather --arg suffix=-7.x", "unnamed-7.x is"),
        ("own.py:gather --arg suffix=[1,2]", "unnamed[1, 2] is"),
        ("own.py:gather --arg suffix='[1]'", "unnamed[1] is"),
        ("own.py:gather --arg suffix=a=b", "unnameda=b is"),
        ("own.py:gather --arg channel=0", "unnamed is"),
        ("own.py:gather --in-place --arg chunks=2", "in place"),
        ("own.py:gather -- --name other", "other is a correct"),
        ("own.py:grid --nodes 2 --gpus 2", "grid-2-2-1 is"),
        ("own.py:grid --topology 1x3", "grid-1-3-1 is"),
        ("own.py:grid --nodes 1 --gpus 2 --arg channels=2", "grid-1-2-2 is"),
        ("own.py:good", "good is a correct"),
        ("own.py:good -- --name other", "good is a correct"),
    ],
)
def test_a_program_gets_its_arguments(line: str, found: str, file: Path) -> None:
    before = list(sys.argv)
    result = sley(f"verify {line}", file)
    assert result.exit_code == 0, result.output
    assert found in result.stdout
    assert "this runs" not in result.stdout
    assert sys.argv == before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("own.py:grid", "own.py:grid needs --nodes and --gpus"),
        ("own.py:wrong", "own.py:wrong needs --arg rank=VALUE"),
        (
            "own.py:grid --ranks 4 --nodes 1",
            "takes no --ranks. It takes --nodes, --gpus, --channels",
        ),
        ("own.py:wrong --arg rang=4", "takes no --arg rang. Did you mean rank?"),
        ("own.py:gather --ranks 3 --arg ranks=3", "ranks is given twice: by --ranks and by --arg"),
        ("own.py:gather --arg suffix=1 --arg suffix=2", "suffix is given twice"),
        ("own.py:gather --arg suffix", "'suffix' is not NAME=VALUE"),
        ("own.py:good --arg ranks=2", "only a function that returns one takes arguments"),
        ("own.py:good --ranks 2", "--ranks: its value is fixed in"),
        ("ring-allreduce --ranks 2 --arg rows=2", "takes no --arg rows. It takes --ranks"),
        ("ring-allreduce --ranks 2 -- --name x", "-- is for Python files"),
    ],
)
def test_wrong_arguments_are_told_in_options(line: str, told: str, file: Path) -> None:
    result = sley(f"verify {line}", file)
    assert result.exit_code == 2, result.output
    assert told.replace("own.py", str(file)) in result.stderr


@pytest.mark.parametrize(
    ("line", "code", "mark"),
    [
        ("own.py:outside", "L101", "outside"),
        ("own.py:unknown", "L114", "unknown"),
        ("own.py:wrong --arg rank=5", "L101", "here"),
        ("own.py:raises --arg text=five", "L114", "raised"),
    ],
)
def test_a_mistake_in_a_function_is_told_with_its_line(
    line: str, code: str, mark: str, file: Path
) -> None:
    result = sley(f"verify {line}", file)
    assert result.exit_code == 1
    assert result.stderr.split("this runs\n")[1].startswith(
        f"error: {file}:{line_of(mark)}: {code}"
    )


def test_a_function_without_a_program_is_refused(file: Path) -> None:
    result = sley("verify own.py:returns --arg value=4", file)
    assert result.exit_code == 1
    assert f"own.py:{FILE.splitlines().index('def returns(value):') + 1}: L115" in result.stderr
    assert "a value of type int" in result.stderr


def test_names_that_a_file_lacks_are_told_with_the_nearest(file: Path, tmp_path: Path) -> None:
    assert "Did you mean gather?" in sley("verify own.py:gathr", file).stderr
    assert "L115" in sley("verify own.py", file).stderr
    functions = tmp_path / "functions.py"
    functions.write_text("def ring(ranks):\n    pass\n")
    result = sley("verify own.py", functions)
    assert "L115" in result.stderr
    assert f"returns a program: {functions}:ring" in result.stderr
    assert "L115" in sley("verify own.py:__name__", functions).stderr


def test_arguments_that_the_file_refuses_are_told(file: Path) -> None:
    result = sley("verify own.py:good -- --nome x", file)
    assert result.exit_code == 1
    assert "unrecognized arguments" in result.stderr
    assert f"own.py:{FILE.splitlines().index('name = parser.parse_args().name') + 1}: L114" in (
        result.stderr
    )


def test_a_wrong_program_refuses_every_use_of_it(tmp_path: Path) -> None:
    end = "sley.compile(outside)  # used\n"
    for use in (end, end.replace("sley.compile(outside)", "outside.collective")):
        path = tmp_path / "used.py"
        path.write_text(FILE + use)
        result = sley("verify own.py:good", path)
        assert result.exit_code == 1
        assert f"{path}:{line_of('outside')}: L101" in result.stderr


def test_every_command_takes_arguments(file: Path, tmp_path: Path) -> None:
    end = "--arg suffix=-x -- --name own"
    xml = tmp_path / "own-x.xml"
    assert "own-x" in sley(f"compile own.py:gather -o {xml} {end}", file).stdout
    assert "own-x" in sley(f"simulate own.py:gather --topology 1x4 -b 1K {end}", file).stdout
    assert 'name="own-x"' in sley(f"lift own.py:gather {end}", file).stdout
    assert "own-x" in sley(f"draw own.py:gather -o {tmp_path}/own.svg {end}", file).stdout
    line = f"choose own.py:gather ring-allgather --in-place --topology 1x2 -b 1K -e 1K {end}"
    assert sley(line.replace("choose", "choose --instances 1 --channels 1"), file).exit_code == 0
    quoted = f"{file}:gather {end}"
    result = CliRunner().invoke(main, ["compare", quoted, "--topology", "1x2", "-b", "1K"])
    assert f"{file.name}:gather {end}" in result.stdout
    ran = sley(f"run own.py:gather -n 1 -w 0 --json {end}", file)
    row = json.loads(ran.stdout)["rows"][0]
    assert (row["out_of_place"]["wrong"], row["in_place"]["wrong"]) == (0, 0)


def test_a_files_collective_gets_the_arguments(tmp_path: Path) -> None:
    path = tmp_path / "custom.py"
    path.write_text(
        "import sley\n"
        "def swap(ranks):\n"
        "    swapped = sley.Custom('s', ranks, 1, 1, lambda r, i: [((r + 1) % ranks, i)])\n"
        "    @sley.program(swapped)\n"
        "    def program(p):\n"
        "        for rank in range(ranks):\n"
        "            p.chunk(rank, 'in', 0).copy((rank - 1) % ranks, 'out', 0)\n"
        "    return program\n"
    )
    xml = tmp_path / "swap.xml"
    assert sley(f"compile own.py:swap --ranks 3 -o {xml} --target msccl", path).exit_code == 0
    line = f"verify {xml} --collective own.py:swap --arg ranks="
    assert "on 3 ranks" in sley(f"{line}3", path).stdout
    assert sley(f"{line}4", path).exit_code == 1
    assert "--arg is for programs" in sley(f"verify {xml} --arg ranks=3", path).stderr


def test_a_table_of_a_package_gives_arguments(file: Path, tmp_path: Path) -> None:
    table = file.parent / "table.toml"
    text = '[[plans]]\nwhat = "own.py:gather"\nranks = 4\narguments = {}\n'
    for arguments, code in (("{ chunks = 2 }", 0), ("{ chunk = [] }", 1), ("4", 1)):
        table.write_text(text.format(arguments))
        folder = tmp_path / f"plans {arguments}"
        words = ["package", str(folder), "--table", str(table), "--target", "rccl"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == code, result.output
        assert folder.exists() == (code == 0)


def test_wrong_usage_in_a_table_of_a_package_names_the_row(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    rows = "[[plans]]\nwhat = 'ring-allreduce'\nranks = 4\n[[plans]]\nwhat = 'ring-allreduce'\n"
    table.write_text(rows)
    words = ["package", str(tmp_path / "plans"), "--table", str(table), "--target", "rccl"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert f"{table}, plan 2: ring-allreduce needs --ranks" in result.stderr


def test_a_function_whose_program_is_in_place_takes_the_option_for_it(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    text = FILE.replace("return int(text)", "return gather(2, in_place=True)")
    path.write_text(text.replace("def raises(text)", "def fixed()"))
    assert sley("verify own.py:fixed --in-place", path).exit_code == 0
    result = sley("verify own.py:fixed --out-of-place", path)
    assert result.exit_code == 2
    assert "own.py:fixed has a place of its own: it is in place" in result.stderr
