"""Linear programs, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sley.ir.tables import FloatArray, LongArray


@dataclass(frozen=True)
class Solution:
    """A solution. dual: float64 (rows,), how much the value grows with the limit of each row.
    variables: float64 (variables,)."""

    value: float
    dual: FloatArray
    variables: FloatArray


@dataclass
class LinearProgram:
    """The smallest value of cost x, for x from 0, within limits of rows.

    cost: float64 (variables,).
    """

    cost: FloatArray
    _terms: list[tuple[LongArray, LongArray, FloatArray]] = field(default_factory=list)
    _least: list[FloatArray] = field(default_factory=list)
    _most: list[FloatArray] = field(default_factory=list)

    def limit(
        self,
        terms: Sequence[tuple[LongArray, LongArray, FloatArray | float]],
        most: FloatArray,
        *,
        equal: bool = False,
    ) -> int:
        """Adds rows, the sums of their terms, which may be at most `most`, or have to be equal; and
        returns the number of the first.

        terms: (row, variable, factor), arrays of one length, or a number as the factor; rows are
            counted from the first one that is added. most: float64 (rows,).
        """
        above = sum(map(len, self._most))
        for row, variable, factor in terms:
            self._terms.append((row + above, variable, np.full(len(row), 1.0) * factor))
        self._most.append(most)
        self._least.append(most if equal else np.full(len(most), -np.inf))
        return above

    def solve(self, solver: str = "choose") -> Solution | None:
        """A solution, or None if HiGHS finds none. solver: HiGHS's name of it."""
        import highspy  # late: many bounds need none

        row, variable, factor = (np.concatenate(of) for of in zip(*self._terms, strict=True))
        order = np.lexsort((row, variable))
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(self.cost), sum(map(len, self._most))
        program.col_cost_ = self.cost
        program.col_lower_ = np.zeros(len(self.cost))
        program.col_upper_ = np.full(len(self.cost), np.inf)
        program.row_lower_ = np.concatenate(self._least)
        program.row_upper_ = np.concatenate(self._most)
        matrix = program.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kColwise
        matrix.start_ = np.searchsorted(variable[order], np.arange(len(self.cost) + 1))
        matrix.index_, matrix.value_ = row[order], factor[order]
        # The bindings' own class: highspy.Highs() enables callbacks, too, which prints a banner on
        # standard output before there is an option against it.
        (bindings,) = highspy.Highs.__bases__
        highs = bindings()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("solver", solver)
        highs.passModel(program)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        found = highs.getSolution()
        dual, variables = np.array(found.row_dual), np.array(found.col_value)
        return Solution(highs.getInfo().objective_function_value, dual, variables)
