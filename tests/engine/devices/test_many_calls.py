"""Successive calls, concurrent calls, and calls on several devices: none affects another."""

from __future__ import annotations

from dataclasses import replace
from threading import Event, Timer
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Launching, LinkSet, Settings, ThreadsDevice
from sley.ir.words import Op
from support.devices.device_calls import (
    TIMEOUT_S,
    Call,
    enqueue,
    executor,
    small_slots,
    threads,
    wrong,
)
from support.generators.sampling import each_value
from support.inputs import small_plans

LAUNCHING = pytest.mark.parametrize("launching", Launching, ids=lambda way: way.value)
IN_TURN = pytest.mark.parametrize(("protocol", "launching"), each_value(sley.Protocol, Launching))
RANKS, MOST = 3, 700
"""An odd number of ranks: sums of equal numbers, again and again, never wrap to 0."""


def ring(protocol: sley.Protocol = sley.Protocol.SIMPLE, **options: Any) -> sley.Plan:
    return sley.compile(
        build("ring-allreduce", ranks=RANKS, in_place=True), protocol=protocol, **options
    )


def scattered() -> sley.Plan:
    """A plan that needs scratch."""
    plan = sley.compile(build("ring-reducescatter", ranks=RANKS, in_place=False), fusion=False)
    assert plan.scratch_chunks.all()
    return plan


def misplaced() -> sley.Plan:
    """A plan whose scratch has chunks at the places of others."""
    hand = small_plans.Hand()
    hand.add(0, 0, Op.COPY, (small_plans.IN, 1), (small_plans.SCRATCH, 2))
    hand.add(0, 0, Op.SEND, (small_plans.SCRATCH, 2), to=1)
    hand.add(1, 0, Op.RECV, dst=(small_plans.SCRATCH, 0), of=0)
    for chunk in (3, 2):
        hand.add(1, 0, Op.SEND, (small_plans.SCRATCH, 0), to=0)
        hand.add(0, 0, Op.RECV, dst=(small_plans.OUT, chunk), of=1)
    return hand.plan(sley.AllGather(2, chunks=2), scratch=4)


