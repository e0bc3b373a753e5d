"""A word as the member of an enumeration: by its value in any case; otherwise the caller's rule."""

import pytest

from sley.errors import Place, SleyError
from sley.errors.compiler import C304
from sley.ir.words import Protocol, Schedule, member


@pytest.mark.parametrize("value", [Protocol.LL128, "LL128", "ll128", "Ll128"])
def test_a_member_is_found_by_itself_and_by_its_word_in_any_case(value: object) -> None:
    assert member(Protocol, value, "protocol", C304) is Protocol.LL128


@pytest.mark.parametrize("value", [None, 1, "", "fast", Schedule.MSCCL, ["ll"]], ids=repr)
def test_an_unknown_word_is_refused_by_the_rule_of_the_caller(value: object) -> None:
    with pytest.raises(SleyError) as caught:
        member(Protocol, value, "SLEY_PROTOCOL", C304, at=Place("here.py", 3))
    (said,) = caught.value.diagnostics
    assert (said.code, said.places) == ("C304", (Place("here.py", 3),))
    assert said.expected == "SLEY_PROTOCOL to be one of 'Simple', 'LL', 'LL128', 'Direct'"
    assert said.found == f"SLEY_PROTOCOL={value!r}"
    assert said.remedy == "Give one of these words, or leave it out."
