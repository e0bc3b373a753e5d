"""Calls that can't end: they time out, and name each waiting instruction."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, Launching, LinkSet, Settings
from sley.engine.devices.calls import PreparedCall
from sley.engine.kernels import Kernels
from sley.ir.words import Op
from support.checks.golden import Golden
from support.devices.device_calls import executor, threads
from support.inputs import small_plans
from support.mutants.plan_edits import swapped
from support.processes.process_ranks import Meeting, apart, together

SHORT_S = 0.3
PROTOCOLS = pytest.mark.parametrize("protocol", sley.Protocol, ids=lambda p: p.name.lower())

TO_AND_FRO = """\
p.transfer(0, 1, 0, 0, "rrc")
p.transfer(1, 0, 1, 0, "recv")
"""
"""Rank 1 adds what rank 0 has, and sends the sum back."""

ONE_WAY = """\
p.transfer(0, 1, 0, 0, "recv")
"""


def plan_of(text: str, collective: sley.Collective, **options: Any) -> sley.Plan:
    """The plan of a text in the language of transfers, which calls itself moves.py."""
    code = compile(text, "moves.py", "exec")
    program = sley.trace(collective, lambda p: exec(code, {"p": p}), name="moves")
    return sley.compile(program, **options)


def to_and_fro(**options: Any) -> sley.Plan:
    return plan_of(TO_AND_FRO, sley.AllReduce(2, 1, in_place=True), **options)


def one_way(**options: Any) -> sley.Plan:
    return plan_of(ONE_WAY, sley.Broadcast(2, 1, 0, in_place=True), **options)


def refused(code: str, call: Callable[[], Any]) -> str:
    with pytest.raises(sley.SleyError) as caught:
        call()
    assert caught.value.code == code
    return str(caught.value)


def of_rank_0(plan: sley.Plan, count: int, **options: Any) -> tuple[Executor, PreparedCall]:
    """Rank 0's executor and call, of ranks in a "process" each, which prepare together."""
    options = {"engine": Engine.INTERPRETED, "timeout_s": SHORT_S, "slot_bytes": 256} | options
    ranks = range(plan.collective.ranks)
    ons = apart(plan, [[rank] for rank in ranks], **options)
    calls: dict[int, PreparedCall] = {}

    def prepare(rank: int) -> None:
        calls[rank] = ons[rank].prepare(ons[rank].empty("int32", count))

    together([lambda rank=rank: prepare(rank) for rank in ranks])
    return ons[0], calls[0]


