"""Network: transports that carry messages between hosts."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from sley.communicator.rendezvous.bootstrap import Rendezvous
from sley.communicator.rendezvous.nics import Nic
from sley.communicator.stats import logger
from sley.engine import native
from sley.errors import Place, telling
from sley.errors.calls import N628, N629


class Network(Enum):
    """A transport between hosts. AUTO is the first of `NETWORKS` that every rank has."""

    AUTO = "auto"
    UCX = "ucx"
    TCP = "tcp"


class _Ucx:
    """UCX, with the library of a Python package or of the system. has_kernel: whether the kernel
    alone tells that a host is there, even if its ranks compute."""

    has_kernel = False
    _LIBRARY = "libucp.so.0"
    _PACKAGE = "libucx"

    def find(self) -> str:
        """Describes what this host has. OSError, with the reason, where it has nothing."""
        return f"UCX {self._library()[1]}"

    def open(
        self, fabric: native.Fabric, nics: Sequence[Nic], own: int, timeout_s: float
    ) -> native.NetworkTransport:
        """A transport of `fabric` to other hosts, not yet connected.

        nics: of this host; this rank uses number `own`. Raises OSError.
        """
        names, library = [nic.name for nic in nics], self._library()[0]
        return native.ucx_transport(fabric, names, own, timeout_s, library)

    def _library(self) -> tuple[str, str]:
        """The path of a library that can be loaded, and its version."""
        reasons = []
        for path in self._paths():
            try:
                return path, native.ucx_version(path)
            except OSError as error:
                reason = error.strerror or str(error)
                reasons.append(reason.removesuffix(f": {os.strerror(error.errno or 0)}"))
        raise OSError("; ".join(reasons))

    def _paths(self) -> list[str]:
        spec = importlib.util.find_spec(self._PACKAGE)
        folders = (spec.submodule_search_locations if spec else None) or ()
        packaged = [Path(folder) / "lib" / self._LIBRARY for folder in folders]
        return [*(str(path) for path in packaged if path.exists()), self._LIBRARY]


class _Tcp:
    """TCP over the kernel's sockets."""

    has_kernel = True

    def find(self) -> str:
        """See `_Ucx`."""
        return "TCP"

    def open(
        self, fabric: native.Fabric, nics: Sequence[Nic], own: int, timeout_s: float
    ) -> native.NetworkTransport:
        """See `_Ucx`."""
        addresses = [nic.addresses[0] for nic in nics]
        return native.tcp_transport(fabric, addresses, own, timeout_s)


Wire: TypeAlias = _Ucx | _Tcp
"""A transport between hosts, as a rank finds and opens it."""

NETWORKS: Mapping[Network, Wire] = {Network.UCX: _Ucx(), Network.TCP: _Tcp()}
"""The transports, best first. Another one needs a `Wire` in C++ (native/network) with its binding,
and here a member of `Network`, a class and a row."""


_SILENCE_S = 1.0
"""How long a host may be silent, over TCP, before a communicator that replans takes it as cut off.
The kernel answers for a host, and sends lost data again after 0.2 s and 0.4 s. A mistake costs only
the time of a meeting."""


def connect(
    fabric: native.Fabric,
    rendezvous: Rendezvous,
    network: Network,
    timeout_s: float,
    *,
    within_s: float,
    replans: bool,
) -> native.NetworkTransport | None:
    """Connects a fabric with the ranks of other hosts, and returns the transport; None if there are
    no other hosts. timeout_s: of calls. within_s: how long connecting may take. replans: whether
    the communicator goes on after a cut. Errors: N628, N629, N601."""
    if rendezvous.hosts.count == 1:
        return None
    wire = _agree(rendezvous, network)
    nics = rendezvous.nics
    names = ", ".join(nic.name for nic in nics)
    with telling(rendezvous.refuse), _unreachable(rendezvous, f"to be reachable over {names}"):
        # TCP takes a host as cut off after half of the timeout.
        limit_s = min(timeout_s, 2 * _SILENCE_S) if replans and wire.has_kernel else timeout_s
        transport = wire.open(fabric, nics, nics.index(rendezvous.nic), limit_s)
    addresses_of_all = rendezvous.exchange(transport.address)
    with _unreachable(rendezvous, f"to reach the ranks of other hosts over {rendezvous.nic.name}"):
        transport.connect(addresses_of_all, rendezvous.secret, within_s)
    return transport


@contextmanager
def _unreachable(rendezvous: Rendezvous, expected: str) -> Iterator[None]:
    """Turns errors of the system into N628."""
    try:
        yield
    except OSError as error:
        at = _place(rendezvous)
        raise N628.error(at=at, expected=expected, found=str(error)) from error


def _place(rendezvous: Rendezvous) -> Place:
    return Place(detail=f"{rendezvous.name}, rank {rendezvous.rank}")


def _agree(rendezvous: Rendezvous, network: Network) -> Wire:
    """The first wire that every rank has, of those that `network` allows. Errors: N629."""
    allowed = [candidate for candidate in NETWORKS if network in (Network.AUTO, candidate)]
    words: dict[Network, str] = {}
    reasons: dict[Network, str] = {}
    for candidate in allowed:
        try:
            words[candidate] = NETWORKS[candidate].find()
        except OSError as error:
            reasons[candidate] = str(error)
    own = " ".join(candidate.value for candidate in words)
    names_of_all = [text.decode().split() for text in rendezvous.exchange(own.encode())]
    for candidate in allowed:
        absent = [r for r, names in enumerate(names_of_all) if candidate.value not in names]
        if not absent:
            if rendezvous.rank == 0:
                _log(rendezvous.name, words[candidate], list(reasons.values()))
            return NETWORKS[candidate]
        reasons.setdefault(candidate, f"rank {absent[0]} has no {candidate.name}")
    raise N629.error(
        at=_place(rendezvous),
        expected=f"{network.name} on every rank",
        found="; ".join(reasons.values()),
    )


def _log(name: str, words: str, reasons: Sequence[str]) -> None:
    """Logs the transport; as a warning if a better one is missing."""
    if not reasons:
        logger.info("%s: %s between hosts", name, words)
        return
    why = "; ".join(reasons)
    advice = "install UCX (sley explain N629), or choose with SLEY_NETWORK=tcp"
    logger.warning("%s: %s between hosts: %s; %s", name, words, why, advice)
