"""Two simulated hosts: network namespaces joined by a cable that can be cut."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
MS_SLAVE, MS_REC, MNT_DETACH = 1 << 19, 1 << 14, 2


def is_possible() -> bool:
    """Whether this process may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


class Cable:
    """A cable: two namespaces with the interface eth0, 10.88.0.1 and 10.88.0.2."""

    def __init__(self) -> None:
        self.names = [f"sley-{os.getpid()}-{end}" for end in "ab"]

    def cut(self) -> None:
        """Cuts the cable without notifying either end."""
        _ip("-n", self.names[0], "link", "set", "eth0", "down")

    def environ(self, rank: int) -> dict[str, str]:
        """The environment of a rank, whose host is one of the two."""
        return {"SLEY_NICS": "eth0", "SLEY_HOST_ID": self.names[rank]}

    def enter(self, rank: int) -> None:
        """Moves this process to a rank's host, as `ip netns exec` does; it mounts /sys again,
        because /sys shows the network of the process that mounted it."""
        c = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{self.names[rank]}").open() as namespace:
            _succeed(c.setns(namespace.fileno(), CLONE_NEWNET))
        _succeed(c.unshare(CLONE_NEWNS))
        _succeed(c.mount(b"", b"/", b"none", MS_SLAVE | MS_REC, None))
        _succeed(c.umount2(b"/sys", MNT_DETACH))
        _succeed(c.mount(b"sysfs", b"/sys", b"sysfs", 0, None))


@contextmanager
def cable() -> Iterator[Cable]:
    """Two hosts, removed at the end."""
    made = Cable()
    here, there = made.names
    try:
        for name in made.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", here, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", there)
        for number, name in enumerate(made.names, 1):
            _ip("-n", name, "address", "add", f"10.88.0.{number}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        for name in made.names:  # the kernel reports the link late
            while "state UP" not in _ip("-n", name, "link", "show", "eth0"):
                time.sleep(0.05)
        yield made
    finally:
        for name in made.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _succeed(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
