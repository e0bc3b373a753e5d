"""The catalog: every code names one rule."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from sley.errors import Rule
from sley.errors.catalog import _FAMILIES, SUCCESSORS, all_rules

SOURCES = Path(__file__).resolve().parents[2] / "src"
CODE = rf"\b([{''.join({code[0] for code in all_rules()})}]\d{{3}})\b"


def test_every_code_is_given_once_and_is_the_name_of_its_rule():
    rules = [
        (name, value.code)
        for family in _FAMILIES
        for name, value in vars(family).items()
        if isinstance(value, Rule)
    ]
    assert [name for name, code in rules if name != code] == []
    names = Counter(rule.name for rule in all_rules().values())
    assert [name for name, times in names.items() if times > 1] == [], "explain takes names"
    assert [code for code, times in Counter(code for _, code in rules).items() if times > 1] == []


def test_each_former_code_has_one_successor_and_is_no_code_of_today():
    rules = all_rules()
    former = [code for rule in rules.values() for code in rule.former]
    assert sorted(SUCCESSORS) == sorted(former), "a code is there twice"
    assert [code for code in SUCCESSORS if code in rules] == []
    assert [code for code in SUCCESSORS.values() if code not in rules] == []


def test_docstrings_name_codes_of_today_and_ranges_that_ascend():
    wrong, known = [], {*all_rules(), "V100", "B200"}  # the last two are GPUs
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            text = str(node.value.value)
            ranges = re.findall(rf"{CODE}(?:-|\s+to\s+){CODE}", text)
            wrong += [f"{path}: {a} to {b}" for a, b in ranges if a[0] != b[0] or a >= b]
            codes = {*re.findall(CODE, text)} - known
            wrong += [f"{path}: {code}" for code in codes]
    assert wrong == []
