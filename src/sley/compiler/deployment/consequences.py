"""Consequences: what a problem of a file means when a runtime reads the file and runs it.

A table for each format names every rule that a proof of a file can break. F529 stands for problems
whose consequence isn't known, such as a limit of sley's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sley.errors import Diagnostic, Rule
from sley.errors.deployment import F505, F515, F516, F517, F529

_BY_SEVERITY = (F505, F515, F516, F517, F529)


def _table(rows: Mapping[Rule, str]) -> Mapping[str, Rule]:
    """The consequence of each code, from the codes of each consequence."""
    return MappingProxyType({code: rule for rule, codes in rows.items() for code in codes.split()})


_WRONG_PLAN = " V202 V203 V204 V205 V206 V208 V211 V212 V213 V214 V215 V216 V221"
"""Problems of plans that run, and give wrong results or hang."""

_OF_NO_RUNTIME = " C307 F438 L101 V201 R514 L118 L119 V219 C314"
"""Problems of calls of sley and of its own plans, which no runtime has with a file."""

XML_CONSEQUENCES = _table(
    {
        F505: "F401 F405 F406 F408 F412 F417 F422 F436 F441 F443 F444 F462 F464 F465",
        F516: "F468",
        F517: "F414 F415 F419 F420 F421 F454 F466 F467" + _WRONG_PLAN,
        F529: "F403 F404 F407 F409 F411 F424 F451 F463" + _OF_NO_RUNTIME,
    }
)
"""What the problem of a file of MSCCL XML means, by code. Most limits stop the start (F505)."""

PLAN_CONSEQUENCES = _table(
    {
        F515: "F475",
        F516: "F412 F444 F463 F470 F472 F478",
        F517: "F420 F476 F479 F482 F483 F486 F488 F493 F496" + _WRONG_PLAN,
        F529: "F403 F404 F409 F411 F422 F424" + _OF_NO_RUNTIME,
    }
)
"""What the problem of an execution plan means, by code. MSCCL++ reads a plan when a call has chosen
it, so no problem stops the start."""


def worst(problems: Sequence[Diagnostic], table: Mapping[str, Rule]) -> tuple[Diagnostic, Rule]:
    """The problem with the gravest consequence, and this consequence: F505, F515, F516, F517 or
    F529, in this order. problems: at least one."""
    found = [(problem, table.get(problem.code, F529)) for problem in problems]
    return min(found, key=lambda pair: _BY_SEVERITY.index(pair[1]))
