"""Messages between two ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sley.torch import CollectiveError
from sley.torch.messages import Message
from sley.torch.work import Finished, Pending
from support.processes.rank_pool import RankPool


def check_ring() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.bfloat16):
        given = torch.full((5,), rank + 1).to(dtype)
        taken = torch.zeros(5, dtype=dtype)
        if rank % 2 == 0:
            dist.send(given, after)
            assert dist.recv(taken, before) == before
        else:
            assert dist.recv(taken, before) == before
            dist.send(given, after)
        assert torch.equal(taken, torch.full((5,), before + 1).to(dtype))


def test_tensors_are_sent_and_received(four_ranks: RankPool) -> None:
    four_ranks.run(check_ring)


def check_any_source() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if rank:
        dist.send(torch.tensor([rank]), 0)
        return
    found = []
    for _ in range(ranks - 1):
        taken = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(taken)
        assert source == taken.item()
        found.append(source)
    assert sorted(found) == list(range(1, ranks))


def test_tensors_are_received_from_anybody(four_ranks: RankPool) -> None:
    four_ranks.run(check_any_source)


def check_tags() -> None:
    """Messages are matched by tag, and in order for each."""
    rank = dist.get_rank()
    if rank == 0:
        works = [
            dist.isend(torch.tensor([10.0 * tag + number]), 1, tag=tag)
            for number in range(2)
            for tag in (5, 6)
        ]
    elif rank == 1:
        taken = {(tag, number): torch.zeros(1) for tag in (6, 5) for number in range(2)}
        works = [dist.irecv(tensor, 0, tag=tag) for (tag, _), tensor in taken.items()]
    else:
        return
    for work in works:
        work.wait()
        assert work.is_completed()
    if rank == 1:
        for (tag, number), tensor in taken.items():
            assert tensor.item() == 10.0 * tag + number


def test_messages_are_matched_by_their_tags(four_ranks: RankPool) -> None:
    four_ranks.run(check_tags)


def check_batch() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    taken = torch.zeros(2, 70_000)
    given = torch.full((2, 70_000), float(rank))
    batch = [
        dist.P2POp(dist.irecv, taken[0], before),
        dist.P2POp(dist.isend, given[0], after),
        dist.P2POp(dist.irecv, taken[1], after),
        dist.P2POp(dist.isend, given[1], before),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert (taken[0] == before).all()
    assert (taken[1] == after).all()


def test_batches_of_messages_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_batch)


def check_views() -> None:
    """A message from and into tensors that aren't contiguous."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.arange(12.0).reshape(3, 4).T, 3)
    elif rank == 3:
        taken = torch.zeros(3, 8)[:, ::2]
        dist.recv(taken.T, 0)
        assert torch.equal(taken, torch.arange(12.0).reshape(3, 4))


def test_tensors_that_are_not_contiguous_are_sent_and_received(four_ranks: RankPool) -> None:
    four_ranks.run(check_views)


def check_object_messages() -> None:
    rank = dist.get_rank()
    given = [{"a": 1}, "text"]
    if rank == 0:
        dist.send_object_list(given, 1)
    elif rank == 1:
        taken = [None, None]
        assert dist.recv_object_list(taken, 0) == 0
        assert taken == given


def test_objects_are_sent_and_received(four_ranks: RankPool) -> None:
    four_ranks.run(check_object_messages)


def check_coalesced_messages() -> None:
    """Everything between the start and the end of a batch has one work object."""
    rank, group = dist.get_rank(), dist.group.WORLD
    tensor = torch.full((3,), float(rank))
    group._start_coalescing(torch.device("cpu"))
    if rank == 0:
        dist.isend(tensor, 1)
    if rank == 1:
        dist.irecv(tensor, 0)
    work = group._end_coalescing(torch.device("cpu"))
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.get_future().wait() == work.result()
    assert tensor[0] == (0.0 if rank < 2 else rank)


def test_coalesced_messages_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_coalesced_messages)


def check_works() -> None:
    """The work objects of messages that have ended, and of those in progress."""
    rank, tensor = dist.get_rank(), torch.full((3,), 7.0)
    if rank == 0:
        sent: Any = dist.isend(tensor, 1, tag=3)
        assert type(sent) is Finished
        assert sent.wait()
        assert sent.result() == [tensor]
        assert sent.source_rank() == -1
        dist.recv(torch.zeros(1), 1)
        sent = dist.isend(torch.ones(2), 1, tag=4)
        assert sent.get_future().wait() == sent.result()
    elif rank == 1:
        late: Any = dist.irecv(torch.zeros(2), 0, tag=4)
        assert type(late) is Message
        with pytest.raises(CollectiveError, match="B904"):
            late.wait(timedelta(milliseconds=20))
        assert not late.is_completed()
        assert not late.is_success()
        assert late.exception() is None
        assert late.source_rank() == -1
        dist.send(torch.zeros(1), 0)
        future = late.get_future()
        assert late.wait()
        assert future.wait()[0].sum() == late.result()[0].sum() == 2
        assert late.is_success()
        assert late.source_rank() == 0
        taken = torch.zeros(3)
        found: Any = dist.group.WORLD.recv_anysource([taken], 3)
        assert found.is_completed()
        assert found.source_rank() == found._source_rank() == 0
        assert taken.sum() == 21
    dist.barrier()


def test_a_work_of_a_message_is_wrong(four_ranks: RankPool) -> None:
    four_ranks.run(check_works)


def check_long_way() -> None:
    """Messages that are profiled, or of views, don't begin in C++."""
    rank, group = dist.get_rank(), dist.group.WORLD
    other = rank ^ 1
    columns = torch.zeros(4, 2)[:, 0]
    works: list[Any] = [group.recv([columns], other, 0), group.send([torch.ones(4)], other, 0)]
    with torch.profiler.profile():
        works += [group.recv([torch.zeros(1)], other, 1), group.send([torch.ones(1)], other, 1)]
    for work in works:
        assert work.wait()
    assert [type(work) for work in works] == [Pending, Finished, Pending, Pending]
    assert columns.sum() == 4


def test_an_unusual_message_begins_in_native_code(four_ranks: RankPool) -> None:
    four_ranks.run(check_long_way)


def check_other_size() -> str:
    rank, group = dist.get_rank(), dist.new_group([0, 1], backend="sley")
    if rank > 1:
        return ""
    with pytest.raises(CollectiveError) as caught:
        if rank == 0:
            dist.send(torch.ones(3), 1, group=group, tag=7)
            dist.recv(torch.ones(3), 1, group=group)
        else:
            dist.recv(torch.ones(2), 0, group=group, tag=7)
    with pytest.raises(CollectiveError):  # the group has failed
        dist.send(torch.ones(3), 1 - rank, group=group)
    group.shutdown()
    with pytest.raises(CollectiveError, match="N623"):
        dist.send(torch.ones(3), 1 - rank, group=group)
    return str(caught.value)


def test_an_error_of_a_message_says_nothing(four_ranks: RankPool) -> None:
    sender, receiver, *_ = four_ranks.run(check_other_size)
    assert "recv of 12 bytes from rank 1, tag 0" in sender
    assert "rank 1, recv of 8 bytes from rank 0, tag 7: N6" in receiver
    assert "12 bytes" in receiver.split("found:")[1].splitlines()[0]
