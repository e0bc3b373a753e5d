"""The front door: what `import sley` and `help(sley)` offer."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sley
from support.checks.pages import committed
from support.processes.forked import PROCESSES

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


PAGES = [page for page in committed(ROOT) if page.parent != ROOT / "docs/decisions"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    names = set(re.findall(r"`[^`\n]*?\b(?<!ops\.)(sley(?:\.[A-Za-z]\w*)+)(?![\w./-])", text))
    names |= set(
        re.findall(r"^[^#\n`]*?\b(?<!ops\.)(sley(?:\.[A-Za-z]\w*)+)\(", text, flags=re.MULTILINE)
    )
    for name in sorted(names):
        try:
            found(name)
        except (AttributeError, ImportError) as error:
            pytest.fail(f"{page.name} names {name}: {error}")


def test_verifier_and_simulator_load_no_compiler() -> None:
    code = (
        "import sys, sley.verification, sley.model.simulation\n"
        "print([n for n in ('compiler', 'lang', 'front_door') if f'sley.{n}' in sys.modules])\n"
        "print(sley.verify.__name__, sley.simulate.__name__, sley.topologies.__name__)\n"
        "print(hasattr(sley, 'no_such_name'), 'compile' in dir(sley))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.splitlines() == ["[]", "verify simulate sley.topologies", "False True"]


def test_the_names_are_those_that_type_checkers_see() -> None:
    """`__init__` imports each name for type checkers, and names its module for the first use."""
    tree = ast.parse(Path(sley.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {a.asname: node.module for node in block.body for a in node.names}  # type: ignore[attr-defined]
    assert seen == sley._HOME
    assert set(sley.__all__) == {*seen, "__version__"}
    for name, home in seen.items():
        assert getattr(sley, name) is found(f"{home}.{name}")


def after_all_imports() -> list[str]:
    """The modules in `sley`, after every module is imported and some functions work."""
    for module in pkgutil.walk_packages(sley.__path__, "sley."):
        if module.name != "sley.__main__":
            try:
                importlib.import_module(module.name)
            except sley.SleyError as error:  # torchcomms
                assert error.code == "R512", error
    program = sley.algorithms.ring_allreduce(2)
    plan = sley.compile(program, topology="1x2")
    sley.verify(plan), sley.simulate(plan, "4K"), sley.show(plan), sley.lift(plan)
    sley.choose(program, "4K", "1x2", channels=1, instances=1, protocol="LL")
    assert [m.wrong for m in sley.run(plan, "4K", iterations=1, warmup=0)] == [0]
    return [name for name in sley.__all__ if isinstance(getattr(sley, name), ModuleType)]


def test_every_function_works_after_every_module_is_imported() -> None:
    """No module takes the place of a function in `sley`."""
    with ProcessPoolExecutor(1, PROCESSES) as process:
        found = process.submit(after_all_imports).result()
    assert found == ["algorithms", "rescclang", "topologies"]


def test_no_function_has_the_name_of_a_package() -> None:
    """`import sley.NAME.MODULE` would find the function."""
    packages = {module.name for module in pkgutil.iter_modules(sley.__path__)}
    assert {name for name in packages & set(sley.__all__) if callable(getattr(sley, name))} == set()
