"""The examples run, and print what their docstrings say."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import socket
import sys
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest
from click.testing import CliRunner

from sley.cli import main
from support.processes.forked import PROCESSES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_PATIENCE_S = 120.0
_OUTPUT = re.compile(r"(?<=prints:\n\n)(?:    .*\n)*")


def _job(path: Path, folder: Path, environments: list[dict[str, str]]) -> None:
    """Runs the processes of an example, in a separate process."""
    if len(environments) > 1:
        import torch._dynamo  # DDP loads it, which takes seconds: once for all ranks

        torch.set_num_threads(1)  # as torchrun does
    ranks = []
    for rank, environment in enumerate(environments):
        arguments = (path, folder / f"output{rank}", environment)
        ranks.append(get_context("fork").Process(target=_example, args=arguments))
        ranks[-1].start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in ranks))


def _example(path: Path, output: Path, environment: dict[str, str]) -> None:
    """Runs an example as `python path` does."""
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    os.chdir(output.parent)
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


def _environments(docstring: str) -> list[dict[str, str]]:
    """The variables of each process; those of torchrun if the docstring says so."""
    if (found := re.search(r"torchrun .*--nproc-per-node (\d+)", docstring)) is None:
        return [{}]
    pytest.importorskip("torch.distributed")
    ranks = int(found[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return [job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _skip_without_packages(docstring: str) -> None:
    """Skips the test of an example that says to install packages which are missing."""
    for names in re.findall(r"\(pip install ([\w ]+)\)", docstring):
        missing = [name for name in names.split() if find_spec(name) is None]
        if missing:
            pytest.skip(f"the example needs {' and '.join(missing)}, which development doesn't")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_says(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = path.read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(text), clean=False) or ""
    _skip_without_packages(docstring)
    process = PROCESSES.Process(target=_job, args=(path, tmp_path, _environments(docstring)))
    process.start()
    process.join(_PATIENCE_S)
    process.kill()
    output = (tmp_path / "output0").read_text("utf-8")
    assert process.exitcode == 0, output
    printed = "".join(f"    {line}".rstrip() + "\n" for line in output.splitlines())
    if request.config.getoption("--update-golden"):
        path.write_text(_OUTPUT.sub(lambda _: printed, text, count=1), "utf-8")
        return
    assert _OUTPUT.findall(docstring) == [printed]


COMMANDS = [
    command
    for path in EXAMPLES
    for command in re.findall(r"^    (sley .*)$", path.read_text("utf-8"), re.MULTILINE)
]
assert COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_docstring_succeeds(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(main, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


def test_the_list_of_examples_has_all() -> None:
    listed = re.findall(r"\]\((\w+\.py)\)", (ROOT / "examples" / "README.md").read_text("utf-8"))
    assert sorted(listed) == [path.name for path in EXAMPLES]
