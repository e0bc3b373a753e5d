"""Consequences: every rule that a proof of a file can break has one."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from sley import formats
from sley.compiler.deployment import CallAction, DeployedCall, decide, examine, runtime_named
from sley.compiler.deployment.candidates import PLAN_CONSEQUENCES, XML_CONSEQUENCES
from sley.errors import Rule
from sley.errors.catalog import all_rules
from sley.formats import format as of_formats
from sley.formats import msccl_xml, mscclpp
from sley.formats.mscclpp import reader
from support.inputs.deployments import plan

WRITERS = ("writer", "chakra", "rewriting", "emission", "placing", "threadblocks", "header")
"""Modules of formats that no proof of a file calls."""

OF_NO_FILE = (
    "C309",
    "V222",
    "V223",
    "F437",
    "F440",
    "F441",
    "F460",
    "F461",
    "F499",
    "K521",
    "F425",
    "F426",
    "F506",
    "N658",
)
"""Problems of a call of sley, of writing a file, or of which files of a folder are read."""

VERIFIER = importlib.import_module("sley.verification")


def raised(package) -> set[str]:
    """The codes of the rules that the modules of a package name, without remarks."""
    modules = [package] if not hasattr(package, "__path__") else [
        importlib.import_module(f"{package.__name__}.{one.name}")
        for one in pkgutil.iter_modules(package.__path__)
        if one.name not in WRITERS
    ]  # fmt: skip
    rules = [one for module in modules for one in vars(module).values() if isinstance(one, Rule)]
    return {one.code for one in rules if not one.what.startswith(("Remark", "A remark"))}


@pytest.mark.parametrize(
    ("package", "table"), [(msccl_xml, XML_CONSEQUENCES), (mscclpp, PLAN_CONSEQUENCES)]
)
def test_every_rule_of_a_format_and_of_the_verifier_has_a_consequence(package, table):
    rules = raised(package) | raised(VERIFIER) | raised(of_formats) | raised(formats)
    assert rules - {*OF_NO_FILE} - set(table) == set(), "rules without a consequence"
    assert set(table) - set(all_rules()) == set(), "consequences of no rule"


def test_a_plan_above_a_limit_of_sleys_is_unproven_and_not_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_CHUNKS", 3)
    plan(tmp_path / "a.json", ranks=2)
    examined = examine(tmp_path, runtime_named("mscclpp-python"))
    assert [one.code for one in examined.problems] == ["F529"]
    assert "F403" in examined.problems[0].found
    decision = decide(examined, DeployedCall("allreduce", 4096, 2, 2, True))
    assert (decision.outcome, decision.is_right) == (CallAction.UNPROVEN, False)
