"""Two simulated hosts: network namespaces joined by cables that can be cut."""

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
    """Cables: two namespaces with the interfaces eth0, eth1 and so on; of cable k the addresses
    10.88.k.1 and 10.88.k.2.

    nics: the number of cables. ranks: of both hosts together.
    """

    def __init__(self, nics: int, ranks: int) -> None:
        self.names = [f"sley-{os.getpid()}-{end}" for end in "ab"]
        self.nics, self._ranks = [f"eth{k}" for k in range(nics)], ranks

    def cut(self, number: int = 0) -> None:
        """Cuts a cable without notifying either end."""
        _ip("-n", self.names[0], "link", "set", self.nics[number], "down")

    def lose(self, number: int = 0) -> None:
        """Takes the address of an interface away, which the other end doesn't see."""
        name, nic = self.names[0], self.nics[number]
        _ip("-n", name, "address", "delete", f"10.88.{number}.1/24", "dev", nic)

    def mend(self, number: int = 0) -> None:
        """Undoes `cut`, and waits until the interfaces are up."""
        _ip("-n", self.names[0], "link", "set", self.nics[number], "up")
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Waits for the links, which the kernel reports late."""
        for name in self.names:
            for nic in self.nics:
                while "state UP" not in _ip("-n", name, "link", "show", nic):
                    time.sleep(0.05)

    def environ(self, rank: int) -> dict[str, str]:
        """The environment of a rank, whose host is one of the two."""
        return {"SLEY_NICS": ",".join(self.nics), "SLEY_HOST_ID": self._host(rank)}

    def _host(self, rank: int) -> str:
        return self.names[rank * len(self.names) // self._ranks]

    def enter(self, rank: int) -> None:
        """Moves this process to a rank's host, as `ip netns exec` does; it mounts /sys again,
        because /sys shows the network of the process that mounted it."""
        c = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{self._host(rank)}").open() as namespace:
            _succeed(c.setns(namespace.fileno(), CLONE_NEWNET))
        _succeed(c.unshare(CLONE_NEWNS))
        _succeed(c.mount(b"", b"/", b"none", MS_SLAVE | MS_REC, None))
        _succeed(c.umount2(b"/sys", MNT_DETACH))
        _succeed(c.mount(b"sysfs", b"/sys", b"sysfs", 0, None))


@contextmanager
def cable(nics: int = 1, ranks: int = 2) -> Iterator[Cable]:
    """Two hosts, removed at the end."""
    made = Cable(nics, ranks)
    here, there = made.names
    try:
        for name in made.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for k, nic in enumerate(made.nics):
            _ip("-n", here, "link", "add", nic, "type", "veth", "peer", nic, "netns", there)
            for number, name in enumerate(made.names, 1):
                _ip("-n", name, "address", "add", f"10.88.{k}.{number}/24", "dev", nic)
                _ip("-n", name, "link", "set", nic, "up")
        made.wait_until_up()
        yield made
    finally:
        for name in made.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _succeed(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
