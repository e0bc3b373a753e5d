"""The pages that come from the code can be generated, and links lead to their sections."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = r"errors/\w+|data-model|nccl-functions|install|examples|changes|contributing"
LINK = re.compile(rf"\]\((?:\.\./|docs/)*((?:{PAGES})\.md)(?:#([\w-]+))?\)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names of the generated pages, and the anchors of their headings."""
    folder = tmp_path_factory.mktemp("pages")
    subprocess.run([sys.executable, "docs/generate.py", str(folder)], check=True, cwd=ROOT)
    return {
        path.relative_to(folder).as_posix(): set(map(_anchor, _headings(path)))
        for path in folder.rglob("*.md")
    }


def _headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)


def _anchor(heading: str) -> str:
    named = re.search(r"\{ #(\w+) \}", heading)
    return named[1] if named else re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def test_each_link_to_a_generated_page_leads_to_one_of_its_sections(
    pages: dict[str, set[str]],
) -> None:
    sources = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/decisions").glob("*.md")]
    links = [
        (path.name, page, anchor)
        for path in sources
        if path.name != "data-model.md"
        for page, anchor in LINK.findall(path.read_text("utf-8"))
    ]
    assert len(links) > 10
    assert [
        link for link in links if link[1] not in pages or link[2] not in {"", *pages[link[1]]}
    ] == []


def test_the_pages_are_in_the_menu(pages: dict[str, set[str]]) -> None:
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page for page in pages if page not in menu] == []


def test_the_picture_of_a_report_shows_the_present_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import report_picture

    assert report_picture.is_current(), "Run: make picture"
