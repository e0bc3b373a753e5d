"""Arguments of a call: the caller's arrays, validated against the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sley.engine import native
from sley.engine.arguments import Part, count_of, parts_of, type_of
from sley.engine.devices.device import Device
from sley.engine.kernels.operands import is_sum
from sley.engine.types import DataType, name_of
from sley.errors.runtime import R503, R514
from sley.errors.text_files import excerpt
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp

Arrays = Sequence[Any] | Mapping[int, Any]
"""Arrays of the ranks of this process: in the order of the ranks, or by rank."""


_NO_OUTPUT = Part("", None, 0)

_SCALE = "Give with SUM a number, or an array of one element of the data's type."


@dataclass(frozen=True)
class Arguments:
    """The arrays of a call, validated.

    count: elements of a block of the collective. pieces: for each rank of this process, address and
    bytes of its input and its output (in place: of its data, and zeros).
    """

    count: int
    dtype: DataType
    pieces: Mapping[int, Sequence[tuple[int, int]]]


class PlanArguments:
    """Validates the arrays of a plan's calls on the devices of this process's ranks."""

    def __init__(self, plan: Plan, devices: Mapping[int, Device]) -> None:
        self._ranks, self._in_place = list(devices), plan.collective.in_place
        rows = list[tuple[native.Device, str, int, bool]]()
        for rank, device in devices.items():
            first, second = (*parts_of(plan, rank), _NO_OUTPUT)[:2]
            rows.append((device.native, first.what, first.blocks, self._in_place))
            rows.append((device.native, second.what, second.blocks, True))
        self._arrays = native.CallArrays(rows)

    def check(
        self, inputs: Arrays, outputs: Arrays | None, count: int | None, dtype: str | None
    ) -> Arguments:
        """The arguments of a call. R503 if they don't fit the plan, or if an array that the call
        writes shares memory with another; K504, K519 and R504 for arrays that kernels can't use,
        K519 for a read-only output, R514 for an invalid count."""
        if self._in_place and outputs is not None:
            expected = "no outputs: the plan runs in place"
            raise R503.error(expected=expected, found="inputs and outputs")
        if not self._in_place and outputs is None:
            expected = "outputs: the plan runs out of place"
            raise R503.error(expected=expected, found="inputs alone")
        first = self._by_rank(inputs, "data" if self._in_place else "input")
        second = [None] * len(first) if outputs is None else self._by_rank(outputs, "output")
        given = self._arrays.given(
            [array for row in zip(first, second, strict=True) for array in row]
        )
        kinds = given.kinds()
        typed = {what: name for what, (elements, _, name) in kinds if elements}
        if not typed and dtype is None:
            typed = dict([(what, name) for what, (_, _, name) in kinds if name][:1])
        kind = type_of(typed, dtype, R503)
        parts = [Part(what, elements, blocks) for what, (elements, blocks, _) in kinds]
        count = count_of(parts, count, R503)
        given.check(kind.name)
        return Arguments(count, kind, dict(zip(self._ranks, given.pieces(), strict=True)))

    def _by_rank(self, arrays: Arrays, word: str) -> list[Any]:
        """The arrays in the order of the ranks; R503 unless there is one for each."""
        ranks = self._ranks
        try:
            number = len(arrays)
            given = (
                arrays if isinstance(arrays, Mapping) else dict(zip(ranks, arrays, strict=False))
            )
        except TypeError:
            raise R503.error(
                expected=f"{len(ranks)} {word} arrays, in a list or by rank",
                found=f"{type(arrays).__name__}",
            ) from None
        if set(given) != set(ranks) or len(given) != number:
            raise R503.error(
                expected=f"{len(ranks)} {word} arrays, for ranks {sorted(ranks)}",
                found=f"{number}, for ranks {list(given)}",
            )
        return [given[rank] for rank in ranks]


def check_factor(
    plan: Plan, devices: Mapping[int, Device], factor: Any, kind: DataType, op: ReduceOp
) -> dict[str, int]:
    """The fields of a call that multiplies inputs by a factor, a number or an array of one element.
    R503 and R514 for one that won't do."""
    if op is not ReduceOp.SUM or not is_sum(plan):
        found = f"factor, with {op.name} of {plan.collective}"
        raise R503.error(expected="a sum, for a factor", found=found, remedy=_SCALE)
    if not isinstance(factor, int | float | np.integer | np.floating):
        if not (hasattr(factor, "__dlpack__") or hasattr(factor, "__cuda_array_interface__")):
            expected = "factor as a number, or an array of one element"
            found = f"factor={excerpt(factor)}"
            raise R514.error(expected=expected, found=found, remedy="Give such a factor.")
        places = set(devices.values())
        if len(places) > 1:
            expected = "ranks on one device, for a factor in memory"
            raise R503.error(expected=expected, found=f"ranks on {len(places)} devices")
        view = native.view(factor, places.pop().native, "factor")
        if view.dtype not in (kind.name, name_of(kind.array)):
            expected = f"a factor of the data's type, {kind.name}"
            raise R503.error(expected=expected, found=view.dtype, remedy=_SCALE)
        if view.elements != 1:
            found = f"{view.elements} elements"
            raise R503.error(expected="one element as factor", found=found, remedy=_SCALE)
        return {"factor_at": view.address}
    is_whole = kind.array.kind in "iu" and not kind.is_bits
    try:
        value = np.array(
            [int(factor) if is_whole else factor], np.float32 if kind.is_bits else kind.array
        )
        if not is_whole or value[0] == factor:
            return {"factor": int.from_bytes(kind.bits(value).tobytes(), "little")}
    except (ValueError, OverflowError):  # of an infinite number, or one that is too large
        pass
    expected = f"a {'whole ' * is_whole}factor of {kind.name}"
    raise R514.error(expected=expected, found=f"factor={excerpt(factor)}")
