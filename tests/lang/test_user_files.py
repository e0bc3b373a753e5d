"""Users' Python files: their code runs as Python runs it, and each file for itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import sley
from sley.lang import files
from sley.lang.files import ProgramFunction

GATHER = """
import sley

def gather(ranks):
    @sley.program(sley.AllGather(ranks))
    def program(p):
        for rank in range(ranks):
            for other in range(ranks):
                p.chunk(rank, "in", 0).copy(other, "out", rank)
    return program
"""


def write(folder: Path, text: str, name: str = "own.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(GATHER + text)
    return path


def made(path: Path, **arguments: object) -> sley.Program:
    """The program that the function `make` of a file returns."""
    function = files.load(path).find("make")
    assert isinstance(function, ProgramFunction)
    return function.program(arguments)


def test_files_with_helpers_of_one_name_get_their_own(tmp_path: Path) -> None:
    ranks = []
    for number in (2, 3):
        folder = tmp_path / str(number)
        path = write(folder, "from helper_of_a_file import N\nring = gather(N)\n")
        (folder / "helper_of_a_file.py").write_text(f"N = {number}\n")
        ranks.append(files.load(path).program().ranks)
    assert ranks == [2, 3]
    assert "helper_of_a_file" not in sys.modules


@pytest.mark.parametrize(
    "body",
    [
        "@dataclass\n    class Size:\n        ranks: int\n    number = Size(2).ranks",
        "number = 2 if get_type_hints(Kind)['ranks'] is int else 0",
        "number = pickle.loads(pickle.dumps(Kind(2))).ranks",
        "import late_helper\n    number = late_helper.N",
        "number = deep(5000)",
        "number = int(Path('number.txt').read_text())",
        "number = int(sys.argv[1])",
        "number = len({Kind(2), Kind(3)})",
    ],
    ids=["dataclass", "hints", "pickle", "path", "recursion", "folder", "argv", "hash"],
)
def test_a_function_of_a_file_finds_what_the_file_has_prepared(body: str, tmp_path: Path) -> None:
    text = f"""
from __future__ import annotations
import os, pickle, sys
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

@dataclass(frozen=True)
class Kind:
    ranks: int

sys.path.append({str(tmp_path / "lib")!r})
sys.setrecursionlimit(20000)
os.chdir({str(tmp_path / "lib")!r})
sys.argv = ["own", "2"]

def deep(k):
    return 2 if k == 0 else deep(k - 1)

def make():
    {body}
    return gather(number)
"""
    path = tmp_path / "own.py"
    path.write_text(text.replace("import os", GATHER.replace("def", "\ndef", 1) + "import os", 1))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "late_helper.py").write_text("N = 2\n")
    (tmp_path / "lib" / "number.txt").write_text("2")
    before = (list(sys.path), list(sys.argv), sys.getrecursionlimit(), Path.cwd(), set(sys.modules))
    assert made(path).ranks == 2
    after = (list(sys.path), list(sys.argv), sys.getrecursionlimit(), Path.cwd(), set(sys.modules))
    assert after == before


def test_a_file_may_handle_the_error_of_a_program_itself(tmp_path: Path) -> None:
    handled = """
try:
    @sley.program(sley.AllGather(2))
    def ring(p):
        p.chunk(7, "in", 0)
except sley.SleyError:
    ring = gather(2)
"""
    assert files.load(write(tmp_path, handled)).program().ranks == 2
    suppressed = """
from contextlib import suppress
ring = gather(3)
with suppress(sley.SleyError):
    ring = sley.program(sley.AllGather(2))(lambda p: p.chunk(7, "in", 0))
"""
    assert files.load(write(tmp_path, suppressed)).program().ranks == 3


@pytest.mark.parametrize(
    "use",
    ["wrong.collective", "sley.compile(wrong)", "sley.verify(wrong.compile())", "wrong.ranks"],
)
def test_a_function_that_uses_a_wrong_program_gets_its_error(use: str, tmp_path: Path) -> None:
    text = f"""
@sley.program(sley.AllGather(2))
def wrong(p):
    p.chunk(7, "in", 0)  # here

print(wrong)

def make():
    {use}
    return gather(2)