class Sums:
    """AllReduces in place on one memory, each on the results of those before it."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.data = self.random.integers(-(2**40), 2**40, (RANKS, MOST))
        self.expected = self.data.copy()

    def next(self, on: Executor, **options: Any) -> None:
        """A call on some of the elements."""
        start = int(self.random.integers(0, MOST))
        part = slice(start, start + int(self.random.choice([0, 1, 2, 5, 50, 333])))
        on([row[part] for row in self.data], **options)
        self.expected[:, part] = self.expected[:, part].sum(axis=0)

    def check(self) -> None:
        np.testing.assert_array_equal(self.data, self.expected)


@IN_TURN
def test_hundreds_of_calls_without_waiting_are_right(
    protocol: sley.Protocol, launching: Launching
) -> None:
    on = executor(ring(protocol), engine=Engine.INTERPRETED, launching=launching)
    together = launching is Launching.TOGETHER
    streams = [threads().stream() for _ in range(1 if together else RANKS)]
    sums = Sums(1)
    for _ in range(400):
        sums.next(on, streams=streams)
    for stream in streams:
        threads().synchronize(stream)
    on.synchronize()
    sums.check()


def test_hundreds_of_calls_of_generated_text_at_task_level_are_right() -> None:
    hm = build("hm-allreduce", nodes=1, gpus=RANKS, in_place=True)
    plan = sley.compile(hm, schedule="hpds", allocate="state", protocol="direct")
    on, sums = executor(plan), Sums(2)
    stream = threads().stream()
    for _ in range(400):
        sums.next(on, streams=stream)
    threads().synchronize(stream)
    sums.check()


def test_calls_on_a_stream_return_before_they_are_done() -> None:
    on, sums = executor(ring(), engine=Engine.INTERPRETED), Sums(3)
    before, stream, gate = sums.data.copy(), threads().stream(), Event()
    enqueue(stream, lambda: gate.wait(TIMEOUT_S))
    for _ in range(3):
        sums.next(on, streams=stream)
    np.testing.assert_array_equal(sums.data, before)
    gate.set()
    threads().synchronize(stream)
    sums.check()


@IN_TURN
def test_types_reductions_and_counts_may_change_from_call_to_call(
    protocol: sley.Protocol, launching: Launching
) -> None:
    """Programs differ, the connections and their counters are the same."""
    on = executor(
        ring(protocol),
        [threads()] * RANKS,
        engine=Engine.INTERPRETED,
        launching=launching,
    )
    ops = [sley.ReduceOp.AVG, sley.ReduceOp.SUM, sley.ReduceOp.AVG]
    for turn, op in enumerate(ops):
        for dtype, count in (("int32", 1000), ("int64", 7), ("int32", 0), ("int32", 331)):
            assert wrong(on, count + turn, dtype, op) == 0


def test_scratch_grows_with_the_largest_call() -> None:
    on = executor(scattered(), engine=Engine.INTERPRETED)
    assert [wrong(on, count) for count in (5, 5000, 100, 20_000, 3)] == [0] * 5
    on.reserve(40_000, "int64")
    assert wrong(on, 40_000, "int64") == 0


def test_scratch_may_grow_while_calls_are_on_their_way() -> None:
    """Those have their scratch for as long as they need it. Who needs more waits for them."""
    on = executor(scattered(), engine=Engine.INTERPRETED)
    stream, gate = threads().stream(), Event()
    enqueue(stream, lambda: gate.wait(TIMEOUT_S))
    calls = [Call.of(on.plan, count) for count in (50_000, 70_000, 90_000)]
    calls[0].start(on, streams=stream)
    Timer(0.1, gate.set).start()
    for call in calls[1:]:
        call.start(on, streams=stream)
    threads().synchronize(stream)
    assert [call.wrong() for call in calls] == [0] * 3


def test_two_executors_may_work_at_once() -> None:
    """Their calls are started in turn, and their blocks are at work beside one another."""
    plans = [ring(), ring(sley.Protocol.LL128, instances=2)]
    ons = [executor(plan, engine=Engine.INTERPRETED) for plan in plans]
    sums = [Sums(4), Sums(5)]
    streams = [threads().stream() for _ in ons]
    for _ in range(100):
        for on, own, stream in zip(ons, sums, streams, strict=True):
            own.next(on, streams=stream)
    for stream, own in zip(streams, sums, strict=True):
        threads().synchronize(stream)
        own.check()


@pytest.mark.parametrize(
    ("places", "protocol", "launching"),
    each_value([(0, 1, 2, 3), (1, 0, 0, 1), (0, 0, 0, 5)], sley.Protocol, Launching),
)
def test_ranks_on_several_devices_are_right(
    places: tuple[int, ...], protocol: sley.Protocol, launching: Launching
) -> None:
    plan = sley.compile(
        build("hierarchical-allreduce", nodes=2, gpus=2, in_place=False), protocol=protocol
    )
    devices = {number: threads(number) for number in set(places)}
    on = executor(
        plan,
        [devices[number] for number in places],
        engine=Engine.INTERPRETED,
        launching=launching,
    )
    assert [wrong(on, count) for count in (1001, 0, 3, 400)] == [0] * 4
    call = Call.of(plan, 777)
    launches = len(devices) if launching is Launching.TOGETHER else len(places)
    streams = [threads().stream() for _ in range(launches)]
    call.start(on, streams=streams)
    for stream in streams:
        threads().synchronize(stream)
    assert call.wrong() == 0


@LAUNCHING
@pytest.mark.parametrize("places", [(0, 0, 0), (0, 1, 1)], ids=str)
def test_averages_are_divided_once(places: tuple[int, ...], launching: Launching) -> None:
    devices = {number: threads(number) for number in set(places)}
    for in_place in (True, False):
        plan = sley.compile(build("ring-allreduce", ranks=RANKS, in_place=in_place))
        on = executor(
            plan,
            [devices[number] for number in places],
            engine=Engine.INTERPRETED,
            launching=launching,
        )
        for count in (0, 1, 2, 1000):
            assert wrong(on, count, "int32", sley.ReduceOp.AVG) == 0


@pytest.mark.parametrize(
    ("protocol", "apart", "together"),
    [("Simple", 256, 32), ("LL", 64, 16), ("LL128", 127.75, 64), ("Direct", 256, 32)],
)
def test_slots_share_the_cache_of_their_device(protocol: str, apart: float, together: int) -> None:
    """Slots of a ring of 8 ranks with 16 blocks each, in KiB: on a device each, and all on one."""
    program = build("ring-allreduce", ranks=8, in_place=True)
    plan = sley.compile(program, protocol=protocol, instances=16)
    for devices, expected in (
        ([ThreadsDevice(rank) for rank in range(8)], apart),
        ([threads()] * 8, together),
    ):
        on = Executor(plan, devices)
        assert on.loaded.wiring.slot_bytes == 1024 * expected


@pytest.mark.parametrize(("protocol", "expected"), [("Simple", 16), ("Direct", 64)])
def test_slots_that_hold_no_message_need_not_share_a_cache(protocol: str, expected: int) -> None:
    """With Direct, an AllGather by all pairs leaves all messages in their senders' buffers."""
    program = build("all-pairs-allgather", ranks=4, in_place=True)
    plan = sley.compile(program, protocol=protocol, instances=32)
    assert Executor(plan, [threads()] * 4).loaded.wiring.slot_bytes == expected << 10


