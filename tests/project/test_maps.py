"""Maps: each package says what its modules are, and the pages say which rooms there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "sley"

PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_names_its_modules(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in package.glob("*/__init__.py")}
    assert {name for name in modules if not re.search(rf"\b{name}\b", text)} == set()


def test_the_page_has_the_rooms() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    table = page.split("| room | task |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == rooms
    layers = page.split("## Who imports whom")[1].split("```")[1]
    assert set(re.findall(r"\w+", layers)) - {"text"} == rooms
    config = (SOURCE.parents[1] / "pyproject.toml").read_text()
    contract = config.split('containers = ["sley"]')[1].split("]")[0]
    assert set(re.findall(r"\w+", contract)) - {"layers", "__main__"} == rooms


def test_the_rooms_are_few() -> None:
    beside = {"__init__.py", "__main__.py", "py.typed"}
    kept = (path for path in SOURCE.iterdir() if path.is_file() or (path / "__init__.py").exists())
    names = {path.name for path in kept}  # not folders that an older version left empty
    assert beside <= names
    assert len(names - beside) <= 15
