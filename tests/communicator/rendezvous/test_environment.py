"""The environment of launchers becomes a rank and a store, or an error with the reason."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sley.communicator.rendezvous.bootstrap import bootstrap
from sley.communicator.rendezvous.environment import from_environment
from sley.communicator.rendezvous.stores import MpiStore, TorchStore
from sley.errors import SleyError
from support.processes.meeting import TIMEOUT_S, codes, on_threads


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody listens at, and that nobody else is given meanwhile."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def _mpi(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int) -> None:
    """An mpi4py whose world is so large."""
    comm = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: ranks, improbe=print)
    comm.Dup = lambda: comm
    module: Any = ModuleType("mpi4py.MPI")
    module.COMM_WORLD = comm
    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("rank", "ranks"),
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
)
def test_ranks_meet_at_the_masters_port(rank: str, ranks: str) -> None:
    pytest.importorskip("torch.distributed")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number = sock.getsockname()[1]
    places = [
        {rank: str(r), ranks: "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(number)}
        for r in range(2)
    ]

    def start(environ: dict[str, str]) -> Any:
        started = from_environment(environ, timeout_s=TIMEOUT_S)
        assert isinstance(started.store, TorchStore)
        assert (started.rank, started.ranks) == (int(environ[rank]), 2)
        place = started.store, started.rank, started.ranks
        on = bootstrap(*place, name="group", timeout_s=TIMEOUT_S)
        return on.job, on.exchange(b"")  # the server lives until all have met

    outcomes = on_threads([lambda p=p: start(p) for p in places])
    assert codes(outcomes) == ["", ""]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "names",
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_without_a_master_mpi_is_used(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _mpi(monkeypatch, 3, 4)
    started = from_environment({names[0]: "3", names[1]: "4"})
    assert isinstance(started.store, MpiStore)
    assert (started.rank, started.ranks) == (3, 4)


@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        ({}, "N606", "none of them"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "N606", "RANK, WORLD_SIZE alone"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, "N606", "MASTER_ADDR, MASTER_PORT alone"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, "N606", "MASTER_PORT=0"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "N606", "MASTER_PORT=70000"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "N606", "MASTER_PORT=http"),
        ({**TORCHRUN, "RANK": "1"}, "N603", "RANK=1 and WORLD_SIZE=1"),
        ({**TORCHRUN, "RANK": "-1"}, "N603", "RANK=-1"),
        ({**TORCHRUN, "RANK": "first"}, "N603", "RANK=first"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "N603", "WORLD_SIZE=0"),
    ],
)
def test_missing_and_wrong_values_are_named(environ: dict[str, str], code: str, words: str) -> None:
    with pytest.raises(SleyError) as caught:
        from_environment(environ)
    assert caught.value.code == code
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "module"),
    [
        (TORCHRUN, "torch.distributed"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, "mpi4py.MPI"),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    environ: dict[str, str], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SleyError) as caught:
        from_environment(environ)
    assert caught.value.code == "N606"
    assert f"the package {module.partition('.')[0]}, since" in str(caught.value)


def test_an_mpi_of_another_launcher_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _mpi(monkeypatch, 0, 1)
    with pytest.raises(SleyError) as caught:
        from_environment({"PMI_RANK": "2", "PMI_SIZE": "4"})
    assert caught.value.code == "N603"
    assert "rank 0 of 1, according to mpi4py's MPI" in str(caught.value)


def test_a_port_in_use_is_named() -> None:
    pytest.importorskip("torch.distributed")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        number = sock.getsockname()[1]
        with pytest.raises(SleyError) as caught:
            from_environment({**TORCHRUN, "MASTER_PORT": str(number)}, timeout_s=TIMEOUT_S)
    assert caught.value.code == "N605"
    assert f"to serve a store at 127.0.0.1:{number}" in str(caught.value)


def test_a_master_that_nobody_serves_is_named(port: int) -> None:
    pytest.importorskip("torch.distributed")
    environ = {**TORCHRUN, "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    with pytest.raises(SleyError) as caught:
        from_environment(environ, timeout_s=0.5)
    assert caught.value.code == "N605"
    assert f"to reach a store at 127.0.0.1:{port}" in str(caught.value)


def test_torchruns_own_store_is_not_served_again(port: int) -> None:
    pytest.importorskip("torch.distributed")
    environ = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(port)}
    with pytest.raises(SleyError) as caught:
        from_environment(environ, timeout_s=0.5)
    assert "to reach a store" in str(caught.value)
