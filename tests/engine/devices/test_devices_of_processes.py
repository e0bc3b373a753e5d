"""Ranks in several processes: they access one another's memory, and detect a dead process."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Settings, ThreadsDevice
from support.devices.device_calls import Call, small_slots, threads
from support.devices.linked_plans import used_slots
from support.generators.examples import examples
from support.generators.random_plans import PlanMaker
from support.processes.process_ranks import Meeting, Order, apart, numbers, run, together
from support.processes.rank_threads import execute

PROTOCOLS = pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.name.lower())


def refused(code: str, call: Any, *arguments: Any, **options: Any) -> sley.SleyError:
    with pytest.raises(sley.SleyError) as caught:
        call(*arguments, **options)
    assert caught.value.code == code
    return caught.value


def check_results(order: Order, results: dict[int, list[dict[int, Any]]], calls: int) -> None:
    """The first `calls` calls left what they leave in the CPU runtime."""
    plan = order.plan
    for number, count in enumerate(order.counts[:calls]):
        inputs = [numbers(rank, count) for rank in range(plan.collective.ranks)]
        expected = execute(plan, inputs)
        for rows in results.values():
            for rank, output in rows[number].items():
                np.testing.assert_array_equal(output, expected[rank])


@pytest.mark.parametrize(
    "protocol",
    [
        sley.Protocol.SIMPLE,
        sley.Protocol.DIRECT,
        pytest.param(sley.Protocol.LL, marks=pytest.mark.slow),
        pytest.param(sley.Protocol.LL128, marks=pytest.mark.slow),
    ],
    ids=lambda p: p.name.lower(),
)
def test_processes_with_one_rank_or_two_get_right_results(protocol: sley.Protocol) -> None:
    plan = sley.compile(
        build("ring-allreduce", ranks=4, in_place=protocol is not sley.Protocol.DIRECT),
        protocol=protocol,
    )
    counts = [1000, 0, 5, 40_001]
    order = Order(plan, Engine.INTERPRETED, [[0], [1, 2], [3]], counts, plain=[2])
    report = run(order)
    assert (report.errors, report.codes) == ({}, [0, 0, 0])
    check_results(order, report.results, 4)


@pytest.mark.parametrize("protocol", ["simple", "direct"])
def test_a_killed_process_is_noticed(protocol: str) -> None:
    plan = sley.compile(build("ring-allreduce", ranks=3, in_place=True), protocol=protocol)
    order = Order(plan, Engine.GENERATED, [[0], [1], [2]], [1000, 33, 500], killed=1)
    report = run(order)
    assert report.codes == [0, -9, 0]
    assert sorted(report.errors) == [0, 2]
    for member, text in report.errors.items():
        assert re.match(rf".*rings\.py:\d+, rank {member}, .*: K508 plan-stuck\n", text)
        assert "no instruction to wait longer than 1 s" in text
    assert sorted(report.results) == [0, 2]
    check_results(order, report.results, 2)


@PROTOCOLS
def test_each_rank_has_the_scratch_that_a_call_needs(protocol: sley.Protocol) -> None:
    """Also if some ranks have it and others don't, or all have made some together."""
    plan = sley.compile(
        build("three-step-alltoall", nodes=2, gpus=2, in_place=False), protocol=protocol
    )
    assert sorted(set(plan.scratch_chunks > 0)) == [False, True]
    ons = apart(plan, [[0, 3], [1], [2]], engine=Engine.INTERPRETED, timeout_s=60)
    for count in (100, 7, 3000, 0, 50):
        if count == 50:
            together([lambda on=on: on.reserve(60, "int64") for on in ons])
        call = Call.of(plan, count, "int64")
        check_apart(ons, call)
        assert call.wrong() == 0


