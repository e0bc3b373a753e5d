"""NICs: network interfaces of this host, and which of them carry messages between hosts."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address

from sley.errors.communicator import N607

NICS_VARIABLE = "SLEY_NICS"
"""The environment variable that chooses interfaces: names, or ^ and the names to leave out."""

_VIRTUAL = ("docker", "br-", "virbr", "veth", "cni", "flannel", "cali")
"""Beginnings of names of interfaces that container engines and hypervisors make for their guests.
They don't reach other hosts."""

_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # <linux/if.h>: IFF_UP, IFF_LOOPBACK, IFF_RUNNING


@dataclass(frozen=True)
class Nic:
    """A network interface. addresses: numeric, IPv4 before IPv6, without link-local ones."""

    name: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Interface:
    """A Nic that is up, and whether it reaches this host only."""

    nic: Nic
    is_loopback: bool


def interfaces() -> list[Interface]:
    """The interfaces of this network namespace that are up and have an address, in the kernel's
    order. Errors: N607."""
    flags: dict[str, int] = {}
    found: dict[str, list[IPv4Address | IPv6Address]] = {}
    for name, bits, address in _addresses():
        if bits & _UP and bits & _RUNNING and not (address.version == 6 and address.is_link_local):
            flags[name] = bits
            found.setdefault(name, []).append(address)
    return [
        Interface(
            Nic(name, tuple(str(a) for a in sorted(addresses, key=lambda a: a.version))),
            bool(flags[name] & _LOOPBACK),
        )
        for name, addresses in found.items()
    ]


def choose_nics(found: Sequence[Interface], wanted: str = "") -> tuple[Nic, ...]:
    """The interfaces that carry messages between hosts, at least one.

    wanted: the value of SLEY_NICS: names with * as wildcard, separated by commas, in the order in
        which ranks are bound to them; after ^, names to leave out. Empty: all interfaces but
        loopback and those of container engines, unless that leaves none.
    Errors: N607 if nothing is left.
    """
    names = [name.strip() for name in wanted.strip().removeprefix("^").split(",") if name.strip()]
    if names and not wanted.strip().startswith("^"):
        nics = [i.nic for name in names for i in found if fnmatchcase(i.nic.name, name)]
    else:
        left = [i for i in found if not any(fnmatchcase(i.nic.name, n) for n in names)]
        outward = [i for i in left if not i.is_loopback]
        physical = [i for i in outward if not i.nic.name.startswith(_VIRTUAL)]
        nics = [i.nic for i in physical or outward or left]
    if not nics:
        there = ", ".join(i.nic.name for i in found) or "none"
        what = f"{NICS_VARIABLE}={wanted}" if wanted else "no choice"
        raise N607.error(
            expected="a network interface that is up and has an address",
            found=f"{what}, and the interfaces: {there}",
        )
    return tuple(dict.fromkeys(nics))


class _Ifaddrs(ctypes.Structure):
    """The fields of `struct ifaddrs` of getifaddrs(3) that are read."""


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def _addresses() -> Iterator[tuple[str, int, IPv4Address | IPv6Address]]:
    """Name, flags and address, for each address of each interface. Errors: N607."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        found = os.strerror(ctypes.get_errno())
        raise N607.error(expected="the network interfaces of this host", found=found)
    try:
        entry = head
        while entry:
            one = entry.contents
            address = _ip_address(one.address)
            if address is not None:
                yield one.name.decode(errors="replace"), one.flags, address
            entry = one.next
    finally:
        libc.freeifaddrs(head)


def _ip_address(sockaddr: int | None) -> IPv4Address | IPv6Address | None:
    """The address in a sockaddr_in or sockaddr_in6; None for other families."""
    if not sockaddr:
        return None
    family = ctypes.c_ushort.from_address(sockaddr).value
    if family == socket.AF_INET:  # after family and port
        return IPv4Address(ctypes.string_at(sockaddr + 4, 4))
    if family == socket.AF_INET6:  # after family, port and flow label
        return IPv6Address(ctypes.string_at(sockaddr + 8, 16))
    return None
