"""Machine: the properties of this machine and the versions that times depend on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("sley", "numpy")
_GIT_S = 10.0


def facts(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The processor, its cores, the system, the date, and the versions of Python and packages."""
    found: dict[str, Any] = {
        "processor": line_of("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit_of(tree: Path) -> dict[str, Any]:
    """The commit of a tree, and its files that differ from it; a reason if Git can't tell."""

    def git(*command: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(tree), *command],
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
            capture_output=True,
            text=True,
            timeout=_GIT_S,
        )
        if done.returncode:
            raise OSError(done.stderr.strip())
        return done.stdout.rstrip()

    try:
        commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain")
    except (OSError, subprocess.TimeoutExpired) as problem:
        return {"commit": f"unknown: {problem}"}
    return {"commit": commit, "changed": changed.splitlines()}


def text(found: Mapping[str, Any]) -> str:
    """The facts in one line."""
    return ", ".join(f"{name} {value}" for name, value in found.items())


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def line_of(file: str, key: str) -> str:
    """The value of a key in a file of /proc; "" without the file or the key."""
    path = Path(file)
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