"""
    path = write(tmp_path, text)
    with pytest.raises(sley.SleyError) as caught:
        made(path)
    assert caught.value.code == "L101"
    line = path.read_text().splitlines().index('    p.chunk(7, "in", 0)  # here') + 1
    assert caught.value.diagnostics[0].places[0].line == line
    assert files.load(path).find("gather")


def test_an_error_that_is_not_sleys_names_the_line_of_the_program(tmp_path: Path) -> None:
    path = write(tmp_path, "@sley.program(sley.AllGather(2))\ndef wrong(p):\n    1 / 0\n")
    with pytest.raises(sley.SleyError, match=r"own\.py:13: L114[^$]*ZeroDivisionError"):
        files.load(path).program()


def test_a_file_may_end_by_an_exit_with_code_0(tmp_path: Path) -> None:
    path = write(tmp_path, "ring = gather(2)\nimport sys\nsys.exit(0)\n")
    assert files.load(path).program().ranks == 2
    path = write(tmp_path, "ring = gather(2)\nimport sys\nsys.exit(1)\n")
    with pytest.raises(sley.SleyError, match=r"L114[^$]*sys.exit\(1\)"):
        files.load(path).program()


@pytest.mark.parametrize("text", ["x = " + "-" * 200_000 + "1", "raise Odd()"])
def test_code_that_python_gives_up_on_is_refused_with_its_file(text: str, tmp_path: Path) -> None:
    odd = "class Odd(Exception):\n    def __str__(self):\n        raise SystemExit(3)\n"
    path = write(tmp_path, f"{odd}{text}\n")
    with pytest.raises(sley.SleyError, match=r"own\.py\S*: L114") as caught:
        files.load(path)
    assert str(caught.value)


def test_parameters_without_names_are_given_by_position(tmp_path: Path) -> None:
    path = write(
        tmp_path, "def make(ranks, more=1, /, **others):\n    return gather(ranks * more)\n"
    )
    assert made(path, ranks=2).ranks == 2
    assert made(path, ranks=2, more=2).ranks == 4


def test_a_program_has_the_name_of_the_function_that_returns_it(tmp_path: Path) -> None:
    named = """
def shift_twice(ranks):
    @sley.program(sley.AllGather(2), name="own-name")
    def inner(p):
        for rank in range(2):
            for other in range(2):
                p.chunk(rank, "in", 0).copy(other, "out", rank)
    return inner

def make():
    return gather(2)

def neighbour(rank):
    return rank + 1
"""
    path = write(tmp_path, named)
    names = {}
    for name, arguments in (("gather", {"ranks": 2}), ("shift_twice", {"ranks": 2}), ("make", {})):
        function = files.load(path).find(name)
        assert isinstance(function, ProgramFunction)
        names[name] = function.program(arguments).name
    assert names == {"gather": "gather", "shift_twice": "own-name", "make": "program"}
    with pytest.raises(sley.SleyError, match=r"returns a program: \S*own\.py:gather, \S*twice\n"):
        files.load(path).program()


def test_an_error_without_a_line_gets_that_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "def make(chunks):\n    return sley.AllReduce(4, chunks)  # here\n")
    with pytest.raises(sley.SleyError) as caught:
        made(path, chunks="two")
    place = caught.value.diagnostics[0].places[0]
    line = path.read_text().splitlines().index("    return sley.AllReduce(4, chunks)  # here") + 1
    assert (place.file, place.line) == (str(path), line)


def test_a_folder_that_is_gone_refuses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "ring = gather(2)\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert files.load(path).program().ranks == 2
    os.chdir(tmp_path)


def test_a_missing_attribute_has_the_similar_ones_beside_it(tmp_path: Path) -> None:
    """As Python's own traceback, which the command doesn't show."""
    file = tmp_path / "typo.py"
    for line, told in (
        ("p.chnk(0, 'in', 0)", "no attribute 'chnk'. Did you mean chunk?"),
        ("p.zzzzzz()", "no attribute 'zzzzzz'\n"),
    ):
        file.write_text(
            f"import sley\n@sley.program(sley.AllGather(ranks=2))\ndef f(p):\n    {line}\n"
        )
        with pytest.raises(sley.SleyError, match="L114") as caught:
            sley.load(str(file))
        assert told in str(caught.value)