@PROTOCOLS
def test_ranks_need_not_run_the_same_engine(protocol: sley.Protocol) -> None:
    """In each call some run generated code and others interpret; between calls each changes."""
    maker = PlanMaker(Random(5), 3, 3, in_place=False)
    plan = replace(maker.plan(24), protocol=protocol)
    ons = apart(plan, [[0], [1], [2]], slot_bytes=small_slots(plan), timeout_s=60)
    for turn, count in enumerate((1000, 3, 0, 400)):
        for rank, on in enumerate(ons):
            engine = list(Engine)[(turn + rank) % 2]
            on.links.settings = replace(on.links.settings, engine=engine)
        together([lambda on=on: on.reserve(1000, "int64") for on in ons])
        call = Call.of(plan, count, "int64")
        check_apart(ons, call)
        assert call.wrong() == 0


def check_apart(
    ons: list[Executor],
    call: Call,
    plain: Collection[tuple[int, int]] = (),
    shifts: Sequence[int] = (0,),
) -> None:
    """Makes a call of all executors at once. Its arrays are views of such that all can read, from
    another element on for each rank, but for those in `plain`: their rank, and 0 or 1."""
    own = [call.inputs, *filter(None, [call.outputs])]

    def make(on: Executor) -> None:
        given = []
        for k, arrays in enumerate(own):
            made = on.empty("int64", max(map(len, arrays)) + max(shifts))
            of_ranks = {}
            for rank in on.ranks:
                first = shifts[rank % len(shifts)]
                view = made[rank][first : first + len(arrays[rank])]
                of_ranks[rank] = arrays[rank] if (rank, k) in plain else view
                of_ranks[rank][:] = arrays[rank]
            given.append(of_ranks)
        on(*given, count=call.count)
        for arrays, of_ranks in zip(own, given, strict=True):
            for rank, array in of_ranks.items():
                arrays[rank][:] = array

    together([lambda on=on: make(on) for on in ons])


@examples(10)
@given(st.data())
def test_processes_need_not_agree_about_their_arrays(data: st.DataObject) -> None:
    """Any array, and any rank's scratch, may be one that other processes read, or not."""
    name = data.draw(st.sampled_from(["", "ring-allreduce", "all-pairs-alltoall"]))
    if name:
        plan = sley.compile(build(name, ranks=3, in_place=False), instances=2)
    else:
        maker = PlanMaker(Random(data.draw(st.integers(0, 10**6))), 3, 3, in_place=False)
        plan = maker.plan(data.draw(st.sampled_from([8, 32])))
    plan = replace(plan, protocol=sley.Protocol.DIRECT)
    members = data.draw(st.sampled_from([[[0], [1], [2]], [[0, 1], [2]], [[1], [0, 2]]]))
    ons = apart(plan, members, engine=Engine.INTERPRETED, slot_bytes=small_slots(plan))
    if data.draw(st.booleans()):
        together([lambda on=on: on.reserve(50, "int64") for on in ons])
    pairs = st.tuples(st.integers(0, 2), st.integers(0, 1))
    for count in (7, 301):
        call = Call.of(plan, count, "int64")
        shifts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
        check_apart(ons, call, data.draw(st.sets(pairs)), shifts)
        assert call.wrong() == 0


def staged(ons: Sequence[Executor]) -> set[tuple[int, int]]:
    """The connections, by source and destination, in whose slots there is something."""
    return {pair for on in ons for pair in used_slots(on.links)}


def test_only_messages_that_the_receiver_cannot_read_are_in_slots() -> None:
    """Rank 1's output, which it doesn't send, matters to nobody."""
    plan = sley.compile(build("all-pairs-alltoall", ranks=3, in_place=False), protocol="direct")
    ons = apart(plan, [[0], [1, 2]], engine=Engine.INTERPRETED)
    for plain, expected in (
        ((1, 1), set()),
        ((1, 0), {(1, 0)}),
        ((0, 0), {(1, 0), (0, 1), (0, 2)}),
    ):
        call = Call.of(plan, 30, "int64")
        check_apart(ons, call, [plain], [5])
        assert call.wrong() == 0
        assert staged(ons) == expected


