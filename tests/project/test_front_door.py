"""The front door: what `import sley` and `help(sley)` offer."""

from __future__ import annotations

import importlib
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sley

ROOT = Path(__file__).resolve().parents[2]


def test_help_begins_with_an_example_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sley.__doc__ is not None
    example = re.search(r"\n\n(    .*?)\n\n(?! )", sley.__doc__, flags=re.DOTALL)
    assert example
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "example.py"
    source.write_text(textwrap.dedent(example[1]))
    exec(compile(source.read_text(), str(source), "exec"), {})
    assert capsys.readouterr().out.startswith("proven: ring is a correct allgather on 4 ranks")
    assert sley.verify_file("ring.xml").proofs


def test_help_names_only_what_there_is() -> None:
    assert sley.__doc__ is not None
    after = sley.__doc__.split("Write programs:")[1]
    names = re.findall(r"\b[a-z]+_[a-z]+\b|\b(?:Sley|All|Comm|Cust)\w+|(?<=Plans: )\w+", after)
    assert len(names) > 6
    for name in names:
        assert hasattr(sley, name), name


def found(name: str) -> Any:
    """What a dotted name stands for, as a user finds it by attributes and imports."""
    here: Any = sley
    for word in name.split(".")[1:]:
        if not hasattr(here, word) and isinstance(here, ModuleType):
            importlib.import_module(f"{here.__name__}.{word}")
        here = getattr(here, word)
    return here


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    names = set(re.findall(r"`[^`\n]*?\b(sley(?:\.[A-Za-z]\w*)+)(?![\w./-])", text))
    names |= set(re.findall(r"^[^#\n`]*?\b(sley(?:\.[A-Za-z]\w*)+)\(", text, flags=re.MULTILINE))
    for name in sorted(names):
        try:
            found(name)
        except (AttributeError, ImportError) as error:
            pytest.fail(f"{page.name} names {name}: {error}")
