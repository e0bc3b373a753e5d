"""Recording: a workload has the calls of a program, what it computed between them, and overlap."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sley import algorithms
from sley.communicator import Communicator, FolderStore, Recorder, Settings, record
from sley.communicator.calls import OWN, Call
from sley.communicator.recording import Member
from sley.communicator.rendezvous.hosts import Process
from sley.compiler import compile
from sley.engine.types import DATA_TYPES
from sley.ir.plan import Plan
from sley.tuning.workloads import Group, Workload, read
from support import rank_processes

COMPUTE_S, LATE_S = 0.02, 0.3
BIG, SMALL = 1 << 16, 1 << 8


def compute(seconds: float = COMPUTE_S) -> float:
    """A computation; its time as this rank measures it."""
    begun = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - begun


def step(comm: Communicator) -> list[float]:
    """A training step as DistributedDataParallel has them: calls that overlap the computation, and
    a wait for all of them. The times of the computations before its calls and waits."""
    data = [np.ones(n, np.float32) for n in (BIG, SMALL)]
    parts = np.ones((2, SMALL), np.float32)
    times_s = [compute()]
    first = comm.all_reduce(data[0], async_op=True)
    times_s.append(compute())
    second = comm.all_reduce(data[1], async_op=True)
    times_s.append(compute())
    first.wait()
    times_s.append(0.0)
    second.wait()
    first.wait()  # a second time, which changes nothing
    times_s.append(compute(LATE_S) if comm.rank == 1 else 0.0)
    comm.all_to_all(parts[0], parts[1])
    times_s.append(compute())
    comm.barrier()
    return times_s


def recorded_step(comm: Communicator) -> tuple[Workload, list[float]]:
    step(comm)  # plans are made
    with record() as recorder:
        comm.barrier()
        times_s = step(comm)
    step(comm)
    return recorder.workload("a step"), times_s


def test_a_recording_has_calls_waits_and_computations_in_order() -> None:
    for end in rank_processes.start(2, recorded_step).ends():
        assert not end.error
        workload, times_s = end.value
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
        assert workload.compute_us[0] == 0
        further_s = workload.compute_us[1:] / 1e6 - times_s
        assert further_s.min() > -1e-6, "a computation is shorter than the rank measured"
        assert further_s.max() < LATE_S * 0.9, "waits for another rank are no computation"


def calls_of(workload: Workload) -> list[tuple[str, int]]:
    assert all(cell.group == Group.CLUSTER for _, cell in workload.calls())
    return [(cell.collective, cell.size_bytes) for _, cell in workload.calls()]


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


def with_a_block(comm: Communicator, file: str, folder: str) -> tuple[Workload, Workload | None]:
    data = [np.ones(n, np.float32) for n in (BIG, SMALL)]
    comm.all_reduce(data[0])
    with record() as recorder:
        comm.all_reduce(data[1])
        settings = Settings(use_cache=False)
        with Communicator(FolderStore(folder), comm.rank, 2, settings=settings) as other:
            other.barrier()
        is_saved = Path(file).exists()  # when the other communicator was closed
        saved = read(file) if is_saved else None
    comm.all_reduce(data[0])
    return recorder.workload(), saved


def test_a_recorded_block_leaves_the_recording_to_the_file_whole(tmp_path: Path) -> None:
    def file(rank: int) -> str:
        return str(tmp_path / f"rank{rank}.toml")

    ends = rank_processes.start(
        2,
        with_a_block,
        file(0),
        str(tmp_path / "other"),
        environ=lambda r: {"SLEY_RECORD": file(r)},
    ).ends()
    assert not [end.error for end in ends if end.error]
    block, saved = ends[0].value
    big, small, barrier = (("allreduce", size) for size in (4 * BIG, 4 * SMALL, 1))
    assert calls_of(block) == [small, barrier]
    assert calls_of(saved) == [big, small, barrier], "the file has the block's recording"
    assert calls_of(read(file(0))) == [big, small, barrier, big], "the file lacks the block's calls"


def partly_varying(comm: Communicator) -> Workload:
    """Rank 1 makes two of three AllToAlls with counts of its own."""
    data = np.ones((2, SMALL), np.float32)
    spans = [word for row in data for word in (row.ctypes.data, row.nbytes)]
    call = Call("all_to_all", *spans, SMALL // 2, DATA_TYPES["float32"], may_vary=True)
    with record() as recorder:
        if comm.rank == 1:
            parts = list(data[0].reshape(2, -1)), list(data[1].reshape(2, -1))
            comm.all_to_all_v(*parts)
            comm.all_to_all_v(*parts, async_op=True).wait()
        else:
            comm.endpoint.submit(call)
            comm.endpoint.submit(call, async_op=True).wait()
        comm.endpoint.submit(call)
        comm.barrier()
    return recorder.workload()


def test_an_all_to_all_whose_counts_vary_on_another_rank_is_left_out() -> None:
    for end in rank_processes.start(2, partly_varying).ends():
        assert not end.error
        assert calls_of(end.value) == [("alltoall", 4 * SMALL), ("allreduce", 1)]


def in_groups(comm: Communicator, folder: str) -> Workload:
    node = comm.rank // 2
    place = comm.rank % 2
    pairs = {
        "node": (f"node{node}", place),
        "rail": (f"rail{place}", node),
        "crossed": (f"crossed{place ^ node}", node),
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


def process(rank: int, host: int) -> Process:
    return Process(f"host{host}", "machine", "", "", 100 + rank, 0)


WORLD = Member("world", 0, (process(0, 0), process(1, 0)))


def all_reduce(count: int = 1) -> Call:
    return Call("all_reduce", 0, 0, 0, 0, count, DATA_TYPES["float32"])


def test_a_recording_that_reaches_the_limit_is_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("communicator.recording", "workloads.workload"):
        monkeypatch.setattr(f"sley.{module}.MOST_STEPS", 5)
    for async_op in (False, True):
        recorder = Recorder()
        for _ in range(9):
            event = recorder.begin(WORLD, all_reduce())
            event.async_op = async_op
        found = recorder.workload()
        assert len(calls_of(found)) == 4
        assert len(found) == 4 + async_op, "what is not waited for is waited for at the end"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile(algorithms.build("ring-allreduce", nodes=1, gpus=2, in_place=True))


def test_calls_without_data_are_left_out(plan: Plan) -> None:
    recorder = Recorder()
    for count in (0, 8):
        recorder.begin(WORLD, all_reduce(count))
        recorder.begin(WORLD, replace(all_reduce(count), kind=OWN, plan=plan))
    size_bytes = 8 * 4
    assert calls_of(recorder.workload()) == [
        ("allreduce", size_bytes),
        ("allreduce", size_bytes * plan.collective.blocks),
    ]


def test_groups_of_other_processes_are_left_out() -> None:
    recorder = Recorder()
    pair = Member("pair", 0, (process(0, 0), process(2, 0)))
    for member in (WORLD, pair):
        recorder.begin(member, all_reduce())
    assert len(calls_of(recorder.workload())) == 1