def pretend(on: Executor, rank: int, *, reads: bool = True) -> None:
    """Lets it look to rank 0 as if a rank had sent its first message of LL, and read all others."""
    links, device, memory = on.links, on.links.ranks.devices[0], on.links.mailboxes[0]
    c, boxes = links.kernels[0].operands.connections, links.boxes
    rows, slots = boxes.rows(c), boxes.slots[sley.Protocol.LL]
    words = np.tile(np.array([0, 1], np.uint32), links.slots_bytes[sley.Protocol.LL] // 8)
    for row in rows[(c.src == rank) & (c.dst == 0)]:
        device.write(memory, int(slots[row]), words.view(np.uint8))
    for row in rows[(c.src == 0) & (c.dst == rank) & reads]:
        device.write(memory, int(boxes.consumed[row]), np.array([1 << 40]).view(np.uint8))


def alone(plan: sley.Plan, count: int, there: int | None = None, **options: Any) -> str:
    """What a call says that rank 0 makes, and no other rank; to rank 0 it looks as if rank `there`
    did."""
    on, call = of_rank_0(plan, count, **options)
    if there is not None:
        pretend(on, there)
    start = time.monotonic()
    found = refused("K508", call)
    assert SHORT_S <= time.monotonic() - start < SHORT_S + 60
    refused("R508", call)
    refused("R508", on.synchronize)
    on.close()  # without waiting for rank 1, which does not come
    return found


def hanging(protocol: sley.Protocol = sley.Protocol.SIMPLE) -> sley.Plan:
    """A plan that hangs, as no compiled one does: all ranks receive before they send."""
    plan = sley.compile(build("ring-allreduce", ranks=3, in_place=True), protocol=protocol)
    for rank in range(3):
        first = int(plan.block_offset[rank])
        plan = swapped(plan, first, first + 1)
    return plan


@pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
def test_a_message_that_never_comes_is_named(golden: Golden, protocol: str, engine: Engine) -> None:
    found = alone(to_and_fro(protocol=protocol), 10, engine=engine)
    golden("no_message.txt", found + "\n")


@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
def test_a_slot_that_is_never_free_is_named(golden: Golden, protocol: str) -> None:
    found = alone(one_way(protocol=protocol, slots=8), 1000, slots=8)
    golden("no_slot.txt", found + "\n")


@pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
def test_a_run_names_the_message_that_never_comes(engine: Engine) -> None:
    program = build("one-step-allreduce", ranks=3, in_place=True)
    plan = sley.compile(program, protocol="ll", allocate="instance")
    assert Kernels.of(plan).operands.runs.length[:4].tolist() == [2, 0, 2, 0]
    for there, late in ((1, 2), (2, 1)):
        found = alone(plan, 10, there, engine=engine)
        said = f"step {1 + late} (recv_reduce_copy) waits for a message from rank {late} on"
        assert said in found


@pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
def test_a_run_names_the_slot_that_is_never_free(engine: Engine) -> None:
    text = ONE_WAY + 'p.transfer(0, 2, 0, 0, "recv")\n'
    collective = sley.Broadcast(3, 1, 0, in_place=True)
    plan = plan_of(text, collective, protocol="ll", allocate="instance")
    assert Kernels.of(plan).operands.runs.length[:2].tolist() == [2, 0]
    for there, late in ((1, 2), (2, 1)):
        found = alone(plan, 1000, there, engine=engine)
        assert f"step {late - 1} (send), tile 8" in found
        assert f"step {late - 1} (send) waits for a free slot to rank {late} on" in found


def test_a_run_waits_for_the_block_that_its_first_instruction_needs() -> None:
    hand, here = small_plans.Hand(), (small_plans.IN, 0)
    hand.add(1, 0, Op.SEND, here, to=0)
    hand.add(0, 0, Op.RECV, dst=here, of=1)
    for rank in (2, 3):
        hand.add(0, 1, Op.SEND, here, to=rank, waits=((0, 0),) if rank == 2 else ())
        hand.add(rank, 0, Op.RECV, dst=here, of=0)
    plan = hand.plan(sley.Broadcast(4, 1, root=1, in_place=True))
    plan = replace(plan, protocol=sley.Protocol.LL)
    assert Kernels.of(plan).operands.runs.length[1:3].tolist() == [2, 0]
    assert "block 1, step 0 (send) waits for rank 0, block 0, step 0 (recv)" in alone(plan, 10)


def test_a_run_waits_for_slots_that_the_call_before_has_filled() -> None:
    program = build("one-step-allreduce", ranks=3, in_place=True)
    on, call = of_rank_0(sley.compile(program, protocol="ll", allocate="instance"), 10)
    for rank in (1, 2):
        pretend(on, rank, reads=False)
    call()
    assert "step 0 (send) waits for a free slot to rank 2 on" in refused("K508", call)


def test_an_instruction_sends_the_slices_of_its_tile_in_a_row() -> None:
    """Of 16 slots its three messages have taken two slices of two tiles, and the next ones."""
    text = "".join(f"p.transfer(0, 1, 0, {chunk}, 'recv')\n" for chunk in range(3))
    plan = plan_of(text, sley.Broadcast(2, 3, 0, in_place=True), fusion=None)
    for slots, place in ((16, "step 2 (send), tile 4"), (2, "step 2 (send), tile 0")):
        assert place in alone(plan, 3000, slots=slots), slots


def test_a_message_that_is_never_read_is_named(golden: Golden) -> None:
    """Where it lies: the call may not end before, since the memory is the caller's then."""
    golden("not_read.txt", alone(one_way(protocol="direct"), 10) + "\n")


def test_each_block_names_the_connection_that_is_not_read() -> None:
    text = ONE_WAY + 'p.transfer(0, 1, 0, 1, "recv")\n'
    plan = plan_of(text, sley.Broadcast(2, 2, 0, in_place=True), protocol="direct", channels=2)
    assert len(plan.block_rank) == 4
    found = alone(plan, 10)
    for channel in (0, 1):
        assert f"rank 1 to read what it was sent on channel {channel}" in found


def test_a_wait_that_is_never_over_is_named() -> None:
    """A block that waits for another one names its instruction."""
    hm = build("hm-allreduce", nodes=2, gpus=1, in_place=True)
    plan = sley.compile(hm, schedule="hpds", allocate="connection", fusion=None)
    assert len(plan.waits.target)
    found = alone(plan, 100)
    assert "waits for a message from rank 1 on channel 0" in found
    assert "waits for rank 0, block " in found


@PROTOCOLS
def test_every_rank_of_a_circle_of_waiting_is_named(protocol: sley.Protocol) -> None:
    plan = hanging(protocol)
    if protocol is not sley.Protocol.SIMPLE:  # what these wait for takes a plan that is right
        refused("V203", lambda: executor(plan))
        return
    on = executor(plan, engine=Engine.INTERPRETED, timeout_s=SHORT_S)
    data = [np.zeros(90, np.int32) for _ in range(3)]
    found = refused("K508", lambda: on(data))
    for rank in range(3):
        said = f"rank {rank}, block 0, step 0 (recv_reduce_send) waits for a message from rank "
        assert f"{said}{(rank - 1) % 3} on channel 0" in found
    refused("R508", lambda: on(data))
    assert (np.array(data) == 0).all()


@pytest.mark.parametrize("late", ["synchronize", "call"])
@pytest.mark.parametrize("launching", Launching, ids=lambda way: way.value)
def test_a_stuck_call_on_a_stream_shows_at_the_next_look(launching: Launching, late: str) -> None:
    on = executor(hanging(), engine=Engine.INTERPRETED, timeout_s=SHORT_S, launching=launching)
    streams = [threads().stream() for _ in range(1 if launching is Launching.TOGETHER else 3)]
    data = [np.zeros(90, np.int32) for _ in range(3)]
    on(data, streams=streams)
    for stream in streams:
        threads().synchronize(stream)
    found = refused("K508", on.synchronize if late == "synchronize" else lambda: on(data))
    assert "rings.py:" in found
    refused("R508", lambda: on(data))


def test_calls_behind_a_stuck_one_end_at_once() -> None:
    """A timeout for each of them would be for ever."""
    calls, timeout_s = 20, 4.0  # a busy machine needs a second for each call
    on = executor(hanging(), engine=Engine.INTERPRETED, timeout_s=timeout_s)
    stream, start = threads().stream(), time.monotonic()
    for _ in range(calls):
        on([np.zeros(90, np.int32) for _ in range(3)], streams=stream)
    threads().synchronize(stream)
    assert time.monotonic() - start < calls * timeout_s / 2
    refused("K508", on.synchronize)


@pytest.mark.parametrize("differ", ["sizes", "plans"])
def test_ranks_that_make_different_calls_are_told(golden: Golden, differ: str) -> None:
    """Where a rank reads in place what another one lends: it would read behind its end."""
    text = ONE_WAY + 'p.transfer(0, 1, 0, 1, "recv")\n'  # in two blocks, one of which is told
    twice = plan_of(text, sley.Broadcast(2, 2, 0, in_place=True), protocol="direct", channels=2)
    plans = [twice, to_and_fro(protocol="direct")]
    counts = [10, 20] if differ == "sizes" else [10, 10]
    settings, meeting = Settings(Engine.INTERPRETED, timeout_s=60), Meeting(2)
    found = ["", ""]

    def call(rank: int) -> None:
        links = LinkSet(plans, {rank: threads(rank)}, settings, exchange=meeting.exchange(rank))
        on = Executor(plans[0 if differ == "sizes" else rank], links)
        made = [on.empty("int32", count) for count in counts]
        on.reserve(max(counts), "int32")
        found[rank] = refused("K508", lambda: on(made[rank]))

    together([lambda: call(0), lambda: call(1)])
    # Either block is told: by the message that comes first. The other one gives up before its own.
    told = found[1].replace("moves.py:2, rank 1, block 1", "moves.py:1, rank 1, block 0")
    golden(f"other_{differ}.txt", told.replace("rank 1, block 1", "rank 1, block 0") + "\n")
    assert "rank 0, block 0, step 0" in found[0]


def test_a_slow_rank_is_waited_for() -> None:
    """The timeout counts from when an instruction begins to wait, not from the call's start."""
    plan = to_and_fro()
    ons = apart(plan, [[0], [1]], engine=Engine.INTERPRETED, timeout_s=60)
    data = {rank: np.full(10, rank + 1, np.int32) for rank in range(2)}

    def call(rank: int) -> None:
        ons[rank].reserve(10, "int32")
        time.sleep(0.4 * rank)
        ons[rank]({rank: data[rank]})

    together([lambda: call(0), lambda: call(1)])
    assert [data[rank].tolist() for rank in range(2)] == [[3] * 10] * 2


def test_ranks_in_other_processes_may_be_late() -> None:
    """By a checkpoint; in one process nobody is late for half a minute."""
    assert Settings().timeout_of(is_one_process=True) == 30
    assert Settings().timeout_of(is_one_process=False) == 600
    assert Settings(timeout_s=7).timeout_of(is_one_process=False) == 7
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True))
    (on,) = apart(plan, [[0, 1]])
    assert on.timeout_s == 600
    assert Executor(plan, [threads()] * 2).timeout_s == 30


