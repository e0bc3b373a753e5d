"""The measuring loop, on benches that record its requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sley.engine.measure import REDUCE_OPS, Measurement, Sweep, compare, measure
from sley.ir.collectives import AllGather
from sley.ir.words import ReduceOp
from support.inputs import small_plans

PLAN = small_plans.Hand().plan(AllGather(3))


@dataclass
class Spy:
    """A bench whose calls take the times given, in turn."""

    times_us: list[float]
    wrong: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)

    def time_us(self, count: int, sweep: Sweep) -> float:
        self.asked.append(("time", count))
        return self.times_us.pop(0)

    def count_wrong(self, count: int, sweep: Sweep) -> int:
        self.asked.append(("check", count))
        return self.wrong


def test_each_size_is_timed_and_then_checked() -> None:
    spy, seen = Spy([2.0, 4.0], wrong=7), list[Measurement]()
    found = measure(PLAN, spy, Sweep([24, 50], "float16"), seen.append)
    assert spy.asked == [("time", 4), ("check", 4), ("time", 8), ("check", 8)]
    assert seen == found
    assert [(m.size_bytes, m.count, m.time_us, m.wrong) for m in found] == [
        (24, 4, 2.0, 7),
        (48, 8, 4.0, 7),
    ]
    assert found[0].algbw_GBps == 24 / 2.0 / 1e3
    assert found[0].busbw_GBps == pytest.approx(24 / 2.0 / 1e3 * 2 / 3)


def test_nothing_is_checked_unless_asked() -> None:
    spy = Spy([1.0])
    assert measure(PLAN, spy, Sweep([12], check=False))[0].wrong == -1
    assert spy.asked == [("time", 1)]


def test_benches_take_turns_and_medians_are_taken_size_by_size() -> None:
    one, two = Spy([1.0, 10.0, 3.0, 30.0, 2.0, 20.0]), Spy([5.0] * 6, wrong=1)
    calls: list[None] = []
    found = compare(PLAN, {"one": one, "two": two}, Sweep([12, 24]), 3, lambda: calls.append(None))
    assert one.asked == [("check", 1), ("check", 2), *[("time", 1), ("time", 2)] * 3]
    assert len(calls) == (3 + 1) * 2 * 2
    assert [row.measurements["one"].time_us for row in found] == [2.0, 20.0]
    assert [row.times_us["one"] for row in found] == [(1.0, 3.0, 2.0), (10.0, 30.0, 20.0)]
    assert [row.measurements["two"].wrong for row in found] == [1, 1]


@pytest.mark.parametrize(("name", "op"), REDUCE_OPS.items())
def test_reductions_have_the_names_of_nccl_tests(name: str, op: ReduceOp) -> None:
    assert measure(PLAN, Spy([1.0]), Sweep([12], reduce_op=op))[0].redop == name
