"""What went names what replaces it, and the replacement exists."""

from __future__ import annotations

import importlib
import re

import click
import pytest
from click.testing import CliRunner, Result

import sley
from sley.cli import main
from sley.errors.successors import SUCCESSORS, gone
from sley.ir.one_sided import OneSidedPlan


def run(line: str) -> Result:
    return CliRunner().invoke(main, line.split(), prog_name="sley")


def command_of(words: list[str]) -> click.Command:
    """The command of the first words."""
    found: click.Command = main
    for word in words:
        if isinstance(found, click.Group) and word in found.commands:
            found = found.commands[word]
    return found


def options_of(command: click.Command) -> set[str]:
    return {text for p in command.params for text in (*p.opts, *p.secondary_opts)}


KINDS: dict[str, type] = {
    "Program": sley.Program,
    "Plan": sley.Plan,
    "OneSidedPlan": OneSidedPlan,
    "Topology": sley.Topology,
    "Simulation": sley.Simulation,
}

OPTIONS = [row.rpartition(" ")[::2] for row in SUCCESSORS["option"] if "--" in row]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_that_went_names_its_successor(command: str, option: str) -> None:
    word = command or "compile ring-allreduce"
    assert option not in options_of(command_of(word.split()))
    result = run(f"{word} {option} 2")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: C316 gone\n")
    assert SUCCESSORS["option"][f"{command} {option}".strip()] in result.stderr


@pytest.mark.parametrize("command", SUCCESSORS["command"])
def test_a_command_that_went_names_its_successor(command: str) -> None:
    result = run(f"{command} --ranks 2")
    assert result.exit_code == 2
    assert f"expected: {SUCCESSORS['command'][command]}" in result.stderr
    assert f"found:    the earlier command {command}\n" in result.stderr
    assert f"remedy:   Use {SUCCESSORS['command'][command]}.\n" in result.stderr


def test_options_of_a_command_that_is_a_group_now_name_the_successor() -> None:
    result = run("tune --topology ndv4")
    assert (result.exit_code, "expected: sley tune train" in result.stderr) == (2, True)


def test_successors_exist() -> None:
    texts = [text for rows in SUCCESSORS.values() for text in rows.values()]
    named = [line for text in texts for line in re.findall(r"sley ([a-z]+(?: [a-z]+)?)", text)]
    assert named
    for line in named:
        words = line.split()
        assert words[0] in main.commands, line
        group = main.commands[words[0]]
        assert not isinstance(group, click.Group) or words[1] in group.commands, line


@pytest.mark.parametrize(("name", "text"), [*SUCCESSORS["name"].items()])
def test_a_name_that_went_names_its_successor(name: str, text: str) -> None:
    assert name not in sley.__all__
    with pytest.raises(AttributeError, match=f"(?s)C316.*{re.escape(text)}"):
        getattr(sley, name)
    for path in re.findall(r"sley(?:\.\w+)+", text):
        home, _, last = path.rpartition(".")
        try:
            assert hasattr(importlib.import_module(home), last)
        except AssertionError:
            importlib.import_module(path)


@pytest.mark.parametrize(("name", "text"), [*SUCCESSORS["method"].items()])
def test_a_method_that_went_names_its_function(name: str, text: str) -> None:
    kind, _, method = name.partition(".")
    value = object.__new__(KINDS[kind])
    assert not hasattr(value, method)
    with pytest.raises(AttributeError, match=f"(?s)C316.*{re.escape(text)}"):
        getattr(value, method)
    assert hasattr(sley, text.removeprefix("sley.").partition("(")[0].partition(".")[0])


def test_what_never_was_has_no_successor() -> None:
    assert gone("option", "--nothing", "run") is None
    assert gone("command", "nothing") is None
    assert "No such option" in run("run ring-allreduce --nothing").stderr


@pytest.mark.parametrize("command", ["compile ring-allreduce --ranks 4", "doctor .", "package d"])
def test_the_earlier_name_of_a_runtime_names_the_one_word(command: str) -> None:
    result = run(f"{command} --target msccl-executor-nccl")
    assert result.exit_code == 2
    assert "expected: executor\n" in result.stderr


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("compile ring-allreduce --ranks 4 --target executor", 0, "within those of executor"),
        ("compile ring-allreduce --ranks 4 --target rccl", 0, "within those of rccl"),
        ("compile ring-allreduce --ranks 4 --target mscclpp@v0.9.0", 0, "of mscclpp@v0.9.0"),
        ("compile ring-allreduce --ranks 4 --target mscclpp-python", 0, "of mscclpp@"),
        ("compile ring-allreduce --ranks 4 --target ncclx", 2, "it loads no plans"),
        ("simulate ring-allreduce --topology 1x4 --target mscclpp", 2, "is not one of 'executor'"),
        ("doctor . --target executor", 1, "msccl-executor-nccl 2.23.4"),
        ("doctor . --target rccl@2.28.3", 1, "RCCL 2.28.3"),
        ("doctor . --target rccl@banana", 2, "F440"),
        ("doctor . --target nccl", 1, "F501"),
        ("doctor . --target nobody", 2, "is not one of 'sley'"),
    ],
)
def test_every_command_takes_the_same_words_for_runtimes(line: str, code: int, told: str) -> None:
    result = run(line)
    assert told in result.output
    assert result.exit_code == code, result.output
