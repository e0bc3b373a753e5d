"""Launch: starts the ranks of each engine, so that none has a disadvantage.

With more ranks than cores the way of waiting matters: an engine that spins takes the core from the
rank for which it waits. So Open MPI always has the option to yield, and the others have theirs if
there are more ranks than cores, else their defaults: MPICH MPI_THREAD_MULTIPLE and heavy yields,
Intel MPI I_MPI_THREAD_YIELD=2 without pinned ranks, oneCCL, which runs over Intel MPI, also
CCL_YIELD=sched_yield. The operators of vLLM and DeepSpeed spin, and have no option. Intel MPI uses
shared memory only, gloo the loopback interface. Python's ranks have one thread for arithmetic each,
as torchrun starts them.

The ranks of all engines share a session, as those of an mpiexec do: Linux may schedule each session
as a group (autogroup), and a rank that yields doesn't pass its core to one of another session.
torchrun starts a session for each rank (docs/communicator.md says what that costs).
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
    Engine.SLEY_OPERATORS: ("operator_worker", "sley"),
    Engine.VLLM: ("operator_worker", "vllm"),
    Engine.DEEPSPEED: ("operator_worker", "deepspeed"),
    Engine.FAKE: ("torch_worker", "fake"),
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
        library = operators.library(engine, cache)
        return [_python(engine, rank, ranks, folder, huge_pages, library) for rank in range(ranks)]
    program = mpi.ready(engine, cache)
    start, end = [str(program.mpiexec), "-n", str(ranks)], [str(program.worker), str(folder)]
    end += ["huge-pages"] if huge_pages else []
    crowded = ranks > cores()
    if engine is Engine.OPEN_MPI:
        options = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        as_root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        return [Command([*start, *options, *end], dict.fromkeys(as_root, "1"))]
    if engine is Engine.MPICH:
        heavy = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if crowded else {}
        return [Command([*start, *end, *(["multiple"] if crowded else [])], heavy)]
    yields = {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2", "CCL_YIELD": "sched_yield"}
    return [Command([*start, *end], program.variables | (yields if crowded else {}))]


def _python(
    engine: Engine,
    rank: int,
    ranks: int,
    folder: Path,
    huge_pages: bool,
    library: Sequence[Path],
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
    return Command([*words, *map(str, library)], environment)