def test_registered_arrays_are_read_in_place() -> None:
    """Those of the caller, by the ranks of one process: at other places in each rank's memory, of
    which a part is registered before, for itself."""
    plan = sley.compile(build("all-pairs-alltoall", ranks=3, in_place=False), protocol="direct")
    ons = apart(plan, [[0], [1], [2]], engine=Engine.INTERPRETED)
    memory = [np.zeros(100 + rank, np.int64) for rank in range(3)]
    given = [memory[rank][rank * 7 + 20 :][:30] for rank in range(3)]
    readers, numbers = dict[int, list[int]](), dict[int, int]()

    def register(rank: int) -> None:
        ons[rank].links.register({rank: memory[rank][20:25]})
        own = memory[rank] if rank < 2 else memory[rank][:30]  # not all that it sends
        numbers[rank], found = ons[rank].links.register({rank: own})
        readers.update(found)

    def call(rank: int) -> None:
        given[rank][:] = np.arange(30) + 100 * rank
        output = np.zeros(30, np.int64)
        ons[rank]({rank: given[rank]}, {rank: output})
        expected = np.concatenate([np.arange(10) + 10 * rank + 100 * other for other in range(3)])
        np.testing.assert_array_equal(output, expected)

    together([lambda rank=rank: register(rank) for rank in range(3)])
    assert readers == {0: [1, 2], 1: [0, 2], 2: [0, 1]}
    assert len(set(numbers.values())) == 1
    together([lambda rank=rank: call(rank) for rank in range(3)])
    assert staged(ons) == {(2, 0), (2, 1)}
    together([lambda rank=rank: ons[rank].links.deregister(numbers[rank]) for rank in range(3)])
    together([lambda rank=rank: call(rank) for rank in range(3)])
    assert len(staged(ons)) == 6


@pytest.mark.parametrize("reserves", [True, False])
def test_other_processes_read_scratch_that_was_reserved(reserves: bool) -> None:
    program = build("three-step-alltoall", nodes=2, gpus=2, in_place=False)
    plan = sley.compile(program, protocol="direct")
    ons = apart(plan, [[0], [1], [2], [3]], engine=Engine.INTERPRETED)
    if reserves:
        together([lambda on=on: on.reserve(30, "int64") for on in ons])
    call = Call.of(plan, 30, "int64")
    check_apart(ons, call)
    assert call.wrong() == 0
    assert bool(staged(ons)) != reserves


def test_a_broadcast_takes_no_input_of_other_ranks() -> None:
    scatter = sley.trace(
        sley.Scatter(2, 1, 0, False),
        lambda p: [p.chunk(0, "in", block).copy(block, "out", 0) for block in range(2)],
        name="scatter",
    )
    ons = apart(sley.compile(scatter, protocol="direct"), [[0], [1]], engine=Engine.INTERPRETED)
    outputs: list[Any] = [None, None]

    def call(rank: int) -> None:
        given, outputs[rank] = (ons[rank].empty("int32", n)[rank] for n in (20, 10))
        given[:] = np.arange(20)
        ons[rank]({rank: given if rank == 0 else None}, {rank: outputs[rank]}, count=10)

    together([lambda: call(0), lambda: call(1)])
    assert np.concatenate(outputs).tolist() == list(range(20))


def test_a_rank_in_two_processes_is_refused() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True))
    meeting = Meeting(2)

    def make(member: int, ranks: list[int]) -> None:
        devices = dict.fromkeys(ranks, threads(member))
        found = refused("R503", Executor, plan, devices, exchange=meeting.exchange(member))
        assert "rank 0 in two of them" in str(found)

    together([lambda: make(0, [0, 1]), lambda: make(1, [0])])


def _raised(said: bytes) -> list[bytes]:
    raise OSError("no network")


def values(rank: int, value: bytes) -> bytes:
    """What a process says of its rank."""
    return b"sley:v" + struct.pack("II", rank, len(value)) + value


