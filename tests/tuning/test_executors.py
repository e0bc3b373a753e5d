"""Sweeps and choices in executors: the same as in one thread, whatever runs the tasks."""

import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest

import sley
from sley.compiler import interrupts
from sley.tuning import sweeps
from sley.tuning.arms import Arms
from sley.tuning.sweeps import sweep


@contextmanager
def processes():
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        yield executor


@contextmanager
def dask():
    distributed = pytest.importorskip("distributed", reason="Dask's scheduler is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@pytest.mark.parametrize("make", [pytest.param(processes, marks=pytest.mark.slow), dask])
def test_an_executor_chooses_and_sweeps_like_one_thread(make):
    topology = sley.topologies.cluster(1, 2)
    program = sley.algorithms.ring_allreduce(2)
    arms = Arms.of("alltoall", topology, actions="nccl")
    settings = {"instances": [1, 4], "channels": [1], "schedule": "msccl"}
    sizes = ["1K", "1M", "64M"]
    with make() as executor:
        choices = sley.choose(program, sizes, topology, executor=executor, **settings)
        swept = sweep(arms, [1 << 10, 1 << 14], executor=executor)
    alone = sley.choose(program, sizes, topology, **settings)
    assert choices.candidates == alone.candidates
    assert [(r.begin, r.end, r.options, r.runner_up) for r in choices.ranges] == [
        (r.begin, r.end, r.options, r.runner_up) for r in alone.ranges
    ]
    expected = sweep(arms, [1 << 10, 1 << 14])
    assert (swept.time_us == expected.time_us).all()
    assert (swept.best == expected.best).all()


def test_ctrl_c_ends_a_size_of_another_process(monkeypatch):
    monkeypatch.setattr(sweeps, "_arms", lambda _needed: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(interrupts, "_INTERRUPTS", interrupts._Interrupts())
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the command line starts processes
    try:
        with pytest.raises(interrupts.TurnInterrupted):
            sweeps._row_elsewhere(b"", 1024)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        monkeypatch.setattr(sweeps, "_arms", lambda needed: needed)
        monkeypatch.setattr(sweeps, "_row", lambda arms, size: {"arms": arms, "size": size})
        with ThreadPoolExecutor(1) as threads:  # which get no signals
            row = threads.submit(sweeps._row_elsewhere, b"", 1024).result()
        assert row == {"arms": b"", "size": 1024}
    finally:
        signal.signal(signal.SIGINT, before)
