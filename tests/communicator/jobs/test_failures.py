"""Failures while a plan runs: stalls, killed and stopped ranks. None hangs or leaks."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sley.communicator import Settings
from sley.communicator.jobs import Job, execute
from sley.communicator.jobs import job as jobs
from sley.communicator.jobs.commands import Execute
from sley.engine import native
from sley.engine.measure import Sweep
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.extension import load
from sley.ir.words import LoopOrder
from support.inputs import small_plans
from support.processes import rank_threads
from support.processes.job_calls import call

FLOAT32 = DATA_TYPES["float32"]
SHM = Path("/dev/shm")
LONG = 1 << 20  # elements; with the iterations below, minutes of work
MANY = 1_000_000


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pids: tuple[int, ...], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def failing(call: Callable[[], object]) -> SleyError:
    with pytest.raises(SleyError) as caught:
        call()
    return caught.value


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory() -> object:
    yield
    if SHM.is_dir():
        assert not list(SHM.glob(f"sley-{os.getpid()}-*"))


def test_a_stall_names_its_instructions() -> None:
    with Job([small_plans.stalling(3)], Settings(timeout_s=0.4)) as job:
        start = time.monotonic()
        error = failing(lambda: call(job, [np.ones(6)] * 3))
        assert time.monotonic() - start < 5
    assert error.code == "R502"
    text = str(error)
    for rank in range(3):
        assert (
            f"{small_plans.FILE}:{2 * rank + 1}, rank {rank}, block 0, step 0 (recv), tile 0"
            in text
        )
        assert f"waits for a message from rank {rank} on channel 0" in text


def test_a_stall_names_slots_and_waits() -> None:
    plan, inputs = small_plans.stalling_for_a_slot(), [np.ones(4), np.ones(4)]
    limits = rank_threads.Limits(timeout_s=0.4)
    text = str(failing(lambda: rank_threads.execute(plan, inputs, limits)))
    assert "step 1 (send) waits for a free slot to rank 1 on channel 0 (all 1 taken)" in text
    assert "block 1, step 0 (recv) waits for rank 1, block 0, step 0 (recv)" in text
    outputs = rank_threads.execute(plan, inputs, rank_threads.Limits(slots=3))
    np.testing.assert_array_equal(outputs[1], inputs[0])


def test_a_long_plan_is_not_a_stall() -> None:
    """A rank that waits longer than the timeout for others that are at work does not give up."""
    hand = small_plans.Hand()
    for _ in range(1500):
        hand.add(0, 0, small_plans.Op.COPY, (small_plans.IN, 0), (small_plans.OUT, 0))
    hand.add(0, 0, small_plans.Op.SEND, (small_plans.IN, 0), to=1)
    hand.add(1, 0, small_plans.Op.RECV, dst=(small_plans.OUT, 0), of=0)
    plan = hand.plan(small_plans.AllReduce(2), loop_order=LoopOrder.INSTRUCTION)
    inputs = [np.ones(1 << 16, np.float32)] * 2
    start = time.monotonic()
    rank_threads.execute(plan, inputs, rank_threads.Limits(slot_bytes=64))
    took = time.monotonic() - start
    rank_threads.execute(plan, inputs, rank_threads.Limits(slot_bytes=64, timeout_s=took / 4))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_call_on_every_rank(victim: int) -> None:
    with Job([small_plans.ring_allreduce(3, fused=True)], Settings(timeout_s=20)) as job:
        pids = job.pids
        threading.Timer(0.5, os.kill, (pids[victim], signal.SIGKILL)).start()
        start = time.monotonic()
        error = failing(lambda: job.plans[0].time_us(LONG, Sweep([], warmup=0, iterations=MANY)))
        assert time.monotonic() - start < 5  # at once, not after the timeout
        assert error.code == "R501"
        assert f"rank {victim} was ended by signal 9" in str(error)
        assert "waits for" in str(error)  # the other ranks said where they stood
        again = failing(lambda: call(job, [np.ones(6)] * 3))
        assert again.code == "R508"
    assert gone(pids)


def test_a_rank_killed_between_calls_is_noticed() -> None:
    with Job([small_plans.ring_allreduce(2, fused=True)]) as job:
        os.kill(job.pids[1], signal.SIGKILL)
        assert gone(job.pids[1:])
        assert failing(lambda: call(job, [np.ones(6)] * 2)).code == "R501"


def test_a_stopped_rank_ends_the_call() -> None:
    with Job([small_plans.ring_allreduce(3, fused=True)], Settings(timeout_s=0.5)) as job:
        pids = job.pids
        threading.Timer(0.3, os.kill, (pids[1], signal.SIGSTOP)).start()
        start = time.monotonic()
        error = failing(lambda: job.plans[0].time_us(LONG, Sweep([], warmup=0, iterations=MANY)))
        assert error.code in ("R502", "R513")
        assert time.monotonic() - start < 8
    assert gone(pids)


@pytest.mark.parametrize(
    "call",
    [
        lambda job: call(job, [np.ones(6)] * 3),
        lambda job: job.plans[0].time_us(2, Sweep([])),
    ],
    ids=["execute", "measure"],
)
def test_a_rank_stopped_between_calls_is_noticed_after_the_timeout(
    call: Callable[[Job], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_GRACE_S", 0.5)
    with Job([small_plans.ring_allreduce(3, fused=True)], Settings(timeout_s=0.4)) as job:
        os.kill(job.pids[1], signal.SIGSTOP)
        start = time.monotonic()
        error = failing(lambda: call(job))
        assert error.code == "R513"
        assert "within 1 s" in str(error)
        assert time.monotonic() - start < 8


def test_ranks_that_were_stopped_together_are_taken_for_stalled() -> None:
    """As on a machine that sleeps: the first to go on must give the others time."""
    with Job([small_plans.ring_allreduce(2, fused=True)], Settings(timeout_s=1.0)) as job:
        one_us = job.plans[0].time_us(LONG, Sweep([], warmup=1, iterations=3))
        sweep = Sweep([], warmup=0, iterations=int(1e6 / one_us))  # a second
        errors: list[BaseException] = []

        def call() -> None:
            try:
                job.plans[0].time_us(LONG, sweep)
            except SleyError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.2)
        for pid in job.pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(1.3)
        for pid in job.pids:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.2)
        thread.join()
        assert not errors


def test_a_stalled_job_is_unusable() -> None:
    with Job([small_plans.stalling()], Settings(timeout_s=0.2)) as job:
        assert failing(lambda: call(job, [np.ones(4)] * 2)).code == "R502"
        assert failing(lambda: call(job, [np.ones(4)] * 2)).code == "R508"
    assert failing(lambda: call(job, [np.ones(4)] * 2)).code == "R508"


def test_a_second_call_is_refused() -> None:
    with Job([small_plans.ring_allreduce(2, fused=True)], Settings(timeout_s=10)) as job:
        os.kill(job.pids[1], signal.SIGSTOP)  # the first call can't end before the second
        first = threading.Thread(target=call, args=(job, [np.ones(4)] * 2))
        first.start()
        while not job._lock.locked():
            time.sleep(0.001)
        assert failing(lambda: call(job, [np.ones(4)] * 2)).code == "R508"
        os.kill(job.pids[1], signal.SIGCONT)
        first.join()
        np.testing.assert_array_equal(call(job, [np.ones(4)] * 2)[0], np.full(4, 2.0))


def test_the_workers_go_with_a_killed_launcher() -> None:
    """SIGKILL leaves the launcher no chance to clean up: no process stays, nor a name in shm."""
    script = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from support.inputs import small_plans
        from sley.communicator.jobs import Job
        from sley.engine.measure import Sweep
        job = Job([small_plans.ring_allreduce(3, fused=True)])
        print(*job.pids, flush=True)
        job.plans[0].time_us({LONG}, Sweep([], warmup=0, iterations={MANY}))
    """
    launcher = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    pids = tuple(map(int, launcher.stdout.readline().split()))
    time.sleep(0.3)
    assert all(alive(pid) for pid in pids)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert gone(pids)
    if SHM.is_dir():
        assert not list(SHM.glob(f"sley-{launcher.pid}-*"))


