"""Launch: starts the ranks of each engine, so that none has a disadvantage.

With more ranks than cores the way of waiting matters: an engine that spins takes the core from the
rank for which it waits. So Open MPI has the option to yield. If there are more ranks than cores,
MPICH has the options with which it yields (MPI_THREAD_MULTIPLE and heavy yields), and Intel MPI
doesn't pin its ranks and yields (I_MPI_PIN=0, I_MPI_THREAD_YIELD=2); else they have their defaults.
Intel MPI uses shared memory only. Python's ranks have one thread for arithmetic each, as torchrun
starts them; gloo uses the loopback interface. vLLM's operators spin, and have no option.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.machine import cores

from cpu_peers import mpi, operators
from cpu_peers.cells import Engine

PYTHON_WORKERS = {
    Engine.GLOO: ("torch_worker", "gloo"),
    Engine.SLEY: ("sley_worker", "private"),
    Engine.SLEY_SYMMETRIC: ("sley_worker", "symmetric"),
    Engine.SLEY_TORCH: ("torch_worker", "sley"),
    Engine.VLLM: ("operator_worker", "vllm"),
}


@dataclass(frozen=True)
class Command:
    """A process to start: its arguments, and variables added to this process's environment."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def commands(
    engine: Engine, ranks: int, folder: Path, cache: Path, huge_pages: bool
) -> list[Command]:
    """The processes of an engine's ranks: one for each, or an mpiexec for all.

    folder: the folder of the pipes. cache: the cache folder of peers' wheels. huge_pages: whether
    large private buffers request them. Raises wheels.UnavailableError without the engine.
    """
    if engine in PYTHON_WORKERS:
        libraries = operators.libraries(engine, cache)
        return [
            _python(engine, rank, ranks, folder, huge_pages, libraries) for rank in range(ranks)
        ]
    mpiexec, worker = mpi.ready(engine, cache)
    start, end = [str(mpiexec), "-n", str(ranks)], [str(worker), str(folder)]
    end += ["huge-pages"] if huge_pages else []
    if engine is Engine.OPEN_MPI:
        options = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        as_root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        return [Command([*start, *options, *end], dict.fromkeys(as_root, "1"))]
    crowded = ranks > cores()
    if engine is Engine.INTEL_MPI:
        variables = {"I_MPI_ROOT": str(mpiexec.parents[1]), "I_MPI_FABRICS": "shm"}
        yields = {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2"} if crowded else {}
        return [Command([*start, *end], variables | yields)]
    if crowded:
        return [Command([*start, *end, "multiple"], {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"})]
    return [Command([*start, *end])]


def _python(
    engine: Engine,
    rank: int,
    ranks: int,
    folder: Path,
    huge_pages: bool,
    libraries: Sequence[Path],
) -> Command:
    module, kind = PYTHON_WORKERS[engine]
    path = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "NUMPY_MADVISE_HUGEPAGE": str(int(huge_pages)),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    words = [sys.executable, "-m", f"cpu_peers.{module}", kind, str(folder), str(rank), str(ranks)]
    return Command([*words, *map(str, libraries)], environment)
