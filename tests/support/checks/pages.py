"""Pages: the code blocks of a page of documentation, found, executed and compared.

Blocks are fenced with three backticks and a word. Two HTML comments, on a line before a block,
change its test: ``<!-- not compared -->`` (the output varies, as timings do) and ``<!-- exit code 1
-->`` (the last command of a console block ends with that code). A block with a title, the name of
a file, is written to it instead. A page shows the folder in which its code runs as /here.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sley.cli
from support.processes.forked import PROCESSES

FENCE = re.compile(r'^```(\w*)(?: title="([^"`]+)")?[^`]*$')
COMMENT = re.compile(r"^<!--\s*(.*?)\s*-->$")
EXIT_CODE = re.compile(r"exit code (\d+)")
NOT_COMPARED = "not compared"

_PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
"""What runs a page's files, by its name in a console block."""

_PATIENCE_S = 300.0

_PROGRESS = re.compile(r"^\w[\w, ]*: \d+ (done|of \d+(, about \d+ s left)?)\n", re.MULTILINE)
_HERE = "/here"


@dataclass(frozen=True)
class Block:
    """A fenced block: its word, the line of its opening fence, its text, the comments before it.

    file: the title, which is the name of the file that the block shows; or "". follows: whether
    only blank lines and comments separate it from the block before.
    """

    word: str
    line: int
    text: str
    comments: tuple[str, ...]
    follows: bool
    file: str = ""


@dataclass
class Command:
    """A command of a console block and the output that the page shows for it, after line
    `end`."""

    text: str
    line: int
    end: int
    output: list[str] = field(default_factory=list)


class WrongPageError(AssertionError):
    """A page promises something that does not happen."""


class WrongOutputError(WrongPageError):
    """A page shows a wrong output. first, last: the lines of the output (last is first - 1 if the
    page shows none)."""

    def __init__(self, place: str, first: int, shown: str, printed: str) -> None:
        super().__init__(f"{place}\nthe page shows:\n{shown}\nbut it printed:\n{printed}")
        self.first = first
        self.last = first + len(shown.splitlines()) - 1
        self.printed = list(_lines(printed))


def committed(root: Path) -> list[Path]:
    """README and the pages of docs/, without those that docs/generate.py writes, which git
    ignores."""
    ignored = (root / ".gitignore").read_text("utf-8").splitlines()
    made = [root / line[1:] for line in ignored if line.startswith("/docs/")]
    pages = sorted((root / "docs").rglob("*.md"))
    return [root / "README.md", *(p for p in pages if p not in made and p.parent not in made)]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    comments: list[str] = []
    follows = False
    word, file, start, body = None, "", 0, []
    for number, line in enumerate(page.splitlines(), 1):
        if word is not None:
            if line.rstrip() == "```":
                text = "\n".join(body)
                found.append(Block(word, start, text, tuple(comments), follows, file))
                word, comments, follows = None, [], True
            else:
                body.append(line)
        elif fence := FENCE.match(line):
            word, file, start, body = fence[1], fence[2] or "", number, []
        elif comment := COMMENT.match(line):
            comments.append(comment[1])
        elif line.strip():
            comments, follows = [], False
    if word is not None:
        raise WrongPageError(f"the block of line {start} has no end")
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block; a backslash at the end of a line continues it."""
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            found.append(Command(line[2:], number, number))
        elif found and not found[-1].output and found[-1].text.endswith("\\"):
            found[-1].text = found[-1].text[:-1] + line.strip()
            found[-1].end = number
        elif found:
            found[-1].output.append(line)
        else:
            raise WrongPageError(f"line {number}: a console block begins with '$ '")
    return found


def run_page(page: str, name: str, folder: Path) -> int:
    """Executes a page's blocks in `folder`, in sequence and in one namespace.

    Returns the number of blocks and commands; raises WrongPageError if the page is wrong, and the
    errors of the code.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    executed = 0
    files: set[str] = set()
    with contextlib.chdir(folder):
        for block in blocks(page):
            if block.file:
                Path(block.file).write_text(block.text + "\n", "utf-8")
                files.add(block.file)
                printed = None
            elif block.word == "python":
                printed = _execute(block, name, namespace)
                executed += 1
            elif block.word == "text" and block.follows and printed is not None:
                if NOT_COMPARED not in block.comments:
                    _compare(f"{name}:{block.line}", block.line + 1, block.text, printed)
                printed = None
            elif block.word == "console":
                executed += _run_console(block, name, files)
                printed = None
            else:
                printed = None
    return executed


