"""Text for people: nothing that a file says controls the terminal that shows it."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import sley
from sley.__main__ import run
from sley.algorithms import build
from sley.cli import output
from sley.cli.main import main
from support.inputs.schedule_files import forest, ring_flows, teccl_allgather
from support.inputs.topology_texts import CLOUD, HOSTS
from support.inputs.xml_plans import VALID

HIDDEN = ("\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\u202e", "\u2028proven:", "\r", "\x7f")

TOPOLOGY = (("topology", "show"), ("simulate", "ring-allreduce", "-b", "1M", "--topology"))
PLAN = (("verify",), ("compile",), ("doctor",))


def mscclpp(folder: Path) -> str:
    """An execution plan of MSCCL++."""
    path = folder / "ring.json"
    sley.save(sley.compile(build("ring-allgather", ranks=2)), path)
    return path.read_text()


def cases(folder: Path) -> list[tuple[str, str, tuple[tuple[str, ...], ...]]]:
    """The name of a file, its content, and the commands that take it."""
    return [
        ("plan.json", mscclpp(folder), PLAN),
        ("plan.xml", VALID, (*PLAN, ("verify", "--target", "executor"))),
        ("trees.xml", forest(3), (("compile",), ("simulate", "--topology", "1x3"))),
        ("flows.json", teccl_allgather(ring_flows(3), 2), (("compile",),)),
        ("cloud.xml", CLOUD, TOPOLOGY),
        ("hosts.xml", HOSTS, TOPOLOGY),
        ("machine.toml", 'name = "pair"\nlike = "ndv4"\n', TOPOLOGY),
    ]


def hostile(name: str, text: str, number: random.Random) -> str:
    """The text with something hidden within one of its words, as the format can say it."""
    hidden = number.choice(HIDDEN)
    if name.endswith((".json", ".toml")) and number.random() < 0.8:
        hidden = json.dumps(hidden)[1:-1]
    places = [k for k, c in enumerate(text) if c.isalpha()]
    at = number.choice(places) + 1
    return text[:at] + hidden + text[at:]


def shown(*arguments: object) -> str:
    """All that a command prints."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.parametrize("tries", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_what_files_say_cannot_control_a_terminal(tries: int, tmp_path: Path) -> None:
    number = random.Random(tries)
    for name, text, commands in cases(tmp_path):
        path = tmp_path / name
        for command in commands:
            for _ in range(tries):
                path.write_text(hostile(name, text, number))
                output = shown(*command, path)
                assert all(c.isprintable() or c in "\n\t" for c in output), (command, name)


def test_the_name_of_a_plan_is_one_line_of_text(tmp_path: Path) -> None:
    document = json.loads(mscclpp(tmp_path))
    document["name"] = "\x1b]0;pwned\x07a\nproven: b"
    path = tmp_path / "named.json"
    path.write_text(json.dumps(document))
    output = shown("verify", path)
    assert output.startswith("proven: \\x1b]0;pwned\\x07a\\nproven: b is a correct allgather")


def test_a_diagnostic_shows_what_it_found() -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.compile(build("ring-allgather", ranks=2), protocol="\x1b[31mll")
    assert "\x1b" not in str(caught.value)


@pytest.fixture
def colored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with colours."""
    for word, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "40"}.items():
        monkeypatch.setenv(word, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_errors_and_heads_of_tables_have_colours(
    colored: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "error: ring.py:4: V206 wrong-result\n  found:    nothing was written there\n  note:   1"
    table = "# two sizes\nfrom  to   of bound\n  4K  64K  3.0 GB/s of all that is possible here"
    output.echo(text, err=True)
    output.echo(table)
    shown = capsys.readouterr()
    assert shown.err.startswith(
        "\x1b[1;31merror\x1b[0m: ring.py:4: \x1b[1mV206 wrong-result\x1b[0m\n"
    )
    assert "\x1b[36m  found\x1b[0m:    nothing was written there\n" in shown.err
    assert shown.out.startswith(
        "\x1b[2m# two sizes\x1b[0m\n\x1b[1mfrom  to   of bound\x1b[0m\n  4K  64K"
    )
    assert re.sub(r"\x1b\[[\d;]*m", "", shown.err + shown.out) == f"{text}\n{table}\n"
    for word in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.setenv("NO_COLOR", "1")
        output.echo(text, err=True)
        output.echo("\x1b[31mfrom a file")
        shown = capsys.readouterr()
        assert (shown.err, shown.out) == (f"{text}\n", "\\x1b[31mfrom a file\n"), word
        monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_texts_of_files_make_no_colours(colored: None, capsys: pytest.CaptureFixture[str]) -> None:
    output.echo("[red]name[/red] \x1b[31m", nl=False)
    assert capsys.readouterr().out == "[red]name[/red] \\x1b[31m"


def test_rows_with_numbers_are_no_heads(colored: None, capsys: pytest.CaptureFixture[str]) -> None:
    output.echo("8  ranks\n9  ranks")
    assert capsys.readouterr().out == "8  ranks\n9  ranks\n"


def test_files_get_no_codes_of_terminals(colored: None, capsys: pytest.CaptureFixture[str]) -> None:
    phases = output.Phases(verbose=False)
    with phases("working"):
        pass
    with phases.progress("choosing") as report:
        report(1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("several", "lines"),
    [
        (False, ["choosing: 1 of 4, about 0 s left", "choosing: 4 of 4, about 0 s left"]),
        (True, ["choosing: 1 done", "choosing: 4 done", "choosing: 5 done", "choosing: 7 done"]),
    ],
)
def test_progress_of_several_searches_goes_on(
    several: bool,
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "_LINE_S", 0.0)
    phases = output.Phases(verbose=False)
    with phases.progress("choosing", several=several) as report:
        for done, total in [(1, 4), (4, 4), (1, 9), (3, 9)][: len(lines)]:
            report(done, total)
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(("word", "where"), [("list", "standard output: "), ("--help", "")])
def test_a_full_disk_is_said_in_plain_words(word: str, where: str) -> None:
    with Path("/dev/full").open("w") as full:
        end = subprocess.run(
            [sys.executable, "-m", "sley", word], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (end.returncode, end.stderr) == (1, f"error: {where}No space left on device\n")


def test_an_interrupt_of_the_imports_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "sley.cli", Interrupted())
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == output.INTERRUPTED
