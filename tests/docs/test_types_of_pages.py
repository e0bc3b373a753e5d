"""Type checkers find no error in the code of README, pages and examples, as their readers' editors
would. `make types` runs this, not `make test`: like the check of sley itself it reads all of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.checks.pages import blocks, committed

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

KNOWN = """\
import sley

@sley.program(sley.AllGather(2))
def exchange(p: sley.ChunkProgram) -> None:
    reveal_type(p.chunk(0, "in", 0).copy(1, "out", 0))

reveal_type(sley.load("ring-allreduce", sley.Program, ranks=2))
reveal_type(sley.CostModel(network_latency_us=30).network_latency_us)
"""
SEEN = ["Ref", "Program", "ByProtocol"]


def code_of(page: Path) -> str:
    """The Python code of a page, on the page's own lines."""
    lines: list[str] = []
    for block in blocks(page.read_text("utf-8")):
        if block.word == "python" and not block.file:
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package `users`: a module for each page and example."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "users").mkdir()
    (folder / "users/__init__.py").touch()
    texts = {path.name: path.read_text("utf-8") for path in (ROOT / "examples").glob("*.py")}
    for page in committed(ROOT):
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        texts[f"{name}.py"] = code_of(page)
        for block in blocks(page.read_text("utf-8")):
            if block.file.endswith(".py") and "from msccl" not in block.text:
                texts[f"{name}_{block.file}"] = block.text + "\n"
    for name, text in texts.items():
        if text.strip():
            (folder / "users" / name).write_text(text, "utf-8")
    (folder / "users/known.py").write_text(KNOWN)
    return folder


def errors(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "error:" in line]


def seen(printed: str) -> list[str]:
    """The classes that a checker reveals of KNOWN's values."""
    return re.findall(r'known\.py.*"(?:[\w.]*\.)?(\w+)"$', printed, re.MULTILINE)


def test_mypy_finds_no_error(users: Path) -> None:
    """The options are in pyproject.toml."""
    command = [sys.executable, "-m", "mypy", *map(str, sorted((users / "users").glob("*.py")))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (errors(done.stdout), done.stderr) == ([], "")
    assert seen(done.stdout) == SEEN


def test_mypy_knows_the_plans_of_a_group_of_pytorch(tmp_path: Path) -> None:
    """With PyTorch's own types, which the options leave out."""
    pytest.importorskip("torch")
    (block,) = (b for b in blocks((ROOT / "docs/torch.md").read_text("utf-8")) if "plans" in b.file)
    (tmp_path / block.file).write_text(block.text, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, block.file]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (errors(done.stdout), done.returncode) == ([], 0), done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs on Node.js")
def test_pyright_finds_no_error(users: Path) -> None:
    # mypy doesn't look into these packages either: PyTorch's types differ between versions.
    code = "\n".join(path.read_text("utf-8") for path in (users / "users").glob("*.py"))
    for name in re.findall(r"^ *(?:import|from) ((?:torch|transformers)[\w.]*)", code, re.M):
        stub = users / "typings" / Path(*name.split(".")) / "__init__.pyi"
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text("from typing import Any\ndef __getattr__(name: str) -> Any: ...\n")
    (users / "pyrightconfig.json").write_text('{"include": ["users"], "stubPath": "typings"}')
    options = ["--project", str(users), "--pythonpath", sys.executable]
    command = [sys.executable, "-m", "pyright", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (errors(done.stdout), done.returncode) == ([], 0), done.stdout + done.stderr
    assert seen(done.stdout) == SEEN
