"""Messages between ranks, statistics, and the text of a communicator."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import sley
from sley.communicator import Communicator, Work
from sley.communicator.heap import empty
from sley.communicator.loading import LoadedPlan
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from support.processes.threads_group import Ranks


def to_the_next(comm: Communicator) -> list[int]:
    got = []
    for size, heap in ((0, False), (5, False), (100_000, True), (3_000_000, False)):
        data = empty(size, "int32") if heap else np.zeros(size, np.int32)
        data[:] = comm.rank
        out = np.full(size, -1, np.int32)
        sent = comm.send(data, (comm.rank + 1) % comm.ranks, tag=size, async_op=True)
        work = comm.recv(out, (comm.rank - 1) % comm.ranks, tag=size)
        sent.wait()
        assert (out == (comm.rank - 1) % comm.ranks).all()
        got.append(work.source)
    return got


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_messages_round_a_ring_arrive(ranks: int) -> None:
    with Ranks(ranks) as group:
        found = group.each(to_the_next)
    assert found == [[(rank - 1) % ranks] * 4 for rank in range(ranks)]


def from_anybody(comm: Communicator) -> set[int]:
    if comm.rank:
        comm.send(np.full(3, comm.rank, np.int8), 0)
        return set()
    out, sources = np.zeros(3, np.int8), set()
    for _ in range(1, comm.ranks):
        source = comm.recv(out).source
        assert (out == source).all()
        sources.add(source)
    return sources


def test_messages_from_any_source_are_received() -> None:
    with Ranks(4) as group:
        assert group.each(from_anybody)[0] == {1, 2, 3}


def test_a_message_of_another_size_is_an_error_on_both_ranks() -> None:
    def differ(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.zeros(4, np.int8), 1)
            comm.recv(np.zeros(1, np.int8), 1)
        else:
            comm.recv(np.zeros(5, np.int8), 0)

    with Ranks(2) as group:
        group.each(lambda comm: comm.barrier())
        sender, receiver = group.errors(differ)
        assert isinstance(receiver, SleyError)
        assert receiver.code == "N631"
        told = receiver.diagnostics[0]
        assert told.expected == "a message of 5 bytes from rank 0, tag 0"
        assert told.found == "one of 4 bytes, rank 0's"
        assert isinstance(sender, SleyError)
        assert sender.code == "N631"
        assert "this rank sent data that doesn't match" in str(sender)


def test_exchanges_without_python_between_them_bring_the_data() -> None:
    def exchange(comm: Communicator, size: int) -> None:
        rank, peer = comm.rank, 1 - comm.rank
        source, target = np.full(size, rank + 1, np.int8), np.zeros(size, np.int8)
        spans = [(data.ctypes.data, data.nbytes) for data in (source, target)]
        assert comm.endpoint.messages.time_us(*spans, peer, rank == 0, 20) > 0
        assert (target == peer + 1).all()

    with Ranks(2) as group:
        for size in (1, 5000, 300_000):
            group.each(partial(exchange, size=size))


def test_an_exchange_of_other_sizes_is_an_error_that_names_both() -> None:
    def differ(comm: Communicator) -> None:
        size = 4 + comm.rank
        data = np.zeros(2 * size, np.int8)
        spans = (data.ctypes.data, size), (data.ctypes.data + size, size)
        comm.endpoint.messages.time_us(*spans, 1 - comm.rank, comm.rank == 0, 5)

    with Ranks(2) as group:
        receiver = group.errors(differ)[1]
        assert isinstance(receiver, SleyError)
        assert receiver.diagnostics[0].expected == "a message of 5 bytes from rank 0, tag 0"
        assert receiver.diagnostics[0].found == "one of 4 bytes, rank 0's"


def test_a_message_of_another_size_to_itself_is_an_error() -> None:
    def differ(comm: Communicator) -> None:
        received = comm.recv(np.zeros(5, np.int8), 0, async_op=True)
        with pytest.raises(SleyError, match="a receive of 4 bytes on rank 0, tag 0") as caught:
            comm.send(np.zeros(4, np.int8), 0)
        assert caught.value.diagnostics[0].found == "one of 5 bytes, this rank's"
        received.wait()

    with Ranks(1) as group:
        (error,) = group.errors(differ)
        assert "one of 4 bytes, this rank's" in str(error) or "N630" in str(error)


@pytest.mark.parametrize("rank", [-1, 2, "1", 0.5])
def test_a_message_to_no_rank_is_refused(rank: Any) -> None:
    with Ranks(2) as group:
        for error in group.errors(lambda comm: comm.send(np.zeros(1), rank)):
            assert isinstance(error, SleyError)
            assert error.code == "N627"
            assert "Give dst as such an integer." in error.diagnostics[0].remedy


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda c: c.all_reduce(np.ones(3), op=9), "an operation of sley.ReduceOp"),
        (lambda c: c.all_reduce(np.ones(3), op="maximum"), "Did you mean max?"),
        (lambda c: c.all_reduce(np.ones(3, bool)), "a type of sley.engine.DATA_TYPES"),
        (lambda c: c.all_reduce(np.ones(3, np.uint16)), 'Say dtype="bfloat16"'),
        (lambda c: c.plans.find("broadcast", 8, root=5), "Give root as such an integer."),
    ],
)
def test_errors_of_calls_have_the_remedy_that_fits(call: Any, remedy: str) -> None:
    with Ranks(2) as group:
        for error in group.errors(call):
            assert isinstance(error, SleyError)
            assert error.code in ("R504", "N650")
            assert remedy in error.diagnostics[0].remedy


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda c: c.all_reduce(np.ones((4, 4))[:, 1]), "strides"),
        (lambda c: c.all_gather(np.zeros(1), np.zeros(3)), "1 element in, 2 out, for all_ga"),
        (lambda c: c.reduce_scatter(np.zeros(3), np.zeros(1)), "a multiple of 2 elements, for"),
        (lambda c: c.all_to_all(np.zeros(3), np.zeros(3)), "3 elements in, 3 out"),
        (lambda c: c.all_gather(np.zeros(2, np.float32), np.zeros(2)), "float32 and float64"),
        (lambda c: c.all_reduce(np.zeros(2), dtype="bfloat16"), "float64"),
        (lambda c: c.all_reduce([1, 2]), "list"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(call: Any, found: str) -> None:
    with Ranks(2) as group:
        for error in group.errors(call):
            assert isinstance(error, SleyError)
            assert error.code == "N627"
            assert found in str(error)


def test_statistics_count_calls_and_bytes() -> None:
    def calls(comm: Communicator) -> Any:
        for _ in range(3):
            comm.all_reduce(np.ones(256, np.float32), op=ReduceOp.MAX)
        comm.all_gather(np.zeros(100, np.int8), np.zeros(200, np.int8))
        return {row.kind: row for row in comm.stats()}

    with Ranks(2) as group:
        rows = group.each(calls)[0]
        assert rows["all_reduce"].calls == 3
        assert rows["all_reduce"].size_bytes == 3 * 1024
        assert rows["all_gather"].size_bytes == 200
        assert rows["all_gather"].time_us > 0
        assert len([row for row in sley.stats() if row.kind == "all_gather"]) == 2
    assert not sley.stats()


def test_statistics_may_be_read_while_another_thread_adds_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calls(comm: Communicator) -> None:
        comm.all_reduce(np.ones(256, np.float32))
        comm.all_gather(np.zeros(100, np.int8), np.zeros(200, np.int8))

    with Ranks(2) as group:
        group.each(calls)
        core = group.comms[0].endpoint._core
        assert core is not None
        plans = core.loader._loaded

        def added(plan: LoadedPlan) -> str:  # as the other thread's first call would
            plans["added", bytes([len(plans)])] = next(iter(plans.values()))
            return "default"

        monkeypatch.setattr(LoadedPlan, "origin", property(added), raising=False)
        assert len(group.comms[0].stats()) == 2


def test_the_log_says_which_plan_runs_and_why_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sley"), Ranks(2) as group:
        group.each(lambda comm: comm.all_reduce(np.ones(300, np.float32)))
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "all_reduce of 1200 on 2 ranks: one-step-allreduce" in said
    assert "not all-pairs-allreduce" in said


MOVED = ["bool", "uint16", "uint32", "uint64", "complex64", "complex128", "longdouble", ">i4", "S3"]
MOVED += ["datetime64[s]", [("a", "i4"), ("b", "f8")], np.dtype([("a", "i4"), ("b", "f8")], True)]


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_what_is_only_moved_may_be_of_any_type(dtype: Any) -> None:
    count = 6

    def moved(comm: Communicator) -> None:
        def of(rank: int) -> Any:
            return np.arange(rank, rank + count).astype("i2").astype(dtype)

        out = np.zeros(2 * count, dtype)
        comm.all_gather(of(comm.rank), out)
        assert (out == np.concatenate([of(0), of(1)])).all()
        comm.all_to_all(out.copy(), out)
        comm.broadcast(data := of(comm.rank), 1)
        assert (data == of(1)).all()
        comm.gather(of(comm.rank), out, 0)
        comm.scatter(out, data, 0)
        assert (data == of(comm.rank)).all()

    with Ranks(2) as group:
        group.each(moved)


def test_a_plan_that_only_moves_takes_any_type() -> None:
    moves = sley.compile(sley.algorithms.ring_allgather(2))
    reduces = sley.compile(sley.algorithms.ring_allreduce(2, in_place=True))
    with Ranks(2) as group:
        for out in group.each(lambda c: _run(c, moves, np.full(1, 1j + c.rank))):
            assert (out == [1j, 1 + 1j]).all()
        for error in group.errors(lambda c: c.run(reduces, np.zeros(2, complex))):
            assert isinstance(error, SleyError)
            assert error.code == "R504"


def _run(comm: Communicator, plan: Any, data: Any) -> Any:
    out = np.zeros(2 * len(data), data.dtype)
    comm.run(plan, data, out)
    return out


class Shared:
    """A ticket that another thread, which waits for the same work, takes away meanwhile."""

    rank, outcome = 0, None

    def __init__(self) -> None:
        self.work: Work | None = None
        self.waits = 0

    def is_done(self) -> bool:
        return self.waits > 0

    def wait(self, timeout_s: float) -> bool:
        self.waits += 1
        if self.waits == 1:
            assert self.work is not None
            self.work.error()
            return False
        return True


def test_two_threads_may_wait_for_one_work() -> None:
    ticket = Shared()
    ticket.work = Work(ticket, lambda report: None)  # type: ignore[arg-type]
    assert ticket.work.wait()
    assert ticket.waits == 2
    assert ticket.work.is_completed()


class Slow:
    """An object whose end takes until the test allows it."""

    def __init__(self) -> None:
        self.ends, self.may_end = threading.Event(), threading.Event()

    def __del__(self) -> None:
        self.ends.set()
        self.may_end.wait()


def test_what_a_call_keeps_is_gone_before_its_end_is_seen() -> None:
    def receive(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.recv(np.zeros(0, np.int8), 0, tag=1)
            comm.send(np.ones(3, np.int8), 0)
            return
        kept = Slow()
        ends, may_end = kept.ends, kept.may_end
        work = comm.recv(np.zeros(3, np.int8), 1, async_op=True)
        work._ticket.keep(kept)  # type: ignore[union-attr]
        del kept
        comm.send(np.zeros(0, np.int8), 1, tag=1)
        ends.wait()
        is_seen = work.is_completed()
        may_end.set()
        assert not is_seen
        assert work.wait()

    with Ranks(2) as group:
        group.each(receive)