def test_a_call_that_one_process_gives_up_ends_in_all() -> None:
    """Ranks 0 and 1 call, rank 2 never does; rank 1 would wait for long."""
    plan = sley.compile(build("ring-allreduce", ranks=3, in_place=True))
    meeting, ons = Meeting(3), dict[int, Executor]()
    timeouts_s = (0.3, 300.0, 300.0)

    def make(rank: int) -> None:
        settings = Settings(Engine.INTERPRETED, timeout_s=timeouts_s[rank], slot_bytes=256)
        ons[rank] = Executor(plan, {rank: threads(rank)}, settings, exchange=meeting.exchange(rank))

    def call(rank: int) -> str:
        return refused("K508", lambda: ons[rank]({rank: np.zeros(9, np.int32)}))

    together([lambda rank=rank: make(rank) for rank in range(3)])
    begin, found = time.monotonic(), dict[int, str]()
    together([lambda rank=rank: found.update({rank: call(rank)}) for rank in range(2)])
    assert time.monotonic() - begin < 30
    assert "rank 0, block 0" in found[0]
    assert "rank 1, block 0" in found[1]
    assert "that another process has given up" in call(2)
    refused("R508", lambda: ons[2]({2: np.zeros(9, np.int32)}))
    for on in ons.values():
        on.close()


