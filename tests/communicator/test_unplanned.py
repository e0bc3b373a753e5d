"""An AllToAll that some ranks run by messages, without a plan: all ranks refuse it, and no data
moves."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from sley.communicator import Call, Communicator, Network, Settings
from sley.engine.types import DATA_TYPES
from support.rank_processes import End, start

COUNT = 100
QUICK_S = 5.0


def planned(comm: Communicator, is_async: bool) -> tuple[bool, np.ndarray[Any, Any]]:
    """Whether the call was unplanned, and its output."""
    data = np.arange(comm.ranks * COUNT, dtype=np.int32) + 1000 * comm.rank
    out = np.zeros_like(data)
    call = Call(
        "all_to_all",
        data.ctypes.data,
        data.nbytes,
        out.ctypes.data,
        out.nbytes,
        COUNT,
        DATA_TYPES["int32"],
        may_be_unplanned=True,
    )
    work = comm.endpoint.submit(call, is_async=is_async, owners=(data, out))
    work.wait()
    return work.is_unplanned, out


def takes_turns(comm: Communicator) -> None:
    for turn in range(40):
        skipping = [rank for rank in range(comm.ranks) if turn >> rank & 1]
        if comm.rank in skipping:
            comm.endpoint.skip_plan()
        else:
            is_unplanned, out = planned(comm, is_async=turn % 3 == 0)
            assert is_unplanned is bool(skipping), turn
            own = slice(comm.rank * COUNT, (comm.rank + 1) * COUNT)
            expected = np.arange(comm.ranks * COUNT, dtype=np.int32)[own]
            for rank in range(comm.ranks):
                part = out[rank * COUNT : (rank + 1) * COUNT]
                assert (part == (0 if skipping else expected + 1000 * rank)).all()
        if turn % 5 == 0:  # else who skips is at further calls before the others look
            comm.all_reduce(total := np.ones(3))
            assert (total == comm.ranks).all()


@pytest.mark.parametrize("hosts", [1, 2])
def test_every_rank_hears_of_one_that_needs_no_plan(hosts: int) -> None:
    ends = start(
        4,
        takes_turns,
        settings=Settings(timeout_s=10, use_cache=False, network=Network.TCP),
        environ=lambda rank: {"SLEY_HOST_ID": str(rank % hosts), "SLEY_NICS": "lo"},
    ).ends()
    assert [end.error for end in ends] == [""] * 4


def dies(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        os._exit(1)
    planned(comm, is_async=False)


def calls_another(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.all_reduce(np.ones(COUNT))
    planned(comm, is_async=False)


def coded(ends: list[End], code: str) -> None:
    for end in ends:
        assert code in end.error, end
        assert end.seconds < QUICK_S


def test_a_rank_that_dies_before_it_says_what_it_does_is_named() -> None:
    ends = start(3, dies).ends()
    coded([ends[0], ends[2]], "N620")


def test_a_rank_that_calls_something_else_is_an_error_on_all() -> None:
    coded(start(3, calls_another).ends(), "N622")
