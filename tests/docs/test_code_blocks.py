"""The code blocks of the documentation do what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.checks.pages import WrongPageError, blocks, committed, run_page, update_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in committed(ROOT)
    if any(block.word in ("python", "console") for block in blocks(path.read_text("utf-8")))
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_on_the_page_does_what_the_page_shows(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = path.relative_to(ROOT).as_posix()
    if request.config.getoption("--update-golden"):
        update_page(path, name, tmp_path)
    run_page(path.read_text("utf-8"), name, tmp_path)


def test_the_readme_has_code() -> None:
    assert ROOT / "README.md" in PAGES


def run(page: str, folder: Path) -> int:
    """Run a page in which ~ stands for a backtick."""
    return run_page(page.replace("~", "`"), "page.md", folder)


GOOD = """
~~~python
word = "warp"
~~~

Some words between.

~~~python
print(word)
~~~

~~~text
warp
~~~
"""


def test_blocks_share_a_namespace_and_output_is_compared(tmp_path: Path) -> None:
    assert run(GOOD, tmp_path) == 2
    with pytest.raises(WrongPageError, match=r"page\.md:12\nthe page shows"):
        run(GOOD.replace("warp\n~~~\n", "weft\n~~~\n"), tmp_path)


def test_output_marked_as_varying_is_not_compared(tmp_path: Path) -> None:
    assert run("~~~python\nprint(1)\n~~~\n<!-- not compared -->\n~~~text\n2\n~~~\n", tmp_path) == 1


def test_a_text_block_further_down_is_no_output(tmp_path: Path) -> None:
    assert run("~~~python\nprint(1)\n~~~\nThe file:\n~~~text\n2\n~~~\n", tmp_path) == 1


def test_an_error_names_the_line_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("Words.\n\n~~~python\n1 / 0\n~~~\n", tmp_path)
    frame = caught.traceback[-1]
    assert (str(frame.path).endswith("page.md"), frame.lineno + 1) == (True, 4)


def test_a_page_shows_its_folder_as_here(tmp_path: Path) -> None:
    page = "~~~python\nfrom pathlib import Path\nprint(Path.cwd())\n~~~\n~~~text\n/here\n~~~\n"
    assert run(page, tmp_path) == 1


def test_files_are_written_to_the_given_folder(tmp_path: Path) -> None:
    run("~~~python\nfrom pathlib import Path\nPath('x').write_text('y')\n~~~\n", tmp_path)
    assert (tmp_path / "x").read_text() == "y"


def test_console_blocks_are_run(tmp_path: Path) -> None:
    assert run("<!-- not compared -->\n~~~console\n$ sley --help\n~~~\n", tmp_path) == 1
    with pytest.raises(WrongPageError, match="the page shows"):
        run("~~~console\n$ sley --help\nnothing of the kind\n~~~\n", tmp_path)
    with pytest.raises(WrongPageError, match="exit code 2, not 0"):
        run("<!-- not compared -->\n~~~console\n$ sley --no-such-option\n~~~\n", tmp_path)
    page = "<!-- exit code 2 -->\n<!-- not compared -->\n~~~console\n$ sley --no-such-option\n~~~\n"
    assert run(page, tmp_path) == 1


def test_other_commands_are_not_run(tmp_path: Path) -> None:
    assert run("~~~console\n$ make demo\n~~~\n", tmp_path) == 0


def test_a_block_with_a_title_is_a_file_that_commands_run(tmp_path: Path) -> None:
    file = '~~~python title="own.py"\nprint(1)\n~~~\n~~~text\n2\n~~~\n'
    page = f"{file}~~~console\n$ python own.py\n1\n~~~\n"
    assert run(page, tmp_path) == 1
    assert (tmp_path / "own.py").read_text() == "print(1)\n"
    with pytest.raises(WrongPageError, match="it printed:\n1"):
        run(page.replace("own.py\n1", "own.py\n3"), tmp_path)
    assert run(page.replace("$ python own", "$ python other"), tmp_path) == 0


def test_a_block_without_end_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WrongPageError, match="no end"):
        run("~~~python\nx = 1\n", tmp_path)
