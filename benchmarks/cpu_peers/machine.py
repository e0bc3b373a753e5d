"""Machine: its properties and versions, and the load of other processes during a run."""

from __future__ import annotations

import os
import platform
import resource
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from cpu_peers.launch import cores

PACKAGES = ("sley", "torch", "numpy")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def facts() -> dict[str, Any]:
    """The machine and the versions; the MPIs' ranks report their own versions."""
    found: dict[str, Any] = {
        "processor": _line_of("/proc/cpuinfo", "model name"),
        "cores": cores(),
        "memory": _line_of("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "huge pages": HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "unknown",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _line_of(file: str, key: str) -> str:
    for line in Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def free_bytes() -> int:
    """The available memory: free, or used for caches that can be dropped."""
    return int(_line_of("/proc/meminfo", "MemAvailable").split()[0]) * 1024


class Quietness:
    """The machine's use by other processes since this object was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic(), _busy_s(), _own_s()

    def others(self) -> float:
        """The share of all cores' time used by processes other than this run's; only processes of
        this run that have ended count as its own."""
        wall, busy, own = self._begin
        passed = (time.monotonic() - wall) * (os.cpu_count() or 1)
        return max(0.0, (_busy_s() - busy) - (_own_s() - own)) / passed


def _busy_s() -> float:
    """Total busy seconds of all cores, without steal time and waits for disks."""
    user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)
