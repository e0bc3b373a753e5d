"""Plans over one set of links: their calls share connections, slots and numbers."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import build
from sley.engine.devices import Executor, Launching, LinkSet, Settings
from sley.engine.devices.mailboxes import kind_of_slots
from support.devices.device_calls import TIMEOUT_S, Call, enqueue, memory_of_threads, threads, wrong
from support.devices.linked_plans import EPOCH, linked, old_words, skip_to
from support.generators.examples import examples
from support.generators.random_plans import PlanMaker
from support.mutants.plan_edits import swapped
from support.processes.process_ranks import Meeting, together

SHORT_S = 0.3


def ring(ranks: int = 3, **options: Any) -> sley.Plan:
    return sley.compile(build("ring-allreduce", ranks=ranks, in_place=True), **options)


def one_way(ranks: int, chunks: int, **options: Any) -> sley.Plan:
    """Rank 0 sends to rank 1, nobody else to anybody."""

    @sley.program(sley.SendRecv(ranks, chunks), **options)
    def program(p: sley.lang.ChunkProgram) -> None:
        for chunk in range(chunks):
            p.chunk(0, "in", chunk).copy(1, "out", chunk)

    return sley.compile(program, fusion=False)


def check_numbers(on: Executor) -> None:
    """All cells of all ranks have one number, which no message has or had."""
    state = on.read_state()
    (ticks,) = {number for cells in state["ticks"].values() for number in cells}
    assert all(max(sent, read) < max(ticks, 1) for *_, sent, read in state["connections"])


@st.composite
def plans(draw: st.DrawFn, ranks: int) -> sley.Plan:
    """Plans with all protocols, with one or several blocks, channels and slots. In some of them
    ranks have no instructions, or not even blocks."""
    protocol, in_place = draw(st.sampled_from(sley.Protocol)), draw(st.booleans())
    kind = draw(st.sampled_from(["by hand", "by hand", "library", "library", "one way"]))
    if kind == "one way":
        return one_way(ranks, draw(st.integers(1, 3)), protocol=protocol)
    if kind == "by hand":
        random, chunks = Random(draw(st.integers(0, 10**6))), draw(st.integers(2, 4))
        maker = PlanMaker(random, ranks, chunks, in_place=in_place)
        return replace(maker.plan(draw(st.sampled_from([1, 3, 8, 32]))), protocol=protocol)
    name = draw(st.sampled_from(["ring-allreduce", "all-pairs-alltoall"]))
    return sley.compile(
        build(name, ranks=ranks, in_place=in_place),
        protocol=protocol,
        instances=draw(st.sampled_from([1, 2, 3])),
        slots=draw(st.sampled_from([2, 8])),
    )


@examples(12)
@given(st.data())
def test_any_sequence_of_calls_of_several_plans_is_right(data: st.DataObject) -> None:
    """Also where numbers reach a border of an epoch, and where connections have been unused for
    whole epochs."""
    ranks = data.draw(st.integers(2, 4))
    every = data.draw(st.lists(plans(ranks), min_size=2, max_size=4))
    ons = linked(every, launching=data.draw(st.sampled_from(Launching)))
    links, epoch = ons[0].links, 0
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            epoch += data.draw(st.sampled_from([4, 5, 1 << 20]))
            skip_to(links, epoch * EPOCH - data.draw(st.integers(0, 40)))
        calls = []
        for _ in range(data.draw(st.integers(1, 4))):
            on = data.draw(st.sampled_from(ons))
            call = Call.of(on.plan, data.draw(st.sampled_from([0, 1, 3, 31, 200, 1001])))
            streams = [stream for own in links.launches.values() for _, stream in own]
            call.start(on, streams=streams if data.draw(st.booleans()) else None)
            calls.append(call)
        links.synchronize()
        assert [call.wrong() for call in calls] == [0] * len(calls)
        check_numbers(ons[0])


@pytest.mark.parametrize("launching", Launching)
def test_each_call_leaves_one_number_to_all_ranks(launching: Launching) -> None:
    """Whatever plan it was, and if it had nothing to do. Rank 0 sends a message a step, so that its
    last one has the highest number; rank 2 has nothing to do."""
    every = [one_way(3, chunks, protocol=p) for chunks, p in ((1, "LL"), (3, "Simple"))]
    every += [ring(slots=2), ring(slots=8, instances=2), ring(protocol="Direct")]
    ons = linked(every, launching=launching)
    for on in (*ons, *reversed(ons)):
        wiring = on.loaded.wiring
        assert on.links.slots_bytes[kind_of_slots(on.plan)] >= wiring.slots * wiring.slot_bytes
        for count in (0, 31, 0, 200):
            assert wrong(on, count) == 0
            check_numbers(on)


@pytest.mark.parametrize("before", [0, 1, 30])
@pytest.mark.parametrize("epoch", [1, 2, 3, 4, 7, 1 << 20])
def test_flags_of_other_epochs_are_never_taken(epoch: int, before: int) -> None:
    words, others = linked([ring(protocol="LL", slots=16), ring(protocol="LL", instances=2)])
    skip_to(words.links, epoch * EPOCH - before)
    assert [wrong(on, 300) for on in (words, others)] == [0] * 2
    skip_to(words.links, (epoch + 4) * EPOCH - before)
    assert wrong(others, 300) == 0
    assert old_words(words.links) == 0, "also in slots that only the other plan has"
    assert wrong(words, 300) == 0


def test_no_call_has_flags_of_two_epochs() -> None:
    """With calls that cross borders, words of two epochs before would still be in the slots."""
    (on,) = linked([ring(protocol="LL", slots=8)])
    for epoch, count in ((4, 300), (5, 3), (6, 299)):
        skip_to(on.links, epoch * EPOCH - 2, old_words=False)
        assert wrong(on, count, reduce_op=list(sley.ReduceOp)[epoch - 4]) == 0


@pytest.mark.parametrize(
    ("protocol", "ticks"),
    [("Simple", 0), ("LL", 0), ("LL128", 0), ("LL", 4 * EPOCH), ("Direct", 0)],
)
def test_a_sender_waits_for_its_receiver_before_it_uses_slots_of_earlier_calls(
    protocol: str, ticks: int
) -> None:
    """Until it has read what is there, of whatever plan; in another epoch also until it has
    overwritten old flags. With Direct no call ends before: the next one says anew where messages
    are."""
    every = [one_way(2, chunks, protocol=protocol) for chunks in (1, 2)]
    ons = linked(every, launching="by-rank", slots=8)
    for on in ons:
        assert wrong(on, 4) == 0  # they are compiled
    streams, gate, end = [threads().stream() for _ in range(2)], Event(), Event()
    if ticks:
        skip_to(ons[0].links, ticks)
    enqueue(streams[1], lambda: gate.wait(TIMEOUT_S))
    calls = [Call.of(on.plan, 4) for on in ons]
    for call, on in zip(calls, ons, strict=True):
        call.start(on, streams=streams)
        if ticks:
            break
    enqueue(streams[0], end.set)
    assert not end.wait(SHORT_S)
    gate.set()
    for stream in streams:
        threads().synchronize(stream)
    assert [call.wrong() for call in calls[: 1 if ticks else 2]] == [0] * (1 if ticks else 2)


def test_calls_through_a_switch_and_others_are_right_in_turn() -> None:
    """Where a switch reads, the rank's own part stays zero, whatever other plans write."""
    program = build("nvls-allreduce", ranks=3, in_place=True)
    switched = [sley.compile(program, instances=k) for k in (1, 2)]
    ons = linked([*switched, ring(instances=2), ring(protocol="Direct")])
    assert [on.way_of_groups("int32") for on in ons] == ["through the switch"] * 2 + [""] * 2
    for _ in range(3):
        assert [wrong(on, count) for on in ons for count in (1001, 3)] == [0] * 8


