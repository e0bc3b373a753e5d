"""sley as a backend of torchcomms: the installed one, or a stand-in for it."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from sley.errors import SleyError
from support import stand_ins
from support.processes.rank_pool import RankPool

CPU = torch.device("cpu")
STAND_INS = str(Path(stand_ins.__file__).parent)


def torchcomms() -> Any:
    """The package torchcomms, or its stand-in."""
    try:
        module = importlib.import_module("torchcomms")
    except ImportError:
        sys.path.insert(0, STAND_INS)
        module = importlib.import_module("torchcomms")
    return module


@contextmanager
def communicator(name: str, **more: Any) -> Iterator[Any]:
    """A communicator of all ranks."""
    os.environ["TORCHCOMM_RANK"] = str(dist.get_rank())
    os.environ["TORCHCOMM_SIZE"] = str(dist.get_world_size())
    store = dist.group.WORLD.get_group_store()
    comm = torchcomms().new_comm("sley", CPU, name, store=store, **more)
    yield comm
    comm.finalize()
    del os.environ["TORCHCOMM_RANK"], os.environ["TORCHCOMM_SIZE"]


def check_properties() -> None:
    for _ in range(2):  # a name may be used again
        with communicator("one", timeout=timedelta(seconds=50)) as comm:
            assert (comm.get_rank(), comm.get_size()) == (dist.get_rank(), dist.get_world_size())
            assert (comm.get_name(), comm.get_backend()) == ("one", "sley")
            group = comm.get_backend_impl()._group
            assert group._endpoint.settings.timeout_s == 50.0
            comm.set_timeout(timedelta(seconds=40))
            assert group._endpoint.settings.timeout_s == 40.0


def test_a_communicator_has_its_ranks_names_and_timeouts(four_ranks: RankPool) -> None:
    four_ranks.run(check_properties)


def check_calls(async_op: bool) -> None:
    """Every collective, on tensors whose elements tell rank and place."""
    op = torchcomms().ReduceOp
    with communicator(f"calls {async_op}") as comm:
        rank, ranks = comm.get_rank(), comm.get_size()
        parts = [torch.full((2,), 10.0 * rank + peer) for peer in range(ranks)]
        column = [torch.full((2,), 10.0 * peer + rank) for peer in range(ranks)]  # from all ranks
        every = torch.arange(ranks * 1.0).repeat_interleave(2)

        def run(name: str, *arguments: Any) -> None:
            getattr(comm, name)(*arguments, async_op).wait()

        run("all_reduce", tensor := torch.tensor([float(rank)]), op.SUM)
        assert tensor.item() == 6
        run("all_reduce", tensor := torch.tensor([float(rank)]), op.AVG)
        assert tensor.item() == 1.5
        run("all_reduce", tensor := torch.tensor([1 << rank]), op.BOR)
        assert tensor.item() == 15
        run("broadcast", tensor := torch.full((3,), float(rank)), 2)
        assert tensor.tolist() == [2, 2, 2]
        run("reduce", tensor := torch.tensor([float(rank)]), 1, op.MAX)
        assert tensor.item() == (3 if rank == 1 else rank)
        run("barrier")
        mine = torch.full((2,), float(rank))
        run("all_gather", found := [torch.empty(2) for _ in range(ranks)], mine)
        assert torch.cat(found).equal(every)
        run("all_gather_single", tensor := torch.empty(2 * ranks), mine)
        assert tensor.equal(every)
        sizes = [torch.empty(peer + 1) for peer in range(ranks)]
        run("all_gather_v", sizes, torch.full((rank + 1,), float(rank)))
        assert [part.tolist() for part in sizes] == [[peer] * (peer + 1) for peer in range(ranks)]
        run("reduce_scatter", tensor := torch.empty(2), parts, op.SUM)
        assert tensor.tolist() == [60 + 4 * rank] * 2
        run("reduce_scatter_v", tensor := torch.empty(2), parts, op.MAX)
        assert tensor.tolist() == [30 + rank] * 2
        run("reduce_scatter_single", tensor := torch.empty(2), torch.cat(parts), op.SUM)
        assert tensor.tolist() == [60 + 4 * rank] * 2
        run("all_to_all_single", tensor := torch.empty(2 * ranks), torch.cat(parts))
        assert tensor.equal(torch.cat(column))
        given, taken = [rank + 1] * ranks, [peer + 1 for peer in range(ranks)]
        whole = torch.cat([torch.full((rank + 1,), 10.0 * rank + peer) for peer in range(ranks)])
        run("all_to_all_v_single", tensor := torch.empty(sum(taken)), whole, taken, given)
        assert tensor.tolist() == [
            10 * peer + rank for peer in range(ranks) for _ in range(peer + 1)
        ]
        run("all_to_all", found := [torch.empty(2) for _ in range(ranks)], parts)
        assert torch.cat(found).equal(torch.cat(column))
        run("scatter", tensor := torch.empty(2), parts if rank == 3 else [], 3)
        assert tensor.tolist() == [30 + rank] * 2
        found = [torch.empty(2) for _ in range(ranks)] if rank == 3 else []
        run("gather", found, mine, 3)
        assert rank != 3 or torch.cat(found).equal(every)
        run("gather_single", tensor := torch.empty(2 * ranks), mine, 3)
        assert rank != 3 or tensor.equal(every)
        run("all_reduce", tensor := torch.tensor([float(rank)]), op.PREMUL_SUM(0.5))
        assert tensor.item() == 3
        with pytest.raises(SleyError, match="factor"):
            comm.all_reduce(tensor, op(torchcomms().RedOpType.PREMUL_SUM), async_op)
        if rank > 1:
            time.sleep(0.02 * (4 - rank))  # rank 3's message arrives first
            run("send", mine, 0)
        elif rank == 0:
            for peer in (2, 3):
                run("recv", tensor := torch.empty(2), peer)
                assert tensor.tolist() == [peer] * 2


@pytest.mark.parametrize("async_op", [False, True])
def test_every_call_is_right(async_op: bool, four_ranks: RankPool) -> None:
    four_ranks.run(check_calls, async_op)


def check_async() -> None:
    """Rank 0 alone has called when its message lets the others call."""
    op = torchcomms().ReduceOp
    with communicator("late", timeout=timedelta(seconds=10)) as comm:
        tensor, token = torch.ones(1), torch.zeros(1)
        if comm.get_rank() == 0:
            work = comm.all_reduce(tensor, op.SUM, True)
            for peer in (1, 2, 3):
                comm.send(token, peer, False)
            work.wait()
        else:
            comm.recv(token, 0, False)
            comm.all_reduce(tensor, op.SUM, False)
        assert tensor.item() == 4
    with pytest.raises(SleyError):  # the communicator is closed
        comm.barrier(False)


def test_an_asynchronous_call_waits_for_nobody(four_ranks: RankPool) -> None:
    four_ranks.run(check_async)


def check_split() -> None:
    op = torchcomms().ReduceOp
    with communicator("whole") as comm:
        rank = comm.get_rank()
        part = comm.split([0, 1] if rank < 2 else [3, 2], "part", timeout=timedelta(seconds=70))
        assert (part.get_rank(), part.get_size()) == ((rank, 2) if rank < 2 else (3 - rank, 2))
        assert part.get_name() == "part"
        assert part.get_backend_impl()._group._endpoint.settings.timeout_s == 70.0
        part.all_reduce(tensor := torch.tensor([rank]), op.SUM, False)
        assert tensor.item() == (1 if rank < 2 else 5)
        part.finalize()
        for wrong in ([0, 0, 1, 2, 3], [0, 1, 2, 99], [-1, 0]):
            with pytest.raises(SleyError, match="N627"):
                comm.split(wrong, "wrong")
        part = comm.split([1, 2] if rank in (1, 2) else [], "middle")
        assert (part is None) == (rank in (0, 3))


def test_a_communicator_splits_into_others(four_ranks: RankPool) -> None:
    four_ranks.run(check_split)


def new_alone(**more: Any) -> None:
    torchcomms().new_comm("sley", more.pop("device", CPU), "alone", **more).finalize()


def test_the_store_of_the_environment_outlives_a_communicator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another rank may already look there for the next one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        new_alone()
        gc.collect()
        socket.create_connection(("127.0.0.1", port)).close()


def test_without_a_rank_in_the_environment_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SleyError, match="TORCHCOMM_RANK and TORCHCOMM_SIZE") as caught:
        new_alone(store=dist.HashStore())
    assert caught.value.code == "N606"
    monkeypatch.setenv("TORCHCOMM_RANK", "0")
    monkeypatch.setenv("TORCHCOMM_SIZE", "1")
    with pytest.raises(SleyError, match="MASTER_ADDR and MASTER_PORT in the env") as caught:
        new_alone()
    assert caught.value.code == "N606"


def test_a_communicator_for_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SleyError, match="one for meta") as caught:
        new_alone(device=torch.device("meta"), store=dist.HashStore())
    assert caught.value.code == "B903"


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )


DISTRIBUTED = """
import sys
{before}
import torch, torch.distributed as dist, sley.torch
dist.init_process_group("sley", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
print(type(dist.group.WORLD).__name__, dist.get_backend())
dist.destroy_process_group()
import sley.torch.comms
"""


@pytest.mark.parametrize(
    ("before", "group"),
    [
        ("sys.modules['torchcomms'] = None", "ProcessGroupSley"),
        (f"sys.path.append({STAND_INS!r})", "_BackendWrapper"),
    ],
)
def test_torch_distributed_has_the_backend_with_torchcomms_and_without(
    before: str, group: str
) -> None:
    """The import of sley's backend for torchcomms says what is missing."""
    ended = run_python(DISTRIBUTED.format(before=before), TORCH_DISTRIBUTED_USE_TORCHCOMMS="1")
    if hasattr(c10d, "_use_torchcomms_enabled"):  # this PyTorch knows torchcomms
        assert ended.stdout.split() == [group, "sley"], ended.stderr
    missing = group == "ProcessGroupSley"
    assert (ended.returncode, "R512" in ended.stderr) == (int(missing), missing)
