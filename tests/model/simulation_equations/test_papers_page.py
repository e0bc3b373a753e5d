"""docs/papers.md is the output of benchmarks/papers.py: its quick parts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "papers.md").read_text()


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])


def test_the_page_of_the_papers_has_its_words() -> None:
    """Every line of the text without numbers to fill in."""
    text = (ROOT / "benchmarks" / "papers.md.in").read_text()
    for line in text.splitlines():
        assert "{" in line or line in PAGE.splitlines(), line
    assert not re.search(r"\{\w+\}", PAGE), "everything is filled in"


@pytest.mark.usefixtures("benchmarks")
def test_the_quick_tables_of_the_page_are_made() -> None:
    import papers_resccl

    assert papers_resccl.blocks_on_a_card() in PAGE
    assert papers_resccl.equations() in PAGE


@pytest.mark.usefixtures("benchmarks")
def test_verdicts_compare_with_what_the_papers_say() -> None:
    from papers_common import nearness

    assert nearness(1.5, 1.4) == "yes"
    assert nearness(1.2, 1.9) == "in part"
    assert nearness(1.0, 1.2) == "no", "no winner is no agreement, however near"
    assert nearness(0.9, 1.05) == "yes", "nor has the paper one here"