@pytest.mark.parametrize(
    "exchange",
    [
        lambda said: None,
        lambda said: said.decode(),
        lambda said: [said, 3],
        lambda said: [b"garbage"],
        lambda said: [b"[1]"],
        lambda said: [said, b"sley:v"],
        lambda said: [said, b"sley:v1"],
        lambda said: [said, values(1, b"1")],
        lambda said: [said, values(1, b"12345678")],  # not the path of a box
        lambda said: [said, values(2, b"12345678")],
        lambda said: [said, values(1, b"12345678")[:-1]],
        lambda said: [values(0, b"12345678") + values(1, b"12345678")[6:]],
        lambda said: [said, b"sley:rgarbage"],
        lambda said: [said, b'sley:r[{"code": "R503"}]'],
        _raised,
    ],
)
def test_exchanges_that_return_no_messages_are_refused(exchange: Any) -> None:
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True))
    refused("K514", Executor, plan, {0: ThreadsDevice()}, exchange=exchange)


def test_processes_with_other_settings_are_refused() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True))
    meeting = Meeting(2)

    def make(member: int) -> None:
        devices, exchange = {member: threads(member)}, meeting.exchange(member)
        settings = Settings(slots=2 << member)
        refused("R503", Executor, plan, devices, settings, exchange=exchange)

    together([lambda: make(0), lambda: make(1)])


@pytest.mark.parametrize("protocol", ["simple", "direct"])
def test_calls_exchange_nothing(protocol: str) -> None:
    """Each process prepares its own alone, with scratch. One that is gone is noticed by the call,
    not waited for in an exchange."""
    program = build("all-pairs-reduce", ranks=2, in_place=True)
    plan = sley.compile(program, protocol=protocol)
    meeting, ons = Meeting(2), dict[int, Executor]()
    settings = Settings(Engine.INTERPRETED, timeout_s=60)

    def make(rank: int) -> None:
        given = {rank: threads(rank)}
        ons[rank] = Executor(plan, given, settings, exchange=meeting.exchange(rank))

    together([lambda rank=rank: make(rank) for rank in range(2)])
    meeting.said.clear()  # an exchange would fail
    data = [np.full(8, 1.5), np.full(8, 2.0)]
    calls = [ons[rank].prepare({rank: data[rank]}) for rank in range(2)]
    together(calls)
    assert data[0].tolist() == [3.5] * 8
    together([lambda: refused("K508", calls[0]), lambda: ons[1].links.native.give_up(0)])


def test_descriptors_of_no_memory_are_refused() -> None:
    """As of a process that has ended."""
    device, owner = ThreadsDevice().native, ThreadsDevice(1).native
    descriptor = owner.export_memory(owner.allocate_shared(64))
    refused("K514", device.attach, descriptor, 65)
    os.close(descriptor)
    refused("K514", device.attach, descriptor, 64)


def test_a_process_without_an_answer_is_named() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=3, in_place=True))
    device = ThreadsDevice()
    found = refused("K514", Executor, plan, {0: device, 1: device}, exchange=lambda said: [said])
    assert "rank 2" in str(found)


def test_ranks_of_several_processes_share_the_slots_of_a_device() -> None:
    program = build("all-pairs-allreduce", ranks=4, in_place=True)
    plan, meeting = sley.compile(program, instances=4), Meeting(4)
    found: dict[int, int] = {}

    def make(rank: int) -> None:
        with Executor(plan, {rank: threads()}, exchange=meeting.exchange(rank)) as on:
            found[rank] = on.loaded.wiring.slot_bytes

    together([lambda rank=rank: make(rank) for rank in range(4)])
    with Executor(plan, [threads()] * 4) as on:
        assert set(found.values()) == {on.loaded.wiring.slot_bytes}
    with Executor(plan, [threads(rank) for rank in range(4)]) as on:
        assert set(found.values()) != {on.loaded.wiring.slot_bytes}
