"""Recording: a workload has the calls of a program, what it computed between them, and overlap."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from sley.communicator import Communicator, FolderStore, Settings, record
from sley.workloads import Group, Workload, read
from support import rank_processes

COMPUTE_S, LATE_S = 0.02, 0.3
BIG, SMALL = 1 << 16, 1 << 8


def compute() -> None:
    time.sleep(COMPUTE_S)


def step(comm: Communicator) -> None:
    """A training step as DistributedDataParallel has them: calls that overlap the computation, and
    a wait for all of them."""
    data = [np.ones(n, np.float32) for n in (BIG, SMALL)]
    compute()
    first = comm.all_reduce(data[0], is_async=True)
    compute()
    second = comm.all_reduce(data[1], is_async=True)
    compute()
    first.wait()
    second.wait()
    first.wait()  # a second time, which changes nothing
    if comm.rank == 1:
        time.sleep(LATE_S)
    comm.all_to_all(np.ones(SMALL, np.float32), np.ones(SMALL, np.float32))
    compute()
    comm.barrier()


def recorded_step(comm: Communicator) -> Workload:
    step(comm)  # plans are made
    with record() as recorder:
        comm.barrier()
        step(comm)
    step(comm)
    return recorder.workload("a step")


def test_a_recording_has_calls_waits_and_computations_in_order() -> None:
    for rank, end in enumerate(rank_processes.start(2, recorded_step).ends()):
        workload = end.value
        assert isinstance(workload, Workload), end.error
        assert (workload.name, workload.ranks) == ("a step", 2)
        assert [cell for _, cell in workload.calls()] == [
            ("allreduce", Group.CLUSTER, 1),
            ("allreduce", Group.CLUSTER, 4 * BIG),
            ("allreduce", Group.CLUSTER, 4 * SMALL),
            ("alltoall", Group.CLUSTER, 4 * SMALL),
            ("allreduce", Group.CLUSTER, 1),
        ]
        # barrier, call, call, wait, wait, AllToAll, barrier
        assert workload.waited.tolist() == [0, 3, 4, -1, -1, 5, 6]
        seconds = workload.compute_us / 1e6
        assert seconds[0] == 0
        assert seconds[[1, 2, 3, 6]].min() > COMPUTE_S * 0.9
        assert seconds[[1, 2, 3, 4, 6]].max() < LATE_S, "waits for another rank are no computation"
        assert (seconds[5] > LATE_S * 0.9) == (rank == 1)


def from_environment(comm: Communicator) -> None:
    compute()
    comm.all_reduce(np.ones(BIG, np.float32))


def test_sley_record_names_the_file_of_rank_0(tmp_path: Path) -> None:
    def environ(rank: int) -> dict[str, str]:
        return {"SLEY_RECORD": str(tmp_path / f"rank{rank}.toml")}

    ends = rank_processes.start(2, from_environment, environ=environ).ends()
    assert not [end.error for end in ends if end.error]
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.toml"]
    workload = read(tmp_path / "rank0.toml")
    assert workload.name == "rank0"
    assert [cell for _, cell in workload.calls()] == [("allreduce", Group.CLUSTER, 4 * BIG)]


def in_groups(comm: Communicator, folder: str) -> Workload:
    node = comm.rank // 2
    pairs = {
        "node": (f"node{node}", comm.rank % 2),
        "rail": (f"rail{comm.rank % 2}", node),
    }
    data = np.ones(SMALL, np.float32)
    with record() as recorder:
        comm.all_reduce(data)
        for name, rank in pairs.values():
            store = FolderStore(f"{folder}/{name}")
            with Communicator(store, rank, 2, settings=Settings(use_cache=False)) as group:
                group.all_reduce(data)
        if comm.rank < 3:
            store = FolderStore(f"{folder}/three")
            with Communicator(store, comm.rank, 3, settings=Settings(use_cache=False)) as group:
                group.all_reduce(data)
    return recorder.workload()


def test_groups_are_nodes_and_rails_and_others_are_left_out(tmp_path: Path) -> None:
    started = rank_processes.start(
        4, in_groups, str(tmp_path), environ=lambda rank: {"SLEY_HOST_ID": str(rank // 2)}
    )
    for end in started.ends():
        assert isinstance(end.value, Workload), end.error
        groups = [cell.group for _, cell in end.value.calls()]
        assert groups == [Group.CLUSTER, Group.NODE, Group.RAIL]


def unwritable(comm: Communicator) -> float:
    comm.all_reduce(np.ones(SMALL, np.float32))
    comm.close()
    return 1.0


def test_a_file_that_cannot_be_written_does_not_end_the_program(tmp_path: Path) -> None:
    environ = {"SLEY_RECORD": str(tmp_path / "missing" / "workload.toml")}
    ends = rank_processes.start(2, unwritable, environ=lambda rank: environ).ends()
    assert [end.value for end in ends] == [1.0, 1.0], ends
