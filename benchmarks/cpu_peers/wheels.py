"""Wheels: peers installed from their wheels, each in a separate environment of a cache folder.

Peers' wheels overwrite each other's files, so they can't share an environment. Missing environments
are made.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DONE = "installed"
"""The file that marks a complete environment."""


class UnavailableError(Exception):
    """An engine is not available on this machine; the message gives the reason."""


def default_cache() -> Path:
    """The user's cache folder for this benchmark."""
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "sley" / "cpu-peers"


def environment(requirements: Sequence[str], cache: Path) -> Path:
    """The environment with these wheels, and without what they depend on: a package depends on far
    more than its collectives do. Raises UnavailableError."""
    folder = cache.resolve() / "+".join(requirements).replace("==", "-")
    if not (folder / DONE).exists():
        print(f"installing {', '.join(requirements)} into {folder}", file=sys.stderr)
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "--no-deps", *requirements])
        (folder / DONE).touch()
    return folder


def packages(folder: Path) -> Path:
    """The folder of an environment's Python packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def compiled(source: Path, headers: Sequence[Path], command: Sequence[str], folder: Path) -> Path:
    """The program that a compiler makes of a source file; kept in a folder, by the command and the
    contents of the file and of its headers. Raises UnavailableError."""
    contents = b"".join(file.read_bytes() for file in (source, *headers))
    digest = hashlib.sha256(contents + " ".join(command).encode()).hexdigest()[:16]
    program = folder / f"{source.stem}-{digest}"
    if not program.exists():
        made = program.with_suffix(f".{os.getpid()}")
        run([command[0], str(source), *command[1:], "-o", str(made)])
        made.replace(program)
    return program


def compiler() -> str:
    """The C++ compiler. Raises UnavailableError without one."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise UnavailableError("no C++ compiler")


def run(command: Sequence[str], **environment: str) -> None:
    """Runs a command, with variables added to the environment. Raises UnavailableError if it
    fails."""
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
    except OSError as error:
        raise UnavailableError(f"{command[0]}: {error}") from None
    except subprocess.CalledProcessError as error:
        last = " ".join((error.stderr or error.stdout).split())[-300:]
        raise UnavailableError(
            f"{' '.join(command)} ended with {error.returncode}: {last}"
        ) from None
