"""Machine: the machine of a communicator, as policies name the one where they were trained."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from sley.communicator.rendezvous.hosts import Hosts
from sley.errors import Place
from sley.errors.policy import D903
from sley.ir.plan_table import Machine

_DIGITS = 16


def machine_here(hosts: Hosts, at: Place = Place()) -> Machine:
    """The machine of ranks on these hosts, whose processors are like this one's. Errors: D903 for
    hosts with different numbers of ranks, or with ranks that don't follow one another."""
    if not (hosts.is_uniform and hosts.is_contiguous):
        raise D903.error(
            at=at,
            expected="hosts with equal numbers of ranks, numbered host by host",
            found=f"hosts with the ranks {', '.join(map(str, hosts.members))}",
        )
    nodes, gpus = hosts.count, len(hosts.members[0])
    words = f"{processor()} / {nodes} x {gpus}"
    fingerprint = hashlib.sha256(words.encode()).hexdigest()[:_DIGITS]
    return Machine("cpu", processor(), fingerprint, nodes, gpus)


@cache
def processor() -> str:
    """The model of this host's processors and their number."""
    found = None
    with suppress(OSError):  # another system than Linux
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        found = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
    model = found[1].strip() if found else platform.machine()
    return f"{model}, {os.cpu_count()} cores"