def test_the_state_in_memory_tells_how_far_calls_came() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=3, in_place=True))
    on = executor(plan, engine=Engine.INTERPRETED, slot_bytes=64)
    assert {row[3] for row in on.read_state()["connections"]} == {0}
    for _ in range(2):
        on([np.zeros(96, np.int32) for _ in range(3)])
    state = on.read_state()
    messages = {(src, dst): (sent, read) for src, dst, _, sent, read in state["connections"]}
    assert messages.keys() == {(0, 1), (1, 2), (2, 0)}
    (ticks,) = {number for cells in state["ticks"].values() for number in cells}
    tiles, begin = 2, ticks // 2  # of each of two calls of 5 steps a tile
    assert begin == 5 * tiles + 1
    last = begin + 4 * tiles  # a ring of 3 sends 4 times a tile
    assert set(messages.values()) == {(last, last)}
    assert state["reports"] == []
    on.close()
    refused("R508", on.read_state)


def test_the_state_after_a_hang_has_its_reports() -> None:
    on = executor(hanging(), engine=Engine.INTERPRETED, timeout_s=SHORT_S)
    refused("K508", lambda: on([np.zeros(9, np.int32) for _ in range(3)]))
    reports = on.read_state()["reports"]
    assert {report["rank"] for report in reports} == {0, 1, 2}
    assert 1 in {report["status"] for report in reports}, "one has waited too long"


def test_blocks_whose_threads_cannot_start_end_the_call() -> None:
    """They wait for others, which the machine has no memory for, but not until the time-out."""
    plan = sley.compile(build("ring-allreduce", ranks=8, in_place=True), instances=24)
    on = executor(plan, engine=Engine.INTERPRETED, timeout_s=60)
    call = on.prepare([np.ones(192, np.int32) for _ in range(8)])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), limits[1]))
    try:
        assert "192 threads" in refused("K506", call)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert all(report["status"] != 1 for report in on.read_state()["reports"]), "timed out"
    refused("K508", call)
    refused("R508", call)