def _execute(block: Block, name: str, namespace: dict[str, Any]) -> str:
    # Empty lines before the code make its line numbers those of the page.
    code = compile("\n" * block.line + block.text, name, "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, namespace)
    return _shown(output.getvalue())


def _run_console(block: Block, name: str, files: set[str]) -> int:
    wanted = next((int(m[1]) for c in block.comments if (m := EXIT_CODE.fullmatch(c))), 0)
    all_commands = commands(block)
    executed = 0
    for command in all_commands:
        words = command.text.split()
        if words[0] != "sley" and (words[0] not in _PROGRAMS or files.isdisjoint(words)):
            continue
        code, printed = _done(command.text)
        executed += 1
        printed = _shown(printed)
        place = f"{name}:{command.line}: {command.text}"
        expected_code = wanted if command is all_commands[-1] else 0
        if code != expected_code:
            raise WrongPageError(f"{place}\nexit code {code}, not {expected_code}:\n{printed}")
        if NOT_COMPARED not in block.comments:
            _compare(place, command.end + 1, "\n".join(command.output), printed)
    return executed


def _done(command: str) -> tuple[int | None, str]:
    """The exit code and both outputs of a command, the latter after the filters behind a "|"."""
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    word, _, arguments = command.partition(" ")
    if word in _PROGRAMS:
        done = subprocess.run(
            [*_PROGRAMS[word], *shlex.split(arguments)],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_PATIENCE_S,
        )
        return done.returncode, done.stdout
    command, _, filters = command.replace("2>&1", "").partition("|")
    with tempfile.NamedTemporaryFile() as output:
        arguments = (shlex.split(command), Path.cwd(), environment, output.name)
        process = PROCESSES.Process(target=_run_sley, args=arguments)
        process.start()
        process.join(_PATIENCE_S)
        process.kill()
        printed = output.read()
    if filters:
        printed = subprocess.check_output(filters, shell=True, input=printed)
    return process.exitcode, printed.decode()


def _run_sley(words: list[str], folder: Path, environment: dict[str, str], output: str) -> None:
    """Runs the command `words` in a separate process."""
    os.chdir(folder)
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # as on a terminal
    sys.argv = words
    sley.cli.main()


def _shown(printed: str) -> str:
    """An output as a page shows it: without lines of progress, which slow machines print."""
    return _PROGRESS.sub("", printed).replace(str(Path.cwd()), _HERE)


def _compare(place: str, first: int, shown: str, printed: str) -> None:
    if list(_lines(shown)) != list(_lines(printed)):
        raise WrongOutputError(place, first, shown, printed)


def update_page(path: Path, name: str, folder: Path) -> None:
    """Updates the outputs of a page, one after the other, because a longer output moves the lines
    of later ones."""
    while True:
        try:
            with tempfile.TemporaryDirectory(dir=folder) as fresh:
                run_page(path.read_text("utf-8"), name, Path(fresh))
            return
        except WrongOutputError as wrong:
            lines = path.read_text("utf-8").splitlines()
            lines[wrong.first - 1 : wrong.last] = wrong.printed
            path.write_text("\n".join(lines) + "\n", "utf-8")


def _lines(text: str) -> Iterator[str]:
    return (line.rstrip() for line in text.strip("\n").splitlines())