def test_processes_make_links_together() -> None:
    """Arrays of `empty` serve all plans."""
    every = [ring(protocol=protocol) for protocol in sley.Protocol]
    meeting, found = Meeting(3), dict[int, Any]()

    def process(rank: int) -> None:
        devices, settings = {rank: threads(rank)}, Settings("interpreted", slot_bytes=1024)
        links = LinkSet(every, devices, settings, exchange=meeting.exchange(rank))
        ons = [Executor(plan, links) for plan in every]
        data = ons[0].empty("int64", 500)
        data[rank][:] = rank + 1
        for on in ons:
            on(data)
        found[rank] = data[rank].tolist()
        links.close()

    together([lambda rank=rank: process(rank) for rank in range(3)])
    assert found == dict.fromkeys(range(3), [6 * 3 ** (len(every) - 1)] * 500)


def test_several_plans_take_little_more_memory_than_one() -> None:
    """Their connections, slots and scratch are the same. LL has slots of its own."""
    scattered = build("ring-reducescatter", ranks=3, in_place=False)
    every = [
        sley.compile(scattered, instances=k, slots=s, fusion=False)
        for k, s in ((16, 2), (2, 2), (1, 8))
    ]
    every += [ring(protocol="Direct", instances=8), every[0]]
    totals = []
    for given_plans in (every[:1], every, [*every, ring(protocol="LL")]):
        before = memory_of_threads()
        # With an exchange, what ranks share is in files.
        links = LinkSet(given_plans, dict.fromkeys(range(3), threads()), exchange=lambda m: [m])
        for plan in given_plans:
            Executor(plan, links).reserve(30_000, "float32")
        found = memory_of_threads()
        totals.append(sum(found[file] for file in found.keys() - before))
        links.close()
    one, several, flagged = totals
    assert 24 << 20 < one <= several < 1.02 * one
    assert flagged > several + (1 << 20)


def test_the_failed_call_is_named_and_ends_all_executors() -> None:
    """Not a call of another plan that was started after it, which would hang, too."""
    every = []
    for name in ("ring-allgather", "ring-allreduce"):
        plan = sley.compile(build(name, ranks=3, in_place=True))
        for first in plan.block_offset[:-1].tolist():
            plan = swapped(plan, first, first + 1)  # all receive before they send
        every.append(plan)
    later, first_one = linked(every, timeout_s=SHORT_S)
    calls = [on.prepare(Call.of(on.plan, 9).inputs) for on in (first_one, later)]
    stream = threads().stream()
    for call in calls:
        call([stream])
    threads().synchronize(stream)
    assert all(on.read_state()["reports"] for on in (first_one, later))
    with pytest.raises(sley.SleyError) as caught:
        later.check()
    assert caught.value.code == "K508"
    assert "recv_reduce_send" in str(caught.value)
    for call in calls:
        with pytest.raises(sley.SleyError) as caught:
            call()
        assert caught.value.code == "R508"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: LinkSet([], [threads()]), "no plan"),
        (lambda: LinkSet([ring(3), ring(4)], [threads()] * 3), "3 ranks and plans of 4 ranks"),
        (lambda: Executor(ring(slots=8), LinkSet([ring()], [threads()] * 3)), "ring-allreduce"),
        (lambda: Executor(ring(), LinkSet([ring()], [threads()] * 3), Settings()), "beside them"),
    ],
)
def test_what_does_not_fit_links_is_refused(make: Any, expected: str) -> None:
    with pytest.raises(sley.SleyError) as caught:
        make()
    assert caught.value.code == "R514"
    assert expected in str(caught.value)
