"""The type and the count of a call, derived from its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sley.engine.arguments import Part, count_of, parts_of, type_of
from sley.engine.types import data_type, name_of
from sley.errors import Rule, SleyError
from sley.ir.collectives import AllGather
from support.inputs import small_plans

RULE = Rule("N999 of-the-caller", what="", why="", example="", instead="")


def refused(code: str, call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(SleyError) as caught:
        call()
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)


def test_parts_are_named_and_counted_in_blocks() -> None:
    apart = small_plans.Hand().plan(AllGather(3))
    within = small_plans.Hand().plan(AllGather(3, in_place=True))
    assert parts_of(apart, 2, [4, 12]) == [
        Part("input of rank 2", 4, 1),
        Part("output of rank 2", 12, 3),
    ]
    assert parts_of(apart, 2, [None]) == [Part("input of rank 2", None, 1)]
    assert parts_of(within, 0, [12]) == [Part("data of rank 0", 12, 3)]


def test_the_count_comes_from_the_first_array_that_holds_blocks() -> None:
    parts = [Part("a", 0, 0), Part("b", 12, 3), Part("c", 4, 1)]
    assert count_of(parts, None, RULE) == 4
    assert count_of(parts, 4, RULE) == 4
    assert count_of([Part("a", 0, 0)], 7, RULE) == 7


def test_arrays_that_do_not_fit_the_count_break_the_callers_rule() -> None:
    parts = [Part("the a", 12, 3), Part("the b", 5, 1)]
    refused("N999", lambda: count_of(parts, None, RULE), "the b", "4 elements for count=4")
    refused("N999", lambda: count_of(parts, 5, RULE), "the a", "15 elements", "12 elements")
    refused("N999", lambda: count_of([Part("the a", 13, 3)], None, RULE), "a multiple of 3")
    refused("N999", lambda: count_of([Part("the a", None, 3)], None, RULE), "count")
    refused("N999", lambda: count_of([Part("the a", None, 3)], 2, RULE), "found:    0 elements")
    refused("R514", lambda: count_of(parts, -1, RULE))
    refused("R514", lambda: count_of(parts, 10**5000, RULE))


def test_the_type_comes_from_the_arrays_or_the_caller() -> None:
    assert type_of({"a": "int8", "b": "int8"}, None, RULE).name == "int8"
    assert type_of({"a": "int8"}, "int8", RULE).name == "int8"
    assert type_of({}, "int8", RULE).name == "int8"
    for bits, name in ("uint16", "bfloat16"), ("uint8", "float8_e4m3fn"), ("uint8", "float8_e5m2"):
        assert type_of({"a": bits, "b": name}, name, RULE).name == name
    assert type_of({"a": "uint8"}, None, RULE).name == "uint8"


def test_arrays_of_other_types_break_the_callers_rule() -> None:
    refused("N999", lambda: type_of({"a": "int8", "b": "int16"}, None, RULE), "int16 in the b")
    refused("N999", lambda: type_of({"a": "int8"}, "int16", RULE), "int16", "int8")
    refused("N999", lambda: type_of({}, None, RULE))
    refused("R504", lambda: type_of({"a": "complex64"}, None, RULE), "complex64")
    refused("R504", lambda: type_of({"a": "uint16"}, None, RULE), 'dtype="bfloat16"')
    refused("N999", lambda: type_of({"a": "int8"}, "float8_e5m2", RULE), "float8_e5m2", "int8")
    refused("R504", lambda: type_of({"a": "int8"}, "int9", RULE), "int9")
    refused("R504", lambda: data_type("bf16"), "Did you mean bfloat16")


def test_bytes_in_another_order_are_another_type() -> None:
    assert name_of(np.dtype("int32")) == "int32"
    swapped = name_of(np.dtype("int32").newbyteorder())
    refused("R504", lambda: type_of({"a": swapped}, None, RULE), "swapped")