@pytest.mark.parametrize("protocol", sley.Protocol)
@pytest.mark.parametrize("is_misplaced", [False, True])
def test_slots_are_as_large_as_the_messages_of_the_largest_call(
    protocol: sley.Protocol, is_misplaced: bool
) -> None:
    """No call up to that one has more tiles than with larger slots."""
    plan = replace(misplaced(), protocol=protocol) if is_misplaced else ring(protocol)
    devices = [threads()] * plan.collective.ranks
    roomy = LinkSet([plan], devices, Settings(slot_bytes=1 << 20))
    assert roomy.loaded[0].homes.misplaced is is_misplaced
    for size in (1, 100, 1500, 4096, 10_000):
        links = LinkSet([plan], devices, largest_bytes=[size])
        assert links.loaded[0].wiring.slot_bytes <= 3 * size + 1024
        for count in range(size // plan.collective.blocks + 1):
            cuts = [own.tables[0].cut(1, count) for own in (links, roomy)]
            assert cuts[0]["tiles"] == cuts[1]["tiles"], count


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_slices_fill_the_threads_of_a_block(protocol: str) -> None:
    on = Executor(ring(protocol), [threads()] * RANKS, Settings(slot_bytes=512 << 10))
    slices = 2 if protocol == "Simple" else 1
    for chunk_kib, tile_kib in ((0, None), (20, None), (40, 30), (100, 50), (200, 100)):
        cut = on.links.tables[0].cut(2, RANKS * chunk_kib << 9)
        assert cut["slices"] == slices
        whole = tile_kib is None or slices == 1
        assert cut["tiles"] == (0 if chunk_kib == 0 else 1 if whole else 2), chunk_kib
        assert whole or cut["tile"] == tile_kib << 9, chunk_kib


def test_slots_have_room_for_small_calls_by_default() -> None:
    """The default slots are large enough for one tile of a small call."""
    plan = ring()
    on = Executor(plan, [threads()] * RANKS, Settings(engine=Engine.INTERPRETED))
    assert on.loaded.wiring.slot_bytes > 100 * small_slots(plan)
    assert [wrong(on, count) for count in (0, 10, 500_000)] == [0] * 3
