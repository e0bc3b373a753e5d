"""Errors sent from one process to another: no part is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sley.errors import Diagnostic, Place, SleyError, diagnostic_from_json, telling
from sley.errors.runtime import R503, R507

FULL = R503.diagnostic(
    at=[
        Place("a.py", 3, 4, "rank 0", Place("b.py", 5, caller=Place("c.py", 6))),
        Place(detail="rank 1"),
    ],
    expected="é",
    found="{}",
    remedy="none",
    notes=["one", "two"],
)


@pytest.mark.parametrize("sent", [FULL, R507.diagnostic(expected="8 bytes", found="7")])
def test_a_diagnostic_read_back_equals_the_one_that_was_sent(sent: Diagnostic) -> None:
    assert diagnostic_from_json(json.loads(json.dumps(sent.to_json()))) == sent


def test_a_rule_of_another_version_keeps_its_code_and_name() -> None:
    sent = {**FULL.to_json(), "code": "R999", "name": "of-tomorrow"}
    read = diagnostic_from_json(sent)
    assert read.to_json() == sent
    assert "R999 of-tomorrow" in str(read)


@pytest.mark.parametrize(
    "value",
    [None, 3, [], {}, {"code": "R503"}, {**FULL.to_json(), "places": [{"row": 1}]}],
    ids=["nothing", "number", "list", "empty", "part", "place"],
)
def test_other_values_are_no_diagnostics(value: Any) -> None:
    with pytest.raises(ValueError, match="no diagnostic"):
        diagnostic_from_json(value)


def test_an_error_is_told_and_then_raised() -> None:
    told: list[SleyError] = []
    error = SleyError([FULL])
    with pytest.raises(SleyError) as caught, telling(told.append):
        raise error
    assert told == [error] == [caught.value]


def test_a_failure_to_tell_hides_no_error() -> None:
    def tell(_: SleyError) -> None:
        raise R507.error(expected="a store", found="none")

    with pytest.raises(SleyError) as caught, telling(tell):
        raise SleyError([FULL])
    assert caught.value.code == "R503"


def test_no_error_is_sent_without_a_failure() -> None:
    told: list[SleyError] = []
    with telling(told.append):
        pass
    assert not told
