"""The errors that users see when ranks fail, are late, or don't agree."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sley.errors import SleyError
from sley.torch import CollectiveError
from support.processes.rank_pool import RankPool


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


def _of_type(dtype: torch.dtype, size: int = 4) -> torch.Tensor:
    return torch.ones(size).to(dtype)


def _coalesced(kind: str, sizes: list[int], group: Any) -> None:
    """Several calls as one, asynchronously."""
    ranks = dist.get_world_size()
    parts = [torch.ones(size) for size in sizes]
    wholes = [torch.ones(size * ranks) for size in sizes]
    if kind == "all_reduce":
        dist.all_reduce_coalesced(parts, group=group, async_op=True).wait()
    elif kind == "all_gather lists":
        lists = [[torch.empty(size) for size in sizes] for _ in range(ranks)]
        dist.all_gather_coalesced(lists, parts, group=group, async_op=True).wait()
    else:
        call = dist.all_gather_into_tensor
        with dist.distributed_c10d._coalescing_manager(group, async_ops=True) as manager:
            for part, whole in zip(parts, wholes, strict=True):
                if kind == "reduce_scatter":
                    dist.reduce_scatter_tensor(part, whole, group=group)
                else:
                    call(whole, part, group=group)
        manager.wait()


def check_other_division(kind: str, sizes: list[int]) -> None:
    group = dist.new_group()
    with fails("N622") as error:
        _coalesced(kind, sizes if dist.get_rank() == 0 else [4, 6], group)
    assert "several calls" in str(error.value)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_gather lists", "reduce_scatter"])
@pytest.mark.parametrize("sizes", [[6, 4], [4, 3, 3]], ids=str)
def test_coalesced_calls_of_another_division_are_an_error(
    kind: str, sizes: list[int], four_ranks: RankPool
) -> None:
    four_ranks.run(check_other_division, kind, sizes)


def check_one_and_several() -> None:
    """A call of the size of several that run as one; and errors of futures."""
    group = dist.new_group()
    with fails("N622") as error:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(10), group=group)
        else:
            _coalesced("all_reduce", [4, 6], group)
    assert isinstance(error.value, SleyError)
    dist.destroy_process_group(group)


def test_one_call_is_not_several_of_its_size(four_ranks: RankPool) -> None:
    four_ranks.run(check_one_and_several)


DIFFERENT_TYPES: dict[str, Callable[[bool, Any], Any]] = {
    # `dist.all_reduce` itself makes complex numbers real ones.
    "complex and real": lambda odd, group: group.reduce_scatter_single(
        _of_type(torch.complex64, 2) if odd else torch.ones(4),
        _of_type(torch.complex64, 8) if odd else torch.ones(16),
    ),
    "bool and byte": lambda odd, group: dist.all_reduce(
        _of_type(torch.bool if odd else torch.uint8), dist.ReduceOp.MAX, group=group
    ),
    "unsigned": lambda odd, group: dist.all_reduce(
        _of_type(torch.uint16 if odd else torch.int16), group=group
    ),
    "moved": lambda odd, group: dist.broadcast(
        _of_type(torch.float8_e5m2 if odd else torch.bool), 1, group=group
    ),
    "an operator": lambda odd, group: torch.ops.sley.broadcast_(
        _of_type(torch.bool if odd else torch.uint8), 1, group.group_name
    ),
    "gathered": lambda odd, group: dist.all_gather(
        [_of_type(torch.uint32 if odd else torch.int32) for _ in range(4)],
        _of_type(torch.uint32 if odd else torch.int32),
        group=group,
    ),
    "exchanged": lambda odd, group: dist.all_to_all_single(
        torch.ones(4, dtype=torch.uint64 if odd else torch.int64),
        torch.ones(4, dtype=torch.uint64 if odd else torch.int64),
        [1, 1, 1, 1],
        [1, 1, 1, 1],
        group=group,
    ),
}


def check_other_type(name: str, has_run: bool) -> None:
    """has_run: the calls of both types before, so that the engine runs them without Python."""
    group, call = dist.new_group(), DIFFERENT_TYPES[name]
    for odd in (False, True) if has_run else ():
        call(odd, group)
    dist.barrier()  # nobody is still in one of these when the group fails
    with pytest.raises(RuntimeError, match="N622"):
        call(dist.get_rank() == 3, group)
        dist.barrier(group)  # the root of a broadcast gets no message
    dist.destroy_process_group(group)


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("name", DIFFERENT_TYPES)
def test_types_of_the_same_bytes_are_different_calls(
    name: str, has_run: bool, four_ranks: RankPool
) -> None:
    four_ranks.run(check_other_type, name, has_run)


def check_other_type_of_messages(step: int) -> None:
    """step: 1 for memory that the engine reads itself."""
    rank, group = dist.get_rank(), dist.new_group()
    with fails("N6"):
        if rank == 0:
            dist.send(torch.ones(8)[::step], 1, group=group)
        elif rank == 1:
            with fails("N631") as error:
                dist.recv(torch.ones(8, dtype=torch.int32)[::step], 0, group=group)
            assert "type" in str(error.value)
        dist.barrier(group)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("step", [1, 2])
def test_a_message_has_the_type_of_its_receive(step: int, four_ranks: RankPool) -> None:
    four_ranks.run(check_other_type_of_messages, step)


def check_resize() -> None:
    """While a call cannot have ended, and after it."""
    rank, ranks, token = dist.get_rank(), dist.get_world_size(), torch.zeros(1)
    tensor, other, part = torch.ones(20_000), torch.ones(20_000), torch.ones(100)
    if rank == 0:
        for peer in range(1, ranks):
            dist.recv(token, peer, tag=1)
        dist.all_reduce(tensor)
        dist.all_reduce(other)
        for peer in range(1, ranks):
            dist.send(part, peer, tag=2)
    else:
        works = [dist.all_reduce(one, async_op=True) for one in (tensor, other)]
        works.append(dist.irecv(part, 0, tag=2))
        for used in (tensor, tensor[5:], part):
            with fails("N633"):
                used.untyped_storage().resize_(0)
        memory = weakref.ref(other.untyped_storage())
        other.data = torch.zeros(1)
        assert memory() is not None
        dist.send(token, 0, tag=1)
        for work in works:
            work.wait()
        works.clear()
        assert memory() is None
    assert (tensor == ranks).all()
    for used in (tensor, part):
        used.untyped_storage().resize_(0)


def test_memory_in_use_is_not_resized(four_ranks: RankPool) -> None:
    four_ranks.run(check_resize)


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
