"""Groups: names, several at once, destroyed and made again, with other devices."""

from __future__ import annotations

import gc
import importlib
import os
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from sley.communicator import Network, Settings
from sley.errors import SleyError
from sley.torch import CollectiveError, ProcessGroupSley
from sley.torch.monitored import MonitoredBarrier
from support.processes.rank_pool import RankPool


def check_names() -> None:
    world = dist.group.WORLD
    assert isinstance(world, ProcessGroupSley)
    assert world.name() == "sley"
    assert dist.get_backend() == "sley"
    assert (world.rank(), world.size()) == (dist.get_rank(), dist.get_world_size())
    assert world._get_backend(torch.device("cpu")) is world
    assert [device.type for device in world._device_types] == ["cpu"]
    again = dist.distributed_c10d._resolve_process_group(world.group_name)
    assert again is world
    part = dist.new_group([0, 1], group_desc="two")
    if dist.get_rank() < 2:
        assert part.group_desc == "two"
        assert part.group_name != world.group_name
        dist.destroy_process_group(part)


def test_the_backend_has_its_names(four_ranks: RankPool) -> None:
    four_ranks.run(check_names)


def check_subgroups() -> None:
    rank = dist.get_rank()
    evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
    three = dist.new_group([3, 1, 0])
    mine = odds if rank % 2 else evens
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == (4.0 if rank % 2 else 2.0)
    if rank != 2:
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, 3, group=three)
        assert tensor.item() == 3.0
        gathered = [torch.empty(1) for _ in range(3)]
        dist.all_gather(gathered, torch.tensor([float(rank)]), group=three)
        assert [part.item() for part in gathered] == [0.0, 1.0, 3.0]
    if rank in (1, 3):
        if rank == 1:
            dist.send(torch.tensor([7.0]), 3, group=odds)
        else:
            tensor = torch.zeros(1)
            assert dist.recv(tensor, group=odds) == 1
            assert tensor.item() == 7.0
    alone = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(tensor := torch.tensor([5.0]), group=alone)
    assert tensor.item() == 5.0


def test_subgroups_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_subgroups)


def check_replanning() -> None:
    """A group of two hosts whose calls and messages take turns in Python."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    settings = Settings(replan=True, network=Network.TCP)
    with patch.dict(os.environ, SLEY_HOST_ID=str(rank // 2), SLEY_NICS="lo"):
        group = dist.new_group(pg_options=settings)
        for _ in range(2):
            tensor = torch.full((50_000,), float(rank))
            work = dist.all_reduce(tensor, group=group, async_op=True)
            done = work.get_future().then(lambda future: future.value()[0][0].item())
            dist.all_gather(parts := [torch.empty(3) for _ in range(ranks)], torch.ones(3), group)
            assert all((part == 1).all() for part in parts)
            assert done.wait() == tensor[-1].item() == ranks * (ranks - 1) / 2
            if rank == 0:
                dist.send(torch.tensor([7.0]), ranks - 1, group=group)
            elif rank == ranks - 1:
                dist.recv(tensor := torch.zeros(1), 0, group=group)
                assert tensor.item() == 7.0
            group.replan()
        dist.destroy_process_group(group)


def test_a_group_replans(four_ranks: RankPool) -> None:
    four_ranks.run(check_replanning)


def check_groups_at_once() -> None:
    """Many calls on several groups, all under way at the same time."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group() for _ in range(3)]
    tensors = [
        [torch.full((1000 * turn + 1,), float(rank + index)) for index in range(3)]
        for turn in range(4)
    ]
    works = []
    for turn in range(4):
        for index in range(3):
            # Ranks call on the groups in orders of their own.
            at = (index + rank) % 3
            works.append(dist.all_reduce(tensors[turn][at], group=groups[at], async_op=True))
    for work in reversed(works):
        work.wait()
    base = ranks * (ranks - 1) / 2
    for turn in range(4):
        for index in range(3):
            assert (tensors[turn][index] == base + ranks * index).all()


def test_several_groups_may_work_at_once(four_ranks: RankPool) -> None:
    four_ranks.run(check_groups_at_once)


