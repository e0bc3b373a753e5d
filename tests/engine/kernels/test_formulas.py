"""Formulas: their text evaluates to the original numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sley.engine.kernels.formulas import Formulas

Members = tuple[Any, Any, int]


@st.composite
def members(draw: st.DrawFn) -> Members:
    """The ranks and numbers of some blocks of a plan, ascending, and the plan's ranks."""
    size = draw(st.integers(1, 40))
    everyone = [(rank, block) for rank in range(size) for block in range(3)]
    chosen = sorted(draw(st.sets(st.sampled_from(everyone), min_size=1, max_size=30)))
    ranks, blocks = np.array(chosen, np.int64).T
    return ranks, blocks, size


def written(formulas: Formulas, text: str) -> list[int]:
    """What a text means for each member; C++ and Python agree on numbers that aren't negative."""
    tables = {f"{formulas.prefix}{k}": table for k, table in enumerate(formulas.tables)}
    return [
        eval(text, {"rank": int(r), "block": int(b), "member": m, **tables})
        for m, (r, b) in enumerate(zip(formulas.ranks, formulas.blocks, strict=True))
    ]


FORMS: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "constant": lambda r, b, n, k: np.full(len(r), k),
    "rotated": lambda r, b, n, k: (r + k) % n,
    "mirrored": lambda r, b, n, k: (k - r) % n,
    "exchanged": lambda r, b, n, k: r ^ k,
    "numbered": lambda r, b, n, k: b + k,
}


@given(
    members(),
    st.sampled_from(sorted(FORMS)),
    st.integers(0, 70),
    st.integers(1, 9),
    st.integers(0, 20),
)
def test_what_follows_a_form_is_a_formula(
    given: Members, form: str, k: int, scale: int, base: int
) -> None:
    ranks, blocks, size = given
    values = FORMS[form](ranks, blocks, size, k) * scale + base
    formulas = Formulas(ranks, blocks, size, "t")
    assert written(formulas, formulas(values)) == values.tolist()
    everyone = set(ranks.tolist()) == set(range(size)) and form != "numbered"
    if (scale == 1 and base == 0) or (everyone and base < scale):
        assert not formulas.tables


@given(members(), st.data())
def test_anything_is_written_and_each_table_once(given: Members, data: st.DataObject) -> None:
    ranks, blocks, size = given
    numbers = st.lists(st.integers(0, 5), min_size=len(ranks), max_size=len(ranks))
    columns = data.draw(st.lists(numbers, min_size=1, max_size=6))
    formulas = Formulas(ranks, blocks, size, "numbers_")
    for column in [*columns, *columns]:
        values = np.array(column, np.int64)
        assert written(formulas, formulas(values)) == column
    assert len({tuple(table) for table in formulas.tables}) == len(formulas.tables)


def test_formulas_are_as_short_as_written_by_hand() -> None:
    ranks = np.arange(4)
    formulas = Formulas(ranks, np.array([2, 3, 2, 3]), 4, "numbers_")
    for values, text in (
        ([7, 7, 7, 7], "7"),
        ([0, 1, 2, 3], "rank"),
        ([3, 0, 1, 2], "(rank + 3) % 4"),
        ([1, 0, 3, 2], "(5 - rank) % 4"),
        ([2, 3, 0, 1], "(rank + 2) % 4"),
        ([3, 2, 1, 0], "(7 - rank) % 4"),
        ([6, 0, 2, 4], "((rank + 3) % 4) * 2"),
        ([1, 3, 5, 7], "rank * 2 + 1"),
        ([2, 3, 2, 3], "block"),
        ([1, 2, 1, 2], "block - 1"),
        ([9, 8, 1, 1], "numbers_0[member]"),
        ([5, 8, 1, 1], "numbers_1[member]"),
        ([9, 8, 1, 1], "numbers_0[member]"),
    ):
        assert formulas(np.array(values, np.int64)) == text
    even = np.arange(0, 8, 2)
    formulas = Formulas(even, np.zeros(4, np.int64), 8, "t")
    assert formulas(even) == "rank"
    assert formulas(even * 6 + 1) == "rank * 6 + 1"
    eight = Formulas(np.arange(8), np.zeros(8, np.int64), 8, "t")
    assert eight(np.arange(8) ^ 2) == "rank ^ 2"
    assert eight((np.arange(8) ^ 2) * 4 + 2) == "(rank ^ 2) * 4 + 2"
