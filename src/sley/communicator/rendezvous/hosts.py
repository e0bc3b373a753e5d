"""Hosts: descriptions of ranks, and which ranks share a host."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sley.communicator.rendezvous.nics import NICS_VARIABLE, Nic, choose_nics, interfaces
from sley.ir.tables import by_key

HOST_VARIABLE = "SLEY_HOST_ID"
"""The environment variable that divides the processes of one machine into several hosts."""

_MOST_PIDS = 1 << 22  # proc_sys_kernel(5)
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat after the name; proc_pid_stat(5): 3 and 22


@dataclass(frozen=True)
class Process:
    """A process; others can tell from it whether they share a host with it and whether it lives.

    host: equal for processes that can pass one another descriptors: they share the running kernel
        and the network namespace, to which abstract socket names belong. Contains SLEY_HOST_ID.
    machine: the running kernel (its boot id). namespace: that of process ids.
    host_name: for messages.
    pid, started: its id, and its start in the kernel's clock ticks since boot (0: unknown). No two
        processes have both in common.
    """

    host: str
    machine: str
    host_name: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def here(cls, environ: Mapping[str, str] | None = None) -> Process:
        """This process. environ: replaces its environment."""
        environ = os.environ if environ is None else environ
        machine = _boot_id()
        parts = [machine, _namespace("net"), environ.get(HOST_VARIABLE, "")]
        return cls(
            "/".join(part for part in parts if part),
            machine,
            socket.gethostname(),
            _namespace("pid"),
            os.getpid(),
            int((_stat(os.getpid()) or _NO_STAT)[_STARTED]),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Process:
        """The process of which a message has the fields. Errors: ValueError, TypeError, KeyError or
        OverflowError for anything else."""
        pid = int(value["pid"])
        if not 0 < pid < _MOST_PIDS:  # `is_gone` asks the system for it
            raise ValueError(f"no process: {pid}")
        return cls(
            str(value["host"]),
            str(value["machine"]),
            str(value["host_name"]),
            str(value["namespace"]),
            pid,
            int(value["started"]),
        )

    def is_gone(self) -> bool:
        """Whether it has ended. False for one on another machine or in another namespace of process
        ids, where this process can't tell."""
        if (self.machine, self.namespace) != (_boot_id(), _namespace("pid")) or not self.namespace:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        stat = _stat(self.pid)
        if stat is None:
            return False
        is_another = bool(self.started) and int(stat[_STARTED]) != self.started
        return is_another or stat[_STATE] in "ZX"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host_name}"


@dataclass(frozen=True)
class Description:
    """A rank's description for all others.

    nics: network interfaces on which other hosts can reach it.
    listener: the name of its local socket in the abstract namespace, in hexadecimal digits.
    agreed: settings that must be the same on all ranks. offered: words that may differ.
    user, users: the effective user id (-1: unknown), and the namespace of user ids.
    """

    rank: int
    process: Process
    nics: tuple[Nic, ...]
    listener: str
    agreed: Mapping[str, str]
    offered: Mapping[str, str] = field(default_factory=dict)
    user: int = -1
    users: str = ""

    @classmethod
    def here(
        cls,
        rank: int,
        listener: str,
        agreed: Mapping[str, str],
        environ: Mapping[str, str],
        offered: Mapping[str, str] = MappingProxyType({}),
    ) -> Description:
        """The description of a rank in this process. Errors: N607."""
        nics = choose_nics(interfaces(), environ.get(NICS_VARIABLE, ""))
        return cls(
            rank,
            Process.here(environ),
            nics,
            listener,
            dict(agreed),
            dict(offered),
            os.geteuid(),
            _namespace("user"),
        )

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Description:
        """Reads what `encode` wrote. Errors: as of `Process.from_json`, or RecursionError."""
        plain: Any = json.loads(data)
        nics = tuple(Nic(nic["name"], tuple(nic["addresses"])) for nic in plain["nics"])
        if not nics:
            raise ValueError("no rank without an interface")
        return cls(
            int(plain["rank"]),
            Process.from_json(plain["process"]),
            nics,
            bytes.fromhex(plain["listener"]).hex(),
            dict(plain["agreed"]),
            dict(plain.get("offered", {})),  # absent in older versions
            int(plain.get("user", -1)),
            str(plain.get("users", "")),
        )


@dataclass(frozen=True)
class Hosts:
    """The hosts of the ranks, numbered from 0 in the order of their first ranks.

    host: of each rank, the number of its host.
    members: of each host, its ranks, ascending.
    local: of each rank, its number among the ranks of its host.
    """

    host: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    local: tuple[int, ...]

    @classmethod
    def of(cls, identities: Sequence[str]) -> Hosts:
        """Makes it from the name of each rank's host: equal names are one host."""
        by_name = by_key((identity, rank) for rank, identity in enumerate(identities))
        numbers = {name: number for number, name in enumerate(by_name)}
        members = tuple(tuple(ranks) for ranks in by_name.values())
        host = tuple(numbers[identity] for identity in identities)
        return cls(host, members, tuple(members[h].index(r) for r, h in enumerate(host)))

    def of_host(self, rank: int) -> tuple[int, ...]:
        """All ranks of the host of a rank, ascending."""
        return self.members[self.host[rank]]

    @cached_property
    def count(self) -> int:
        """The number of hosts."""
        return len(self.members)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all hosts have the same number of ranks."""
        return len({len(ranks) for ranks in self.members}) <= 1

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether each host's ranks follow one another without a gap."""
        return all(ranks[-1] - ranks[0] + 1 == len(ranks) for ranks in self.members)

    @cached_property
    def are_subtrees(self) -> bool:
        """Whether each host's ranks are a tree in the balanced one of all ranks (`ir.orders`): as
        many on each, a power of two."""
        return self.is_uniform and self.is_contiguous and len(self.members[0]).bit_count() == 1


_NO_STAT = ["0"] * (_STARTED + 1)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may contain blanks and brackets."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > _STARTED else None


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # in some sandboxes; assume one kernel for each host name there
        return socket.gethostname()


def _namespace(kind: str) -> str:
    """The identity of this process' namespace of a kind, such as "net:[4026531833]"."""
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:
        return ""
