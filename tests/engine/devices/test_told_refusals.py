"""Refusals of one of several processes: all processes refuse the call, none waits, and all can go
on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Settings, ThreadsDevice
from sley.engine.devices.device_ranks import read_refusals, refusal
from sley.errors import Place, SleyError
from sley.errors.devices import K507
from sley.errors.runtime import R503
from support.processes.process_ranks import Meeting, apart, together

OTHERS = "another process found this"


def in_processes(ranks: int, name: str = "ring-allreduce") -> list[Executor]:
    """An executor for each rank of a plan whose messages are pulled."""
    plan = sley.compile(build(name, ranks=ranks, in_place=True), protocol="direct")
    return apart(plan, [[rank] for rank in range(ranks)], engine=Engine.INTERPRETED)


def check_refused(code: str, member: int, calls: Sequence[Callable[[], Any]]) -> None:
    """All calls at once raise the error of `member`, which the others are told."""
    errors: dict[int, SleyError] = {}

    def call(number: int) -> None:
        with pytest.raises(SleyError) as caught:
            calls[number]()
        errors[number] = caught.value

    together([lambda number=number: call(number) for number in range(len(calls))])
    (own,) = errors.pop(member).diagnostics
    assert own.code == code
    assert OTHERS not in own.notes
    for error in errors.values():
        (told,) = error.diagnostics
        assert told.notes == (*own.notes, OTHERS)
        assert str(told).replace(f"  note:     {OTHERS}\n", "") == str(own)


def arrays(ons: Sequence[Executor], elements: int) -> list[Any]:
    """An array of each rank that all may read."""
    found: list[Any] = [None for _ in ons]

    def make(rank: int) -> None:
        found[rank] = ons[rank].empty("int32", elements)[rank]

    together([lambda rank=rank: make(rank) for rank in range(len(ons))])
    return found


def check_sum(ons: Sequence[Executor], data: Sequence[Any]) -> None:
    """A reduction gives rank 0 what it promises."""
    for rank, array in enumerate(data):
        array[:] = rank + 1
    pairs = list(enumerate(zip(ons, data, strict=True)))
    together([lambda r=r, on=on, array=array: on({r: array}) for r, (on, array) in pairs])
    assert data[0].tolist() == [sum(range(1, len(ons) + 1))] * 8


def test_a_call_that_one_process_refuses_is_prepared_by_others() -> None:
    ons = in_processes(3)
    data = arrays(ons, 8)
    with pytest.raises(SleyError) as caught:
        ons[1].prepare({1: data[1][:7]}, count=8)
    assert caught.value.code == "R503"
    for rank in (0, 2):
        ons[rank].prepare({rank: data[rank]})
    check_sum(ons, data)


@pytest.mark.parametrize("elements", [2**46, 2**62])
def test_memory_that_one_process_does_not_get_is_refused_on_all(elements: int) -> None:
    """Since it is more than any address, or any number."""
    ons = in_processes(2)
    sizes = (8, elements)
    pairs = zip(ons, sizes, strict=True)
    check_refused("K507", 1, [lambda on=on, n=n: on.empty("int64", n) for on, n in pairs])
    check_sum(ons, arrays(ons, 8))


def test_memory_that_one_process_cannot_index_is_refused_on_all() -> None:
    ons = in_processes(2)
    index = ons[1].links.memory.index

    class Full:
        def add(self, *_: Any) -> None:
            raise K507.error(expected="a larger table", found="no memory")

    ons[1].links.memory.index = Full()
    check_refused("K507", 1, [lambda on=on: on.empty("int64", 8) for on in ons])
    ons[1].links.memory.index = index
    check_sum(ons, arrays(ons, 8))


def test_scratch_that_one_process_asks_for_wrongly_is_refused_on_all() -> None:
    ons = in_processes(2)
    counts = (-1, 8)
    pairs = zip(ons, counts, strict=True)
    check_refused("R514", 0, [lambda on=on, n=n: on.reserve(n, "int32") for on, n in pairs])
    check_sum(ons, arrays(ons, 8))


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("R503", {"devices": {9: ThreadsDevice()}}),
        ("N652", {"slots": 1}),
        ("K507", {"slots": 2**30, "slot_bytes": 2**30}),
    ],
    ids=["ranks", "slots", "room"],
)
def test_an_executor_that_one_process_refuses_is_refused_on_all(
    code: str, options: dict[str, Any]
) -> None:
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True), slots=2)
    meeting = Meeting(2)

    def make(member: int, devices: Any = None, **options: Any) -> Executor:
        devices = devices or {member: ThreadsDevice(member)}
        return Executor(plan, devices, Settings(**options), exchange=meeting.exchange(member))

    check_refused(code, 0, [lambda: make(0, **options), lambda: make(1)])


def test_refusals_of_several_processes_are_one_error() -> None:
    rows = [
        R503.diagnostic(
            at=[Place("a.py", 3, 4, "rank 0"), Place(detail="rank 1")],
            expected="é",
            found="{}",
            remedy="none",
            notes=["one", "two"],
        ),
        K507.diagnostic(expected="8 bytes", found="7"),
    ]
    error = read_refusals([refusal(SleyError(rows)), refusal(SleyError(rows[1:]))])
    assert [(d.code, d.places, d.expected, d.found, d.remedy) for d in error.diagnostics] == [
        (d.code, d.places, d.expected, d.found, d.remedy) for d in rows
    ]
    assert [d.notes for d in error.diagnostics] == [("one", "two", OTHERS), (OTHERS,)]