def start_again(file: str, backend: str) -> None:
    """Destroys the default group, and makes it again with a backend, over a new file."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=ranks)


def check_split() -> None:
    rank, world = dist.get_rank(), dist.group.WORLD
    halves = [[0, 1], [2, 3]]
    group = world.split_group(halves[rank // 2], group_name=f"half-{rank // 2}")
    assert group is not None
    assert (group.rank(), group.size()) == (rank % 2, 2)
    assert group.group_name == f"half-{rank // 2}"
    group.allreduce(tensor := torch.tensor([float(rank)])).wait()
    assert tensor.item() == (1.0 if rank < 2 else 5.0)
    group.shutdown()
    assert world.split_group([r for r in range(4) if r != rank]) is None
    for wrong in ([0, 0], [0, 99], [-1, 0], [0.5]):
        with pytest.raises(SleyError, match="N627"):  # at once, on ranks within and without
            world.split_group(wrong)
    for slots in (4, 8):  # the same ranks once more
        group = world.split_group(halves[rank // 2], opts=Settings(slots=slots))
        assert group is not None
        assert group._endpoint.settings.slots == slots
        group.allreduce(tensor).wait()
        group.shutdown()


def test_a_group_can_be_split(four_ranks: RankPool) -> None:
    four_ranks.run(check_split)


def check_live_ranks(file: str) -> None:
    """Rank 3 takes no part, as if it had ended."""
    start_again(file, "sley")  # PyTorch's names need as many groups on all ranks
    rank, world, live = dist.get_rank(), dist.group.WORLD, [0, 1, 2]
    if rank == 3:
        return
    for group in (world.split_group(live), dist.new_group(live, use_local_synchronization=True)):
        dist.all_reduce(tensor := torch.tensor([float(rank)]), group=group)
        assert tensor.item() == 3.0
    with pytest.raises(TypeError, match="shrink"):  # PyTorch's; it takes backends of C++ only
        dist.shrink_group([3], group)


def test_live_ranks_make_a_group_without_the_others(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(check_live_ranks, str(tmp_path / "store"))
    four_ranks.run(start_again, str(tmp_path / "after"), "sley")


def check_split_by_pytorch(file: str) -> None:
    """PyTorch splits groups on machines with an accelerator only: here "meta" is one."""
    start_again(file, "cpu:sley,meta:gloo")
    rank, meta = dist.get_rank(), torch.device("meta:0")
    dist.group.WORLD.bound_device_id = meta
    with (
        patch.object(torch.accelerator, "is_available", lambda: True),
        patch.object(torch.accelerator, "current_accelerator", lambda: meta),
    ):
        for parts in ([[0, 1], [2, 3]], [[0, 1, 3]]):
            group = dist.split_group(split_ranks=parts, pg_options=Settings(slots=4))
            mine = next((part for part in parts if rank in part), None)
            if mine is None:
                assert group is None
                continue
            assert isinstance(group, ProcessGroupSley)
            assert dist.get_process_group_ranks(group) == mine
            assert dist.get_backend(group) == "cpu:sley,meta:gloo"
            assert group._get_backend(meta).size() == len(mine)
            dist.broadcast(tensor := torch.tensor([rank]), mine[-1], group=group)
            assert tensor.item() == mine[-1]
            dist.destroy_process_group(group)
    start_again(f"{file}-after", "sley")


def test_pytorch_splits_a_group_with_an_accelerator(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(check_split_by_pytorch, str(tmp_path / "store"))


def check_mesh() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    for name, expected in (("rows", [rank % 2, rank % 2 + 2]), ("columns", None)):
        group = mesh[name].get_group()
        assert isinstance(group, ProcessGroupSley)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        members = expected or [rank // 2 * 2, rank // 2 * 2 + 1]
        assert tensor.item() == sum(members)


def test_a_device_mesh_can_be_made(four_ranks: RankPool) -> None:
    four_ranks.run(check_mesh)


def check_tensors_sharded() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    whole = torch.arange(24.0).reshape(8, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal((sharded * 2).full_tensor(), whole * 2)
    columns = sharded.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])
    assert torch.equal(columns.to_local(), whole)


def test_distributed_tensors_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_tensors_sharded)


def check_monitored_barrier() -> None:
    """The ranks in turn are first; ranks 1 and 3 are late, then 2 and 3."""
    rank, short, long = dist.get_rank(), timedelta(seconds=0.2), timedelta(seconds=30)
    group = dist.new_group()
    for turn in range(4):
        if turn == rank:
            time.sleep(0.02)
        group.monitored_barrier(long)
    for late, names_all, named in (((1, 3), True, "Ranks 1, 3 f"), ((2, 3), False, "Rank 2 f")):
        if rank in late:
            dist.barrier()
        with pytest.raises(CollectiveError, match=named) as error:
            group.monitored_barrier(long if rank in late else short, names_all)
        assert error.value.code == "B907"
        if rank not in late:
            dist.barrier()
        group.monitored_barrier(long)
    assert group._fallback._gloo is None


def test_a_monitored_barrier_names_who_is_missing(four_ranks: RankPool) -> None:
    four_ranks.run(check_monitored_barrier)


def check_store_of_monitored_barriers() -> None:
    store = dist.group.WORLD.get_group_store()
    found = []
    for _ in range(3):
        for _ in range(5):
            dist.group.WORLD.monitored_barrier()
        dist.barrier()
        found.append(store.num_keys())
        dist.barrier()
    assert found[1] == found[2]


def test_monitored_barriers_do_not_fill_the_store(four_ranks: RankPool) -> None:
    four_ranks.run(check_store_of_monitored_barriers)


def test_a_monitored_barrier_ends_where_its_timeout_is_zero() -> None:
    """A store takes 0 for no timeout."""
    barrier = MonitoredBarrier(dist.HashStore(), 0, 2)
    with pytest.raises(CollectiveError, match="B907"):
        barrier.wait(timedelta(0), wait_all_ranks=False)


def check_life(file: str, backend: str) -> None:
    """The default group ends and a new one begins, several times."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    timeout = timedelta(seconds=60)
    for turn in range(3):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group(
            backend,
            init_method=f"file://{file}-{turn}",
            rank=rank,
            world_size=ranks,
            timeout=timeout,
        )
        dist.all_reduce(tensor := torch.tensor([float(rank)]))
        assert tensor.item() == ranks * (ranks - 1) / 2
        part = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(tensor := torch.tensor([1.0]), group=part)
            assert tensor.item() == 2.0
            dist.destroy_process_group(part)


