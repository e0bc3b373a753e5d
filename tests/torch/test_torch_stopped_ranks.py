"""Groups over a store that rank 0 serves: its process is stopped, or the group made again at once.

No call of a TCPStore of PyTorch's ends if its server is stopped, whatever its timeout.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sley.communicator import Settings
from sley.communicator.rendezvous.gather import GRACE_S
from sley.errors.disk_cache import PATIENCE_S
from support.processes import rank_processes
from support.processes.rank_processes import Started
from support.processes.stopping import Place, outcomes, stop

TIMEOUT_S = 2.0
IN_TIME_S = TIMEOUT_S + PATIENCE_S + GRACE_S + 4.0
"""The timeout, the waits for the cache and for the store, and time for a busy machine."""


def environment() -> dict[str, str]:
    """Variables for a store at a port that was free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@contextmanager
def group(folder: str, rank: int, ranks: int, settings: Settings) -> Iterator[None]:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("sley", timeout=timedelta(seconds=settings.timeout_s or 0))
    yield
    dist.destroy_process_group()


def begin(
    function: Callable[..., Any], *arguments: Any, ranks: int = 3, place: Place | None = None
) -> Started:
    variables: Mapping[str, str] = environment()
    return rank_processes.start(
        ranks,
        function,
        *arguments,
        settings=Settings(timeout_s=TIMEOUT_S),
        environ=lambda _: variables,
        enter=place.prepare if place else None,
        join=group,
    )


def again(_: None, rounds: int) -> float:
    total = torch.zeros(1)
    for number in range(rounds):
        dist.all_reduce(one := torch.ones(1))
        total += one
        if number + 1 < rounds:
            if dist.get_rank() == 0:
                time.sleep(0.05)  # the other rank is quicker
            dist.destroy_process_group()
            dist.init_process_group("sley", timeout=timedelta(seconds=60))
    return total.item()


def test_a_group_is_made_again_at_once() -> None:
    """Otherwise a rank that is quicker than rank 0 would find the store that is about to end."""
    ends = begin(again, 6, ranks=2).ends()
    assert [end.value for end in ends] == [12, 12], ends


def stops_and_makes_a_group(_: None) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        stop()
    dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))


def stops_before_a_monitored_barrier(_: None) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        stop()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=TIMEOUT_S))


@pytest.mark.slow
def test_a_stopped_server_of_the_store_holds_no_rank_up() -> None:
    functions = stops_and_makes_a_group, stops_before_a_monitored_barrier
    found = outcomes(*[(begin(function), Place("", 0)) for function in functions])
    for ends, code in zip(found, ("N605", "B907"), strict=True):
        for end in ends.values():
            assert code in end.error, end
            assert "an answer of" in end.error or "no answer of" in end.error
            assert end.seconds < IN_TIME_S


def living(_: None) -> str:
    """A rank's whole life."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(data := torch.ones(777))
    dist.all_reduce(data)  # the short way
    dist.all_reduce(torch.ones(300_000), async_op=True).wait()
    dist.all_reduce_coalesced([torch.ones(5), torch.ones(6)])
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(data, 1 - rank)
    other = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    dist.all_gather([torch.ones(3) for _ in range(ranks)], torch.ones(3), group=other)
    dist.barrier()
    dist.destroy_process_group(other)
    return "lived"


_GROUP = "sley.torch.group.ProcessGroupSley"
PLACES = [
    Place("sley.torch.group.Endpoint", 0),
    Place("sley.torch.group.Endpoint", 1),
    Place("sley.communicator.rendezvous.stores.TorchStore._put", 0),
    Place("sley.communicator.rendezvous.stores.TorchStore._find", 0, call=2),
    Place("sley.communicator.rendezvous.stores.TorchStore._find", 1, call=2),
    Place(f"{_GROUP}._take_methods", 0),
    Place("sley.errors.disk_cache._keep", 0),
    Place("sley.torch.calls.CallRunner._run", 1, call=2),
    Place("sley.torch.work.Pending.wait", 0),
    Place("torch.distributed.new_group", 0),
    Place("torch.distributed.new_group", 1),
    Place("sley.torch.group.Endpoint", 0, call=2),
    Place("sley.torch.group.Endpoint", 1, is_after=True, call=2),
    Place(f"{_GROUP}.shutdown", 0),
    Place(f"{_GROUP}.shutdown", 1, is_after=True),
    Place(f"{_GROUP}.shutdown", 0, call=2),
    Place(f"{_GROUP}._drop_store", 0, is_after=True, call=2),
    Place(f"{_GROUP}.shutdown", 1, call=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_no_place_holds_another_rank_up(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = begin(living, place=place)
    for rank, end in outcomes((started, place))[0].items():
        assert end.value == "lived" or end.error, (rank, end)
        assert "Traceback" not in end.error, (rank, end)  # an error without a code
        assert end.seconds < IN_TIME_S, (rank, end)
