"""The documentation's site works when its pages are opened as files, without a network."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.checks.browser import open_page

ROOT = Path(__file__).resolve().parents[2]


CONSOLE = """\
```console
$ sley list \\
    --json
one
$ sley doctor | head -1
two
```
"""
# What the button of a block copies, as Material for MkDocs finds it.
COPIED = """\
<script>addEventListener("load", () => {
  const code = document.querySelector("code");
  code.setAttribute("data-md-copying", "");
  document.documentElement.dataset.copied = code.innerText;
});</script>
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of two pages with the configuration of the documentation."""
    mkdocs = pytest.importorskip("mkdocs.config", reason="no mkdocs")
    pytest.importorskip("material", reason="no mkdocs-material")
    from mkdocs.commands.build import build

    folder = tmp_path_factory.mktemp("site")
    (folder / "docs/deeper").mkdir(parents=True)
    shutil.copytree(ROOT / "docs/assets", folder / "docs/assets")
    (folder / "docs/index.md").write_text(f"# Here\n\nWarp and weft.\n\n{CONSOLE}\n{COPIED}\n")
    (folder / "docs/deeper/index.md").write_text("# There\n\nA shuttle.\n")
    config = mkdocs.load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(folder / "docs"),
        site_dir=str(folder / "site"),
        nav=[{"Here": "index.md"}, {"There": "deeper/index.md"}],
    )
    build(config)
    return folder / "site"


def test_the_search_finds_a_page_that_is_opened_as_a_file(site: Path, tmp_path: Path) -> None:
    for page in ("index.html", "deeper/index.html"):
        opened = open_page(site / page, tmp_path, "?q=shuttle")
        assert "1 matching document<" in opened.dom, opened.console


def test_the_commands_of_a_console_block_are_copied_without_prompts_and_outputs(
    site: Path, tmp_path: Path
) -> None:
    copied = open_page(site / "index.html", tmp_path).page("data-copied")
    assert copied is not None
    assert copied.strip() == "sley list \\\n    --json\nsley doctor | head -1"


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert loaded == [], page.name
