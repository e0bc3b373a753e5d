"""Environment: rank, number of ranks and store, from the variables that launchers set.

torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; users may set them, too. Open MPI,
MPICH and Slurm set variables of their own for rank and number; there the store is a torch store if
MASTER_ADDR and MASTER_PORT are set, and MPI otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from sley.communicator.rendezvous.gather import GRACE_S, Deadline
from sley.communicator.rendezvous.stores import MpiStore, Store, TorchStore
from sley.errors.aside import LateError, within
from sley.errors.communicator import N603, N605, N606

_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"
_PORTS = 65535

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and its derivatives
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)
"""Variables that hold this process' rank and the number of ranks."""


class Started(NamedTuple):
    """Arguments of a communicator. store: the ranks find one another over it."""

    store: Store
    rank: int
    ranks: int


def from_environment(
    environ: Mapping[str, str] | None = None, *, timeout_s: float = 300.0
) -> Started:
    """The rank, the number of ranks and the store that the launcher gave this process.

    environ: replaces this process' environment. timeout_s: how long to wait for the process that
        serves the store.
    Errors: N603, N605, N606.
    """
    environ = os.environ if environ is None else environ
    Deadline.after(timeout_s)  # or R514
    place = find_place(environ)
    address, port = environ.get(_ADDRESS), environ.get(_PORT)
    if place is not None and address and port:
        return Started(_torch_store(environ, *place, address, port, timeout_s), *place)
    if place is None or environ.get("RANK"):
        needed = ["RANK", "WORLD_SIZE", _ADDRESS, _PORT]
        there = [name for name in needed if environ.get(name)]
        raise N606.error(
            expected=f"{', '.join(needed[:-1])} and {needed[-1]} in the environment, or a start by "
            "mpirun or srun",
            found=f"{', '.join(there)} alone" if there else "none of them",
        )
    return _from_mpi(*place)


def find_place(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """The rank and the number of ranks that a launcher has set; None if none has set both.
    Errors: N603."""
    for names in _LAUNCHERS:
        words = [environ.get(name) for name in names]
        if None in words or "" in words:
            continue
        try:
            rank, ranks = (int(word or "") for word in words)
        except ValueError:
            rank, ranks = -1, 0
        if not 0 <= rank < ranks:
            raise N603.error(
                expected=f"{names[1]} above 0 and {names[0]} from 0 to one less",
                found=f"{names[0]}={words[0]} and {names[1]}={words[1]}",
            )
        return rank, ranks
    return None


def _torch_store(
    environ: Mapping[str, str], rank: int, ranks: int, address: str, port: str, timeout_s: float
) -> TorchStore:
    if not (port.isdecimal() and 0 < int(port) <= _PORTS):
        raise N606.error(expected=f"{_PORT} from 1 to {_PORTS}", found=f"{_PORT}={port}")
    distributed: Any = _import("torch.distributed", f"{_ADDRESS} and {_PORT} are set")
    # torchrun serves the store itself, and sets this variable; otherwise rank 0 serves it.
    is_served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_server = rank == 0 and not is_served
    try:
        connect = partial(
            distributed.TCPStore,
            address,
            int(port),
            world_size=ranks,
            is_master=is_server,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
        store = within(timeout_s + GRACE_S, connect)  # or for ever, if the server is stopped
    except (LateError, RuntimeError, ValueError) as error:  # torch's DistNetworkError, too
        words = str(error).strip().splitlines() or [f"no answer within {timeout_s:g} s"]
        raise N605.error(
            expected=f"to {'serve' if is_server else 'reach'} a store at {address}:{port}",
            found=words[0],
            remedy="Choose a free MASTER_PORT (with torchrun: --master-port, or "
            "--standalone), and a MASTER_ADDR at which every host can reach rank 0.",
        ) from error
    return TorchStore(distributed.PrefixStore("sley", store))


def _from_mpi(rank: int, ranks: int) -> Started:
    why = f"rank {rank} of {ranks} was started by mpirun or srun, without {_ADDRESS} and {_PORT}"
    mpi: Any = _import("mpi4py.MPI", why)
    world = mpi.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (rank, ranks):
        raise N603.error(
            expected=f"rank {rank} of {ranks}, as set by the launcher",
            found=f"rank {world.Get_rank()} of {world.Get_size()}, according to mpi4py's MPI",
            remedy="Use the mpirun of the MPI that mpi4py was built with (with srun: its --mpi), "
            f"or set {_ADDRESS} and {_PORT} and use PyTorch's store.",
        )
    return Started(MpiStore(world), rank, ranks)


def _import(module: str, why: str) -> Any:
    try:
        return import_module(module)
    except (ImportError, RuntimeError, OSError) as error:  # mpi4py finds its MPI on import
        expected = f"the package {module.partition('.')[0]}, since {why}"
        raise N606.error(expected=expected, found=str(error)) from error