@pytest.mark.parametrize("backend", ["sley", "cpu:sley,cuda:nccl", "cuda:nccl,cpu:sley"])
def test_a_group_can_be_destroyed_and_made_again(
    four_ranks: RankPool, tmp_path: Path, backend: str
) -> None:
    if backend.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip("PyTorch makes the backends in this order, and NCCL needs a GPU")
    four_ranks.run(check_life, str(tmp_path / "store"), backend)
    four_ranks.run(check_life, str(tmp_path / "after"), "sley")


def check_other_device(file: str) -> None:
    """A tensor on a device without a backend."""
    tensor = torch.empty(3, device="meta")
    with pytest.raises(CollectiveError, match="B903") as error:
        dist.all_reduce(tensor)
    assert isinstance(error.value, RuntimeError)
    with pytest.raises(dist.DistBackendError, match="B903"):
        dist.send(tensor, (dist.get_rank() + 1) % dist.get_world_size())
    with pytest.raises(RuntimeError, match="B903"):
        dist.group.WORLD._get_backend(torch.device("cuda"))


def test_a_device_without_a_backend_is_told(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(check_other_device, str(tmp_path / "store"))


def check_devices_of_both(file: str) -> None:
    """Two backends in one group: the second has a group of PyTorch's own."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group(
        "cpu:sley,meta:fake", init_method=f"file://{file}", rank=rank, world_size=ranks
    )
    world = dist.group.WORLD
    assert sorted(device.type for device in world._device_types) == ["cpu", "meta"]
    dist.all_reduce(tensor := torch.ones(2))
    assert (tensor == ranks).all()
    other = world._fallback.on(torch.device("meta"))
    assert not isinstance(other, ProcessGroupSley)
    assert other is world._fallback.on(torch.device("meta"))
    assert other.size() == ranks
    assert world._get_backend(torch.device("meta")) is not world
    assert world._fallback.find("all_reduce", torch.empty(3, device="meta")) is other
    dist.destroy_process_group()
    dist.init_process_group("sley", init_method=f"file://{file}-after", rank=rank, world_size=ranks)


def test_other_devices_may_have_other_backends(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(check_devices_of_both, str(tmp_path / "store"))


def memory_segments() -> int:
    """Segments of shared memory that this process holds open."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("memfd:sley" in str(path.readlink()) for path in links)


def check_nothing_remains() -> None:
    gc.collect()
    gc.disable()
    try:
        before = memory_segments()
        for _ in range(3):
            group = dist.new_group()
            dist.all_reduce(torch.ones(1000), group=group)
            dist.all_reduce(torch.ones(1000), group=group, async_op=True).wait()
            dist.all_reduce(torch.ones(3).to_sparse(), group=group)  # gloo's
            dist.destroy_process_group(group)
            del group
        assert memory_segments() == before
    finally:
        gc.enable()


def test_a_destroyed_group_gives_its_memory_back_at_once(four_ranks: RankPool) -> None:
    """Without the collector of cycles, which may come late."""
    four_ranks.run(check_nothing_remains)
