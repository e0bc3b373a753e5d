"""CUDA tensors: PyTorch's own backend over sley's library, or the reason why it can't be.

Without a GPU, PyTorch's fake group stands for its backend, and fake tensors for the tensors.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch._subclasses.fake_tensor import FakeTensorMode

from sley.communicator import Settings
from sley.compiler.deployment import nccl_programs
from sley.errors import SleyError
from sley.torch import CollectiveError, nccl
from support.devices.nccl_clients import compiled, stand_in
from support.processes.forked import PROCESSES
from support.processes.rank_pool import RankPool

CUDA = torch.device("cuda")
BOTH = "cpu:sley,cuda:sley"


class NCCL:
    """A stand-in for PyTorch's class: groups that record how they were made."""

    made: ClassVar[list[tuple[Any, ...]]] = []

    class Options:
        """Takes every field."""

    def __new__(cls, store: dist.Store, rank: int, size: int, options: Any) -> Any:
        cls.made.append((rank, size, vars(options)))
        return FakeProcessGroup._create_internal(rank, size)


class Recorder:
    """A group of the other device that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


def in_place() -> Any:
    return patch.multiple(nccl, is_in_place=lambda: True, is_options=_is_options)


def _is_options(given: Any) -> bool:
    return isinstance(given, NCCL.Options)


def stood_in() -> Any:
    return patch.object(dist, "ProcessGroupNCCL", NCCL, create=True)


def check_refusals() -> None:
    for backend in ("cuda:sley", BOTH, "cuda:sley,cpu:sley", "cpu:gloo,cuda:sley"):
        with pytest.raises(SleyError) as error:
            dist.new_group(backend=backend)
        (one,) = error.value.diagnostics
        assert one.code == "B909"
        assert "built without NCCL" in one.found or "another NCCL: /" in one.found
        assert "sley exec -- " in one.remedy
    with pytest.raises(SleyError, match=r"B903.*\n.*cpu or cuda"):
        dist.new_group(backend="meta:sley")
    with pytest.raises(CollectiveError, match=r"(?s)B903.*sley exec"):
        dist.group.WORLD._get_backend(CUDA)


def test_without_sleys_library_the_group_is_refused(four_ranks: RankPool) -> None:
    four_ranks.run(check_refusals)


def check_devices(backend: str, config: str) -> None:
    rank, device = dist.get_rank(), torch.device("cuda:0")
    with in_place(), stood_in(), FakeTensorMode(allow_non_fake_inputs=True):
        NCCL.made.clear()
        options, members = NCCL.Options(), [0, 2, 3]
        group = dist.new_group(members, backend=backend, pg_options=options, device_id=device)
        if rank not in members:
            return
        assert len(NCCL.made) == 1  # since the group is bound to a device
        assert group.bound_device_id == device
        assert dist.get_backend(group) == backend
        assert dist.get_backend_config(group) == config
        assert CUDA in group._device_types
        own = type(group) is dist.ProcessGroup and group.name() == "nccl"
        assert own is (backend == "cuda:sley")
        dist.all_reduce(torch.ones(3, device="cuda"), group=group)
        assert isinstance(group._get_backend(CUDA), FakeProcessGroup)
        assert dist.ProcessGroup._get_backend(group, CUDA) is group._get_backend(CUDA)
        ((at, size, fields),) = NCCL.made
        assert (at, size) == (members.index(rank), len(members))
        assert fields["global_ranks_in_group"] == members
        assert fields["group_name"] == group.group_name
        assert fields["_timeout"].total_seconds() == 1800
        assert vars(options) == fields  # the given ones
        message = dist.P2POp(dist.isend, torch.ones(1, device="cuda"), members[-1], group)
        assert type(message.group) is dist.ProcessGroup
        assert message.group_peer == 2
        torch.ops.sley.all_reduce_(torch.ones(3, device="cuda"), "sum", group.group_name)
        gathered = torch.ops.sley.all_gather(torch.ones(2, device="cuda"), group.group_name)
        assert gathered.shape == (6,)
        assert gathered.device.type == "cuda"
    if "cpu:sley" in config:
        dist.all_reduce(tensor := torch.ones(2), group=group)
        assert tensor.tolist() == [3.0, 3.0]
    dist.destroy_process_group(group)
    assert len(dist.distributed_c10d._world.pg_map) == 1


@pytest.mark.parametrize(
    ("backend", "config"),
    [
        ("sley", "cpu:sley"),
        (BOTH, BOTH),
        ("cuda:sley,cpu:sley", "cuda:sley,cpu:sley"),
        ("cuda:sley", "cuda:sley"),
        ("cpu:gloo,cuda:sley", "cpu:gloo,cuda:sley"),
    ],
)
def test_pytorchs_backend_serves_cuda_tensors(
    backend: str, config: str, four_ranks: RankPool
) -> None:
    four_ranks.run(check_devices, backend, config)


def check_timeout() -> None:
    with in_place(), stood_in():
        NCCL.made.clear()
        dist.destroy_process_group(
            dist.new_group(backend="cuda:sley", pg_options=Settings(timeout_s=7))
        )
        ((_, _, fields),) = NCCL.made
        assert fields["_timeout"].total_seconds() == 7
        with pytest.raises(SleyError, match="N658"):
            dist.new_group(backend="cuda:sley", pg_options=Settings(same_bits=True))


def test_a_timeout_of_sleys_settings_is_pytorchs(four_ranks: RankPool) -> None:
    four_ranks.run(check_timeout)


def check_split() -> None:
    """A group of a default group that is bound to a device is split from it, on all ranks."""
    parent = FakeProcessGroup._create_internal(dist.get_rank(), 4)
    source = patch.object(dist.distributed_c10d, "_get_split_source", lambda _: parent)
    dist.group.WORLD.bound_device_id = torch.device("cuda:0")
    try:
        with in_place(), stood_in(), source:
            NCCL.made.clear()
            group = dist.new_group(backend="cuda:sley")
    finally:
        dist.group.WORLD.bound_device_id = None
    ((_, _, fields),) = NCCL.made
    assert fields["split_from"] is parent
    assert fields["split_color"] == dist.distributed_c10d._process_group_color([0, 1, 2, 3])
    dist.destroy_process_group(group)


def test_a_group_is_split_from_the_default_one_as_pytorch_does(four_ranks: RankPool) -> None:
    four_ranks.run(check_split)


def check_brackets() -> None:
    """What is coalesced on CUDA is coalesced by the group that serves it."""
    with in_place(), FakeTensorMode():
        group, other = dist.new_group(backend=BOTH), Recorder()
        group._fallback._rest = other
        tensors = [torch.ones(2, device="cuda"), torch.ones(3, device="cuda")]
        group._start_coalescing(CUDA)
        dist.send(tensors[0], (dist.get_rank() + 1) % 4, group=group)
        group._end_coalescing(CUDA)
        group.allreduce_coalesced(tensors)
        assert other.calls == [
            "_start_coalescing",
            "send",
            "_end_coalescing",
            "allreduce_coalesced",
        ]
        group.abort()
        assert other.calls[4:] == ["abort"]
        dist.destroy_process_group(group)
        assert other.calls[5:] == ["shutdown"]


def test_coalesced_calls_stay_together(four_ranks: RankPool) -> None:
    four_ranks.run(check_brackets)


CLIENT = (
    "int ncclCommInitRankConfig(void);\nint client(void) { return ncclCommInitRankConfig(); }\n"
)
OWN = "int ncclCommInitRankConfig(void) { return 0; }\n"


def put_before(library: Path, client: Path) -> None:
    """Exits with 0 if a client calls a library that is there for the whole process."""
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(client))
    with (
        patch.object(nccl, "_of_pytorch", lambda: client),
        patch.object(dist, "is_nccl_available", lambda: True),
    ):
        os._exit(0 if nccl.called_library(client) == library and nccl.is_in_place() else 1)


@pytest.mark.parametrize("way", ["linked with it", "linked into it", "not there"])
def test_the_library_that_a_client_calls(way: str, tmp_path: Path) -> None:
    text = {"linked with it": CLIENT, "linked into it": OWN, "not there": "int client;"}[way]
    (tmp_path / "client.c").write_text(text)
    flags = [str(stand_in()), "-Wl,--no-as-needed"] if way == "linked with it" else []
    client = compiled(tmp_path / "client.c", ".so", "-shared", "-fPIC", *flags)
    if way != "not there":
        child = PROCESSES.Process(target=put_before, args=(nccl_programs.library(), client))
        child.start()
        child.join()
        assert child.exitcode == 0
    ctypes.CDLL(str(stand_in()))  # as a preloaded one: before the client
    ctypes.CDLL(str(client))
    found = nccl.called_library(client)
    assert found == (stand_in() if way == "linked with it" else None)
