"""Catalog: all rules by code, for ``sley explain`` and the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from sley.errors import Rule

_NAMES = """
language rescclang verifier compiler formats mscclpp schedules deployment runtime devices
communicator calls selection nccl policy tuning torch topology simulation report
"""
_FAMILIES = tuple(import_module(f"sley.errors.{name}") for name in _NAMES.split())
"""The modules with rules."""

WENT: Mapping[str, str] = dict.fromkeys(("D945", "D946"), "workload files")
"""The codes of rules that went with what they were about."""


def all_rules() -> dict[str, Rule]:
    """Every rule by its code, in the order of the families."""
    rules = (value for family in _FAMILIES for value in vars(family).values())
    return {rule.code: rule for rule in rules if isinstance(rule, Rule)}


SUCCESSORS: Mapping[str, str] = MappingProxyType(
    {former: rule.code for rule in all_rules().values() for former in rule.former}
)
"""The rule in place of each former one. A former code is never used again."""
