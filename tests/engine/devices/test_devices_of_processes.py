"""Ranks in several processes: they access one another's memory, and detect a dead process."""

from __future__ import annotations

import os
import re
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Settings, ThreadsDevice
from sley.engine.devices.shared_files import descriptor_box, pass_descriptors
from support.devices.device_calls import Call, threads
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
    order = Order(plan, Engine.INTERPRETED, [[0], [1, 2], [3]], [1000, 0, 5, 40_001])
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
def test_scratch_grows_on_all_ranks_at_the_same_calls(protocol: sley.Protocol) -> None:
    """Scratch that some ranks have and others don't grows on all of them at the same calls."""
    plan = sley.compile(
        build("three-step-alltoall", nodes=2, gpus=2, in_place=False), protocol=protocol
    )
    assert sorted(set(plan.scratch_chunks > 0)) == [False, True]
    ons = apart(plan, [[0, 3], [1], [2]], engine=Engine.INTERPRETED, timeout_s=5)
    for count in (100, 7, 3000, 0):
        call = Call.of(plan, count, "int64")
        check_apart(ons, call)
        assert call.wrong() == 0


def check_apart(ons: list[Executor], call: Call) -> None:
    """Makes a call of all executors at once, through arrays that all can read."""
    sizes = [(len(a), len(b)) for a, b in zip(call.inputs, call.outputs or [], strict=True)]

    def make(on: Executor) -> None:
        inputs, outputs = (
            {r: a[: sizes[r][k]] for r, a in on.empty("int64", max(s[k] for s in sizes)).items()}
            for k in (0, 1)
        )
        for rank in on.ranks:
            inputs[rank][:] = call.inputs[rank]
            outputs[rank][:] = (call.outputs or [])[rank]
        on(inputs, outputs, count=call.count)
        for rank in on.ranks:
            (call.outputs or [])[rank][:] = outputs[rank]

    together([lambda on=on: make(on) for on in ons])


def test_other_arrays_are_refused_where_processes_read_them() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True), protocol="direct")
    ons = apart(plan, [[0], [1]], engine=Engine.INTERPRETED)

    def call(rank: int) -> None:
        found = refused("R503", ons[rank], {rank: np.zeros(8)})
        assert "arrays made by `empty`" in str(found)

    together([lambda: call(0), lambda: call(1)])


def test_each_rank_may_take_another_of_its_arrays() -> None:
    """Where each has its own, all tell one another: no array is a copy of rank own's."""
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True), protocol="direct")
    ons = apart(plan, [[0], [1]], engine=Engine.INTERPRETED)
    data: list[Any] = [None, None]

    def call(rank: int) -> None:
        arrays = [ons[rank].empty("int32", 100)[rank] for _ in range(2)]
        data[rank] = arrays[rank][10 * rank : 10 * rank + 50]
        data[rank][:] = rank + 1
        prepared = ons[rank].prepare({rank: data[rank]})
        for _ in range(3):
            prepared()

    together([lambda: call(0), lambda: call(1)])
    assert [array.tolist() for array in data] == [[12] * 50] * 2


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


@pytest.mark.parametrize(
    "exchange",
    [
        lambda said: None,
        lambda said: said.decode(),
        lambda said: [said, 3],
        lambda said: [b"garbage"],
        lambda said: [b"[1]"],
        lambda said: [said, b'{"1": ["zz", ""]}'],
        lambda said: [said, b'{"1": 5}'],
        lambda said: [said, b'{"1": ["00", ""]}'],
        lambda said: [said, b'{"1": ["313a323a303a333a34", ""]}'],  # process 1, descriptor 2
        lambda said: [said, b'{"one": "00"}'],
        lambda said: [b'{"0": "00", "1": "00"}'],
        lambda said: [said, b"refused:garbage"],
        lambda said: [said, b'refused:[{"code": "R503"}]'],
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


def test_calls_without_scratch_exchange_nothing() -> None:
    """A process that is gone is noticed by the call, not waited for in an exchange."""
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True))
    on, other = apart(plan, [[0], [1]], engine=Engine.INTERPRETED, timeout_s=0.2)
    together([lambda on=on: on.reserve(8, "float64") for on in (on, other)])
    on.links.ranks._exchange = _raised
    refused("K508", on, {0: np.zeros(8)})


def test_memory_of_a_process_that_is_gone_is_refused() -> None:
    device, owner = ThreadsDevice(), ThreadsDevice(1)
    memory = owner.allocate(64)
    handle, _ = owner.export(memory)
    del memory
    refused("K514", device.attach, handle)


def test_handles_are_unique() -> None:
    """Else memory that was attached before would be taken for new memory."""
    device, handles = ThreadsDevice(), set()
    for _ in range(3):
        memory = device.allocate(64)
        handles.add(device.export(memory))
        del memory
    assert len(handles) == 3


def test_each_process_gets_the_descriptors_of_all_others() -> None:
    """Of more than a box holds."""
    members = 16
    files = [os.memfd_create(str(rank)) for rank in range(members)]
    paths, all_bound, found = dict[int, str](), Barrier(members), dict[int, list[int]]()

    def member(rank: int) -> None:
        with descriptor_box() as box:
            paths[rank] = box.getsockname()
            all_bound.wait()
            others = [path for other, path in paths.items() if other != rank]
            got = pass_descriptors(box, {rank: files[rank]}, others, members - 1)
            got[rank] = os.dup(files[rank])
            all_bound.wait()
        found[rank] = [os.fstat(got[other]).st_ino for other in range(members)]
        for descriptor in got.values():
            os.close(descriptor)

    together([lambda rank=rank: member(rank) for rank in range(members)])
    assert set(map(tuple, found.values())) == {tuple(os.fstat(file).st_ino for file in files)}
    for file in files:
        os.close(file)


def test_descriptors_that_are_not_passed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sley.engine.devices.shared_files._LATE_S", 0.1)
    with descriptor_box() as box:
        found = refused("K514", pass_descriptors, box, {0: 0}, ["/nowhere/box"], 1)
        assert "/nowhere/box" in str(found), "as between containers"
        assert "those of 0" in str(refused("K514", pass_descriptors, box, {}, [], 1))


def test_a_process_without_an_answer_is_named() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=3, in_place=True))
    device = ThreadsDevice()
    found = refused("K514", Executor, plan, {0: device, 1: device}, exchange=lambda said: [said])
    assert "rank 2" in str(found)