def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    error = failing(lambda: Job([small_plans.stalling()]))
    assert error.code == "R511"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert failing(lambda: Job([small_plans.stalling()])).code == "R511"


def test_a_worker_without_memory_says_so() -> None:
    """Its own words reach the caller, and what all ranks wanted."""
    with Job([small_plans.ring_allreduce(2, fused=True)]) as job:
        error = failing(lambda: job.plans[0].time_us(1 << 52, Sweep([], warmup=0, iterations=1)))
        assert error.code == "R507"
        assert "MemoryError" in str(error)
        assert f"{2 * 4 << 52:,} bytes" in str(error)


def test_the_error_of_a_worker_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: the other ranks, which wait for it at the barrier, need not time out."""
    with Job([small_plans.ring_allreduce(3, fused=True)], Settings(timeout_s=60)) as job:
        send = job._group.send

        def confused(rank: int, command: object, fd: int | None = None) -> None:
            if rank == 1 and isinstance(command, Execute):
                command = replace(command, call=replace(command.call, dtype="float99"))
            send(rank, command, fd)

        monkeypatch.setattr(job._group, "send", confused)
        start = time.monotonic()
        error = failing(lambda: call(job, [np.ones(6)] * 3))
        assert time.monotonic() - start < 10
        assert error.code == "R511"
        assert "KeyError: 'float99'" in str(error)
        assert gone(job.pids)


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """So many that the next descriptors are beyond what select takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 1200
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"at most {hard} open files here")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for fd in files:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_descriptors_from_1024_on_are_waited_for() -> None:
    outputs = execute(small_plans.ring_allreduce(2, fused=True), [np.ones(4)] * 2)
    np.testing.assert_array_equal(outputs[0], np.full(4, 2.0))
    with Job([small_plans.ring_allreduce(3, fused=True)], Settings(timeout_s=20)) as job:
        os.kill(job.pids[1], signal.SIGKILL)
        error = failing(lambda: call(job, [np.ones(6)] * 3))
        assert error.code == "R501"
        assert "rank 1 was ended by signal 9" in str(error)  # as the spawner told


def test_a_job_closed_during_a_call_ends_it() -> None:
    with Job([small_plans.ring_allreduce(2, fused=True)], Settings(timeout_s=20)) as job:
        threading.Timer(0.3, job.close).start()
        error = failing(lambda: job.plans[0].time_us(LONG, Sweep([], warmup=0, iterations=MANY)))
        assert error.code == "R511"
        assert "the job was closed during a call" in str(error)
    assert gone(job.pids)


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load("sley.engine._native")
    monkeypatch.setitem(sys.modules, engine.__name__, None)
    for name in vars(native).keys() & vars(engine).keys():
        if not name.startswith("_"):  # as if no name had been used yet
            monkeypatch.delattr(native, name)
    error = failing(lambda: execute(small_plans.stalling(), [np.ones(4)] * 2))
    assert error.code == "R512"
