"""The errors that users see when ranks fail, are late, or don't agree."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sley.errors import SleyError
from sley.torch import CollectiveError
from support.rank_pool import RankPool


def fails(code: str) -> pytest.RaisesContext[CollectiveError]:
    return pytest.raises(CollectiveError, match=code)


def check_mismatch() -> None:
    rank = dist.get_rank()
    for async_op in (False, True):
        group = dist.new_group()
        with fails("N622") as error:
            work = dist.all_reduce(torch.ones(rank + 1), group=group, async_op=async_op)
            assert work is not None
            work.wait()
        assert isinstance(error.value, SleyError)
        assert isinstance(error.value, RuntimeError)
        with pytest.raises(CollectiveError):  # nothing goes through any more
            dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(1))  # other groups are as they were


def test_calls_that_do_not_agree_are_an_error_on_all(four_ranks: RankPool) -> None:
    four_ranks.run(check_mismatch)


def check_empty_mismatch() -> None:
    group = dist.new_group()
    with fails("N622"):
        dist.all_reduce(torch.ones(0 if dist.get_rank() == 1 else 4), group=group)
        dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group(group)


def test_a_call_on_nothing_does_not_pair_with_a_call_on_something(four_ranks: RankPool) -> None:
    four_ranks.run(check_empty_mismatch)


def check_interruption() -> None:
    """Of an operator's first call: LibTorch knows no KeyboardInterrupt."""
    group = dist.new_group()
    if dist.get_rank() == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs may ignore it
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            try:
                torch.ops.sley.all_reduce_(torch.ones(5), "sum", group.group_name)
            except RuntimeError as error:
                assert "KeyboardInterrupt" in str(error)
                time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group(group)


def test_ctrl_c_is_lost_in_an_operator(four_ranks: RankPool) -> None:
    four_ranks.run(check_interruption)


def check_late() -> None:
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=1))
    began = time.monotonic()
    if rank == 0:
        with fails("N621"):
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group(group)

    group = dist.new_group()
    group.set_timeout(timedelta(seconds=1))
    if rank == 0:
        with fails("N62"):
            dist.recv(torch.ones(1), 1, group=group)
    dist.barrier()
    dist.destroy_process_group(group)

    group = dist.new_group()
    if rank == 0:
        with fails("B904"):
            group.barrier(timeout=timedelta(seconds=1)).wait()
        work = dist.barrier(group, async_op=True)
        with fails("B904"):
            work.wait(timedelta(milliseconds=10))
        assert not work.is_completed()
    assert time.monotonic() - began < 40  # the group's own timeout is 60 s
    dist.barrier()
    if rank:
        dist.barrier(group)  # the one that rank 0 no longer waited for
        dist.barrier(group)
    else:
        assert work.wait()
    dist.destroy_process_group(group)


def test_a_timeout_ends_a_call(four_ranks: RankPool) -> None:
    four_ranks.run(check_late)


def check_death(file: str) -> None:
    """The last rank dies; the others hear of it and go on without it."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    net = DistributedDataParallel(torch.nn.Linear(4, 4))
    if rank == ranks - 1:
        threading.Timer(0.5, os._exit, (1,)).start()
        return
    with fails("N620"):
        dist.all_reduce(torch.ones(1000))
    with pytest.raises(RuntimeError):
        net(torch.ones(2, 4)).sum().backward()
    dist.destroy_process_group()
    dist.init_process_group("sley", init_method=f"file://{file}", rank=rank, world_size=ranks - 1)
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == ranks - 1


def test_the_death_of_a_rank_is_an_error_on_the_others(tmp_path: Path) -> None:
    pool = RankPool(3)
    try:
        pool.run(check_death, str(tmp_path / "store"))
    finally:
        pool.stop()


def check_misuse() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    expanded = torch.ones(1).expand(4)
    for wrong in (
        lambda: dist.all_reduce(expanded),
        lambda: dist.all_gather_into_tensor(torch.ones(1).expand(4 * ranks), torch.ones(4)),
        lambda: dist.send(torch.ones(1), (rank + 1) % ranks, tag=-1),
        lambda: dist.recv(torch.ones(1), (rank + 1) % ranks, tag=-1),
    ):
        with fails("B902"):
            wrong()
    dist.broadcast(expanded if rank == 0 else torch.zeros(4), 0)  # may well be read
    dist.all_reduce(total := torch.ones(2))
    assert (total == ranks).all()


def test_arguments_that_make_no_sense_are_refused(four_ranks: RankPool) -> None:
    four_ranks.run(check_misuse)


def check_dropped() -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(1 << 18), async_op=True)
        dist.barrier(async_op=True)
    dist.all_reduce(total := torch.ones(1 << 18))
    assert (total == dist.get_world_size()).all()


def test_work_that_nobody_keeps_is_done_all_the_same(four_ranks: RankPool) -> None:
    four_ranks.run(check_dropped)


def test_an_error_can_be_made_anew_of_its_text() -> None:
    """As PyTorch does with those of a DataLoader's workers; and sent from process to process."""
    anew = CollectiveError("N620: rank 1 is gone")
    assert str(anew) == "N620: rank 1 is gone"
    assert (anew.code, anew.diagnostics) == ("", ())
    assert str(pickle.loads(pickle.dumps(anew))) == str(anew)
