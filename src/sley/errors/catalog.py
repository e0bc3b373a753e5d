"""Catalog: all rules by code, for ``sley explain`` and the documentation."""

from __future__ import annotations

from types import ModuleType

from sley.errors import (
    calls,
    communicator,
    compiler,
    deployment,
    devices,
    formats,
    language,
    mscclpp,
    policy,
    report,
    rescclang,
    runtime,
    schedules,
    selection,
    simulation,
    topology,
    torch,
    tuning,
    verifier,
)
from sley.errors.diagnostic import Rule

_FAMILIES: tuple[ModuleType, ...] = (
    language,
    rescclang,
    verifier,
    compiler,
    formats,
    mscclpp,
    schedules,
    deployment,
    runtime,
    devices,
    communicator,
    calls,
    selection,
    policy,
    tuning,
    torch,
    topology,
    simulation,
    report,
)


def all_rules() -> dict[str, Rule]:
    """Every rule by its code, in the order of the families."""
    rules = (value for family in _FAMILIES for value in vars(family).values())
    return {rule.code: rule for rule in rules if isinstance(rule, Rule)}
