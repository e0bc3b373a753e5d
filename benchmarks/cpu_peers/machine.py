"""Machine: its properties and versions, and the load of other processes during a run."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import common.machine
from common.machine import line_of

PACKAGES = ("sley", "torch", "numpy")
NODES = Path("/sys/devices/system/node")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def facts() -> dict[str, Any]:
    """The machine and the versions; the MPIs' ranks report their own versions."""
    nodes = len(list(NODES.glob("node[0-9]*")))
    numa = {"NUMA nodes": nodes} if nodes > 1 else {}
    return (
        common.machine.facts(PACKAGES)
        | numa
        | {
            "memory": line_of("/proc/meminfo", "MemTotal"),
            "huge pages": HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "unknown",
            "load before": f"{os.getloadavg()[0]:.2f}",
        }
    )


def free_bytes() -> int:
    """The available memory: free, or used for caches that can be dropped."""
    return int(line_of("/proc/meminfo", "MemAvailable").split()[0]) * 1024


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
