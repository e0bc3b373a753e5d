"""Messages between two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from support.rank_pool import RankPool


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
